# SPDX-License-Identifier: Apache-2.0
"""The consumer's side: it reads rings, and alone writes its positions."""

from typing import Any, NamedTuple, cast

from crossmem.control import words
from crossmem.control.barrier import IS_REGISTERED
from crossmem.driver import StreamWords, stream_words_of, streams_of
from crossmem.errors import AccessDeniedError, UnsupportedError
from crossmem.sharing.base.devices import wait_for_work
from crossmem.sharing.base.streams import stream_of
from crossmem.sharing.queues import layout
from crossmem.sharing.queues.bells import Sleeper, ring
from crossmem.sharing.queues.buffer import BufferRecord, SharedBuffer
from crossmem.sharing.queues.layout import MAX_USER_DATA_NBYTES, SESSION
from crossmem.sharing.queues.opened import FINISHED, Opened
from crossmem.sharing.timelines.cell import ISSUED, VALUE
from crossmem.sharing.timelines.memory import PAGE_NBYTES, Registrations

__all__ = ["Consumer"]


class Entry(NamedTuple):
    """The contents of an entry, after all checks."""

    buffer: int
    length: int
    target: int
    user_data: bytes


class Consumer:
    """The place of this process as a consumer.

    Parameters
    ----------
    opened
        The queue.
    index
        The number of the place.
    view
        The segment of the place, which this process writes.
    pointer
        Its address here.
    """

    def __init__(self, opened: Opened, index: int, view: memoryview, pointer: int) -> None:
        self.opened = opened
        self.index = index
        self.words = view.cast("Q")
        self._pointer = pointer
        self.sleeper = Sleeper(self.words, opened.place_bells[index])
        self._registered: set[int] = set()
        """Pointers to words that streams have written."""
        self.held: dict[BufferRecord, None] = {}
        """The buffers that this process has received and not released."""
        self._turn = 0
        self.session = words.load(self.words, SESSION) + 1 | 1
        self.target = layout.target_of(index, self.session)
        shape, control = opened.shape, opened.control
        words.store(self.words, layout.STREAMS, 0)
        words.store(self.words, layout.HANDED, words.load(control, shape.hand_tail(index)))
        for buffer in range(shape.table):
            # A dead predecessor may have held entries. What it has released stays released.
            words.store(self.words, shape.released(0, 0) + shape.table + buffer, 0)
        self._start()
        words.release()
        words.store(self.words, SESSION, self.session)
        if opened.terms.delivery == "each":
            # After the barrier, a producer that frees a buffer sees this session. Entries from
            # before may have been freed.
            words.barrier()
            self._start()
        opened.tell_owner(False, index)  # noqa: FBT003

    def _start(self) -> None:
        """Begin with the next entry of each producer; entries for one consumer are all read."""
        opened, shape = self.opened, self.opened.shape
        for producer, cell in enumerate(opened.rings):
            tail = words.observe(cell, VALUE)
            words.store(self.words, shape.start(producer), tail)
            words.store(self.words, shape.read(producer), tail)

    def check(self) -> None:
        """Raise if nothing can be read any more.

        Raises
        ------
        ClosedError, OwnerGoneError, AccessDeniedError
            The queue was closed, its owner is dead, or it has revoked the role.
        """
        opened = self.opened
        opened.check_owner()
        if words.load(opened.control, opened.shape.ended_consumer(self.index)) >= self.session:
            msg = "the owner of the queue revoked the role of this consumer"
            raise AccessDeniedError(msg, operation="get")

    # Reading ------------------------------------------------------------------------------

    def look(self) -> SharedBuffer | None:
        """Return the next buffer for this consumer, None if there is none now."""
        opened = self.opened
        is_one = opened.terms.delivery == "one"
        tails = [words.observe(cell, VALUE) for cell in opened.rings]
        if is_one:
            # Entries that the owner hands out come before those that were put after them.
            found = self._look_in_hand()
            if found is not None:
                return found
        for turn in range(len(tails)):
            producer = (self._turn + turn) % len(tails)
            found = self._look_in_ring(producer, tails[producer])
            if found is not None:
                self._turn = producer + 1
                return found
        return None

    def _look_in_hand(self) -> SharedBuffer | None:
        opened, shape = self.opened, self.opened.shape
        control, mine = opened.control, self.words
        position = words.load(mine, layout.HANDED)
        while position < words.observe(control, shape.hand_tail(self.index)):
            at = shape.hand(self.index, position)
            stamp, where = words.load(control, at), words.load(control, at + 1)
            position += 1
            words.store(mine, layout.HANDED, position)
            producer, count = where & 0xFF, where >> 32
            buffer = where >> 8 & 0xFFFFFF
            entry = self._read(producer, buffer, stamp)
            if entry is not None:
                return self._deliver(producer, stamp, entry, count)
        return None

    def _look_in_ring(self, producer: int, tail: int) -> SharedBuffer | None:
        opened, shape = self.opened, self.opened.shape
        at = shape.read(producer)
        number = words.load(self.words, at)
        if tail - number > opened.terms.depth:
            return self._look_behind(producer, number, tail)
        while number < tail:
            buffer = words.load(opened.rings[producer], shape.order(number))
            entry = self._read(producer, buffer, number + 1)
            if entry is None and words.observe(opened.rings[producer], VALUE) > tail:
                # The word may be that of a later number by now.
                return self._look_in_ring(producer, words.load(opened.rings[producer], VALUE))
            number += 1
            words.store(self.words, at, number)
            if entry is not None and self._is_mine(entry):
                return self._deliver(producer, number, entry, 1)
        return None

    def _is_mine(self, entry: Entry) -> bool:
        return self.opened.terms.delivery == "each" or entry.target == self.target

    def _look_behind(self, producer: int, number: int, tail: int) -> SharedBuffer | None:
        """Return the first entry of this consumer among all entries, and go on behind it."""
        shape, cell = self.opened.shape, self.opened.rings[producer]
        stamps = [words.load(cell, shape.entry(one)) for one in range(self.opened.terms.depth)]
        waiting = [(one, buffer) for buffer, one in enumerate(stamps) if number < one <= tail]
        for stamp, buffer in sorted(waiting):
            entry = self._read(producer, buffer, stamp)
            if entry is not None and self._is_mine(entry):
                words.store(self.words, shape.read(producer), stamp)
                return self._deliver(producer, stamp, entry, 1)
        words.store(self.words, shape.read(producer), tail)
        return None

    def _read(self, producer: int, buffer: int, stamp: int) -> Entry | None:
        """Return an entry, None if it is not there any more. A producer may write rubbish."""
        opened, shape = self.opened, self.opened.shape
        if producer >= len(opened.rings) or buffer >= opened.terms.depth:
            return None
        cell, at = opened.rings[producer], shape.entry(buffer)
        held = shape.released(producer, buffer) + shape.table
        if opened.terms.overflow == "drop":
            words.store(self.words, held, stamp)
            if not IS_REGISTERED:
                words.fence()
        length = min(words.load(cell, at + layout.LENGTH), opened.terms.nbytes)
        size = min(words.load(cell, at + layout.USER_NBYTES), MAX_USER_DATA_NBYTES)
        first = 8 * (at + layout.USER)
        user_data = bytes(cell.cast("B")[first : first + size])
        entry = Entry(buffer, length, words.load(cell, at + layout.TARGET), user_data)
        if words.observe(cell, at + layout.STAMP) != stamp:
            words.store(self.words, held, 0)
            return None
        return entry

    def _deliver(self, producer: int, stamp: int, entry: Entry, count: int) -> SharedBuffer:
        record = BufferRecord(self, producer, entry.buffer, stamp, count)
        self.held[record] = None
        return SharedBuffer(record, entry.length, entry.user_data)

    @property
    def is_over(self) -> bool:
        """Whether no further entry comes, and this consumer has read all of its own."""
        opened, shape, control = self.opened, self.opened.shape, self.opened.control
        if not opened.end:
            return False
        handed = words.observe(control, shape.hand_tail(self.index))
        if words.load(self.words, layout.HANDED) < handed:
            return False
        for producer, cell in enumerate(opened.rings):
            if words.load(self.words, shape.read(producer)) < words.observe(cell, VALUE):
                return False
            is_decided = words.load(cell, layout.LEFT) <= words.observe(
                control, shape.caught_up(producer)
            )
            if opened.end == FINISHED and opened.terms.delivery == "one" and not is_decided:
                return False
        return True

    def waits_for_streams(self) -> bool:
        """Whether a stream may publish an entry, which wakes nobody."""
        return any(words.load(one, ISSUED) > words.load(one, VALUE) for one in self.opened.rings)

    # Release ------------------------------------------------------------------------------

    def take_back(self, record: BufferRecord, stream: Any) -> None:
        """Tell the producer that this process is done with a buffer."""
        opened, shape = self.opened, self.opened.shape
        at = shape.released(record.producer, record.buffer)
        if record not in self.held:
            return
        device = opened.device
        if stream is None:
            if not device.capabilities.host_visible:
                wait_for_work(device)
        elif self._release_on(stream, at, record.stamp):
            self.held.pop(record, None)
            return
        words.release()
        words.store(self.words, at, record.stamp)
        words.store(self.words, at + shape.table, 0)
        self.held.pop(record, None)
        ring(opened.rings[record.producer], opened.ring_bells[record.producer])
        if words.load(opened.control, layout.WANT):
            opened.tell_owner(False, self.index)  # noqa: FBT003

    def _release_on(self, stream: Any, at: int, stamp: int) -> bool:
        """Release on a stream, without a wait; False after a wait for the stream."""
        device, number = self.opened.device, stream_of(stream)
        streams = streams_of(device.driver)
        if streams is None:
            msg = f"{device.name} has no streams"
            raise UnsupportedError(msg, backend=device.backend, hint="leave out stream=")
        if "word" not in device.capabilities.timeline_levels:
            streams.synchronize_stream(device.ordinal, number)
            return False
        driver, pointer = cast("StreamWords", device.driver), self._pointer + 8 * at
        self._registered.add(pointer - pointer % PAGE_NBYTES)
        pages = self.opened.process.part(Registrations)
        address = pages.enter(driver, device.ordinal, pointer, self)
        words.store(self.words, layout.STREAMS, 1)
        driver.write_value(device.ordinal, address, stamp, number)
        return True

    def close(self) -> None:
        """End the session. The caller has released all buffers. A second call does nothing."""
        if words.load(self.words, SESSION) != self.session:
            return
        opened = self.opened
        driver = stream_words_of(opened.device.driver)
        if self._registered and driver is not None:
            wait_for_work(opened.device)
            while self._registered:
                pointer = self._registered.pop()
                opened.process.part(Registrations).leave(driver, pointer, self)
        words.store(self.words, SESSION, self.session + 1)
        opened.tell_owner(False, self.index)  # noqa: FBT003
        for producer, bell in enumerate(opened.ring_bells):
            ring(opened.rings[producer], bell)
