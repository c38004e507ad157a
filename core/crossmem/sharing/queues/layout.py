# SPDX-License-Identifier: Apache-2.0
"""The words of a queue in shared host memory. Each segment has one writer.

======== =============== ==========================================================================
segment  writer          words
======== =============== ==========================================================================
control  the owner       who takes part, the end of the queue, entries that the owner hands out
ring     a producer      its tail and its entries
place    a consumer      its positions, and which entries it holds and has released
======== =============== ==========================================================================

Entries are numbered in the order in which a producer puts them, from 1 on; the number is the stamp
of the entry. Each buffer has one entry. The owner numbers the sessions of each ring and place. An
odd member word names the session that is open; an even one says that none is.
"""

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["MAX_USER_DATA_NBYTES", "Delivery", "Overflow", "Terms"]

Delivery = Literal["one", "each"]
"""Whether one consumer gets a buffer, or each of them."""
Overflow = Literal["wait", "raise", "drop"]
"""What happens if no buffer is free: wait for one, raise, or drop the oldest entry."""

MAX_USER_DATA_NBYTES: Final = 96
"""Bytes of user data that travel with a buffer."""
MAX_STAMP: Final = 2**48 - 1
"""Larger stamps are rubbish."""
DROPPING: Final = 2**63
"""Bit of a stamp: the producer looks whether a consumer holds the entry, and drops it if not."""

HEADER_WORDS: Final = 16
# Of rings and places.
WISH: Final = 0
"""The session that the process wants, or has; 0 before its first one and after its last one."""
SLEEPING: Final = 1
"""1 while the process sleeps and wants a write to its eventfd."""
# Of a ring.
TAIL: Final = 2
"""The last published stamp."""
DROPS: Final = 3
"""Number of entries that the producers dropped."""
# Of a place.
HANDED: Final = 2
"""Number of entries taken that the owner has handed out."""
STREAMS: Final = 3
"""1 if streams release buffers, which wakes nobody."""
READS: Final = 4
"""The session that gets what is put from now on."""
# Of control.
END: Final = 0
WANT: Final = 1
"""1 if the owner wants to know of each release; :data:`LATE` if it waits for a stream, too."""
LATE: Final = 2
LOST: Final = 2
"""Number of entries that were lost with consumers."""
REDELIVERED: Final = 3
WAITING: Final = 4
"""Number of entries that wait for a consumer with room."""
ROUND: Final = 5
"""1 while the owner opens sessions and hands out entries."""
SESSIONS: Final = 6
"""How often the owner has opened or ended sessions."""

FINISHED: Final = 1
"""No further entry will be put, but consumers may still hold entries that others get again."""
ENDED: Final = 2
"""No further entry will be delivered, except those that a consumer has in its ring or hand."""
CLOSED: Final = 3
"""The owner has closed the queue."""

# Of an entry. A new entry has all its words before its stamp, and the stamp before the tail.
ENTRY_WORDS: Final = 18
STAMP: Final = 0
TARGET: Final = 1
"""The consumer that gets the entry, see :func:`target_of`; 0: the owner decides."""
SIZES: Final = 2
"""Length and number of bytes of user data."""
WANTED: Final = 3
"""The entry is ready when the next word has this value. A stream writes that word."""
READY: Final = 4
USER: Final = 5

GIVEN_UP: Final = 255
"""In place of a consumer's number: the owner has released the entry."""


def target_of(consumer: int, session: int) -> int:
    """Return the word for a consumer in one of its sessions."""
    return (consumer + 1) << 48 | session


@dataclass(frozen=True, slots=True)
class Terms:
    """What was declared when the queue was made. The places of all words follow from it."""

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
    """Whether some process cannot take part in barriers, so that all of them take fences."""

    @property
    def places(self) -> int:
        """Number of rings and places."""
        return self.producers + self.consumers

    @property
    def sizes(self) -> list[int]:
        """Numbers of words of control, of each ring and of each place."""
        table = self.producers * self.depth
        ring = HEADER_WORDS + (1 + ENTRY_WORDS) * self.depth
        place = HEADER_WORDS + 2 * self.producers + 2 * table
        return [self.hand(self.consumers, 0), *[ring] * self.producers, *[place] * self.consumers]

    # Of a ring.

    def order(self, stamp: int) -> int:
        """Return the word with the buffer of a recent stamp. A later stamp may be in it."""
        return HEADER_WORDS + stamp % self.depth

    def entry(self, buffer: int) -> int:
        """Return the first word of a buffer's entry."""
        return HEADER_WORDS + self.depth + ENTRY_WORDS * buffer

    # Of a place.

    def start(self, producer: int) -> int:
        """Return the word with the last stamp of a ring that this session does not read."""
        return HEADER_WORDS + producer

    def read(self, producer: int) -> int:
        """Return the word with the last stamp of a ring that was read."""
        return HEADER_WORDS + self.producers + producer

    def released(self, producer: int, buffer: int) -> int:
        """Return the word with the stamp that was released last in a buffer."""
        return HEADER_WORDS + 2 * self.producers + producer * self.depth + buffer

    def held(self, producer: int, buffer: int) -> int:
        """Return the word with the stamp that is held.

        Written if producers drop entries, or the owner has handed the entry out.
        """
        return self.released(self.producers, 0) + producer * self.depth + buffer

    # Of control.

    def member(self, place: int) -> int:
        """Return the word with the session of a ring or, behind the rings, of a place."""
        return HEADER_WORDS + place

    def denied(self, place: int) -> int:
        """Return the word with the last session that the owner has denied."""
        return HEADER_WORDS + self.places + place

    def stop(self, producer: int) -> int:
        """Return the word with the last stamp of a ring that counts."""
        return HEADER_WORDS + 2 * self.places + producer

    def decided(self, producer: int) -> int:
        """Return the word with the last stamp of a ring up to which the owner has handed out."""
        return self.stop(self.producers) + producer

    def handed(self, consumer: int) -> int:
        """Return the word with the number of entries that the owner has handed to a consumer."""
        return self.decided(self.producers) + consumer

    def decision(self, producer: int, buffer: int) -> int:
        """Return the word with a stamp and the consumer to which the owner has given it."""
        return self.handed(self.consumers) + producer * self.depth + buffer

    def hand(self, consumer: int, position: int) -> int:
        """Return the two words of an entry that the owner hands out: its stamp, and where it is."""
        which = consumer * self.prefetch + position % self.prefetch
        return self.decision(self.producers, 0) + 2 * which
