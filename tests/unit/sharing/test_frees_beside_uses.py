# SPDX-License-Identifier: Apache-2.0
"""Memory is freed in one thread while another thread is inside a call."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from halts import DEADLINE_S, Halt, inside
from typing_extensions import override

import crossmem
from crossmem import Allocation, Block, ClosedError, Pool, StaleHandleError, UnsupportedError
from crossmem.control.arenas import Arena
from crossmem.control.registry import LeaseRegistry
from crossmem.sharing.base.process import Process, current
from crossmem.sharing.exporter import exporting
from crossmem.sharing.exporter.allocation import record_of
from crossmem.sharing.exporter.record import AllocationRecord, Allocations
from crossmem.sharing.ranges.record import RangeRecord

NBYTES = 4096


pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(params=["host:0", "emulated:0"])
def device(request: pytest.FixtureRequest) -> crossmem.Device:
    return crossmem.device(request.param)


@pytest.fixture(params=[Allocation, Block])
def memory(request: pytest.FixtureRequest, device: crossmem.Device) -> Iterator[Allocation | Block]:
    with (
        device.pool(NBYTES, 4) as pool,
        device.allocate(NBYTES) as allocation,
        pool.allocate() as block,
    ):
        yield block if request.param is Block else allocation


# free(busy=) ------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["raise", "wait"])
def test_no_view_begins_between_the_wait_for_leases_and_the_end(
    busy: Any, memory: Allocation | Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, end = [], type(memory)._end
    memory.export()

    def view_then_end(self: Any) -> None:
        with suppress(ClosedError):
            views.append(self.view())
        end(self)

    monkeypatch.setattr(type(memory), "_end", view_then_end)
    memory.free(busy=busy)

    assert views == []
    assert memory.closed


@pytest.mark.parametrize("busy", ["raise", "wait"])
def test_no_first_export_begins_between_the_wait_for_leases_and_the_end(
    busy: Any, memory: Allocation | Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles, end = [], type(memory)._end

    def export_then_end(self: Any) -> None:
        with suppress(ClosedError):
            handles.append(self.export())
        end(self)

    monkeypatch.setattr(type(memory), "_end", export_then_end)
    memory.free(busy=busy)

    assert handles == []
    assert memory.closed


def test_a_signal_handler_that_raises_after_the_retirement(
    memory: Allocation | Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = memory.export()
    kind, name = (
        (Arena, "retire_if_idle") if isinstance(memory, Block) else (LeaseRegistry, "retire")
    )
    retire = getattr(kind, name)

    def interrupted(*arguments: Any, **options: Any) -> None:
        retire(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.free(busy="raise")
    monkeypatch.undo()

    # The memory is not half freed: an export of live memory would return the stale handle.
    assert memory.closed
    with pytest.raises(StaleHandleError):
        crossmem.attach(handle)


def test_a_stream_that_is_refused_leaves_the_handles_valid() -> None:
    with crossmem.device("host").pool(NBYTES, 2) as pool, pool.allocate() as block:
        handle = block.export()
        with pytest.raises(UnsupportedError):
            block.free(busy="wait", stream=1)

        crossmem.attach(handle).unmap()


# Exports ----------------------------------------------------------------------------------


def test_a_first_export_beside_the_free(
    device: crossmem.Device, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, halt, entered = device.allocate(NBYTES), Halt(), threading.Event()
    leases, free_now = current().start_server().leases, AllocationRecord.free_now
    before = leases.exports.units()

    def free_when_seen(self: AllocationRecord, *, blocking: bool) -> None:
        entered.set()
        free_now(self, blocking=blocking)

    monkeypatch.setattr(exporting, "_export", halt.before(exporting._export))
    monkeypatch.setattr(AllocationRecord, "free_now", free_when_seen)
    with inside(threads, halt, memory.export) as exporter:
        freer = threads.submit(memory.free)
        assert entered.wait(DEADLINE_S)

    with pytest.raises(ClosedError):
        exporter.result(DEADLINE_S)
    freer.result(DEADLINE_S)
    assert leases.exports.units() == before


class Owner:
    """It keeps the memory of another library."""


def test_an_adoption_that_ends_is_not_exported_through_its_sibling(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = crossmem.device("hip:0", runtime="emulated")
    block = device.driver.allocate(device.ordinal, NBYTES, "legacy")
    sibling, adoption = (device.adopt(block.pointer, block.capacity, owner=Owner()) for _ in "ab")
    sibling.export()
    record, halt = adoption._record, Halt()
    exported = dict(current().part(Allocations).exported)
    monkeypatch.setattr(exporting, "_check_export", halt.before(exporting._check_export))
    with inside(threads, halt, adoption.export) as exporter:
        adoption.free()

    with pytest.raises(ClosedError):
        exporter.result(DEADLINE_S)
    assert record is not None
    assert record.handles == {}
    assert current().part(Allocations).exported == exported
    sibling.free()
    device.driver.free(block)


# Addresses --------------------------------------------------------------------------------


USES: dict[str, Callable[[Allocation], object]] = {
    "ptr": lambda one: one.ptr,
    "capacity": lambda one: one.capacity,
    "read": lambda one: one.read(1),
    "view": lambda one: one.view(),
}


@pytest.mark.parametrize("use", USES)
def test_a_use_of_memory_beside_its_free(
    use: str, device: crossmem.Device, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, halt = device.allocate(NBYTES), Halt()
    is_usable = Process.is_usable.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Process, "is_usable", property(halt.after(is_usable)))
    with inside(threads, halt, USES[use], memory) as caller:
        memory.free()

    with pytest.raises(ClosedError):
        caller.result(DEADLINE_S)


@pytest.mark.parametrize("use", ["ptr", "repr"])
def test_a_use_of_an_address_range_beside_its_release(
    use: str, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = crossmem.device("emulated:0")
    addresses, halt = device.reserve(NBYTES), Halt()
    pointer = RangeRecord.pointer.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(RangeRecord, "pointer", property(halt.before(pointer)))
    uses: dict[str, Callable[[], object]] = {
        "ptr": lambda: addresses.ptr,
        "repr": lambda: repr(addresses),
    }
    with inside(threads, halt, uses[use]) as caller:
        addresses.release()

    if use == "repr":
        assert "released" in caller.result(DEADLINE_S)
    else:
        with pytest.raises(ClosedError):
            caller.result(DEADLINE_S)


def test_the_record_of_memory_is_read_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = crossmem.device("host").allocate(NBYTES)
    pointer = Allocation.ptr.fget  # type: ignore[attr-defined]

    def read_then_free(self: Allocation) -> Any:
        found = pointer(self)
        self.free()
        return found

    monkeypatch.setattr(Allocation, "ptr", property(read_then_free))

    assert record_of(memory).nbytes == NBYTES
    memory.free()


# The count of live blocks -----------------------------------------------------------------


class Moving(list[int]):
    """A list whose first read of the length meets a change of the arena's lists."""

    def __init__(
        self, values: list[int], change: Callable[[], object], *, is_late: bool = False
    ) -> None:
        super().__init__(values)
        self.changes = [change]
        self.is_late = is_late

    @override
    def __len__(self) -> int:
        found = super().__len__()
        if self.changes:
            self.changes.pop()()
        return found if self.is_late else super().__len__()


