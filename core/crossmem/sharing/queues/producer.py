# SPDX-License-Identifier: Apache-2.0
"""The producer's side: it alone writes its ring and hands out its buffers."""

from typing import Any, Final

from crossmem.control import words
from crossmem.errors import AccessDeniedError, ClosedError, UnsupportedError
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.devices import wait_for_work
from crossmem.sharing.base.streams import stream_of
from crossmem.sharing.queues import layout
from crossmem.sharing.queues.bells import Sleeper, ring
from crossmem.sharing.queues.buffer import BufferRecord
from crossmem.sharing.queues.layout import SESSION
from crossmem.sharing.queues.opened import Opened
from crossmem.sharing.timelines.cell import ISSUED, VALUE, Cell
from crossmem.sharing.timelines.levels import HostLevel, Level, WordLevel

__all__ = ["Producer"]

_NOBODY: Final = 0
"""The target of an entry whose consumer the owner chooses."""


class Producer:
    """The place of this process as a producer.

    Parameters
    ----------
    opened
        The queue.
    index
        The number of the place.
    view
        The ring, which this process writes.
    pointer
        Its address here.
    """

    def __init__(self, opened: Opened, index: int, view: memoryview, pointer: int) -> None:
        self.opened = opened
        self.index = index
        self.words = view.cast("Q")
        self.sleeper = Sleeper(self.words, opened.ring_bells[index])
        self._lock = ordered_lock(Rank.ALLOCATION)
        """Held while entries are published, and during the vendor's call for a stream."""
        cell = Cell(view[: layout.HEADER_NBYTES], pointer)
        levels = opened.device.capabilities.timeline_levels
        make = WordLevel if "word" in levels else HostLevel
        self.level: Level = make(opened.process, opened.device, cell)
        """Publishes the number of entries, on streams too."""
        self._flying: dict[int, tuple[int, int]] = {}
        """By buffer: stamp and target of its entry, until it is released."""
        self._free: list[int] = []
        self._given: dict[int, int] = {}
        """By target: number of its entries that are not released."""
        self._next = 0
        """The consumer whose turn it is."""
        self._doubtful: int | None = None
        """The buffer of a put that was interrupted."""
        tail = words.load(self.words, VALUE)
        words.store(self.words, ISSUED, 0)
        shape, depth = opened.shape, opened.terms.depth
        for buffer in range(depth):
            at = shape.entry(buffer)
            stamp = words.load(self.words, at)
            if 0 < stamp <= tail:
                # A predecessor has published it. It may not be released yet.
                self._flying[buffer] = (stamp, words.load(self.words, at + layout.TARGET))
            words.store(self.words, at, stamp if buffer in self._flying else 0)
        self._free += [one for one in range(depth) if one not in self._flying]
        self.session = words.load(self.words, SESSION) + 1 | 1
        words.release()
        words.store(self.words, SESSION, self.session)
        opened.tell_owner(True, index)  # noqa: FBT003

    def check(self) -> None:
        """Raise if this process may not put any more.

        Raises
        ------
        ClosedError, OwnerGoneError, AccessDeniedError
            The queue was closed, its owner is dead, or it has revoked the role.
        """
        opened = self.opened
        opened.check_owner()
        if opened.end:
            msg = "the queue has ended: all producers that it was made for have come and closed"
            hint = "make the queue with more producers, and end it with finish()"
            raise ClosedError(msg, operation="put", hint=hint)
        if words.load(opened.control, opened.shape.ended_producer(self.index)) >= self.session:
            msg = "the owner of the queue revoked the role of this producer"
            raise AccessDeniedError(msg, operation="put")

    # Buffers ------------------------------------------------------------------------------

    def take(self) -> BufferRecord | None:
        """Return a free buffer, None if there is none."""
        free = self._free
        if not free:
            self.reclaim()
            if not free and self.opened.terms.overflow == "drop":
                self._drop_oldest()
        try:
            buffer = free.pop(0)
        except IndexError:
            return None
        return BufferRecord(self, self.index, buffer, 0, 0)

    def take_back(self, record: BufferRecord, stream: Any) -> None:
        """Take a buffer that was not put."""
        opened = self.opened
        if stream is None and not opened.device.capabilities.host_visible:
            wait_for_work(opened.device)
        if not record.is_done:
            record.is_done = True
            self._free.append(record.buffer)

    def reclaim(self) -> None:
        """Take back the buffers that all their consumers have released."""
        for buffer, (stamp, _target) in list(self._flying.items()):
            if self._is_released(buffer, stamp):
                self._forget(buffer)

    def _forget(self, buffer: int) -> None:
        """Make the buffer of an entry free. A second call does nothing."""
        found = self._flying.pop(buffer, None)
        if found is not None:
            self._given[found[1]] = self._given.get(found[1], 1) - 1
            self._free.append(buffer)

    def _is_released(self, buffer: int, stamp: int) -> bool:
        opened, shape = self.opened, self.opened.shape
        at = shape.released(self.index, buffer)
        if opened.terms.delivery == "one":
            if any(words.observe(place, at) == stamp for place in opened.places):
                return True
            return words.load(opened.control, shape.dropped(self.index, buffer)) == stamp
        for consumer, place in enumerate(opened.places):
            if (
                words.observe(place, at) != stamp
                and opened.session_of(consumer)
                and words.load(place, shape.start(self.index)) < stamp
            ):
                return False
        return True

    def _drop_oldest(self) -> None:
        """Drop the oldest entry that no consumer holds."""
        opened, shape = self.opened, self.opened.shape
        for buffer, (stamp, _target) in sorted(self._flying.items(), key=lambda one: one[1]):
            at = shape.entry(buffer)
            if words.load(self.words, at) == stamp:
                words.store(self.words, at, 0)
                words.store(self.words, layout.DROPS, words.load(self.words, layout.DROPS) + 1)
            # After the barrier, a consumer that saw the stamp has its word in its place.
            words.barrier()
            held = shape.released(self.index, buffer) + shape.table
            if not any(
                words.load(place, held) == stamp and opened.session_of(consumer)
                for consumer, place in enumerate(opened.places)
            ):
                self._forget(buffer)
                return

    # Entries ------------------------------------------------------------------------------

    def put(self, record: BufferRecord, length: int, user_data: bytes, stream: Any) -> None:
        """Publish a buffer. It belongs to the consumers from then on."""
        opened, shape = self.opened, self.opened.shape
        number = None if stream is None else stream_of(stream)
        if number is None and not opened.device.capabilities.host_visible:
            wait_for_work(opened.device)
        with self._lock:
            self.check()
            self._resolve_doubt()
            tail, cell = self.level.issued, self.words
            target = self._choose() if opened.terms.delivery == "one" else _NOBODY
            at = shape.entry(record.buffer)
            words.store(cell, at, 0)
            words.release()
            words.store(cell, at + layout.LENGTH, length)
            words.store(cell, at + layout.TARGET, target)
            words.store(cell, at + layout.USER_NBYTES, len(user_data))
            if user_data:
                first = 8 * (at + layout.USER)
                cell.cast("B")[first : first + len(user_data)] = user_data
            words.release()
            words.store(cell, at, tail + 1)
            words.store(cell, shape.order(tail), record.buffer)
            is_left = opened.terms.delivery == "one" and target == _NOBODY
            if is_left:
                words.store(cell, layout.LEFT, tail + 1)
            self._given[target] = self._given.get(target, 0) + 1
            # From here on, this object takes the buffer back.
            self._flying[record.buffer] = (tail + 1, target)
            record.is_done = True
            self._doubtful = record.buffer
            if number is not None:
                self.level.signal(tail + 1, number)
            else:
                self.level.cell.write(VALUE, tail + 1)
            self._doubtful = None
        self._wake(target, is_left=is_left)

    def _resolve_doubt(self) -> None:
        """After an interrupted put, find out whether its entry was published."""
        self.level.settle()
        buffer, self._doubtful = self._doubtful, None
        if buffer in self._flying and self._flying[buffer][0] > self.level.issued:
            words.store(self.words, self.opened.shape.entry(buffer), 0)
            self._forget(buffer)

    def _choose(self) -> int:
        """Return the consumer for the next entry, in turns: one with room, else nobody."""
        opened = self.opened
        control, shape, index = opened.control, opened.shape, self.index
        if words.observe(control, shape.caught_up(index)) < words.load(self.words, layout.LEFT):
            # Entries that were left to the owner come first.
            return _NOBODY
        for is_last_try in (False, True):
            for turn in range(len(opened.places)):
                consumer = (self._next + turn) % len(opened.places)
                session = opened.session_of(consumer)
                target = layout.target_of(consumer, session)
                if session and self._given.get(target, 0) < opened.terms.prefetch:
                    self._next = consumer + 1
                    return target
            if not is_last_try:
                self.reclaim()
        return _NOBODY

    def _wake(self, target: int, *, is_left: bool) -> None:
        opened = self.opened
        if is_left:
            opened.tell_owner(True, self.index)  # noqa: FBT003
        elif target:
            consumer = (target >> 48) - 1
            ring(opened.places[consumer], opened.place_bells[consumer])
        else:
            for consumer, bell in enumerate(opened.place_bells):
                ring(opened.places[consumer], bell)

    def refuse_foreign(self, record: BufferRecord) -> None:
        """Refuse a buffer that this producer did not hand out.

        Raises
        ------
        UnsupportedError
            It belongs to another queue, or was received.
        """
        if record.holder is not self:
            msg = "this buffer belongs to another queue or producer, or was received"
            hint = "allocate a buffer of this queue, or pass an array with copy='allow'"
            raise UnsupportedError(msg, operation="put", hint=hint)

    def waits_for_streams(self) -> bool:
        """Whether a stream may release a buffer, which wakes nobody."""
        return any(words.load(place, layout.STREAMS) for place in self.opened.places)

    def close(self) -> None:
        """End the session. Published entries stay readable. A second call does nothing."""
        if words.load(self.words, SESSION) != self.session:
            return
        with self._lock:
            self.level.settle()
            if self.level.issued > self.level.reached:
                wait_for_work(self.opened.device)
            self.level.close()
        words.store(self.words, SESSION, self.session + 1)
        self.opened.tell_owner(True, self.index)  # noqa: FBT003
