# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements: readers of a timeline acknowledge values whose data they do not use any more.

A reader writes acknowledgements into its own row of leases, so each word has one writer. The row
has one word for each timeline: 0, or the last acknowledged value plus 1. When a reader dies, the
owner removes the reader's row with all acknowledgements.
"""

import threading
import time
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from crossmem.control import words
from crossmem.control.segments import HEADER_WORDS, SLOTS
from crossmem.driver import StreamWords, stream_words_of
from crossmem.errors import BusyError, DriverError, InvalidHandleError, WaitTimeoutError
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.devices import wait_for_work
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.base.streams import stream_of
from crossmem.sharing.importer.record import Use
from crossmem.sharing.timelines.cell import CELL_NBYTES, Awaited
from crossmem.sharing.timelines.levels import Level
from crossmem.sharing.timelines.memory import Page, Registrations

__all__ = ["ReaderWord", "Readers", "await_readers"]

_SHORTEST_S: Final = 20e-6
_LONGEST_S: Final = 2e-3
"""The longest pause between two reads of the acknowledgements."""
_NAMED: Final = 8
"""The largest number of late readers that an error names."""


class _Word:
    """The word of this process for one timeline, and the objects that use it."""

    __slots__ = ("__weakref__", "attempted", "issued", "last", "lock", "row", "users")

    def __init__(self, row: memoryview) -> None:
        self.row = row
        """The row. It must stay alive, because its ``id()`` is part of the key of this object in
        :class:`Readers`."""
        self.lock = ordered_lock(Rank.ALLOCATION)
        """Held during driver calls for this word. The caller holds the timeline's lock."""
        self.users: set[ReaderWord] = set()
        self.issued = 0
        """The largest value that a stream will write into the word."""
        self.attempted = 0
        """The largest value that this process told a stream to write, even if the driver call
        failed or was interrupted. A call that raises BusyError does not count."""
        self.last: tuple[Level, int, int] | None = None
        """Level and stream of the last write by a stream, and the thread that issued the write."""


class Readers(Part):
    """The words into which this process writes acknowledgements."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._words: WeakValueDictionary[tuple[int, int], _Word] = WeakValueDictionary()
        self.awaited: dict[int, int] = {}
        """For each timeline, the largest value for which this process has told a stream to wait.
        The key is the timeline's identity."""

    def enter(self, row: memoryview, at: int, user: "ReaderWord") -> _Word:
        """Add a user of a word, and return the word."""
        with self._process.state:
            word = self._words.setdefault((id(row), at), _Word(row))
            word.users.add(user)
            return word


