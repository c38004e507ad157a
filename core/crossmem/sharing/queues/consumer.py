# SPDX-License-Identifier: Apache-2.0
"""The consumer's side of a queue. A consumer reads all rings, and writes only its own place."""

from typing import Final, TypeAlias

from typing_extensions import override

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.errors import ClosedError
from crossmem.sharing.queues.buffer import BufferRecord, SharedBuffer
from crossmem.sharing.queues.layout import (
    DROPPING,
    ENDED,
    ENTRY_WORDS,
    FINISHED,
    HANDED,
    HEADER_WORDS,
    LATE,
    MAX_USER_DATA_NBYTES,
    READS,
    READY,
    SIZES,
    STREAMS,
    TAIL,
    TARGET,
    USER,
    WANT,
    WANTED,
)
from crossmem.sharing.queues.opened import Opened, ring
from crossmem.sharing.queues.receiver import Receiver

__all__ = ["Consumer", "QueueEndedError"]


class QueueEndedError(ClosedError):
    """The queue has ended: no producer has it open, and no item is left."""


_Entry: TypeAlias = tuple[int, bytes]
"""Length and user data of an entry. Both are within their limits."""

_LATER: Final[_Entry] = (-1, b"")
"""The value for an entry that is not ready yet."""


class Consumer(Receiver):
    """The place of this process as a consumer; see :class:`Place`."""

    def __init__(self, opened: Opened, place: int, view: memoryview, pointer: int) -> None:
        super().__init__(opened, place, view, pointer)
        terms = opened.terms
        self.index = place - terms.producers
        self.is_readonly = terms.delivery == "each"
        self._is_one = terms.delivery == "one"
        self._turn = 0
        self._late: set[int] = set()
        """Producers whose next entry was not ready in the last call of :meth:`look`."""
        self._hand: dict[tuple[int, int], tuple[int, int]] = {}
        """Entries that the owner has handed to this consumer and that :meth:`look` has not yet
        returned. A key is (producer, buffer). A value is (stamp, delivery count)."""
        self._is_plain_reader = self.is_plain and terms.overflow != "drop"
        """Whether this consumer reads rings without fences, and without writing ``held`` words."""
        self._producers = range(terms.producers)
        self._bytes = [one.cast("B") for one in opened.segments[: terms.producers]]
        # Indices of words that the hot paths use.
        self._reads, self._entries = terms.read(0), terms.entry(0)
        self._handed = terms.handed(self.index)

    @override
    def begin(self) -> None:
        """Write the words of a new session.

        In the rings, the session reads only entries that are put after this call. An earlier entry
        reaches the session only if the owner hands out that entry.
        """
        terms, mine = self.opened.terms, self.words
        words.store(mine, HANDED, words.load(self.opened.control, terms.handed(self.index)))
        words.store(mine, STREAMS, 0)
        self._hand.clear()
        self.kept.clear()
        for producer in range(terms.producers):
            for buffer in range(terms.depth):
                # The releases of an earlier session stay valid. A release with a stamp above the
                # tail is cleared, because it would release the later entry that gets this stamp.
                words.store(mine, terms.held(producer, buffer), 0)
                at = terms.released(producer, buffer)
                if mine[at] > self.opened.tail(producer):
                    words.store(mine, at, 0)
        self._begin_behind_tails()

    def _begin_behind_tails(self) -> None:
        terms = self.opened.terms
        for producer in range(terms.producers):
            tail = self.opened.tail(producer)
            words.store(self.words, terms.start(producer), tail)
            words.store(self.words, terms.read(producer), tail)

    @override
    def join(self, timeout_s: float) -> None:
        """Begin a session; see :meth:`Place.join`."""
        super().join(timeout_s)
        if self.opened.terms.delivery == "each":
            # Before the barrier, a producer may overlook this session, and reuse the buffer of an
            # entry that this session has not read. So the session reads the tails again after the
            # barrier, and skips all entries up to these tails.
            words.barrier()
            self._begin_behind_tails()
        words.release()
        words.store(self.words, READS, self.session)

    # Reading ------------------------------------------------------------------------------

    def look(self) -> SharedBuffer | None:
        """Return the next buffer for this consumer; None if there is none now."""
        opened, mine, control = self.opened, self.words, self.opened.control
        segments, reads, kept = opened.segments, self._reads, self.kept
        if kept and control[self._member] == self.session:
            # One step: no other thread takes the buffer, and no signal handler runs.
            one = kept[0]
            del kept[0]
            self.held[one._record] = False  # type: ignore[index]  # only close() ends kept buffers
            one._is_left = False
            return one
        # Polling an empty queue takes no lock and no fence.
        for producer in self._producers:
            if mine[reads + producer] < segments[producer][TAIL]:
                break
        else:
            if not self._is_one or (not self._hand and mine[HANDED] >= control[self._handed]):
                self._late.clear()
                return None
        found = None
        try:
            with self.lock:
                found = self._look_in_entries()
        except BaseException:
            self.keep(found)
            raise
        return found

    def _look_in_entries(self) -> SharedBuffer | None:
        opened, mine, control = self.opened, self.words, self.opened.control
        if not self.session or control[self._member] != self.session:
            return None
        late = self._late
        late.clear()
        count = len(self._producers)
        # The tails are read before the handed-out entries, so that no later entry overtakes an
        # earlier one that the owner has handed out.
        tails = [opened.tail(0)]
        if count > 1:
            tails += [opened.tail(producer) for producer in range(1, count)]
        if self._is_one and (self._hand or mine[HANDED] < control[self._handed]):
            found = self._look_in_hand()
            if found is not None:
                return found
        for turn in range(self._turn, self._turn + count):
            producer = turn % count
            if producer in late:
                continue
            found = self._look_in_ring(producer, tails[producer])
            if found is not None:
                self._turn = producer + 1
                return found
        return None

    def _look_in_hand(self) -> SharedBuffer | None:
        """Return the next ready buffer that the owner has handed out; None if there is none.

        The ring of the handed-out entry may contain an earlier entry that its producer gave to this
        consumer. If so, return the buffer of the earlier entry instead.
        """
        hand, mine, opened = self._hand, self.words, self.opened
        while True:
            one = next((one for one in tuple(hand) if one[0] not in self._late), None)
            if one is None:
                if not self._take_in_hand():
                    return None
                continue
            aside, (producer, buffer) = hand.get(one), one
            if aside is None:
                continue
            stamp, count = aside
            # The tail is read again, because the handed-out entry may be newer than the tail that
            # _look_in_entries() read.
            before = self._look_in_ring(producer, min(stamp - 1, opened.tail(producer)))
            if before is not None:
                return before
            if producer in self._late or (entry := self._read(producer, buffer, stamp)) is _LATER:
                continue
            record = BufferRecord(self, producer, buffer, stamp, count)
            made = None if entry is None else SharedBuffer(record, *entry)
            at = opened.terms.held(producer, buffer)
            # One step: no signal handler and no other thread runs between these statements. Before
            # this step, a signal handler may have received the entry. So this step first checks
            # that ``_hand`` still contains the entry.
            if one in hand and hand[one] is aside and self.session:
                del hand[one]
                if made is not None:
                    mine[at] = stamp
                    self.held[record] = False
                    made._record = record
                    return made

    def _take_in_hand(self) -> bool:
        """Add the next handed-out entry to ``_hand``; return False if there is none."""
        control, terms, mine, hand = self.opened.control, self.opened.terms, self.words, self._hand
        position = mine[HANDED]
        if position >= words.observe(control, self._handed):
            return False
        at = terms.hand(self.index, position)
        stamp, where = control[at], control[at + 1]
        one, aside = (where & 255, where >> 8 & 0xFFFFFF), (stamp, where >> 32)
        # The owner is not trusted: numbers out of range are ignored.
        is_sound = one[0] < terms.producers and one[1] < terms.depth
        # One step, as in _look_in_hand().
        if mine[HANDED] == position:
            if is_sound:
                # A buffer has one entry, so the new entry replaces the buffer's earlier entry.
                if one in hand:
                    del hand[one]
                hand[one] = aside
            mine[HANDED] = position + 1
        # The hand has room again, so an owner that waits for room is woken.
        if terms.is_fenced:
            words.fence()
        if words.load(control, WANT):
            ring(self.opened.owner_bell)
        return True

    def _look_in_ring(self, producer: int, tail: int) -> SharedBuffer | None:
        terms, mine, ring_ = self.opened.terms, self.words, self.opened.segments[producer]
        at, depth = self._reads + producer, terms.depth
        target = self.index + 1 << 48 | self.session if self._is_one else 0
        while (number := mine[at]) < tail:
            stamp = number + 1
            buffer = ring_[HEADER_WORDS + stamp % depth]
            if self._is_plain_reader and buffer < depth:
                # The usual case: producers drop no entries, and no stream fills this buffer.
                first = self._entries + ENTRY_WORDS * buffer
                if (
                    ring_[first] == stamp
                    and not ring_[first + WANTED]
                    and (not target or ring_[first + TARGET] == target)
                ):
                    sizes, user_data = ring_[first + SIZES], b""
                    if sizes & 255:
                        start = 8 * (first + USER)
                        last = start + min(sizes & 255, MAX_USER_DATA_NBYTES)
                        user_data = self._bytes[producer][start:last].tobytes()
                    record = BufferRecord(self, producer, buffer, stamp, 1)
                    made = SharedBuffer(record, min(sizes >> 8, terms.nbytes), user_data)
                    # One step, as in _look_in_hand(). If this session has ended, the producer may
                    # have reused the buffer, whose entry then has another stamp.
                    if ring_[first] == stamp and mine[at] == number and self.session:
                        mine[at] = stamp
                        self.held[record] = False
                        made._record = record
                        return made
            entry = None
            if buffer >= depth or ring_[self._entries + ENTRY_WORDS * buffer] & ~DROPPING != stamp:
                # The entry with this stamp is gone: it was dropped, or another consumer got it and
                # the producer reused its buffer. Find the next entry.
                found = [
                    (later, one)
                    for one in range(terms.depth)
                    if number < (later := ring_[terms.entry(one)] & ~DROPPING) <= tail
                ]
                stamp, buffer = min(found, default=(tail, depth))
            if buffer < depth and (entry := self._read(producer, buffer, stamp, target)) is _LATER:
                return None
            record = BufferRecord(self, producer, buffer, stamp, 1)
            received = None if entry is None else SharedBuffer(record, *entry)
            # One step, as in _look_in_hand().
            if not self.session:
                return None
            if mine[at] == number:
                mine[at] = stamp
                if received is not None:
                    self.held[record] = False
                    received._record = record
                    return received
        return None

    def _read(self, producer: int, buffer: int, stamp: int, target: int = 0) -> _Entry | None:
        """Return an entry.

        Return ``_LATER`` if the entry is not ready, and None if it was dropped or has another
        target.
        """
        opened, terms = self.opened, self.opened.terms
        ring_, at, held = opened.segments[producer], self._entries + ENTRY_WORDS * buffer, 0
        if ring_[at] & ~DROPPING != stamp or (target and ring_[at + TARGET] != target):
            return None
        if terms.overflow == "drop":
            held = terms.held(producer, buffer)
            words.store(self.words, held, stamp)
            if terms.is_fenced:
                words.fence()
        sizes, user_data = ring_[at + SIZES], b""
        length = sizes >> 8
        if size := sizes & 255:
            first = 8 * (at + USER)
            last = first + (min(MAX_USER_DATA_NBYTES, size))
            user_data = self._bytes[producer][first:last].tobytes()
        entry: _Entry | None = (min(terms.nbytes, length), user_data)
        # A stream writes the word READY after the data.
        is_ready = ring_[at + READY] >= ring_[at + WANTED]
        if not IS_ORDERED:
            words.fence()
        found = ring_[at]
        if found == stamp and is_ready:
            return entry
        is_open = opened.member(producer)
        if found == stamp | DROPPING and is_ready and not is_open:
            # The producer's session ended before the drop was complete. The next producer of the
            # ring sees the ``held`` word, and does not drop the entry.
            return entry
        if found & ~DROPPING == stamp and is_open:
            entry = _LATER
            self._late.add(producer)
        else:
            entry = None
        if held:
            words.store(self.words, held, 0)
        return entry

    def check_reading(self) -> None:
        """Raise if no further entry will arrive.

        Raises
        ------
        QueueEndedError
            The queue has ended.
        ClosedError
            This process or the owner has closed the queue.
        OwnerGoneError
            The owner is dead.
        AccessDeniedError
            The owner has revoked the role of this process.
        """
        opened, terms, control = self.opened, self.opened.terms, self.opened.control
        if opened.member(self.place) != self.session:
            self.check()
        end = opened.end
        # With ``redeliver``, the owner writes ENDED only when no consumer has a buffer. So a
        # consumer that still has a buffer would wait for ENDED for ever. For this consumer,
        # FINISHED suffices.
        if (end == ENDED or (end == FINISHED and (self.held or self.kept))) and not (
            self._hand
            or words.load(self.words, HANDED) < words.observe(control, self._handed)
            or any(
                words.load(self.words, terms.read(producer)) < opened.tail(producer)
                or (end == FINISHED and control[terms.decided(producer)] < opened.tail(producer))
                for producer in range(terms.producers)
            )
        ):
            msg = "the queue has ended: no producer has it open, and no item is left"
            raise QueueEndedError(msg, operation="get")
        if self.waits_for_streams() and words.load(control, WANT):
            # A stream may have made an entry ready, or released a buffer. Streams ring no bell, so
            # this process rings the bell of the owner.
            ring(opened.owner_bell)
        self.check()

    @override
    def waits_for_streams(self) -> bool:
        """Whether this process waits for a word that a stream writes."""
        want = words.load(self.opened.control, WANT)
        return bool(self._late) or want == LATE or bool(self._pages and want)
