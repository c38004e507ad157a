# SPDX-License-Identifier: Apache-2.0
"""The report on the use of a pool's blocks."""

from dataclasses import dataclass

from crossmem.control.arenas import Arena

__all__ = ["PoolStats", "stats_of"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The use of a pool's blocks at one moment.

    Parameters
    ----------
    blocks
        Number of blocks.
    free
        Number of blocks that can be allocated now.
    live
        Number of blocks that are allocated and not freed.
    waiting
        Number of freed blocks that processes or messages still hold, or that the work of a stream
        may still use.
    holders
        Number of blocks, live or freed, that each process holds. The key is the pid.
    in_messages
        Number of blocks, live or freed, in messages that no process has received.
    """

    blocks: int
    free: int
    live: int
    waiting: int
    holders: dict[int, int]
    in_messages: int = 0


def stats_of(arena: Arena) -> PoolStats:
    """Reclaim the freed blocks that are not in use any more, and return the use of all blocks.

    Raises
    ------
    DriverError
        The kernel refuses the barrier.
    BusyError
        This process cannot wait for the device's work now.
    """
    arena.reclaim(all_of_them=True)
    arena.tell()
    holders: dict[int, int] = {}
    for holder, count in arena.holders().items():
        holders[holder.pid] = holders.get(holder.pid, 0) + count
    waiting, live = len(arena.held) + len(arena.freed), arena.live
    free = arena.blocks - live - waiting
    return PoolStats(arena.blocks, free, live, waiting, holders, len(arena.in_messages()))
