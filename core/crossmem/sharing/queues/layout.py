# SPDX-License-Identifier: Apache-2.0
"""The words of a queue in shared host memory. Each segment has one writer.

======== =============== ==========================================================================
segment  writer          words
======== =============== ==========================================================================
control  the owner       the open sessions, the end of the queue, the entries that were handed out
ring     a producer      its tail and its entries
place    a consumer      how far it has read each ring; the entries that it holds or has released
======== =============== ==========================================================================

A producer numbers its entries in the order of the puts, from 1 on. This number is the stamp of the
entry. Each buffer has one entry.

Each ring and each place has a member word in the control segment. The number of a session is odd.
While a session is open, the member word is the number of this session. At other times, the member
word is even.
"""

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["MAX_USER_DATA_NBYTES", "Delivery", "Overflow", "Terms"]

Delivery = Literal["one", "each"]
"""Whether each buffer goes to one consumer or to all."""
Overflow = Literal["wait", "raise", "drop"]
"""What happens if no buffer is free: wait for one, raise, or drop the oldest entry."""

MAX_USER_DATA_NBYTES: Final = 96
"""The largest number of bytes of user data that a buffer can carry."""
MAX_STAMP: Final = 2**48 - 1
"""The largest valid stamp."""
DROPPING: Final = 2**63
"""Bit of a stamp, set while the producer checks whether it can drop the entry."""

HEADER_WORDS: Final = 16
# Words of rings and places.
WISH: Final = 0
"""The number of the session that the process has requested. When the process leaves the session, it
writes 0."""
SLEEPING: Final = 1
"""1 while the process sleeps and wants a write to its eventfd."""
# Words of a ring.
TAIL: Final = 2
"""The last published stamp."""
DROPS: Final = 3
"""Number of entries that the producers of this ring have dropped."""
JOINED: Final = 4
"""The number of the session. The producer writes this word when it can allocate. If the session
ends before this write, the session does not count as a producer of the queue."""
# Words of a place.
HANDED: Final = 2
"""Number of handed-out entries that the consumer has read."""
STREAMS: Final = 3
"""1 if the consumer has let a stream release a buffer in this session. Streams ring no bell, so
producers must poll."""
READS: Final = 4
"""The number of the session. The consumer writes this word when it can get every new entry."""
# Words of control.
END: Final = 0
WANT: Final = 1
"""0, 1 or :data:`LATE`. If the word is not 0, each release must ring the owner's bell. LATE says in
addition that an entry waits until a stream makes it ready. Streams ring no bell, so consumers poll
and ring the owner's bell."""
LATE: Final = 2
LOST: Final = 2
"""Number of entries that were lost at the end of their consumers' sessions."""
REDELIVERED: Final = 3
WAITING: Final = 4
"""Number of entries that wait for a consumer with room."""
ROUND: Final = 5
"""1 while the owner opens sessions and hands out entries."""
SESSIONS: Final = 6
"""A number that grows in each round in which the owner opens, ends or denies sessions."""

# Values of END. The value 0 means that entries may be put.
FINISHED: Final = 1
"""No further entry will be put. But entries can still wait for a consumer, and consumers can still
hold entries that the owner would deliver again."""
ENDED: Final = 2
"""The owner hands out no further entry. Each consumer still gets the entries given to it before."""
CLOSED: Final = 3
"""The owner has closed the queue."""

# Words of an entry. The producer writes the stamp after the other words of the entry, and then
# writes the tail of the ring.
ENTRY_WORDS: Final = 18
STAMP: Final = 0
TARGET: Final = 1
"""The consumer and session that get the entry, encoded by :func:`target_of`; 0 if the owner
decides."""
SIZES: Final = 2
"""Length of the data, and number of bytes of user data."""
WANTED: Final = 3
"""The entry is ready when the word READY has reached this value. If the value is not 0, a stream
writes READY."""
READY: Final = 4
USER: Final = 5

