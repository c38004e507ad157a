# SPDX-License-Identifier: Apache-2.0
"""The ends of a pool's blocks: withdrawn, freed, waited for, and what is listed of them."""

import collections
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crossmem
from crossmem import (
    Block,
    BusyError,
    ClosedError,
    ConfigurationError,
    CrossmemError,
    InvalidHandleError,
    OutOfMemoryError,
    Pool,
    PoolStats,
    StaleHandleError,
)
from crossmem.models import BlockHandle, Event, EventKind
from crossmem.sharing.base.process import current

BLOCKS = 8


pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with crossmem.device("host").pool(4096, BLOCKS) as made:
        yield made


def is_right(error: CrossmemError) -> bool:
    """Whether an error is one line with a hint, neither too long."""
    lines = error.message.splitlines()
    return len(lines) == 1 and len(lines[0]) <= 200 and 0 < len(error.hint or "") <= 200


def end(*memories: crossmem.Mapping | Block) -> None:
    for one in memories:
        one.free() if isinstance(one, Block) else one.unmap()


# Withdrawing ------------------------------------------------------------------------------


def test_a_withdrawn_handle_is_stale_and_the_next_one_is_not(pool: Pool) -> None:
    with pool.allocate() as block:
        first = block.export()
        holder = crossmem.attach(first)
        block.withdraw(first)
        block.withdraw(first)
        second = block.export()

        assert second != first
        # Who holds the block can map it again.
        crossmem.attach(first).unmap()
        holder.unmap()
        with pytest.raises(StaleHandleError):
            crossmem.attach(first)
        with crossmem.attach(second):
            block.withdraw(second.slice(1, 2).to_bytes())
        assert block.export() not in {first, second}


def test_only_handles_of_the_block_are_withdrawn(pool: Pool) -> None:
    with (
        pool.allocate() as block,
        pool.allocate() as other,
        crossmem.device("host").allocate(64) as allocation,
        crossmem.device("host").pool(4096, BLOCKS) as twin,
        twin.allocate() as stranger,
    ):
        for wrong in (other, allocation, stranger):
            with pytest.raises(InvalidHandleError, match="is not an export of"):
                block.withdraw(wrong.export())
        with pytest.raises(InvalidHandleError):
            block.withdraw(b"rubbish")
        with crossmem.attach(other.export()), crossmem.attach(stranger.export()):
            pass


# Freeing ----------------------------------------------------------------------------------


def test_freeing_a_held_block_can_be_refused(pool: Pool) -> None:
    block = pool.allocate()
    mapping = crossmem.attach(block.export())
    pid = current().identity.pid

    tries: list[dict[str, Any]] = [{"busy": "raise"}, {"busy": "wait", "timeout": 0.05}]
    for options in tries:
        with pytest.raises(BusyError, match=rf"held by process {pid} \(1\)") as caught:
            block.free(**options)
        assert is_right(caught.value)
        # Nothing has changed.
        crossmem.attach(block.export()).unmap()
        assert not block.closed
    mapping.unmap()
    block.free(busy="raise")
    assert block.closed
    assert pool.stats().free == BLOCKS


def test_freeing_waits_for_the_holders(pool: Pool) -> None:
    block = pool.allocate()
    mapping = crossmem.attach(block.export())
    ending = threading.Timer(0.2, mapping.unmap)
    ending.start()
    block.free(busy="wait", timeout=20)

    assert mapping.closed
    assert block.closed
    ending.join()


@pytest.mark.parametrize("options", [{"busy": "now"}, {"busy": 1}, {"timeout": -1}])
def test_freeing_has_three_ways(pool: Pool, options: dict[str, Any]) -> None:
    with pool.allocate() as block, pytest.raises(ConfigurationError):
        block.free(**options)


def test_freeing_twice_is_harmless(pool: Pool) -> None:
    block = pool.allocate()
    block.free()
    block.free()
    block.free(busy="wait")

    assert pool.stats() == PoolStats(BLOCKS, BLOCKS, 0, 0, {})


@pytest.mark.parametrize(
    "use",
    [
        lambda block: block.ptr,
        lambda block: block.export(),
        lambda block: block.read(),
        lambda block: block.view(),
        lambda block: block.__enter__(),
    ],
    ids=["ptr", "export", "read", "view", "enter"],
)
def test_a_freed_block_cannot_be_used(pool: Pool, use: Callable[[Block], object]) -> None:
    block = pool.allocate()
    block.free()

    with pytest.raises(ClosedError, match="cannot be used any more"):
        use(block)


def test_a_block_that_is_dropped_goes_back_with_a_warning(pool: Pool) -> None:
    with pytest.warns(ResourceWarning, match="dropped without free"):
        pool.allocate()

    assert pool.stats().free == BLOCKS


# An exhausted pool ------------------------------------------------------------------------