def arena_of(pool: Pool) -> Arena:
    assert pool._record is not None
    return pool._record.arena


def test_a_pool_that_is_closed_while_blocks_are_reclaimed_keeps_its_memory(
    device: crossmem.Device,
) -> None:
    pool = device.pool(NBYTES, 6)
    live, other, *freed = (pool.allocate() for _ in range(4))
    live.write(b"alive")
    mappings = [crossmem.attach(one.export()) for one in freed]
    for one in freed:
        one.free()
    arena, record = arena_of(pool), pool._record
    assert record is not None
    # A reclaim moves both blocks from one list to another.
    arena.freed = Moving(arena.freed, arena.reclaim, is_late=True)

    pool.close()

    assert (len(arena.held), arena.live) == (2, 2)
    assert not record.is_done
    assert live.read(5) == b"alive"
    live.free()
    other.free()
    for mapping in mappings:
        mapping.unmap()


def test_a_refill_hides_no_live_block(device: crossmem.Device) -> None:
    with device.pool(64, 128) as pool:
        arena = arena_of(pool)
        blocks = [pool.allocate()]
        while arena.free:
            blocks.append(pool.allocate())
        assert arena.fresh < arena.blocks
        free = arena.free
        arena.free = Moving(free, arena.refill)

        assert arena.live == len(blocks)
        for one in blocks:
            one.free()
