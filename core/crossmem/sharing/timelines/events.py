# SPDX-License-Identifier: Apache-2.0
"""The level ``"event"``: one process's streams record events, and other streams await them.

The timeline has a page of its own. The page contains the words of the timeline and then sixteen
entries. Each signal uses the next entry; after the last entry comes the first entry again. Each
entry belongs to one event. An entry contains the value with which the event was recorded last, and
the payload by which other processes open the event. If the event is recorded again while a waiter
uses the entry, the waiter waits for the later recording.
"""

import threading
import time
from typing import ClassVar, Final, cast

from typing_extensions import override

from crossmem.control import words
from crossmem.driver import SharedEvent, StreamEvents, Streams, stream_events_of
from crossmem.driver.recording import call_into
from crossmem.errors import ClosedError, InvalidHandleError
from crossmem.locks import Rank, ordered_lock
from crossmem.models import TimelineLevel
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.timelines.cell import CELL_NBYTES, ISSUED, VALUE, Awaited, Cell
from crossmem.sharing.timelines.levels import Level

__all__ = ["EventLevel"]

_ENTRY_WORDS: Final = 16
_FIRST: Final = CELL_NBYTES // 8
_ENTRIES: Final = range(_FIRST, _FIRST + 16 * _ENTRY_WORDS, _ENTRY_WORDS)
"""The index of each entry's first word in the page. The first word of an entry is the value, and
its second word is the length of the payload."""
_PAYLOAD_NBYTES: Final = 8 * (_ENTRY_WORDS - 2)
_LOOK_S: Final = 1e-4


class EventLevel(Level):
    """Streams record and await events.

    A wait on a stream blocks the host until the signalling process has issued the value.
    """

    name: ClassVar[TimelineLevel] = "event"

    def __init__(
        self,
        process: Process,
        device: LocalDevice,
        cell: Cell,
        *,
        is_own: bool,
        maker: "EventLevel | None" = None,
    ) -> None:
        """Make the level. Each event is made or opened at its first use.

        Parameters
        ----------
        is_own
            Whether this object signals the timeline.
        maker
            The level by which this process signals the same timeline with the same driver, or None
            if there is no such level. This object uses the maker's events, because a vendor may
            refuse to open an event in the process that created the event.
        """
        super().__init__(process, device, cell)
        self._is_own = is_own
        self._maker = maker
        self._lock: threading.RLock = ordered_lock(Rank.FOREIGN) if maker is None else maker._lock
        """Held while events are used, so that no event is destroyed during its use."""
        self._is_closed = False
        self._open: dict[int, list[SharedEvent]] = {} if maker is None else maker._open
        """For each used entry, a list. As soon as the entry's event is open, the list contains the
        event. The key is the index of the entry's first word."""
        self._turn = 0

    def _event(self, entry: int) -> SharedEvent:
        """Return an entry's event. The first call for an entry creates or opens its event.

        The caller holds the lock.
        """
        if self._is_closed or (self._maker is not None and self._maker._is_closed):
            msg = "this timeline was closed"
            raise ClosedError(msg)
        box = self._open.setdefault(entry, [])
        driver, ordinal = cast("StreamEvents", self.streams), self.device.ordinal
        start = self.cell.words.cast("B")[8 * entry + 16 : 8 * (entry + _ENTRY_WORDS)]
        nbytes = words.load(self.cell.words, entry + 1)
        if self._is_own:
            if not box:
                call_into(box, driver.create_event, ordinal)
            if not nbytes:
                payload = box[0].payload
                start[: len(payload)] = payload
                words.release()
                words.store(self.cell.words, entry + 1, len(payload))
        elif not box:
            if not 0 < nbytes <= _PAYLOAD_NBYTES:
                msg = f"an event's payload must have 1 to {_PAYLOAD_NBYTES} bytes, not {nbytes}"
                raise InvalidHandleError(msg, operation="wait")
            call_into(box, driver.open_event, ordinal, bytes(start[:nbytes]))
        return box[0]

    def _entries(self) -> list[tuple[int, int]]:
        """Return (value, entry) of each entry whose value is larger than VALUE, sorted by value."""
        seen = self.cell.read(VALUE)
        found = [(self.cell.read(one), one) for one in _ENTRIES]
        return sorted(one for one in found if one[0] > seen)

    @property
    @override
    def reached(self) -> int:
        value = self.cell.read(VALUE)
        with self._lock:
            for issued, entry in self._entries():
                if not cast("StreamEvents", self.streams).is_event_done(self._event(entry)):
                    break
                value = issued
        # After the first read of VALUE, the signalling process may have reused an entry, so that
        # the loop missed the entry's old value. Before the reuse, the signalling process increased
        # VALUE. The second read of VALUE ensures that ``reached`` never decreases.
        return max(value, self.cell.read(VALUE))

    @override
    def _order(self, stream: int) -> None:
        self.wait(self.issued, stream)

    @override
    def _issue(self, streams: Streams, value: int, stream: int) -> None:
        # Readers derive the reached value from VALUE and the entries. This method overwrites an
        # entry, so the method first stores the reached value in VALUE.
        self.cell.write(VALUE, self.reached)
        entry = _ENTRIES[self._turn % len(_ENTRIES)]
        with self._lock:
            cast("StreamEvents", streams).record_event(self._event(entry), stream)
        self._turn += 1
        words.release()
        words.store(self.cell.words, entry, value)
        self.cell.write(ISSUED, value)

    @override
    def set(self, value: int) -> None:
        super().set(value)
        # Each wait begins with a wait for ISSUED. So a value that is signalled without a stream is
        # written to ISSUED, too.
        self.cell.write(ISSUED, value)

    @override
    def wait_on_host(self, awaited: Awaited) -> int:
        end = time.monotonic() + awaited.timeout_s
        self.cell.wait(ISSUED, awaited)
        while (reached := self.reached) < awaited.value:
            awaited.check()
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise awaited.passed(reached)
            time.sleep(min(_LOOK_S, left_s))
        return reached

    @override
    def prepare(self, awaited: Awaited) -> int:
        self.streams  # noqa: B018 - raises if the device has no streams
        return self.cell.wait(ISSUED, awaited)

    @override
    def wait(self, value: int, stream: int) -> None:
        with self._lock:
            for issued, entry in self._entries():
                if issued >= value:
                    cast("StreamEvents", self.streams).wait_event(self._event(entry), stream)
                    return

    @override
    def close(self) -> None:
        driver = None if self._maker is not None else stream_events_of(self.device.driver)
        with self._lock:
            self._is_closed = True
            for box in self._open.values():
                if box and driver is not None:
                    # If an interrupted destroy_event() has destroyed the event, the repeated call
                    # does nothing.
                    driver.destroy_event(box[0])
                    box.clear()
