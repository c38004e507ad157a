# SPDX-License-Identifier: Apache-2.0
"""The option ``--crossmem-blocks``: tests use blocks of pools in place of allocations.

With this option, :meth:`crossmem.Device.allocate` returns a block of a pool, in the test's process
and in its peers. So each test of an allocation tests a block.
"""

import time
from typing import Any, Final, cast

from typing_extensions import override

import crossmem
from crossmem.control.arenas import Arena
from crossmem.control.words import load
from crossmem.driver import TracingDriver
from crossmem.models import Access
from crossmem.sharing.base.process import Part, Process, current
from crossmem.sharing.importer.block_holds import ArenaImport, all_of
from crossmem.sharing.importer.blocks import PoolImports
from crossmem.sharing.pools.block import Block
from crossmem.sharing.pools.block_record import BlockRecord

__all__ = ["BlockTracer", "allocate", "are_used", "close_idle", "close_pools", "exports", "use"]

_BLOCKS: Final = 8
"""The number of blocks in a pool whose blocks have at most ``_LARGE_NBYTES`` bytes."""
_SMALLEST_NBYTES: Final = 4096
_LARGE_NBYTES: Final = 2**20
"""The largest size of a block in a pool with several blocks. A larger block has its own pool."""

_exports: Final = crossmem.exports
_allocate: Any = None
"""The original ``Device.allocate``; None before the first call of :func:`use`."""


class _Pools(Part):
    """The pools from which :func:`allocate` takes blocks in this process."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.pools: dict[tuple[Any, ...], list[crossmem.Pool]] = {}
        """The pools. The key is the device, the size of the blocks, ``allow`` and ``access``."""
        self.records: dict[tuple[Arena, int], BlockRecord] = {}
        """The latest record of each block. The key is the pool's arena and the block's index."""


def use() -> None:
    """Make ``Device.allocate`` return blocks, and make ``crossmem.exports`` list these blocks.

    The replacement applies to this process and to the children that it forks later.
    """
    global _allocate  # noqa: PLW0603 - a process has one kit
    if _allocate is None:
        _allocate = crossmem.Device.allocate
        crossmem.Device.allocate = allocate  # type: ignore[assignment,method-assign]
        crossmem.exports = exports


def are_used() -> bool:
    """Whether tests get blocks in place of allocations."""
    return _allocate is not None


def allocate(
    device: crossmem.Device,
    nbytes: int,
    *,
    allow: crossmem.Allow | None = None,
    access: Access = "rw",
) -> crossmem.Allocation:
    """Return a block. Its pool has the given ``allow`` and ``access``.

    For type checkers, the block is an allocation.

    Without ``--crossmem-blocks``, return an allocation and ignore ``allow`` and ``access``. Callers
    that pass these arguments also pass them to ``export``. If the device's mechanism shares only
    queues of the vendor, allocate host memory instead, because the device has no allocations.
    """
    if device.capabilities.vendor_queues:
        device = crossmem.device("host")
    if _allocate is None:
        return device.allocate(nbytes)
    part = current().part(_Pools)
    size, blocks = nbytes, 1
    if type(nbytes) is int and 0 < nbytes <= _LARGE_NBYTES:
        size, blocks = max(_SMALLEST_NBYTES, 1 << (nbytes - 1).bit_length()), _BLOCKS
    key = (device, size, allow, access)
    for pool in tuple(part.pools.get(key, ())):
        try:
            return _note(part, pool.allocate(nbytes))
        except (crossmem.OutOfMemoryError, crossmem.ClosedError):
            continue
    made = device.pool(size, blocks, allow=allow, access=access)
    part.pools.setdefault(key, []).append(made)
    return _note(part, made.allocate(nbytes))


def _note(part: _Pools, block: Block) -> crossmem.Allocation:
    record = block._record
    if record is not None:
        part.records[record.arena, record.index] = record
    return cast("crossmem.Allocation", block)


def close_pools() -> None:
    """Close the pools of this process. Release each imported pool of which it holds no block.

    The memory of a pool with live or held blocks remains.
    """
    process = current()
    part = process.part(_Pools)
    while part.pools:
        for pool in part.pools.popitem()[1]:
            pool.close()
    close_idle()


def close_idle() -> None:
    """Release the imported pools of which this process holds no block."""
    current().part(PoolImports).close_idle()


def _arenas() -> list[Arena]:
    """Return the arenas of this process's own pools whose memory is not freed yet."""
    server = current().server
    return [] if server is None else cast("list[Arena]", list(server.leases.pools.arenas.values()))


class BlockTracer(TracingDriver):
    """A tracing driver for tests with ``--crossmem-blocks``.

    :attr:`live` counts a block as an allocation. A hold of another process's block counts as an
    import and a mapping. A read-only hold of this process's own block counts as a mapping. Arenas
    do not count.
    """

    @property
    @override
    def live(self) -> dict[str, int]:
        found = super().live
        for arena in _arenas():
            arena.reclaim(all_of_them=True)
            waiting = len(arena.freed) + len(arena.held)
            words = [load(arena.words, arena.at + index) for index in range(arena.fresh)]
            found["blocks"] += arena.live + waiting - 1
            found["exports"] += sum(word % 2 for word in words) + waiting - 1
        for opened in list(current().part(PoolImports).arenas.values()):
            held = sum(map(bool, list(_holders_in(opened).values())))
            if opened.pool.arena.owner != current().identity:
                found["imports"] += held - 1
                found["mappings"] += held - 1
            elif opened.is_readonly:
                found["mappings"] += held - 1
        return found


def _holders_in(arena: ArenaImport) -> dict[int, list[object]]:
    """Return the objects that hold each block of an imported pool. The key is the block's index."""
    return {
        index: [one for one in all_of(holders) if one.arena is arena]
        for index, holders in list(arena.holders.items())
    }


def exports() -> list[crossmem.ExportInfo]:
    """Return the exports of this process, with each exported block in place of its pool."""
    process = current()
    known = _exports()
    pools = {arena.export.handle.allocation: arena for arena in _arenas()}
    found = [one for one in known if one.handle.allocation not in pools]
    denied = {one.handle.allocation: one.denied for one in known if not one.handle.export}
    for (arena, index), record in list(process.part(_Pools).records.items()):
        handle = record.handle
        if handle is None or handle.allocation not in pools:
            continue
        arena.reclaim(all_of_them=True)
        if record.is_done and index not in arena.held:
            continue
        leases = [
            crossmem.LeaseInfo(holder.pid, holder.uid, time.time())
            for holder in arena.holders([index])
        ]
        unit = arena.reserved.get(index)
        leases += [
            crossmem.LeaseInfo(one.holder.pid, one.holder.uid, one.since, one.in_message)
            for one in (list(unit.leases.values()) if unit is not None else ())
        ]
        found.append(
            crossmem.ExportInfo(
                handle=handle,
                nbytes=handle.length,
                capacity=handle.capacity,
                leases=tuple(leases),
                denied=denied.get(handle.allocation, 0),
                waiting=record.is_done,
            )
        )
    return found
