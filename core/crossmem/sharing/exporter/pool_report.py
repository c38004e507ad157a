# SPDX-License-Identifier: Apache-2.0
"""How the blocks of a pool are used, and who holds them."""

from dataclasses import dataclass

from crossmem.control.arenas import Arena

__all__ = ["PoolStats", "stats_of"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """How the blocks of a pool are used at one moment.

    Parameters
    ----------
    blocks
        How many there are.
    free
        Blocks that can be given out now.
    live
        Blocks that were given out and not freed.
    waiting
        Freed blocks that other processes, or messages, still hold.
    holders
        How many blocks each process holds, live or freed, by pid.
    in_messages
        How many blocks, live or freed, are in messages that nobody has received.
    """

    blocks: int
    free: int
    live: int
    waiting: int
    holders: dict[int, int]
    in_messages: int = 0


def stats_of(arena: Arena) -> PoolStats:
    """Return how the blocks are used, after a look at those that were freed.

    Raises
    ------
    DriverError
        The kernel forbids the barrier, or the device reports failed work.
    """
    arena.reclaim(all_of_them=True)
    arena.tell()
    holders: dict[int, int] = {}
    for holder, count in arena.holders().items():
        holders[holder.pid] = holders.get(holder.pid, 0) + count
    waiting, live = len(arena.held) + len(arena.freed), arena.live
    free = arena.blocks - live - waiting
    return PoolStats(arena.blocks, free, live, waiting, holders, arena.in_messages)
