# SPDX-License-Identifier: Apache-2.0
"""The host memory of timelines: pages that this process exports, and pages registered for streams.

The words of many timelines lie in one page, but a timeline of level ``"event"`` has its own page. A
process that opens several timelines of one page leases the page once. The words of a closed
timeline are never used for another timeline, because a stream of another process may still read
them.
"""

import os
import weakref
from contextlib import suppress
from functools import partial
from operator import setitem
from typing import Any, ClassVar, Final, NamedTuple

from typing_extensions import override

from crossmem.control import words
from crossmem.control.records import Allow
from crossmem.control.segments import SLOTS
from crossmem.driver import StreamWords
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError, InvalidHandleError
from crossmem.guards import shorten
from crossmem.locks import Rank, ordered_lock
from crossmem.models import ShareableHandle, TimelineHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import find_device
from crossmem.sharing.base.memory import Memory, leave_to_views
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.exporter.allocation import allocate
from crossmem.sharing.timelines.cell import CELL_NBYTES, Cell

__all__ = ["HOST", "PAGE_NBYTES", "LeftMemory", "Page", "Pages", "Registrations", "check_memory"]

HOST: Final = "host"
"""The backend whose memory contains the words of timelines."""
PAGE_NBYTES: Final = 4096


class LeftMemory(Part):
    """Memory that is released when its last view has ended.

    The release happens even if a signal handler interrupts the finaliser of the memory's object.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._watched: set[weakref.ref[Memory]] = set()

    def add(self, memory: Memory) -> None:
        """When the last view has ended, end the memory's object and release the memory."""
        leave_to_views(memory)
        self._watched.difference_update([one for one in self._watched.copy() if one() is None])
        record = memory._record
        if record is not None:
            # The callback is the C function setitem, so no signal handler interrupts it. setitem
            # adds the record to the queue of deferred work: the record is the key, and the weak
            # reference is an unused value. If the finaliser has released everything already, the
            # next call that works on the queue removes the record.
            ready: dict[Record, Any] = self._process.deferred.ready
            self._watched.add(weakref.ref(memory, partial(setitem, ready, record)))


