# SPDX-License-Identifier: Apache-2.0
"""The kit on blocks: with ``--crossmem-blocks``, tests get blocks of pools for allocations.

:meth:`crossmem.Device.allocate` then takes a block of a pool, in the test's process and in all of
its peers. So each test says of blocks what it says of allocations.
"""

from typing import Any, Final, cast

import crossmem
from crossmem.control.words import load
from crossmem.models import Access
from crossmem.sharing.base.process import Part, Process, current
from crossmem.sharing.importer.blocks import PoolImports

__all__ = ["account", "allocate", "are_used", "close_pools", "use"]

_BLOCKS: Final = 8
"""How many blocks a pool has."""
_SMALLEST_NBYTES: Final = 4096
_LARGE_NBYTES: Final = 2**20
"""A larger block has a pool of its own."""

_allocate: Any = None
"""What allocates without a pool; None as long as allocations are allocations."""


class _Pools(Part):
    """The pools that allocations of this process are taken from."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.pools: dict[tuple[Any, ...], list[crossmem.Pool]] = {}
        """By device, size of the blocks, and who may import them and how."""


def use() -> None:
    """Give blocks for allocations in this process and the children that it forks."""
    global _allocate  # noqa: PLW0603 - a process has one kit
    if _allocate is None:
        _allocate = crossmem.Device.allocate
        crossmem.Device.allocate = allocate  # type: ignore[assignment,method-assign]


def are_used() -> bool:
    """Whether allocations are blocks."""
    return _allocate is not None


def allocate(
    device: crossmem.Device,
    nbytes: int,
    *,
    allow: crossmem.Allow | None = None,
    access: Access = "rw",
) -> crossmem.Allocation:
    """Return a block that has what an allocation has, of a pool with this ``allow`` and ``access``.

    Where allocations are no blocks, return an allocation: its exports say who may import it.
    """
    if _allocate is None:
        return device.allocate(nbytes)
    part = current().part(_Pools)
    size, blocks = nbytes, 1
    if isinstance(nbytes, int) and 0 < nbytes <= _LARGE_NBYTES:
        size, blocks = max(_SMALLEST_NBYTES, 1 << (nbytes - 1).bit_length()), _BLOCKS
    key = (device, size, allow, access)
    for pool in tuple(part.pools.get(key, ())):
        try:
            return cast("crossmem.Allocation", pool.allocate(nbytes))
        except (crossmem.OutOfMemoryError, crossmem.ClosedError):
            continue
    made = device.pool(size, blocks, allow=allow, access=access)
    part.pools.setdefault(key, []).append(made)
    return cast("crossmem.Allocation", made.allocate(nbytes))


def close_pools() -> None:
    """Close the pools of this process, and give back arenas of which no block is held here.

    So what is left belongs to blocks that are live or held.
    """
    process = current()
    part = process.part(_Pools)
    while part.pools:
        for pool in part.pools.popitem()[1]:
            pool.close()
    process.part(PoolImports).close_idle()


def account() -> tuple[dict[str, int], list[tuple[bool, list[int]]]]:
    """Return how many blocks this process has and holds, and who holds each of its blocks.

    Each block that was exported, or waits for its holders, is one pair: whether it waits, and the
    holders' pids.
    """
    process = current()
    leased = []
    blocks = 0
    for pool in [one for pools in process.part(_Pools).pools.values() for one in pools]:
        stats = pool.stats()
        blocks += stats.live + stats.waiting
        record = pool._record
        assert record is not None
        arena = record.arena
        for index in range(arena.fresh):
            is_live = load(arena.words, arena.at + index) % 2 == 1
            pids = sorted(holder.pid for holder in arena.holders([index]))
            if is_live or pids:
                leased.append((not is_live, pids))
    held = {
        (id(arena), index)
        for arena in process.part(PoolImports).arenas.values()
        for index, holders in arena.holders.items()
        if holders and arena.pool.arena.owner != process.identity
    }
    return {"blocks": blocks, "imports": len(held)}, sorted(leased)
