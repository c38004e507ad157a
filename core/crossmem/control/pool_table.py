# SPDX-License-Identifier: Apache-2.0
"""The lease registry's record of the pools of a process.

:meth:`PoolTable.close` takes the registry's lock. The caller of any other method holds the lock.
"""

from typing import Protocol

from crossmem.control.leases import Holder
from crossmem.control.records import Export
from crossmem.control.segments import WORDS
from crossmem.control.wire import Refusal, Wanted
from crossmem.models import ShareableHandle

__all__ = ["PoolTable"]


class _Arena(Protocol):
    """The part of a pool's arena that the table needs."""

    blocks: int
    export: Export

    def enter(self, index: int, generation: int, holder: Holder) -> Refusal | None:
        """Let a message reserve a block, or return the refusal."""
        ...

    def close(self) -> None:
        """Refuse later reservations of blocks."""


class PoolTable:
    """The pools of this process, and this process's rows for these pools and for its timelines."""

    def __init__(self) -> None:
        self.arenas: dict[int, _Arena] = {}
        """The arenas. The key is the number of the allocation."""
        self.own_rows: dict[int, memoryview] = {}
        """The rows in which this process holds blocks of its own pools, and acknowledges values of
        its own timelines. The key is the number of the control segment."""

    def close(self, allocation: int) -> None:
        """Remove a pool whose construction failed, if the table contains the pool."""
        arena = self.arenas.get(allocation)
        if arena is not None:
            arena.close()

    def own_row(self, which: int) -> memoryview:
        """Return this process's own row for a control segment. The first call makes the row."""
        row = self.own_rows.get(which)
        if row is None:
            # Only pages with used words take memory.
            made = memoryview(bytearray(8 * WORDS)).cast("Q")
            row = self.own_rows.setdefault(which, made)
        return row

    def enter(self, wanted: Wanted | ShareableHandle, holder: Holder) -> Refusal | None:
        """Let a message reserve the wanted block, or return the refusal.

        Do nothing if the wanted export is not a block of a pool.
        """
        arena = self.arenas.get(wanted.allocation)
        if arena is None or not wanted.export:
            return None
        return arena.enter(wanted.export - 1, wanted.generation, holder)
