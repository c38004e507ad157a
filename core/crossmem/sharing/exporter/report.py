# SPDX-License-Identifier: Apache-2.0
"""The exports of this process, their lease holders, and the memory that waits to be freed."""

from dataclasses import dataclass
from typing import Literal

from crossmem.control.arena_report import report_of
from crossmem.control.arenas import Arena
from crossmem.control.leases import Lease
from crossmem.control.records import Export
from crossmem.control.registry import LeaseRegistry
from crossmem.models import BlockHandle, ShareableHandle
from crossmem.sharing.base.process import current, drain
from crossmem.sharing.exporter.pool_report import PoolStats, stats_of
from crossmem.sharing.exporter.record import Allocations

__all__ = ["ExportInfo", "LeaseInfo", "blocks_of", "collect", "exports"]


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A process or a message that holds a lease on this process's memory.

    Parameters
    ----------
    pid
        Pid of the holder in this process's pid namespace; 0 if the holder is not visible there.
    uid
        User of the holder.
    since
        Time of the grant, in seconds since the epoch.
    in_message
        Whether the lease belongs to a message that was sent and not received yet. In that case,
        ``pid`` names the sender, or the receiver if the receiver has begun to receive the message.
    ends_with
        The event that ends the lease if the holder does not release it. ``"process"``: the death of
        the holder. ``"connection"``: the end of the holder's last connection to this process. In
        this case, the kernel cannot tell this process when the holder dies. See the capability
        ``lease_end``.
    """

    pid: int
    uid: int
    since: float
    in_message: bool = False
    ends_with: Literal["process", "connection"] = "process"


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """One export of this process.

    Parameters
    ----------
    handle
        The handle of the export. The handle of a block covers all ``capacity`` bytes of the block.
    nbytes, capacity
        Requested and reserved size of the memory, in bytes. For a block, both are the block's
        capacity.
    leases
        The leases, the oldest first.
    denied
        Number of requests that ``allow`` or the driver refused; 0 for a block.
    waiting
        Whether the owner has freed the memory while leases on it remain.
    withdrawn
        Whether the export was withdrawn. A withdrawn export is listed until its leases have ended.
    pool
        The numbers of free and used blocks, if the export is that of a pool. In that case, the
        leases belong to the processes that have the pool open. None for other exports, and for a
        closed pool whose last block was freed.
    """

    handle: ShareableHandle
    nbytes: int
    capacity: int
    leases: tuple[LeaseInfo, ...]
    denied: int
    waiting: bool
    withdrawn: bool = False
    pool: PoolStats | None = None


def exports() -> list[ExportInfo]:
    """Return every export of this process that can have leases.

    The list is sorted by the time at which each memory was exported first. A pool has one entry;
    :meth:`crossmem.Pool.exports` returns its blocks. This call first frees memory whose last lease
    has ended.
    """
    process = drain()
    if process.server is None:
        return []
    process.catch_up()
    registry = process.server.leases
    return [
        ExportInfo(
            handle=export.handle,
            nbytes=export.handle.length,
            capacity=export.handle.capacity,
            leases=tuple(
                _info_of(lease, process.identity.pid)
                for lease in leases
                if lease.export == export.handle.export
            ),
            denied=export.denied,
            waiting=unit.is_retired,
            withdrawn=export in unit.withdrawn,
            pool=_stats_of(registry, export),
        )
        for unit, published, leases in registry.report()
        for export in published
        # The registry also has an export for each block that a message reserves. Pool.exports()
        # lists these exports, so this function leaves them out.
        if not isinstance(export.handle, BlockHandle)
    ]


def _stats_of(registry: LeaseRegistry, export: Export) -> PoolStats | None:
    arena = registry.pools.arenas.get(export.handle.allocation)
    return stats_of(arena) if isinstance(arena, Arena) and export.is_arena else None


def blocks_of(arena: Arena, own_pid: int) -> list[ExportInfo]:
    """Return the blocks of a pool that are exported or have a holder."""
    arena.reclaim(all_of_them=True)
    arena.tell()
    return [
        ExportInfo(
            handle=handle,
            nbytes=handle.length,
            capacity=handle.capacity,
            leases=tuple(_info_of(lease, own_pid) for lease in leases),
            denied=0,
            waiting=is_freed,
            withdrawn=is_withdrawn,
        )
        for handle, leases, is_freed, is_withdrawn in report_of(arena)
    ]


def _info_of(lease: Lease, own_pid: int) -> LeaseInfo:
    holder = lease.holder
    is_watched = holder.pidfd is not None or holder.pid == own_pid
    return LeaseInfo(
        holder.pid,
        holder.uid,
        lease.since,
        lease.in_message,
        "process" if is_watched else "connection",
    )


def collect() -> int:
    """Do all deferred work that is possible now. Return the number of freed allocations.

    This call frees memory whose last lease has ended, releases the resources of dropped objects,
    and sends delayed messages to exporters.
    """
    process = current()
    if process.is_closed:
        return 0
    live = process.part(Allocations).live
    before = len(live)
    process.catch_up(patient=True)
    if not process.is_inside:
        process.deferred.settle()
    process.tend()
    return before - len(live)
