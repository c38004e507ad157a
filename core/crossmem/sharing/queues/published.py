# SPDX-License-Identifier: Apache-2.0
"""The published entries of a queue, as the owner of the queue knows them.

A producer may drop an entry or die at any step, and a hostile producer may write any words. A ring
has one word for the stamp of each buffer. The next entry of the buffer overwrites this word. So an
entry is valid only while the word contains the entry's stamp. If the owner sees another stamp
there, the owner forgets the entry.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.sharing.queues.layout import (
    DROPPING,
    ENTRY_WORDS,
    GIVEN_UP,
    READY,
    TARGET,
    WANTED,
    target_of,
)
from crossmem.sharing.queues.opened import Opened

__all__ = ["Entry", "Published", "Ring"]


class Entry(NamedTuple):
    """A published entry that was not dropped."""

    producer: int
    stamp: int
    buffer: int
    target: int
    """The consumer and session to which the entry was given; 0 if no consumer got the entry."""
    is_handed: bool
    """Whether the owner, not the producer, has determined the target."""
    deliveries: int
    """The number of the current delivery, or of the next delivery if no consumer has the entry. The
    first delivery has the number 1."""


@dataclass(slots=True)
class Ring:
    """The owner's knowledge of a producer's entries, up to the stamp ``seen``."""

    seen: int = 0
    """The last stamp that was read."""
    waiting: deque[Entry] = field(default_factory=deque)
    """Entries that no consumer has, sorted by stamp."""
    given: dict[int, Entry] = field(default_factory=dict)
    """Each key is a buffer's number. The value is the buffer's entry, which a consumer has, as far
    as the owner knows."""
    is_late: bool = False
    """Whether the owner found an unready entry when it last read all entries of the producer, and
    the producer's session had ended."""


