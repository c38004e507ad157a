# SPDX-License-Identifier: Apache-2.0
"""HIP-E26: values that streams write to memory, and values in memory for which streams wait."""

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import Options

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import ALL, AMD, BLOCK, REAL, on
else:
    from hip_actor import ALL, AMD, BLOCK, REAL, on

    Start = Any

pytestmark = pytest.mark.skipif(bool(REAL), reason="CuPy lacks these functions")

WAIT_S = 20 * SLOWNESS
NBYTES = 4096
AT_LEAST, EQUAL, ANY_BIT, NOT_ALL_BITS = range(4)
ALL_BITS = (1 << 64) - 1


def runtime(host: Path, profile: str, *, slow: bool = False) -> Any:
    options = Options(state=host, slow_streams=slow)
    return Runtime(profile, options=options, is_cupy=False)


class Words:
    """Host memory that devices may use, as words of 64 bits."""

    def __init__(self, rt: Any) -> None:
        self.memory = mmap.mmap(-1, NBYTES)
        self.values = (ctypes.c_uint64 * (NBYTES // 8)).from_buffer(self.memory)
        self.host_address = ctypes.addressof(self.values)
        rt.hostRegister(self.host_address, NBYTES, 2)
        self.address: int = rt.hostGetDevicePointer(self.host_address, 0)


def soon(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)
    return is_so()


def is_ready(rt: Any, stream: int) -> bool:
    return bool(rt.streamQuery(stream) == 0)


@pytest.fixture(params=[False, True], ids=["quick", "slow"])
def slow(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def word_file(tmp_path: Path) -> str:
    """Return the path of a file that processes map."""
    path = tmp_path / "words"
    path.write_bytes(bytes(NBYTES))
    return str(path)


@on(*ALL)
def test_e26_a_wait_holds_back_its_own_stream_alone(host: Path, profile: str, slow: bool) -> None:
    rt = runtime(host, profile, slow=slow)
    words, memory = Words(rt), rt.hostAlloc(NBYTES, 0)
    stream, other = (rt.streamCreateWithFlags(1) for _ in range(2))
    rt.streamWaitValue64(stream, words.address, 5, AT_LEAST)
    rt.memsetAsync(memory, 9, NBYTES, stream)
    rt.memsetAsync(memory + NBYTES - 1, 7, 1, other)
    rt.streamSynchronize(other)

    assert rt.streamQuery(stream) == 600
    assert ctypes.string_at(memory, 1) == b"\0"
    words.values[0] = 4
    assert rt.streamQuery(stream) == 600
    words.values[0] = 5
    rt.streamSynchronize(stream)
    assert ctypes.string_at(memory, NBYTES) == b"\x09" * NBYTES
    assert rt.violations == []


@on(*ALL)
def test_e26_a_value_is_written_after_earlier_work(host: Path, profile: str, slow: bool) -> None:
    rt = runtime(host, profile, slow=slow)
    words, memory = Words(rt), rt.hostAlloc(NBYTES, 0)
    stream = rt.streamCreateWithFlags(1)
    rt.streamWaitValue64(stream, words.address, 1, EQUAL)
    rt.memsetAsync(memory, 9, NBYTES, stream)
    rt.streamWriteValue64(stream, words.address + 8, ALL_BITS, 0)
    rt.streamWriteValue32(stream, words.address + 20, 7, 0)
    time.sleep(0.1)

    assert list(words.values[:3]) == [0, 0, 0]
    words.values[0] = 1
    assert soon(lambda: words.values[2] != 0)
    assert list(words.values[:3]) == [1, ALL_BITS, 7 << 32]
    assert ctypes.string_at(memory, NBYTES) == b"\x09" * NBYTES


@on("documented", "cuda")
def test_e26_a_slow_stream_writes_by_itself(host: Path, profile: str) -> None:
    rt = runtime(host, profile, slow=True)
    words, memory = Words(rt), rt.hostAlloc(NBYTES, 0)
    rt.memsetAsync(memory, 9, NBYTES, 0)
    rt.streamWriteValue64(0, words.address, 1, 0)

    # Not at once, so that the fault of a program that does not wait is seen.
    assert words.values[0] == ctypes.string_at(memory, 1)[0] == 0
    assert soon(lambda: words.values[0] == 1)
    assert ctypes.string_at(memory, 1) == b"\x09"


@on("documented", "cuda")
@pytest.mark.parametrize("other_slow", [0, 1])
def test_e26_two_processes(start: Start, slow: bool, other_slow: int, word_file: str) -> None:
    writer = start(CROSSMEM_EMULATED_SLOW_STREAMS=other_slow)
    reader = start(CROSSMEM_EMULATED_SLOW_STREAMS=int(slow))
    theirs, ours = (one.call("map_words", word_file, NBYTES) for one in (writer, reader))
    pointer, handle = writer.export(bytes(BLOCK))
    opened = reader.open(handle)
    target = reader.rt.hostAlloc(BLOCK, 0)
    stream = reader.rt.streamCreateWithFlags(1)
    reader.c.streamWaitValue64(stream, ours, 3, AT_LEAST)
    reader.rt.memcpyAsync(target, opened, BLOCK, 4, stream)

    assert reader.rt.streamQuery(stream) == 600
    writer.rt.memsetAsync(pointer, 9, BLOCK, 0)
    writer.c.streamWriteValue64(0, theirs, 3, 0)
    reader.rt.streamSynchronize(stream)
    assert reader.call("peek", target, BLOCK) == b"\x09" * BLOCK
    # A store of the host does as well.
    reader.c.streamWaitValue64(stream, ours, 4, AT_LEAST)
    assert reader.rt.streamQuery(stream) == 600
    reader.begin("rt.streamSynchronize", stream)
    writer.call("poke", theirs, (4).to_bytes(8, "little"))
    assert reader.result() is None
    reader.check_broken()


Case = tuple[int, int, int, bool]

# Condition, word, value, and whether the word satisfies it.
CASES: list[Case] = [
    (AT_LEAST, 5, 5, True),
    (AT_LEAST, 4, 5, False),
    (AT_LEAST, 1 << 31, 5, True),
    (EQUAL, 5, 5, True),
    (EQUAL, 6, 5, False),
    (ANY_BIT, 6, 12, True),
    (ANY_BIT, 3, 12, False),
    (NOT_ALL_BITS, ALL_BITS ^ 6, 2, True),
    (NOT_ALL_BITS, ALL_BITS ^ 6, 6, False),
]


def is_satisfied(
    rt: Any, word: int, condition: tuple[int, int], *mask: int, bits: int = 64
) -> bool:
    """Whether a stream that waits for a value goes on."""
    words, stream = Words(rt), rt.streamCreateWithFlags(1)
    words.values[0] = word
    wait = getattr(rt, f"streamWaitValue{bits}")
    flags, value = condition
    wait(stream, words.address, value, flags, *mask)
    time.sleep(0.01)
    is_over = is_ready(rt, stream)
    # Whatever it waits for: no bits, all bits, or the value.
    for end in (0, value):
        words.values[0] = end
        time.sleep(0.01)
    rt.streamSynchronize(stream)
    rt.hostUnregister(words.host_address)
    return is_over


@pytest.mark.parametrize(("flags", "word", "value", "expected"), CASES)
def test_e26_conditions(
    host: Path, profile: str, flags: int, word: int, value: int, expected: bool
) -> None:
    rt = runtime(host, profile)

    assert is_satisfied(rt, word, (flags, value)) is expected


def test_e26_words_of_32_bits(host: Path, profile: str) -> None:
    rt = runtime(host, profile)

    # The word beside it does not count.
    assert not is_satisfied(rt, 9 << 32, (AT_LEAST, 5), bits=32)
    assert is_satisfied(rt, 5 | 1 << 63, (EQUAL, 5), bits=32)


@on("cuda")
def test_e26_nvidias_comparison_is_cyclic(host: Path, profile: str) -> None:
    rt = runtime(host, profile)

    assert is_satisfied(rt, 2, (AT_LEAST, ALL_BITS))
    assert not is_satisfied(rt, ALL_BITS, (AT_LEAST, 2))
    # The largest value that is at least every smaller one.
    assert is_satisfied(rt, (1 << 63) - 1, (AT_LEAST, 1))
    assert not is_satisfied(rt, 1 << 31, (AT_LEAST, 0), bits=32)


@on(*AMD)
def test_e26_amds_comparison_has_a_mask(host: Path, profile: str) -> None:
    rt = runtime(host, profile)

    assert is_satisfied(rt, ALL_BITS, (AT_LEAST, 2))
    assert not is_satisfied(rt, 0xF3, (AT_LEAST, 4), 0x0F)
    assert is_satisfied(rt, 0xF3, (EQUAL, 3), 0x0F)
    assert not is_satisfied(rt, 0xF0, (ANY_BIT, 0xF3), 0x0F)
    assert not is_satisfied(rt, 0x0F, (NOT_ALL_BITS, 0), 0x0F)


@on(*ALL)
def test_e26_memory_that_devices_use(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    words = Words(rt)
    places = [rt.malloc(NBYTES), rt.malloc(BLOCK), rt.hostAlloc(NBYTES, 0), words.address]
    stream = rt.streamCreateWithFlags(1)
    for place in places:
        last = place + NBYTES - 8
        rt.streamWriteValue64(stream, last, 7, 0)
        rt.streamWaitValue64(stream, last, 7, EQUAL)

        assert is_ready(rt, stream)
    assert rt.violations == []


def test_e26_words_that_no_stream_uses(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    words, own = Words(rt), (ctypes.c_uint64 * 1)()
    freed = rt.malloc(BLOCK)
    rt.free(freed)
    end = words.address + NBYTES
    wrong = [0, words.address + 4, end, ctypes.addressof(own), freed]
    calls = [("streamWriteValue64", one, 1, 0) for one in wrong]
    calls += [("streamWaitValue64", one, 1, EQUAL) for one in wrong]
    calls += [("streamWriteValue32", words.address + 2, 1, 0)]

    assert [rt.call(name, 0, *rest)[0] for name, *rest in calls] == [1] * len(calls)
    assert {one.rule for one in rt.violations} == {"HIP-E26", "HIP-X4"}
    assert rt.call("streamWriteValue64", 4096, words.address, 1, 0)[0] == 400


@on("documented", "cuda")
def test_e26_managed_memory(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    managed = rt.mallocManaged(NBYTES, 1)

    code = 1 if profile == "cuda" else 0
    assert rt.call("streamWriteValue64", 0, managed, 1, 0)[0] == code
    assert rt.call("streamWaitValue64", 0, managed, 1, EQUAL)[0] == code


@pytest.mark.parametrize(
    ("profile", "codes"),
    [("documented", [0, 0, 1, 1]), ("clr26", [1, 1, 1, 1]), ("cuda", [0, 1, 1, 801])],
    indirect=["profile"],
)
def test_e26_flags(host: Path, profile: str, codes: list[int]) -> None:
    rt = runtime(host, profile)
    words = Words(rt)
    writes = [rt.call("streamWriteValue64", 0, words.address, 1, one)[0] for one in (1, 2)]
    waits = [rt.call("streamWaitValue64", 0, words.address, 0, one)[0] for one in (4, 1 << 30)]

    assert writes + waits == codes


@on("documented", "cuda")
def test_e26_devices_say_that_they_can(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    attributes = {122: 1, 123: 1, 98: 0} if profile == "cuda" else {10013: 1}

    assert {one: rt.deviceGetAttribute(one, 0) for one in attributes} == attributes
    assert rt.call("deviceGetAttribute", 92, 0)[0] == 1


def test_e26_a_stream_that_waits_is_destroyed(host: Path, profile: str, slow: bool) -> None:
    rt = runtime(host, profile, slow=slow)
    words, stream = Words(rt), rt.streamCreate()
    rt.streamWaitValue64(stream, words.address, 1, EQUAL)
    rt.streamWriteValue64(stream, words.address + 8, 2, 0)
    began = time.monotonic()
    rt.streamDestroy(stream)

    # It does the rest of its work when the value comes, and waits of the device include it.
    assert time.monotonic() - began < WAIT_S / 2
    assert rt.call("streamQuery", stream)[0] == 400
    words.values[0] = 1
    rt.deviceSynchronize()
    assert words.values[1] == 2
    rt.hostUnregister(words.host_address)


def test_e26_memory_that_a_stream_waits_for_stays(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    words, stream = Words(rt), rt.streamCreate()
    rt.streamWaitValue64(stream, words.address, 1, EQUAL)

    def store() -> None:
        time.sleep(0.05)
        words.values[0] = 1

    began = time.monotonic()
    thread = threading.Thread(target=store)
    thread.start()
    rt.hostUnregister(words.host_address)
    assert time.monotonic() - began >= 0.05
    thread.join()
    assert rt.call("streamWaitValue64", stream, words.address, 1, EQUAL)[0] == 1


def test_e26_a_value_that_never_comes_does_not_keep_a_process(
    start: Start, word_file: str, slow: bool
) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=int(slow))
    word = actor.call("map_words", word_file, NBYTES)
    stream = actor.rt.streamCreate()
    actor.c.streamWaitValue64(stream, word, 1, EQUAL)
    actor.c.streamWriteValue64(stream, word, 2, 0)
    actor.leave()

    assert Path(word_file).read_bytes() == bytes(NBYTES)


@on("documented", "cuda")
def test_e26_captured_values_are_not_written(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    words, stream = Words(rt), rt.streamCreateWithFlags(1)
    rt.streamBeginCapture(stream, 2)
    rt.streamWriteValue64(stream, words.address, 1, 0)
    rt.streamWaitValue64(stream, words.address, 9, EQUAL)
    rt.graphDestroy(rt.streamEndCapture(stream))

    assert is_ready(rt, stream)
    assert words.values[0] == 0
