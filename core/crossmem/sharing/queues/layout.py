# SPDX-License-Identifier: Apache-2.0
"""The words of a queue in shared host memory. Each segment has one writer.

======== =============== ==========================================================================
segment  writer          words
======== =============== ==========================================================================
control  the owner       the end of the queue, ended sessions, entries that the owner hands out
ring     a producer      its session, its tail and its entries
place    a consumer      its session, its positions, and which entries it holds and has released
======== =============== ==========================================================================

A producer has ``depth`` buffers, and each of them has one entry. Entries are numbered in the order
in which they are put. The stamp of number ``n`` is ``n + 1``, so 0 stands for none. The last
``depth`` numbers have a word each that names the buffer. A consumer that is further behind looks
through all entries.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["ENTRY_WORDS", "HEADER_NBYTES", "MAX_USER_DATA_NBYTES", "Shape"]

MAX_USER_DATA_NBYTES: Final = 96
"""Bytes of user data that travel with a buffer."""

# A ring begins with the cell of a timeline, whose value is the number of published entries.
# Of rings and places: a session is odd while a process has the place.
SESSION: Final = 8
SLEEPING: Final = 9
"""1 while the process sleeps and wants a write to its eventfd."""
LEFT: Final = 10
"""Of a ring: number of entries up to the last one that was left to the owner."""
DROPS: Final = 11
"""Of a ring: number of entries that the producer dropped."""
HANDED: Final = 12
"""Of a place: number of entries read that the owner has handed out."""
STREAMS: Final = 13
"""Of a place: 1 if streams release buffers, which wakes nobody."""
HEADER_WORDS: Final = 16
HEADER_NBYTES: Final = 8 * HEADER_WORDS

# Of control.
IDENTITY: Final = 0
END: Final = 1
"""0: open. 1: no further entry will come. 2: the owner has closed the queue."""
WANT: Final = 2
"""1 while the owner has entries for which no consumer has room."""
LOST: Final = 3
"""Number of entries that were lost with dead consumers."""
REDELIVERED: Final = 4

# Of an entry.
ENTRY_WORDS: Final = 16
STAMP: Final = 0
LENGTH: Final = 1
TARGET: Final = 2
"""The consumer that gets the entry, see :func:`target_of`; 0: the owner decides."""
USER_NBYTES: Final = 3
USER: Final = 4
"""The first word of the user data."""


def target_of(consumer: int, session: int) -> int:
    """Return the word for a consumer in one of its sessions."""
    return (consumer + 1) << 48 | session & (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers from which all places of words follow."""

    depth: int
    producers: int
    consumers: int

    @property
    def ring_nbytes(self) -> int:
        """Size of a ring."""
        return HEADER_NBYTES + 8 * (1 + ENTRY_WORDS) * self.depth

    def order(self, number: int) -> int:
        """Return the word of a ring with the buffer of a recent number."""
        return HEADER_WORDS + number % self.depth

    def entry(self, buffer: int) -> int:
        """Return the first word of a buffer's entry in its ring."""
        return HEADER_WORDS + self.depth + ENTRY_WORDS * buffer

    @property
    def place_nbytes(self) -> int:
        """Size of a consumer's segment."""
        return HEADER_NBYTES + 8 * self.producers * (2 + 2 * self.depth)

    def start(self, producer: int) -> int:
        """Return the word with the first entry that a consumer of all entries reads."""
        return HEADER_WORDS + producer

    def read(self, producer: int) -> int:
        """Return the word with the next entry that a consumer reads."""
        return HEADER_WORDS + self.producers + producer

    def released(self, producer: int, buffer: int) -> int:
        """Return the word with the stamp that a consumer released last in a buffer.

        The same place in the next table has the stamp that the consumer holds.
        """
        return HEADER_WORDS + 2 * self.producers + producer * self.depth + buffer

    @property
    def table(self) -> int:
        """Number of words in a table with a word for each buffer."""
        return self.producers * self.depth

    @property
    def control_nbytes(self) -> int:
        """Size of the owner's segment."""
        words = 2 * self.producers + 2 * self.consumers + self.table
        return HEADER_NBYTES + 8 * (words + 2 * self.consumers * self.hand_entries)

    def ended_producer(self, producer: int) -> int:
        """Return the word with the last session of a producer that the owner has ended."""
        return HEADER_WORDS + producer

    def caught_up(self, producer: int) -> int:
        """Return the word with the number of a producer's entries up to which the owner decided."""
        return HEADER_WORDS + self.producers + producer

    def ended_consumer(self, consumer: int) -> int:
        """Return the word with the last session of a consumer that the owner has ended."""
        return HEADER_WORDS + 2 * self.producers + consumer

    def hand_tail(self, consumer: int) -> int:
        """Return the word with the number of entries that the owner has handed to a consumer."""
        return HEADER_WORDS + 2 * self.producers + self.consumers + consumer

    def dropped(self, producer: int, buffer: int) -> int:
        """Return the word with the stamp that the owner has released for dead consumers."""
        first = HEADER_WORDS + 2 * self.producers + 2 * self.consumers
        return first + producer * self.depth + buffer

    @property
    def hand_entries(self) -> int:
        """Number of entries that the owner can have handed to one consumer at a time."""
        return self.table + self.depth

    def hand(self, consumer: int, number: int) -> int:
        """Return the two words of an entry that the owner hands out: a stamp, and where it is."""
        first = self.dropped(0, 0) + self.table
        return first + 2 * (consumer * self.hand_entries + number % self.hand_entries)
