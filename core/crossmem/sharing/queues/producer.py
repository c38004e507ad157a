# SPDX-License-Identifier: Apache-2.0
"""The producer's side: it alone writes its ring and hands out its buffers."""

from collections import Counter

from typing_extensions import override

from crossmem.control import words
from crossmem.sharing.queues.buffer import BufferRecord
from crossmem.sharing.queues.layout import (
    DROPPING,
    DROPS,
    GIVEN_UP,
    READY,
    SIZES,
    STREAMS,
    TAIL,
    TARGET,
    USER,
    WANT,
    WANTED,
    target_of,
)
from crossmem.sharing.queues.place import Opened, Place, ring

__all__ = ["Producer"]


class Producer(Place):
    """The place of this process as a producer; see :class:`Place`."""

    def __init__(self, opened: Opened, place: int, view: memoryview, pointer: int) -> None:
        super().__init__(opened, place, view, pointer)
        self._bytes = self.words.cast("B")
        self._flying: dict[int, tuple[int, int]] = {}
        """By buffer: stamp and target of its entry, until it is released."""
        self._free: list[int] = []
        self._given: Counter[int] = Counter()
        """By target: number of its entries that are not released."""
        self._left = 0
        """The last stamp that was left to the owner."""
        self._turn = 0

    @override
    def begin(self) -> None:
        """Take over what a predecessor has published and nobody has released yet."""
        terms, ring_, tail = self.opened.terms, self.words, self.opened.tail(self.place)
        words.store(ring_, TAIL, tail)
        words.store(ring_, DROPS, min(ring_[DROPS], tail))
        for buffer in range(terms.depth):
            at = terms.entry(buffer)
            stamp = ring_[at] & ~DROPPING
            if 0 < stamp <= tail and ring_[at + READY] >= ring_[at + WANTED]:
                self._flying[buffer] = stamp, ring_[at + TARGET]
            else:
                # Nobody reads entries of an ended session that are not ready.
                self._free.append(buffer)
                stamp = 0
            words.store(ring_, at, stamp)
            words.release()
            for word in (WANTED, READY):
                words.store(ring_, at + word, 0)
        self._left = max(
            (stamp for stamp, target in self._flying.values() if not target), default=0
        )

    # Buffers ------------------------------------------------------------------------------

    def take(self) -> BufferRecord | None:
        """Return a free buffer, None if there is none."""
        with self.lock:
            if not self._free:
                self._reclaim()
                if not self._free and self.opened.terms.overflow == "drop":
                    self._drop_oldest()
                if not self._free:
                    return None
            record = BufferRecord(self, self.place, 0, 0, 0)
            record.buffer = self._free.pop(0)
            return record

    def take_back(self, record: BufferRecord, stream: int | None) -> None:
        """Take a buffer that was not put."""
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
        """Take back the buffers that all their consumers have released."""
        for buffer in list(self._flying):
            if self._is_back(buffer):
                self._take_entry(buffer)

    def _is_back(self, buffer: int) -> bool:
        """Whether all consumers of a buffer's entry have released it."""
        stamp, target = self._flying[buffer]
        if self.opened.terms.delivery == "one":
            return self._is_released(buffer, stamp, target)
        return self._is_seen(buffer, stamp)

    def _take_entry(self, buffer: int) -> None:
        _stamp, target = self._flying.pop(buffer)
        self._free.append(buffer)
        self._given[target] -= 1

    def _is_released(self, buffer: int, stamp: int, target: int) -> bool:
        """Whether the one consumer of an entry has released it. The owner may have chosen it."""
        opened = self.opened
        decision = words.observe(opened.control, opened.terms.decision(self.place, buffer))
        consumer = (target >> 48) - 1
        if decision >> 8 == stamp:
            consumer = (decision & 255) - 1
            if consumer == GIVEN_UP - 1:
                return True
        if not 0 <= consumer < opened.terms.consumers:
            return False
        return opened.released(consumer, self.place, buffer) == stamp

    def _is_seen(self, buffer: int, stamp: int) -> bool:
        """Whether each consumer has released an entry, has come after it, or has gone."""
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
        for buffer, (stamp, _target) in sorted(self._flying.items(), key=lambda one: one[1]):
            if self._is_held(buffer, stamp):
                continue
            words.store(mine, at_of(buffer), stamp | DROPPING)
            # After the barrier, a consumer that saw the stamp has its word in its place.
            words.barrier()
            if not self._is_held(buffer, stamp):
                words.store(mine, at_of(buffer), 0)
                if not self._is_back(buffer):
                    # Nobody has received it in the meantime.
                    words.store(mine, DROPS, words.load(mine, DROPS) + 1)
                self._take_entry(buffer)
                # Its consumer may have room now for an entry that waits.
                if words.load(self.opened.control, WANT):
                    ring(self.opened.owner_bell)
                return
            words.store(mine, at_of(buffer), stamp)
            # A consumer that saw the mark looks again.
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
        """Publish a buffer. It belongs to the consumers from then on.

        If this raises before, the record is not done.
        """
        if (failure := self.finish_work(stream)) is not None:
            raise failure
        wanted = 0 if stream is None else self._sign(record.buffer, stream)
        with self.lock:
            target = self._publish(record, length, user_data, wanted)
        self._tell(target)

    def _sign(self, buffer: int, stream: int) -> int:
        """Let a stream make the entry ready; return the value that it will write, 0 if none."""
        driver = self.words_driver(stream)
        if driver is None:
            return 0
        at = self.opened.terms.entry(buffer)
        wanted = max(self.words[at + READY], self.words[at + WANTED]) + 1
        self.write_on(stream, driver, at + READY, wanted)
        return wanted

    def _publish(self, record: BufferRecord, length: int, user_data: bytes, wanted: int) -> int:
        """Write an entry, and return its target."""
        mine, terms = self.words, self.opened.terms
        buffer, stamp = record.buffer, mine[TAIL] + 1
        target = self._choose() if terms.delivery == "one" else 0
        at, size = terms.entry(buffer), len(user_data)
        words.store(mine, at, 0)
        words.release()
        words.store(mine, at + TARGET, target)
        words.store(mine, at + SIZES, length << 8 | size)
        words.store(mine, at + WANTED, wanted)
        if size:
            first = 8 * (at + USER)
            self._bytes[first : first + size] = user_data
        words.release()
        words.store(mine, at, stamp)
        words.store(mine, terms.order(stamp), buffer)
        words.release()
        if not target:
            self._left = stamp
        # One step: no signal handler and no other thread runs in between.
        record.is_done = True
        self._flying[buffer] = stamp, target
        mine[TAIL] = stamp
        self._given[target] += 1
        return target

    def _choose(self) -> int:
        """Return the consumer for the next entry, in turns: one with room, else nobody."""
        opened, terms = self.opened, self.opened.terms
        if words.observe(opened.control, terms.decided(self.place)) < self._left:
            # Entries that were left to the owner come first.
            return 0
        for is_last_try in (False, True):
            for turn in range(self._turn, self._turn + terms.consumers):
                consumer = turn % terms.consumers
                session = opened.consumer(consumer)
                if not session:
                    continue
                target = target_of(consumer, session)
                if self._given[target] < terms.prefetch:
                    self._turn = consumer + 1
                    return target
            if not is_last_try:
                self._reclaim()
        return 0

    def _tell(self, target: int) -> None:
        """Wake the consumer of a new entry; tell the owner if there is none, or if it has gone."""
        opened = self.opened
        if opened.terms.delivery == "each":
            opened.wake_consumers()
            return
        consumer = (target >> 48) - 1
        if target:
            opened.wake(opened.terms.producers + consumer)
        # The owner ends a session, takes the barrier, and then looks for entries.
        if not target or target_of(consumer, opened.consumer(consumer)) != target:
            ring(opened.owner_bell)

    @override
    def waits_for_streams(self) -> bool:
        """Whether a stream may release a buffer, which wakes nobody."""
        first = self.opened.terms.producers
        return any(words.load(place, STREAMS) for place in self.opened.segments[first:])
