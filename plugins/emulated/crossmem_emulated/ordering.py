# SPDX-License-Identifier: Apache-2.0
"""The search for memory accesses that do not wait for a stream's write (HIP-X13, ACL-X8).

On a real device, the write is usually complete before such an access, so the program rarely fails.
With slow streams, the emulation delays the write, and this search reports the access, even if the
program does not check the data.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from crossmem_emulated.addresses import Space
from crossmem_emulated.machine import HostLostError, Machine
from crossmem_emulated.queues import Queue, Queues, Work

__all__ = ["Ordering"]

_Ranges = Iterable[tuple[int, int]]


class Ordering:
    """The pending writes of the slow streams of this process and of other processes.

    The search considers a pending write only if a real device could already have done it. Such a
    write does not wait for a function of the program, for a value, or for another stream.

    The object registers itself as the observer of ``queues``. To report a violation, the object
    calls ``violate`` with the name of the vendor's function and a description.
    """

    def __init__(
        self,
        machine: Machine,
        space: Space,
        queues: Queues,
        violate: Callable[[str, str], None],
    ) -> None:
        self._machine = machine
        self._space = space
        self._queues = queues
        self._violate = violate
        queues.ordering = self

    def submitted(self, stream: Queue, work: Work) -> None:
        """Publish a pending write in the tables, so that other processes can find the write."""
        if not work.written or not self._queues.is_free(stream, work):
            return
        lost = suppress(HostLostError, sqlite3.OperationalError)
        with lost, self._machine.transaction() as tables:
            me = self._machine.me(tables)
            for pages, first, nbytes in self._places(work.written):
                statement = (
                    "INSERT INTO pending_write (pages, first, nbytes, call, process) "
                    "VALUES (?, ?, ?, ?, ?)"
                )
                values = (pages, first, nbytes, work.call, me)
                work.rows.append(tables.execute(statement, values).lastrowid or 0)

    def begins(self, work: Work, stream: Queue | None = None) -> None:
        """Record a violation if ``work`` accesses memory that a pending write will change.

        Only pending writes of other streams and of other processes count.
        """
        if work.is_over is not None or not work.ranges:
            return
        for earlier in self._queues.pending_before(work, stream):
            if _overlap(earlier.written, work.ranges):
                text = f"an earlier, pending {earlier.call} of another stream"
                self._violate(work.call, f"{text} writes to the same memory")
                return
        with suppress(HostLostError, sqlite3.OperationalError):
            call = self._pending_elsewhere(work)
            if call is not None:
                text = f"a pending {call} of another process writes to the same memory"
                self._violate(work.call, text)

    def _pending_elsewhere(self, work: Work) -> str | None:
        """Find a pending write that another process makes to memory that ``work`` accesses.

        The result is the name of the vendor's function that made the write, or None if there is no
        such write.
        """
        with self._machine.transaction() as tables:
            me = self._machine.me(tables)
            for pages, first, nbytes in self._places(work.ranges):
                query = (
                    "SELECT process, call FROM pending_write WHERE pages = ? AND process != ? "
                    "AND first < ? AND first + nbytes > ?"
                )
                found = tables.execute(query, (pages, me, first + nbytes, first)).fetchall()
                for process, call in found:
                    if self._machine.lives(tables, process):
                        return str(call)
        return None

    def ended(self, work: Work) -> None:
        """Remove a write from the tables when it is done or discarded."""
        if work.rows:
            lost = suppress(HostLostError, sqlite3.OperationalError)
            with lost, self._machine.transaction() as tables:
                statement = "DELETE FROM pending_write WHERE number = ?"
                tables.executemany(statement, [(one,) for one in work.rows])
            work.rows.clear()

    def _places(self, ranges: _Ranges) -> Iterator[tuple[int, int, int]]:
        """Yield each part of the ranges that is device memory.

        The result names a part by the ``number`` of its :class:`Pages`, its offset in these pages,
        and its size.
        """
        for pointer, nbytes in ranges:
            for piece, place, size in self._space.spans(pointer, nbytes):
                pages: Any = piece.pages
                yield pages.number, place - pages.address, size


def _overlap(some: _Ranges, others: _Ranges) -> bool:
    return any(
        first < start + nbytes and start < first + size
        for first, size in some
        for start, nbytes in others
    )