def test_an_exhausted_pool_says_who_holds_its_blocks(pool: Pool) -> None:
    blocks = [pool.allocate() for _ in range(BLOCKS)]
    with pytest.raises(OutOfMemoryError, match=r"all 8 blocks.*none of them was freed") as caught:
        pool.allocate()
    assert is_right(caught.value)
    mappings = crossmem.attach_many(one.export() for one in blocks[:3])
    for one in blocks[:3]:
        one.free()
    pid = current().identity.pid

    with pytest.raises(OutOfMemoryError, match=rf"3 were freed .*process {pid} \(3\)") as caught:
        pool.allocate()
    assert is_right(caught.value)
    assert isinstance(caught.value, MemoryError)
    mappings.pop().unmap()
    with pool.allocate() as block:
        assert block.nbytes == 4096
    end(*mappings, *blocks)


@pytest.mark.parametrize("is_held", [False, True])
def test_an_exhausted_pool_waits(pool: Pool, is_held: bool) -> None:
    blocks = [pool.allocate() for _ in range(BLOCKS)]
    ends: Callable[[], None] = blocks[3].free
    if is_held:
        ends = crossmem.attach(blocks[3].export()).unmap
        blocks[3].free()
    ending = threading.Timer(0.2, ends)
    ending.start()
    found = pool.allocate(timeout=20)
    ending.join()

    assert found.ptr - blocks[0].ptr == 3 * 4096
    for one in (found, *blocks):
        one.free()


def test_waiting_ends_in_time(pool: Pool) -> None:
    blocks = [pool.allocate() for _ in range(BLOCKS)]
    begin = time.monotonic()
    with pytest.raises(OutOfMemoryError):
        pool.allocate(timeout=0.1)

    assert 0.1 <= time.monotonic() - begin < 10
    for one in blocks:
        one.free()


def test_blocks_that_were_dropped_are_found(pool: Pool) -> None:
    with pytest.warns(ResourceWarning, match="dropped without free"):
        collections.deque((pool.allocate() for _ in range(3 * BLOCKS)), maxlen=0)

    assert pool.stats().free == BLOCKS


# What is listed ---------------------------------------------------------------------------


def test_a_pool_is_one_line(pool: Pool) -> None:
    before = len(crossmem.exports())
    blocks = [pool.allocate() for _ in range(3)]
    mappings = crossmem.attach_many(one.export() for one in blocks)
    lines = crossmem.exports()
    (line,) = [one for one in lines if one.pool is not None]
    pid = current().identity.pid

    assert len(lines) == before
    assert line.pool == PoolStats(BLOCKS, BLOCKS - 3, 3, 0, {pid: 3})
    assert (line.nbytes, line.waiting) == (BLOCKS * 4096, False)
    assert [one.pid for one in line.leases] == [pid]
    end(*mappings, *blocks)


def test_an_allocation_is_no_pool() -> None:
    with crossmem.device("host").allocate(64) as allocation:
        handle = allocation.export()
        (line,) = [one for one in crossmem.exports() if one.handle == handle]
        assert line.pool is None


def test_the_blocks_of_a_pool_are_listed_on_request(pool: Pool) -> None:
    never, idle, held, freed = (pool.allocate() for _ in range(4))
    idle.export()
    mappings = crossmem.attach_many([held.export(), freed.export()])
    stale = freed.export()
    freed.free()
    lines = pool.exports()
    handles = [one.handle for one in lines]

    assert all(isinstance(one, BlockHandle) for one in handles)
    shown = [(one.handle.export - 1, len(one.leases), one.waiting) for one in lines]
    assert shown == [(1, 0, False), (2, 1, False), (3, 1, True)]
    assert {one.capacity for one in lines} == {4096}
    assert [lease.pid for one in lines for lease in one.leases] == [current().identity.pid] * 2
    assert lines[2].handle == stale
    with crossmem.attach(handles[0]) as mapping:
        assert mapping.nbytes == 4096
    end(*mappings, never, held, idle)
    assert pool.exports() == []


def test_a_withdrawn_generation_is_listed_while_it_is_held(pool: Pool) -> None:
    with pool.allocate() as block:
        first = block.export()
        with crossmem.attach(first):
            block.withdraw(first)
            shown = [(one.handle == first, one.withdrawn) for one in pool.exports()]
            assert (True, True) in shown
        assert all(not one.withdrawn for one in pool.exports())


def test_observers_hear_of_a_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    registry = current().registry
    monkeypatch.setattr(registry, "observed", True)
    monkeypatch.setattr(registry, "emit", events.append)
    with crossmem.device("host").pool(64, 128) as pool:
        for _ in range(10):
            for one in [pool.allocate() for _ in range(64)]:
                one.export()
                one.free()
        reclaimed = [one for one in events if one.kind is EventKind.RECLAIMED]

    assert len(reclaimed) == 20
    assert {one.detail for one in reclaimed} == {"32 of 128 blocks"}
    assert {(one.backend, one.device) for one in reclaimed} == {("host", "host")}
