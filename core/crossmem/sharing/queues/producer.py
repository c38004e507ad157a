# SPDX-License-Identifier: Apache-2.0
"""The producer's side of a queue. A producer writes only its own ring, and has its own buffers."""

from collections import Counter, deque
from operator import itemgetter
from sys import gettrace

from typing_extensions import override

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.sharing.queues.buffer import BufferRecord, SharedBuffer
from crossmem.sharing.queues.layout import (
    DROPPING,
    DROPS,
    ENTRY_WORDS,
    GIVEN_UP,
    HEADER_WORDS,
    JOINED,
    MAX_STAMP,
    READY,
    SESSIONS,
    SIZES,
    SLEEPING,
    STREAMS,
    TAIL,
    TARGET,
    USER,
    WANT,
    WANTED,
    target_of,
)
from crossmem.sharing.queues.opened import Opened, ring
from crossmem.sharing.queues.place import Place

__all__ = ["Producer"]


class Producer(Place):
    """The ring of this process as a producer; see :class:`Place`."""

    def __init__(self, opened: Opened, place: int, view: memoryview, pointer: int) -> None:
        super().__init__(opened, place, view, pointer)
        self.is_readonly = False
        self._is_one = opened.terms.delivery == "one"
        self._bytes = self.words.cast("B")
        self._flying: dict[int, tuple[int, int]] = {}
        """For each buffer whose published entry is not released yet, the stamp and the target."""
        self._free: deque[int] = deque()
        self._given: Counter[int] = Counter()
        """For each target, the number of its unreleased entries."""
        self._left = 0
        """The stamp of the newest entry that was left to the owner. The value is 0 if no entry was
        left to the owner, or if :meth:`_count_handed` has counted the owner's decisions about all
        entries that were left to the owner."""
        self._turn = 0
        # Indices of the words that each hand-over uses.
        terms = opened.terms
        self._entry = terms.entry(0)
        self._decision = terms.decision(place, 0)
        self._decided = terms.decided(place)
        self._released = terms.released(place, 0)
        self._changes = -1
        self._targets: list[int] = []
        """The consumers' targets, read when the word SESSIONS had the value ``_changes``."""

    @override
    def begin(self) -> None:
        """Take over the unreleased entries of an earlier session."""
        terms, ring_, tail = self.opened.terms, self.words, self.opened.tail(self.place)
        words.store(ring_, TAIL, tail)
        words.store(ring_, DROPS, min(ring_[DROPS], tail))
        for buffer in range(terms.depth):
            at = terms.entry(buffer)
            stamp = ring_[at] & ~DROPPING
            if 0 < stamp <= tail and ring_[at + READY] >= ring_[at + WANTED]:
                self._flying[buffer] = stamp, ring_[at + TARGET]
            else:
                # No consumer reads an entry that was not ready when its producer's session ended.
                self._free.append(buffer)
                stamp = 0
            words.store(ring_, at, stamp)
            words.release()
            for word in (WANTED, READY):
                words.store(ring_, at + word, 0)
        # After this statement, the dict is in the order of the stamps, as if this session had put
        # the entries.
        self._flying = dict(sorted(self._flying.items(), key=itemgetter(1)))
        self._left = max(
            (stamp for stamp, target in self._flying.values() if not target), default=0
        )

    @override
    def join(self, timeout_s: float) -> None:
        """Begin a session; see :meth:`Place.join`."""
        super().join(timeout_s)
        words.store(self.words, JOINED, self.session)

    # Buffers ------------------------------------------------------------------------------

    def hand_out(self) -> SharedBuffer | None:
        """Return a free buffer in the usual case; None if the caller must use :meth:`take`."""
        free = self._free
        if not free and self.is_plain:
            with self.lock:
                self._reclaim()
        if not (free and self.is_plain and self.is_open()) or gettrace() is not None:
            return None
        return self._take_free()

    def _take_free(self) -> SharedBuffer | None:
        free = self._free
        record = BufferRecord(self, self.place, 0, 0, 0)
        made = SharedBuffer(record, self.opened.terms.nbytes, b"")
        # One step: no signal handler and no other thread runs before the return.
        if not free:
            return None
        record.buffer = free[0]
        del free[0]
        made._record = record
        return made

    def end_plainly(self, _buffer: SharedBuffer) -> bool:
        """Return False: only :meth:`take_back` can release a buffer that was not put."""
        return False

    def take(self) -> SharedBuffer | None:
        """Return a free buffer; None if there is none."""
        with self.lock:
            if not self._free:
                self._reclaim()
                if not self._free and self.opened.terms.overflow == "drop":
                    self._drop_oldest()
            return self._take_free()

    def take_back(self, record: BufferRecord, stream: int | None) -> None:
        """Take back a buffer that was not put."""
        failure = self.finish_work(stream)
        if stream is not None:
            self.finish_stream(stream)
        with self.lock:
            if not record.is_done:
                record.is_done = True
                self._free.append(record.buffer)
        if failure is not None:
            raise failure

    def _reclaim(self) -> None:
        """Take back each buffer that no consumer needs any more."""
        opened, released = self.opened, self._released
        control, segments, decision = opened.control, opened.segments, self._decision
        first, count = opened.terms.producers - 1, opened.terms.consumers
        is_plain, flying, given = self._is_one and self.is_plain, self._flying, self._given
        for buffer, (stamp, target) in list(flying.items()):
            consumer = target >> 48
            # In the usual case, this producer has chosen the consumer. Then this loop sees without
            # a function call whether the consumer has released the buffer.
            if is_plain and 0 < consumer <= count and control[decision + buffer] >> 8 != stamp:
                if segments[first + consumer][released + buffer] != stamp:
                    continue
                one = (buffer,)
                # One step, as in _take_entry().
                self._free += one
                del flying[buffer]
                given[target] -= 1
            elif self._is_back(buffer, stamp, target):
                self._take_entry(buffer, target)

    def _is_back(self, buffer: int, stamp: int, target: int) -> bool:
        """Whether no consumer needs a buffer's entry any more."""
        if self._is_one:
            return self._is_released(buffer, stamp, target)
        return self._is_seen(buffer, stamp)

    def _take_entry(self, buffer: int, target: int) -> None:
        flying, one = self._flying, (buffer,)
        # One step: no signal handler and no other thread runs between these statements.
        self._free += one
        del flying[buffer]
        self._given[target] -= 1

    def _is_released(self, buffer: int, stamp: int, target: int) -> bool:
        """Whether an entry was released by its consumer, or given up by the owner."""
        opened = self.opened
        decision = opened.control[self._decision + buffer]
        consumer = (target >> 48) - 1
        if decision >> 8 == stamp:
            consumer = (decision & 255) - 1
            if consumer == GIVEN_UP - 1:
                return True
        if not 0 <= consumer < opened.terms.consumers:
            return False
        released = opened.segments[opened.terms.producers + consumer][self._released + buffer]
        if not IS_ORDERED:
            words.fence()
        return released == stamp

    def _is_seen(self, buffer: int, stamp: int) -> bool:
        """Whether each consumer has released an entry, has joined after it was put, or has left."""
        opened, start = self.opened, self.opened.terms.start(self.place)
        first = opened.terms.producers
        return all(
            opened.released(consumer, self.place, buffer) == stamp
            or not opened.consumer(consumer)
            or words.observe(opened.segments[first + consumer], start) >= stamp
            for consumer in range(opened.terms.consumers)
        )

    def _drop_oldest(self) -> None:
        """Drop the oldest entry that no consumer holds."""
        at_of, mine = self.opened.terms.entry, self.words
        for buffer, (stamp, target) in tuple(self._flying.items()):
            if self._is_held(buffer, stamp):
                continue
            words.store(mine, at_of(buffer), stamp | DROPPING)
            # A consumer writes its "held" word, and then reads the stamp again. If the consumer
            # has read the stamp before DROPPING was written, this process sees the "held" word
            # after the barrier.
            words.barrier()
            if not self._is_held(buffer, stamp):
                if not self._is_back(buffer, stamp, target):
                    # No consumer has received and released the entry in the meantime. The entry is
                    # counted before it is dropped. In the reverse order, a process that is killed
                    # in between would drop an entry without counting it.
                    words.store(mine, DROPS, words.load(mine, DROPS) + 1)
                words.store(mine, at_of(buffer), 0)
                self._take_entry(buffer, target)
                # The consumer of the dropped entry may now have room for an entry that was left to
                # the owner.
                if words.load(self.opened.control, WANT):
                    ring(self.opened.owner_bell)
                return
            words.store(mine, at_of(buffer), stamp)
            # A consumer that saw DROPPING must read the entry again.
            self.opened.wake_consumers()

    def _is_held(self, buffer: int, stamp: int) -> bool:
        opened, at = self.opened, self.opened.terms.held(self.place, buffer)
        first = opened.terms.producers
        return any(
            words.load(opened.segments[first + consumer], at) == stamp
            and opened.released(consumer, self.place, buffer) != stamp
            and opened.consumer(consumer)
            for consumer in range(opened.terms.consumers)
        )

    # Entries ------------------------------------------------------------------------------

    def put(self, record: BufferRecord, length: int, user_data: bytes, stream: int | None) -> None:
        """Publish a buffer. If an error prevents the publication, ``record.is_done`` is False."""
        wanted = 0
        if stream is not None or not self.is_plain:
            if (failure := self.finish_work(stream)) is not None:
                raise failure
            if stream is not None:
                wanted = self._sign(record.buffer, stream)
        opened, targets = self.opened, self._targets
        control = opened.control
        with self.lock:
            target = 0
            if self._is_one:
                # The usual case: there is one consumer, which has room.
                if len(targets) == 1 and not self._left and control[SESSIONS] == self._changes:
                    target = targets[0] if self._given[targets[0]] < opened.terms.prefetch else 0
                target = target or self._choose()
            self._publish(record, length << 8 | len(user_data), user_data, wanted, target)
        self._tell(target)

    def _sign(self, buffer: int, stream: int) -> int:
        """Let a stream make a buffer's entry ready. Return the value that the stream will write.

        If streams cannot write words, wait for the stream and return 0.
        """
        driver = self.words_driver(stream)
        if driver is None:
            return 0
        at = self.opened.terms.entry(buffer)
        wanted = max(self.words[at + READY], self.words[at + WANTED]) + 1
        self.write_on(stream, driver, at + READY, wanted)
        return wanted

    def _publish(
        self, record: BufferRecord, sizes: int, user_data: bytes, wanted: int, target: int
    ) -> None:
        """Write an entry, and then the tail, so that consumers see the entry."""
        mine, buffer, depth = self.words, record.buffer, self.opened.terms.depth
        at = self._entry + ENTRY_WORDS * buffer
        first = 8 * (at + USER)
        # If a key is missing, Counter calls a Python method, and a signal handler may run in that
        # method. So the key is added before the step below, which must not be interrupted.
        self._given.setdefault(target, 0)
        # On processors that keep stores in order, the rest of this function is one step: no signal
        # handler and no other thread runs during the step. So a handler that puts an entry gets a
        # later stamp.
        if not self.session:
            raise self._no_session()
        stamp = mine[TAIL] + 1
        mine[at] = 0
        if not IS_ORDERED:
            words.release()
        mine[at + TARGET] = target
        mine[at + SIZES] = sizes
        mine[at + WANTED] = wanted
        if user_data:
            self._bytes[first : first + (sizes & 255)] = user_data
        if not IS_ORDERED:
            words.release()
        mine[at] = stamp
        mine[HEADER_WORDS + stamp % depth] = buffer
        if not IS_ORDERED:
            words.release()
        if not target:
            self._left = stamp
        # On every processor, the next four assignments are one step.
        record.is_done = True
        self._flying[buffer] = stamp, target
        mine[TAIL] = stamp
        self._given[target] += 1

    def _choose(self) -> int:
        """Return the target of the next entry: a consumer with room, or 0 if the owner decides."""
        control, given, prefetch = self.opened.control, self._given, self.opened.terms.prefetch
        if self._left and control[self._decided] < self._left:
            # Earlier entries that were left to the owner come first.
            return 0
        self._count_handed()
        if (changes := words.observe(control, SESSIONS)) != self._changes:
            consumers = range(self.opened.terms.consumers)
            sessions = [(one, self.opened.consumer(one)) for one in consumers]
            self._targets = [target_of(one, session) for one, session in sessions if session]
            self._changes = changes
        targets = self._targets
        count = len(targets)
        for is_last_try in (False, True):
            for turn in range(self._turn, self._turn + count):
                target = targets[turn % count]
                if given[target] < prefetch:
                    self._turn = turn % count + 1
                    return target
            if not is_last_try:
                self._reclaim()
        return 0

    def _count_handed(self) -> None:
        """Update ``_given`` with the entries that the owner has handed out."""
        if not self._left:
            return
        control, flying, given = self.opened.control, self._flying, self._given
        for buffer, (stamp, target) in list(flying.items()):
            decision = control[self._decision + buffer]
            consumer = (decision & 255) - 1
            if target or decision >> 8 != stamp or consumer >= self.opened.terms.consumers:
                continue
            now = target_of(consumer, self.opened.consumer(consumer))
            given.setdefault(now, 0)
            entry = stamp, now
            # One step: no signal handler and no other thread runs between these statements.
            flying[buffer] = entry
            given[0] -= 1
            given[now] += 1
        self._left = 0

    def _tell(self, target: int) -> None:
        """Wake the consumer of a new entry. If the entry was left to the owner, wake the owner."""
        opened = self.opened
        if not self._is_one:
            opened.wake_consumers()
            return
        place = opened.terms.producers + (target >> 48) - 1
        if target and (opened.terms.is_fenced or opened.segments[place][SLEEPING]):
            opened.wake(place)
        # The owner ends a consumer's session, executes the barrier, and then reads the entries. So
        # either the owner sees the new entry, or this process sees that the session has ended and
        # rings the owner's bell.
        if not target or opened.control[HEADER_WORDS + place] != target & MAX_STAMP:
            ring(opened.owner_bell)

    @override
    def waits_for_streams(self) -> bool:
        """Whether a consumer has let a stream release a buffer."""
        first = self.opened.terms.producers
        return any(words.load(place, STREAMS) for place in self.opened.segments[first:])
