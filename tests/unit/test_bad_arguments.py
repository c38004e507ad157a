# SPDX-License-Identifier: Apache-2.0
"""Arguments of the wrong kind end in a CrossmemError before any driver call (law C16)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import crossmem
from crossmem.driver import TracingDriver
from crossmem.sharing.base.process import current

NBYTES = 4096

released = memoryview(bytearray(8))
released.release()


class Liar:
    """Says that it is an integer, and is none."""

    def __index__(self) -> int:
        raise TypeError("no")


def _cases(values: Sequence[Any]) -> list[Any]:
    """Name the cases without an address: every worker has to find the same tests."""
    kinds = [value if isinstance(value, type) else type(value) for value in values]
    names = [f"{number}-{kind.__name__}" for number, kind in enumerate(kinds)]
    return [pytest.param(value, id=name) for value, name in zip(values, names, strict=True)]


NO_SIZES = [np.arange(3), np.ones((2, 2)), np.zeros(0), int, np.int64, [1], "1", 1.0, Liar(), None]
NO_WORDS: list[Any] = [["rw"], {"rw"}, 1, None, True, b"rw", np.array(["rw"]), np.array("rw"), str]


@pytest.fixture(scope="module")
def device() -> Iterator[crossmem.Device]:
    """A traced device of a runtime of its own, so that no other test's calls are counted."""
    device = crossmem.device("emulated:0")
    tracer = TracingDriver(device.driver)
    object.__setattr__(device, "driver", tracer)
    yield device
    object.__setattr__(device, "driver", tracer.inner)


@pytest.fixture
def memory(device: crossmem.Device) -> Iterator[crossmem.Allocation]:
    """Return memory, and check that nothing of it was lost."""
    with device.allocate(NBYTES) as memory:
        yield memory


def refused(device: Any, call: Callable[[], object], kind: type[crossmem.CrossmemError]) -> None:
    """Check that a call is refused, and reaches no driver."""
    before = dict(device.driver.calls)
    with pytest.raises(kind) as caught:
        call()

    assert device.driver.calls == before
    assert len(str(caught.value).splitlines()[0]) <= 200
    assert not current().deferred.ready


@pytest.mark.parametrize("size", _cases(NO_SIZES))
def test_what_is_no_size(device: Any, memory: Any, size: Any) -> None:
    handle = memory.export()
    calls = [
        lambda: device.allocate(size),
        lambda: device.reserve(size),
        lambda: memory.write(b"x", offset=size),
        lambda: handle.slice(size, 1),
        lambda: handle.slice(0, size),
    ]
    if size is not None:
        # That stands for all of it.
        calls.append(lambda: memory.read(size))
    for call in calls:
        refused(device, call, crossmem.InvalidSizeError)


def test_integers_of_other_libraries_are_sizes(device: Any) -> None:
    for size in (np.int64(5), np.uint8(5), np.array(5), np.array([5])[0]):
        with device.allocate(size) as memory:
            assert memory.nbytes == 5


@pytest.mark.parametrize("word", _cases(NO_WORDS))
def test_what_is_no_word(device: Any, memory: Any, word: Any) -> None:
    if word is not None:
        refused(device, lambda: memory.export(access=word), crossmem.ConfigurationError)
        refused(device, lambda: memory.export(allow=word), crossmem.ConfigurationError)
    refused(device, lambda: memory.free(busy=word), crossmem.ConfigurationError)
    if word is not True:
        refused(device, lambda: memory.export(lease=word), crossmem.ConfigurationError)
        handle = memory.export()
        refused(device, lambda: crossmem.attach(handle, readonly=word), crossmem.ConfigurationError)
    assert not memory.closed


@pytest.mark.parametrize("blob", _cases([released, 7, None, "text", [1], np.ones(3), object()]))
def test_what_is_no_handle(device: Any, blob: Any) -> None:
    for call in (crossmem.attach, crossmem.import_handle, crossmem.ShareableHandle.from_bytes):
        refused(device, lambda: call(blob), crossmem.CrossmemError)  # noqa: B023
    refused(device, lambda: crossmem.attach_many([blob]), crossmem.CrossmemError)


@pytest.mark.parametrize("data", _cases([released, 7, None, "text", [1], object()]))
def test_what_is_no_buffer(device: Any, memory: Any, data: Any) -> None:
    refused(device, lambda: memory.write(data), crossmem.ConfigurationError)


@pytest.mark.parametrize("timeout", _cases([0, -1, "1", True, [1], np.ones(2), float("nan")]))
def test_what_is_no_timeout(device: Any, memory: Any, timeout: Any) -> None:
    handle = memory.export()
    refused(device, lambda: crossmem.attach(handle, timeout=timeout), crossmem.ConfigurationError)
    refused(device, lambda: memory.free(busy="wait", timeout=timeout), crossmem.ConfigurationError)
    assert not memory.closed


@pytest.mark.parametrize("spec", _cases([7, ["emulated:0"], b"emulated:0", np.array("x")]))
def test_what_is_no_device(device: Any, memory: Any, spec: Any) -> None:
    handle = memory.export()
    refused(device, lambda: crossmem.attach(handle, device=spec), crossmem.ConfigurationError)
    refused(device, lambda: crossmem.device(spec), crossmem.CrossmemError)
    refused(device, lambda: crossmem.how_can_share(4096, spec), crossmem.ConfigurationError)


@pytest.mark.parametrize("pointer", _cases([0, -1, 2**64, True, 1.5, "1", None, np.ones(2), int]))
def test_what_is_no_address(device: Any, pointer: Any) -> None:
    refused(device, lambda: device.adopt(pointer, 8, owner=device), crossmem.CrossmemError)
    refused(device, lambda: crossmem.how_can_share(pointer, device), crossmem.CrossmemError)


@pytest.mark.parametrize("lease", [1, 1.0, np.True_], ids=["int", "float", "numpy"])
def test_what_equals_true_says_nothing_of_a_lease(device: Any, memory: Any, lease: Any) -> None:
    refused(device, lambda: memory.export(lease=lease), crossmem.ConfigurationError)
    memory.export(lease=True)
    # The handle that is there is not its answer.
    refused(device, lambda: memory.export(lease=lease), crossmem.ConfigurationError)
