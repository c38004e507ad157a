# SPDX-License-Identifier: Apache-2.0
"""CuPy takes its memory from crossmem."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crossmem
import crossmem.cupy
from crossmem.conformance.pool import settle
from crossmem.sharing.exporter.record import Allocations

cupy = pytest.importorskip("cupy", reason="CuPy cannot be imported", exc_type=ImportError)
np = pytest.importorskip("numpy")
actions = pytest.importorskip("cupy_actions")

MIB = 1 << 20
COUNT = 1000


@pytest.fixture
def alloc(gpu: str) -> Iterator[Callable[[int], Any]]:
    made = crossmem.cupy.allocator()
    cupy.cuda.set_allocator(made)
    yield made
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    gc.collect()
    crossmem.collect()


def allocated(gpu: str) -> int:
    process = crossmem.device(f"{gpu}:0")._process

    def waiting() -> list[str]:
        # The reaper may be giving back what an earlier test has freed.
        crossmem.collect()
        deferred = process.deferred
        return [repr(one) for one in (*deferred.ready, *deferred.idle)]

    assert settle(waiting) == []
    return len(process.part(Allocations).live)


def test_arrays_are_shared_without_adoption(
    gpu: str, alloc: Callable[[int], Any], peer: Any
) -> None:
    array = actions.numbers(cupy.empty((10, 10), "float32"))
    shared = crossmem.share(array[2:])
    peer("receive", "array", shared.to_bytes(), {})

    # All of it: an adoption would begin where the array does.
    assert [one.nbytes for one in crossmem.exports() if one.leases] == [400]
    assert peer("tell", "array") == actions.said(array[2:])


def test_memory_goes_back_when_cupy_drops_it(gpu: str, alloc: Callable[[int], Any]) -> None:
    before = allocated(gpu)
    array = cupy.empty(COUNT, "float32")
    part = array[5:]
    del array
    assert allocated(gpu) == before + 1

    del part
    assert allocated(gpu) == before


def test_a_dropped_array_stays_for_who_received_it(
    gpu: str, alloc: Callable[[int], Any], peer: Any
) -> None:
    before = allocated(gpu)
    array = actions.numbers(cupy.empty(COUNT, "float32"))
    expected = actions.said(array)
    with crossmem.share(array) as shared:
        peer("receive", "array", shared.to_bytes(), {})
    del array, shared
    assert allocated(gpu) == before + 1

    others = [actions.numbers(cupy.empty(COUNT, "float32")) for _ in range(3)]
    assert peer("tell", "array") == expected
    del others
    peer("clear")
    # The reaper of either process may be at it, within the second of law C27.
    assert settle(lambda: [] if allocated(gpu) == before else ["memory is left"]) == []


def test_memory_is_that_of_the_current_device(two_gpus: str, alloc: Callable[[int], Any]) -> None:
    for ordinal in range(2):
        with cupy.cuda.Device(ordinal):
            array = cupy.empty(COUNT, "int8")
        assert array.device.id == ordinal
        with crossmem.share(array) as shared:
            (handle,) = shared.message.handles
            assert handle.device == crossmem.device(f"{two_gpus}:{ordinal}").identity


def test_a_device_that_was_named(two_gpus: str) -> None:
    device = crossmem.device(f"{two_gpus}:0", mechanism="vmm")
    alloc = crossmem.cupy.allocator(device)
    pointer = alloc(COUNT)
    array = cupy.ndarray(COUNT, "int8", pointer)

    with crossmem.share(array) as shared:
        assert shared.message.handles[0].mechanism == "vmm"
    with (
        cupy.cuda.Device(1),
        pytest.raises(crossmem.ConfigurationError, match=rf"current CuPy device is {two_gpus}:1"),
    ):
        alloc(COUNT)


def test_nothing_is_allocated_for_nothing(gpu: str, alloc: Callable[[int], Any]) -> None:
    before = allocated(gpu)
    array = cupy.empty((0, 3))

    assert (array.size, array.data.ptr, allocated(gpu)) == (0, 0, before)


def test_a_pool_splits_and_keeps_blocks(gpu: str, alloc: Callable[[int], Any], peer: Any) -> None:
    pool = cupy.cuda.MemoryPool(alloc)
    cupy.cuda.set_allocator(pool.malloc)
    before = allocated(gpu)
    cupy.empty(8 * MIB, "uint8")
    one, other = (actions.numbers(cupy.empty(MIB, "uint8")) for _ in range(2))
    assert allocated(gpu) == before + 1

    # Both lie in one allocation.
    with crossmem.share([one[:9], other[:: -MIB // 2]]) as shared:
        assert len(shared.message.handles) == 1
        peer("receive", "list", shared.to_bytes(), {})
        assert peer("tell", "list") == [actions.said(one[:9]), actions.said(other[:: -MIB // 2])]
    peer("clear")
    del one, other, shared
    assert allocated(gpu) == before + 1
    pool.free_all_blocks()
    assert allocated(gpu) == before


def test_a_pool_frees_what_it_keeps_and_tries_again(
    gpu: str, alloc: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = crossmem.device(f"{gpu}:0")
    kept: list[int] = []
    real = crossmem.Device.allocate

    def full(self: crossmem.Device, nbytes: int) -> crossmem.Allocation:
        kept.append(nbytes)
        if (
            sum(one.memory.block.capacity for one in device._process.part(Allocations).live)
            + nbytes
            > limit
        ):
            msg = "full"
            raise crossmem.OutOfMemoryError(msg)
        return real(self, nbytes)

    pool = cupy.cuda.MemoryPool(alloc)
    cupy.cuda.set_allocator(pool.malloc)
    crossmem.collect()
    limit = (
        sum(one.memory.block.capacity for one in device._process.part(Allocations).live) + 16 * MIB
    )
    monkeypatch.setattr(crossmem.Device, "allocate", full)
    cupy.empty(12 * MIB, "uint8")
    # There is room for this only where the pool gives the other back.
    crossmem.collect()
    array = cupy.empty(14 * MIB, "uint8")

    assert kept == [12 * MIB, 14 * MIB, 14 * MIB]
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(14 * MIB, "uint8")
    assert array.nbytes == 14 * MIB


@pytest.mark.parametrize("error", [crossmem.OutOfMemoryError, crossmem.InvalidSizeError])
def test_without_a_pool_the_error_is_cupy_s_own(
    error: type[crossmem.CrossmemError],
    alloc: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_self: crossmem.Device, _nbytes: int) -> crossmem.Allocation:
        raise error("no room")

    monkeypatch.setattr(crossmem.Device, "allocate", refuse)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as raised:
        cupy.empty(MIB, "uint8")

    assert raised.value.status == 2
    assert isinstance(raised.value.__cause__, error)
