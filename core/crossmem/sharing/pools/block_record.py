# SPDX-License-Identifier: Apache-2.0
"""The record of a block of a pool.

The record lives until the block is freed, even if the application drops its ``Block`` earlier.
"""

from typing import ClassVar

from typing_extensions import override

from crossmem.control.arenas import Arena
from crossmem.models import BlockHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.streams import Landing
from crossmem.sharing.pools.record import PoolRecord

__all__ = ["BlockRecord"]


class BlockRecord(Record):
    """One life of a block: from just before it leaves the free list, until the block is freed."""

    __slots__ = ("arena", "generation", "handle", "index", "landing", "pool")

    is_shared: ClassVar = True

    is_done: bool
    pool: PoolRecord
    arena: Arena
    index: int
    generation: int
    """The generation that exports write into handles; 0 before the first export."""
    handle: BlockHandle | None
    landing: Landing
    """The end of the work that uses the block. Set only if the block is freed on a stream."""

    @override
    def leave_to_others(self) -> bool:
        """Free the block. Return True if :meth:`give_back` has nothing left to do.

        The caller holds the lock of the process's state. As soon as the block is in the free list,
        the pool may allocate it again.
        """
        arena = self.arena
        if self.is_done:
            return False
        if self.generation:
            arena.retire(self.index, self.generation)
        landing: Landing | None = getattr(self, "landing", None)
        # No signal handler and no other thread runs between these statements.
        if self.generation or arena.wait_for_work is not None:
            if not self.is_done:
                if landing is not None:
                    arena.streamed[self.index] = landing.has_landed
                arena.freed += (self.index,)
                self.is_done = True
        elif not self.is_done:
            # The block was never exported, so no process can hold it.
            arena.free += (self.index,)
            self.is_done = True
        return len(arena.freed) < arena.batch and not arena.waiting and not arena.is_closing

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Free the block, and read the rows if enough blocks were freed."""
        if not self.is_done:
            with self.pool.process.state:
                self.leave_to_others()
        arena = self.arena
        try:
            if len(arena.freed) >= arena.batch:
                arena.reclaim()
                arena.tell()
        finally:
            arena.ring()
            if self.arena.is_closing:
                self.pool.end_if_unused()