class ReaderWord:
    """One user of the word by which this process acknowledges the values of a timeline.

    Parameters
    ----------
    use
        The use that keeps the timeline's page open.
    offset
        Offset of the timeline in its page, in bytes.
    """

    def __init__(self, process: Process, level: Level, use: Use, offset: int) -> None:
        assert use.record is not None  # noqa: S101 - the import is open
        slot, self._control, self._row, self._address = use.record.row_of(use.core)
        self._process = process
        self._level = level
        self._at = HEADER_WORDS + (slot + 1 + offset // CELL_NBYTES) % SLOTS
        self._word = process.part(Readers).enter(self._row, self._at, self)

    def done(self, value: int, stream: Any = None) -> None:
        """Acknowledge a value, at once or when the work that was issued on a stream is complete.

        Raises
        ------
        InvalidHandleError
            The memory of the handle is not a page of timelines.
        """
        if words.load(self._control, self._at) % 2:
            # The control segment's word for a slot of acknowledgements is even, because the slot
            # has no generation. This word is odd, so the slot belongs to an export: another process
            # has forged a timeline's handle. The word in this process's row may be this process's
            # hold of the export. This function must not overwrite the hold.
            msg = "the memory of this handle belongs to no timeline: its slots belong to exports"
            raise InvalidHandleError(msg, operation="done")
        number = None if stream is None else stream_of(stream)
        with self._word.lock:
            self._write(value + 1, number)

    def _write(self, word: int, number: int | None) -> None:
        shared, reached = self._word, words.load(self._row, self._at)
        if word <= max(shared.issued, reached):
            return
        level = self._level
        device = level.device
        if number is None:
            if shared.last is not None and shared.attempted > reached:
                # A stream may still write a smaller value, and must not overwrite the new value.
                # So this call first waits for the stream.
                last, stream, _thread = shared.last
                ordinal = last.device.ordinal
                try:
                    last.streams.synchronize_stream(ordinal, stream)
                except DriverError:
                    # The application may have destroyed the stream, so the whole device is awaited.
                    last.device.driver.synchronize(ordinal)
            words.release()
            words.store(self._row, self._at, word)
            return
        if level.name != "word" or not self._address:
            level.streams.synchronize_stream(device.ordinal, number)
            words.store(self._row, self._at, word)
            return
        driver = cast("StreamWords", level.streams)
        pages, pointer = self._process.part(Registrations), self._address + 8 * self._at
        address = pages.enter(driver, device.ordinal, pointer, self)
        key = level, number, threading.get_ident()
        if key != shared.last and shared.issued > reached:
            # Streams run in any order, and the value in the word must not shrink. So this stream
            # first waits for the value that another stream writes.
            driver.wait_value(device.ordinal, address, shared.issued, number)
        before = shared.attempted, shared.last
        shared.attempted, shared.last = word, key
        try:
            driver.write_value(device.ordinal, address, word, number)
        except BusyError:
            # The stream is being captured into a graph, so nothing was issued.
            shared.attempted, shared.last = before
            raise
        shared.issued = word

    def leave(self) -> None:
        """Stop using the word. When its last user leaves, this process stops being a reader.

        An interrupted call can be repeated.
        """
        shared = self._word
        with shared.lock:
            if shared.last is not None and shared.attempted > words.load(self._row, self._at):
                # A stream may still write an acknowledgement, and must not overwrite the 0 that is
                # stored below. So this call first waits for the device.
                wait_for_work(shared.last[0].device)
            with self._process.state:
                shared.users.discard(self)
                if not shared.users:
                    shared.attempted = shared.issued = 0
                    words.store(self._row, self._at, 0)
        driver = stream_words_of(self._level.device.driver)
        if driver is not None and self._address:
            pages = self._process.part(Registrations)
            pages.leave(driver, self._address + 8 * self._at, self)


def await_readers(page: Page, offset: int, awaited: Awaited, readers: int) -> int:
    """Wait until all readers of a timeline have acknowledged a value; return their number.

    Parameters
    ----------
    offset
        Offset of the timeline in the page, in bytes.
    readers
        The smallest number of readers with which the wait can end. While the timeline has fewer
        readers, the wait goes on.

    Raises
    ------
    WaitTimeoutError
        A reader did not acknowledge the value in time, or there are too few readers. The message
        says how many readers acknowledged the value.
    """
    end, pause_s = time.monotonic() + awaited.timeout_s, _SHORTEST_S
    while True:
        awaited.check()
        found = page.acknowledged(offset)
        late = [pid for pid, word in found if word <= awaited.value]
        if not late and len(found) >= readers:
            return len(found)
        left_s = end - time.monotonic()
        if left_s <= 0:
            raise _late(awaited.value, late, len(found), readers)
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_S)


def _late(value: int, late: list[int], found: int, readers: int) -> WaitTimeoutError:
    of = max(found, readers)
    msg = f"{found - len(late)} of {of} readers have acknowledged value {value} in time"
    if late:
        more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
        msg += f"; the pids of the late readers are {', '.join(map(str, late[:_NAMED]))}{more}"
    else:
        msg += f"; the number of readers is {found}"
    hint = "let each reader call done(); a process that died or closed its objects does not count"
    return WaitTimeoutError(msg, operation="wait_for_readers", hint=hint)