class Page:
    """A page of this process's host memory. The page has exactly one export."""

    def __init__(self, process: Process, allow: Allow | None) -> None:
        self.allocation = allocate(process, find_device(process, HOST, None), PAGE_NBYTES)
        # The page is released when this object and all cells of the page have ended.
        process.part(LeftMemory).add(self.allocation)
        self.handle: ShareableHandle = self.allocation.export(allow=allow)
        self._leases = leases = process.start_server().leases
        with leases.lock:
            # The slots after the slot of the page are for acknowledgements, one for each timeline.
            self._slot = slot = leases.slots.take_range(1 + PAGE_NBYTES // CELL_NBYTES)
            slot.move_on(is_live=True)
            self._export = export = leases.exports.get(self.handle.allocation, self.handle.export)
            export.slot = slot
            leases.granted[slot.number] = export
        self.allow = allow
        self.users: set[object] = set()
        """The timelines in the page that are not closed."""
        self.free = list(range(PAGE_NBYTES // CELL_NBYTES - 1, -1, -1))

    def retire(self) -> bool:
        """Refuse further leases of the page, unless a process leases the page now.

        Return whether further leases are refused.
        """
        return self._leases.retire(self._export.unit, even_if_leased=False)

    def acknowledged(self, offset: int) -> list[tuple[int, int]]:
        """Return the pid and the word of each reader of a timeline.

        The word is the reader's acknowledged value plus 1.
        """
        at = self._slot.at + 1 + offset // CELL_NBYTES
        with self._leases.lock:
            rows = [(one.holder.pid, row) for one, row in self._export.rows.items()]
            own = self._leases.pools.own_rows.get(self._slot.number // SLOTS)
            if own is not None:
                rows.append((os.getpid(), own))
            found = [(pid, words.load(row, at)) for pid, row in rows]
        return [one for one in found if one[1]]

    def cell(self, offset: int, nbytes: int) -> Cell:
        """Return the words at an offset of the page."""
        view = self.allocation.view()[offset : offset + nbytes]
        return Cell(view, self.allocation.ptr + offset)


class Place(NamedTuple):
    """A new timeline's words, the handle that other processes open, and the page of the words."""

    cell: Cell
    handle: ShareableHandle
    page: Page


class Pages(Part):
    """The pages with room for further timelines, and the timelines that this process signals."""

    closing: ClassVar = -4

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._open: dict[Allow | None, Page] = {}
        self.signalled: dict[Record, None] = {}
        """The timelines that this process signals and has not closed."""

    def take(self, allow: Allow | None) -> Place:
        """Return the words of a new timeline. The processes in ``allow`` may open the timeline."""
        while True:
            page = self._open.get(allow)
            if page is None:
                page = self._open[allow] = Page(self._process, allow)
            try:
                offset = page.free.pop() * CELL_NBYTES
            except IndexError:
                self._open.pop(allow, None)
                continue
            handle = page.handle.slice(offset, CELL_NBYTES)
            return Place(page.cell(offset, CELL_NBYTES), handle, page)

    def leave(self, page: Page, user: Record) -> None:
        """Remove a closed timeline from its page.

        An empty page is kept for further timelines only if its ``allow`` is None.
        """
        self.signalled.pop(user, None)
        page.users.discard(user)
        if not page.users and page.allow is not None and self._open.get(page.allow) is page:
            self._open.pop(page.allow, None)

    def take_page(self, allow: Allow | None) -> Place:
        """Return a whole page for one timeline."""
        page = Page(self._process, allow)
        return Place(page.cell(0, PAGE_NBYTES), page.handle, page)

    @override
    def tend(self) -> None:
        """Forget the empty pages that interrupted calls have left. These calls made no timeline."""
        for allow, page in list(self._open.items()):
            # Another thread may be making a timeline in the page. So the page is only forgotten
            # here. The page's memory is released when nothing refers to the page any more.
            if allow is not None and not page.users:
                self._open.pop(allow, None)

    @override
    def close_at_exit(self) -> None:
        """Close the timelines that this process signals, so that the waits of other processes end.

        The exit then waits for these processes to end their leases.
        """
        for record in list(self.signalled):
            with suppress(CrossmemError):
                record.give_back(blocking=False)


class _Registered(NamedTuple):
    """A page that a driver makes accessible to its devices."""

    ordinal: int
    address: list[int]
    """Contains the address for devices. The list is empty if the page is not registered."""
    users: set[object]
    ending: list[int]
    """Contains the address during unregister_host(). If a signal handler interrupts that call, the
    address stays in this list, and a later call repeats unregister_host()."""


class Registrations(Part):
    """The pages that drivers of this process have registered. Each driver registers a page once."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._lock = ordered_lock(Rank.FOREIGN)
        self._pages: dict[tuple[StreamWords, int], _Registered] = {}

    def enter(self, driver: StreamWords, ordinal: int, pointer: int, user: object) -> int:
        """Return the address by which devices reach a word, and register its page if necessary.

        The caller must call :meth:`leave` afterwards, even if this method raises.
        """
        page = pointer - pointer % PAGE_NBYTES
        with self._lock:
            found = self._pages.setdefault((driver, page), _Registered(ordinal, [], set(), []))
            found.users.add(user)
            if found.ending:
                _unregister(driver, page, found)
            if not found.address:
                call_into(found.address, driver.register_host, ordinal, page, PAGE_NBYTES)
            return found.address[0] + pointer - page

    def leave_all(self, driver: StreamWords, pages: set[int], user: object) -> None:
        """Remove a user of several pages; see :meth:`leave`.

        The method removes a page from ``pages`` after the user has left the page. So if a call is
        interrupted, a repeated call continues with the remaining pages.
        """
        while pages:
            page = next(iter(pages))
            self.leave(driver, page, user)
            pages.discard(page)

    def leave(self, driver: StreamWords, pointer: int, user: object) -> None:
        """Remove a user of a page. If no user is left, unregister the page.

        A call for a page that is not registered does nothing.

        Raises
        ------
        CrossmemError
            The vendor refuses to unregister the page. A later call tries again.
        """
        key = driver, pointer - pointer % PAGE_NBYTES
        with self._lock:
            found = self._pages.get(key)
            if found is None:
                return
            found.users.discard(user)
            if found.users:
                return
            if found.address or found.ending:
                _unregister(driver, key[1], found)
            self._pages.pop(key, None)


def _unregister(driver: StreamWords, page: int, found: _Registered) -> None:
    found.ending[:] = found.ending or found.address
    found.address.clear()
    try:
        driver.unregister_host(found.ordinal, page)
    except CrossmemError:
        found.address[:] = found.ending
        found.ending.clear()
        raise
    found.ending.clear()


def check_memory(handle: TimelineHandle) -> None:
    """Refuse a handle whose memory cannot contain a timeline.

    The fields of the handle are untrusted.

    Raises
    ------
    InvalidHandleError
        The memory's handle has the wrong class, backend, access, size or offset.
    """
    memory = handle.memory
    nbytes = PAGE_NBYTES if handle.level == "event" else CELL_NBYTES
    is_right = memory.backend == HOST and memory.access == "rw" and memory.nbytes == PAGE_NBYTES
    # This check refuses a BlockHandle and a ReadyHandle, which are other classes.
    is_right = is_right and type(memory) is ShareableHandle
    if not is_right or memory.length != nbytes or memory.offset % nbytes:
        msg = (
            f"the memory of {shorten(memory, 120)} cannot contain a timeline of level "
            f"{handle.level!r}"
        )
        hint = "pass the bytes of timeline.export().to_bytes() unchanged"
        raise InvalidHandleError(msg, operation="open_timeline", hint=hint)