class Published:
    """The published entries of all producers."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.terms = opened.terms
        self._control = opened.control
        self.rings = [Ring() for _ in range(self.terms.producers)]
        self.given: dict[tuple[int, int], tuple[int, int]] = {}
        """Each key is the (producer, stamp) of an entry that the owner has handed out or recovered.
        The value is the target and the number of the delivery, as in :class:`Entry`."""

    def _entries(self, producer: int, tail: int) -> tuple[list[Entry], bool]:
        """Return the published entries of a producer up to a stamp, sorted by stamp.

        The list leaves out entries that the owner has given up, and unready entries of a producer
        whose session has ended. The second value says whether there are such unready entries.
        """
        terms, segment = self.terms, self.opened.segments[producer]
        first, is_open = terms.entry(0), self.opened.member(producer)
        stamps = segment[first : first + ENTRY_WORDS * terms.depth : ENTRY_WORDS].tolist()
        found, is_late = [], False
        for buffer, marked in enumerate(stamps):
            stamp, at = marked & ~DROPPING, first + ENTRY_WORDS * buffer
            if (
                not 0 < stamp <= tail
                or self._control[terms.decision(producer, buffer)] == stamp << 8 | GIVEN_UP
            ):
                continue
            if is_open or segment[at + READY] >= segment[at + WANTED]:
                found.append(self._entry(producer, stamp, buffer))
            else:
                is_late = True
        return self._still_there(sorted(found)), is_late

    def all(self) -> list[Entry]:
        """Return the published entries of all producers, sorted by producer and stamp."""
        producers, tail = range(self.terms.producers), self.opened.tail
        return [one for producer in producers for one in self._entries(producer, tail(producer))[0]]

    def _entry(self, producer: int, stamp: int, buffer: int) -> Entry:
        known = self.given.get((producer, stamp))
        word = self.terms.entry(buffer) + TARGET
        target, count = known or (self.opened.segments[producer][word], 1)
        if not 0 < target >> 48 <= self.terms.consumers:
            target = 0
        return Entry(producer, stamp, buffer, target, known is not None, count)

    def read(self, producer: int, tail: int, *, is_changed: bool) -> None:
        """Update the owner's knowledge of a producer's entries.

        If no session has changed, this method usually reads only the new entries, because the time
        to read all entries is proportional to the depth.
        """
        ring_ = self.rings[producer]
        new = None if is_changed or ring_.is_late else self._new_entries(producer, tail)
        if new is None:
            ring_.waiting.clear()
            ring_.given.clear()
            new, ring_.is_late = self._entries(producer, tail)
        ring_.seen = tail
        for given in list(ring_.given.values()):
            if self.is_released(given, (given.target >> 48) - 1) or not self._is_there(given):
                del ring_.given[given.buffer]
        # A producer drops the oldest entries first, so dropped entries are at the front.
        while ring_.waiting and not self._is_there(ring_.waiting[0]):
            ring_.waiting.popleft()
        for one in new:
            consumer = (one.target >> 48) - 1
            if one.target and self.is_released(one, consumer):
                continue
            session = self.opened.consumer(consumer) if one.target else 0
            if session and one.target == target_of(consumer, session):
                ring_.given[one.buffer] = one
            else:
                ring_.waiting.append(one)
        if len(ring_.waiting) > self.terms.depth:
            # A hostile producer can drop entries that are not at the front, so the loop above does
            # not remove them.
            ring_.waiting = deque(filter(self._is_there, ring_.waiting))

    def _new_entries(self, producer: int, tail: int) -> list[Entry] | None:
        """Return the entries after the stamp ``seen``; None if the ring does not have them all.

        The ring has the buffer numbers of the last ``depth`` stamps. The producer may be replacing
        the oldest of these numbers, so this method does not use the oldest number.
        """
        terms, segment = self.terms, self.opened.segments[producer]
        first = self.rings[producer].seen + 1
        if not first <= tail + 1 < first + terms.depth:
            return None
        buffers = [segment[terms.order(stamp)] for stamp in range(first, tail + 1)]
        if not IS_ORDERED:
            words.fence()
        if self.opened.tail(producer) + 1 >= first + terms.depth:
            return None
        found = [
            self._entry(producer, stamp, buffer)
            for stamp, buffer in enumerate(buffers, start=first)
            if buffer < terms.depth
        ]
        return self._still_there(found)

    def _still_there(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries whose stamps did not change while this process read their words."""
        if not IS_ORDERED:
            words.fence()
        return [one for one in entries if self._is_there(one)]

    def _is_there(self, one: Entry) -> bool:
        """Whether the ring's word for the entry's buffer still contains the stamp of the entry."""
        segment = self.opened.segments[one.producer]
        return segment[self.terms.entry(one.buffer)] & ~DROPPING == one.stamp

    def is_released(self, one: Entry, consumer: int) -> bool:
        """Whether a consumer has released an entry."""
        return self.opened.released(consumer, one.producer, one.buffer) == one.stamp

    def is_read(self, one: Entry, consumer: int) -> bool:
        """Whether a consumer has read an entry."""
        place = self.opened.segments[self.terms.producers + consumer]
        if one.is_handed:
            at = self.terms.held(one.producer, one.buffer)
            return words.load(place, at) == one.stamp
        return words.load(place, self.terms.read(one.producer)) >= one.stamp

    def is_ready(self, one: Entry) -> bool:
        """Whether an entry can be read now: it is filled, and its producer is not dropping it."""
        segment, at = self.opened.segments[one.producer], self.terms.entry(one.buffer)
        # The mark DROPPING has no effect after the end of the producer's session.
        is_whole = segment[at] == one.stamp or not self.opened.member(one.producer)
        return is_whole and segment[at + READY] >= segment[at + WANTED]

    def taken(self) -> Counter[tuple[int, int]]:
        """Count the entries that were given to consumers and are not released.

        Each key is (consumer, producer). The value is the number of such entries of this producer
        at this consumer.
        """
        given = (one for ring_ in self.rings for one in ring_.given.values())
        return Counter(((one.target >> 48) - 1, one.producer) for one in given)

    def forget_old(self, *, is_changed: bool) -> None:
        """Remove from ``given`` the entries that :meth:`all` does not return any more.

        If no session has changed, do so only when ``given`` has grown large.
        """
        if is_changed or len(self.given) > 2 * self.terms.producers * self.terms.depth:
            live = {one[:2] for one in self.all()}
            self.given = {key: one for key, one in self.given.items() if key in live}