GIVEN_UP: Final = 255
"""If a decision has this number in place of a consumer, the owner has given the entry up."""


def target_of(consumer: int, session: int) -> int:
    """Return the value of TARGET for a consumer in one of its sessions."""
    return (consumer + 1) << 48 | session


@dataclass(frozen=True, slots=True)
class Terms:
    """The declared sizes and rules of a queue.

    The methods return the index of a word in its segment.
    """

    depth: int
    nbytes: int
    stride: int
    producers: int
    consumers: int
    prefetch: int
    delivery: Delivery
    overflow: Overflow
    redeliver: bool
    is_fenced: bool
    """Whether all processes use fences. They must do so if the owner takes no part in barriers."""

    @property
    def places(self) -> int:
        """Number of rings and places."""
        return self.producers + self.consumers

    @property
    def sizes(self) -> list[int]:
        """Size of each segment in words: first the control segment, then the rings and places."""
        table = self.producers * self.depth
        ring = HEADER_WORDS + (1 + ENTRY_WORDS) * self.depth
        place = HEADER_WORDS + 2 * self.producers + 2 * table
        return [self.hand(self.consumers, 0), *[ring] * self.producers, *[place] * self.consumers]

    # Words of a ring.

    def order(self, stamp: int) -> int:
        """Return the word for a stamp. The word is the number of the buffer that got the stamp.

        A ring has ``depth`` such words. So they are about the last ``depth`` stamps.
        """
        return HEADER_WORDS + stamp % self.depth

    def entry(self, buffer: int) -> int:
        """Return the first word of a buffer's entry."""
        return HEADER_WORDS + self.depth + ENTRY_WORDS * buffer

    # Words of a place.

    def start(self, producer: int) -> int:
        """Return the word with the tail that a ring had when the consumer's session began."""
        return HEADER_WORDS + producer

    def read(self, producer: int) -> int:
        """Return the word with the last stamp that the consumer has read in a ring."""
        return HEADER_WORDS + self.producers + producer

    def released(self, producer: int, buffer: int) -> int:
        """Return the word about the consumer's last release of a buffer.

        The word is the stamp that the buffer's entry had at this release.
        """
        return HEADER_WORDS + 2 * self.producers + producer * self.depth + buffer

    def held(self, producer: int, buffer: int) -> int:
        """Return the word about the consumer's last read of a buffer's entry.

        The word is the stamp that the entry had at this read. The consumer writes the word if
        producers drop entries, or if the owner has handed out the entry.
        """
        return self.released(self.producers, 0) + producer * self.depth + buffer

    # Words of control.

    def member(self, place: int) -> int:
        """Return the member word of a ring or place. Places are numbered after the rings."""
        return HEADER_WORDS + place

    def denied(self, place: int) -> int:
        """Return the word with the last session that the owner has denied."""
        return HEADER_WORDS + self.places + place

    def stop(self, producer: int) -> int:
        """Return the word with the largest valid stamp of a ring.

        At the end of a producer's session, the owner copies the tail into this word. So
        entries that the producer publishes later are not valid.
        """
        return HEADER_WORDS + 2 * self.places + producer

    def decided(self, producer: int) -> int:
        """Return the word with the stamp up to which the owner has handed out a ring's entries."""
        return self.stop(self.producers) + producer

    def handed(self, consumer: int) -> int:
        """Return the word with the number of entries that the owner has handed to a consumer."""
        return self.decided(self.producers) + consumer

    def decision(self, producer: int, buffer: int) -> int:
        """Return the word with an entry's stamp and the consumer that the owner has chosen."""
        return self.handed(self.consumers) + producer * self.depth + buffer

    def hand(self, consumer: int, position: int) -> int:
        """Return the first of two words about a handed-out entry.

        The first word is the stamp. The second one contains the numbers of the producer and of the
        buffer, and the delivery count.
        """
        which = consumer * self.prefetch + position % self.prefetch
        return self.decision(self.producers, 0) + 2 * which
