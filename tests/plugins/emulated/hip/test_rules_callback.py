# SPDX-License-Identifier: Apache-2.0
"""Functions of the program that are work of a stream."""

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import Options

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.hip_actor import REAL
else:
    from hip_actor import REAL

pytestmark = pytest.mark.skipif(bool(REAL), reason="CuPy calls back with the GIL alone")

WAIT_S = 20 * SLOWNESS
NBYTES = 4096


def runtime(host: Path, profile: str, *, slow: bool = False) -> Any:
    return Runtime(profile, options=Options(state=host, slow_streams=slow))


def elsewhere(function: Callable[[], object]) -> object:
    """Return what a function returns on another thread."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert found, "the other thread is still waiting"
    return found[0]


@pytest.mark.parametrize("slow", [False, True])
def test_e25_a_function_has_a_thread_of_its_own(host: Path, profile: str, slow: bool) -> None:
    rt = runtime(host, profile, slow=slow)
    memory = rt.malloc(NBYTES)
    stream, other = (rt.streamCreateWithFlags(1) for _ in range(2))
    entered, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    def function(argument: int) -> None:
        seen.extend([argument, threading.get_ident()])
        entered.set()
        assert may_end.wait(WAIT_S)

    rt.launchHostFunc(stream, function, 7)
    rt.memsetAsync(memory, 9, NBYTES, stream)
    waiting = threading.Thread(target=rt.streamSynchronize, args=(stream,), daemon=True)
    waiting.start()

    assert entered.wait(WAIT_S)
    assert seen[0] == 7
    assert seen[1] not in {threading.get_ident(), waiting.ident}
    # Everybody else goes on, and what is behind the function waits.
    assert elsewhere(lambda: rt.streamQuery(stream)) == 600
    assert elsewhere(lambda: rt.streamSynchronize(other)) is None
    assert waiting.is_alive()
    may_end.set()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert rt.streamQuery(stream) == 0


def test_e25_functions_are_called_in_order(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    stream, other = (rt.streamCreateWithFlags(1) for _ in range(2))
    event = rt.eventCreateWithFlags(2)
    first = threading.Event()
    seen: list[int] = []

    rt.launchHostFunc(stream, lambda _argument: first.wait(WAIT_S), 0)
    for number in range(8):
        rt.streamAddCallback(stream, lambda *given: seen.append(given[2]), number)
    rt.eventRecord(event, stream)
    rt.streamWaitEvent(other, event)
    rt.launchHostFunc(other, seen.append, 8)
    assert (rt.streamQuery(other), rt.eventQuery(event), seen) == (600, 600, [])
    first.set()
    rt.streamSynchronize(other)

    assert seen == list(range(9))


def test_e25_freeing_waits_and_looks_again(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    memory, stream = rt.malloc(NBYTES), rt.streamCreate()
    may_end = threading.Event()
    rt.launchHostFunc(stream, lambda _argument: may_end.wait(WAIT_S), 0)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(rt.call("free", memory)[0]), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join(WAIT_S)

    # Both have waited for the same memory, and one of them has freed it.
    assert sorted(codes) == [0, 1]


@pytest.mark.parametrize("slow", [False, True])
def test_e25_freeing_in_a_stream_waits_for_no_function(
    host: Path, profile: str, slow: bool
) -> None:
    rt = runtime(host, profile, slow=slow)
    streams = [rt.streamCreateWithFlags(1) for _ in range(2)]
    free, _ = rt.memGetInfo()
    _, memory = rt.call("mallocAsync", NBYTES, streams[0])
    may_end = threading.Event()
    rt.launchHostFunc(streams[0], lambda _argument: may_end.wait(WAIT_S), 0)
    rt.memsetAsync(memory, 9, NBYTES, streams[0])

    assert elsewhere(lambda: rt.call("freeAsync", memory, streams[0])[0]) == 0
    assert rt.memGetInfo()[0] < free
    # It is nobody's to free again, also before the stream has come to it.
    assert [rt.call("freeAsync", memory, one)[0] for one in streams] == [1, 1]
    assert elsewhere(lambda: rt.call("free", memory)[0]) == 1
    may_end.set()
    rt.streamSynchronize(streams[0])
    assert rt.memGetInfo()[0] == free
    assert [one.rule for one in rt.violations] == ["HIP-X4"] * 3


def test_e25_what_was_imported_is_freed_in_its_stream(host: Path, profile: str) -> None:
    rt = runtime(host, profile, slow=True)
    stream, may_end = rt.streamCreateWithFlags(1), threading.Event()
    pool = rt.call("memPoolCreate", rt.MemPoolProps(1, 1, 1, 0))[1]
    memory = rt.call("mallocFromPoolAsync", NBYTES, pool, 0)[1]
    descriptor = rt.call("memPoolExportToShareableHandle", pool, 1, 0)[1]
    imported = rt.call("memPoolImportFromShareableHandle", descriptor, 1, 0)[1]
    os.close(descriptor)
    data = rt.call("memPoolExportPointer", memory)[1]
    pointer, again = (rt.call("memPoolImportPointer", imported, data)[1] for _ in range(2))
    assert pointer == again
    rt.launchHostFunc(stream, lambda _argument: may_end.wait(WAIT_S), 0)

    for _ in range(2):
        assert elsewhere(lambda: rt.call("freeAsync", pointer, stream)[0]) == 0
    may_end.set()
    for thread in threading.enumerate():
        if thread.name == "crossmem-callback":
            thread.join(WAIT_S)
    # The device does its work before it frees, and then there is nothing left to free.
    assert rt.call("free", pointer)[0] == 1
    assert rt.call("free", memory)[0] == 0
    assert [one.rule for one in rt.violations] == ["HIP-X4"]


def test_e25_recording_waits_for_no_function(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    stream, event = rt.streamCreate(), rt.eventCreateWithFlags(6)
    may_end = threading.Event()
    rt.launchHostFunc(stream, lambda _argument: may_end.wait(WAIT_S), 0)

    assert elsewhere(lambda: rt.eventRecord(event, stream)) is None
    assert rt.eventQuery(event) == 600
    may_end.set()
    rt.eventSynchronize(event)
    assert rt.eventQuery(event) == 0


def test_e25_a_function_calls_nothing(host: Path, profile: str) -> None:
    rt = runtime(host, profile)
    stream = rt.streamCreate()
    codes: list[int] = []

    def function(_argument: int) -> None:
        codes.extend(rt.call(name)[0] for name in ("getDevice", "deviceSynchronize"))

    rt.launchHostFunc(stream, function, 0)
    rt.streamSynchronize(stream)

    assert codes == ([800, 800] if profile == "cuda" else [0, 999])
    assert {one.rule for one in rt.violations} == {"HIP-E25"}


def test_e25_what_a_function_raises_stays_with_it(
    host: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = runtime(host, profile)
    stream = rt.streamCreate()
    told = queue.SimpleQueue[Any]()
    monkeypatch.setattr(threading, "excepthook", told.put)

    rt.launchHostFunc(stream, lambda _argument: 1 // 0, 0)
    rt.streamSynchronize(stream)

    assert rt.streamQuery(stream) == 0
    # The stream has gone on before the thread ends, which tells then.
    assert told.get(timeout=WAIT_S).exc_type is ZeroDivisionError
    assert told.empty()
