# SPDX-License-Identifier: Apache-2.0
"""The owner's side of leases: it writes control segments, and reads the importers' rows.

A slot stands for one export. Its word in the control segment is the generation. The generation is
odd while the export lives, becomes even when the memory is freed or the withdrawn export ends, and
never repeats.
"""

from heapq import heappop
from typing import Final, NamedTuple

from crossmem.control import segments, words
from crossmem.control.barrier import IS_REGISTERED
from crossmem.control.descriptors import close_each
from crossmem.control.segments import HEADER_WORDS, SLOTS, Segment

__all__ = ["FENCED", "MODE", "REGISTERED", "Slot", "SlotTable"]

MODE: Final = 0
"""Index of the word that says how the segment's writer orders its accesses."""
REGISTERED: Final = 1
"""The writer uses the barrier of ``membarrier``, or lets others use it."""
FENCED: Final = 2
"""The writer uses its own fences, and the other side must use fences as well."""
OWN_MODE: Final = REGISTERED if IS_REGISTERED else FENCED
"""The mode of this process."""


class Slot(NamedTuple):
    """The word of one export.

    Parameters
    ----------
    number
        Number of the slot, over all segments.
    words
        The control segment.
    at
        Index of the word, in the control segment and in each row.
    length
        Number of slots that are released together with this slot: all slots of the pool for a
        pool's slot, none for a block's slot.
    """

    number: int
    words: memoryview
    at: int
    length: int = 1

    @property
    def generation(self) -> int:
        """The current generation."""
        return words.load(self.words, self.at)

    def move_on(self, *, is_live: bool) -> None:
        """Begin the next odd generation (live), or the next even one.

        A peer with an earlier generation can no longer begin to hold. A peer that ends a hold of an
        earlier generation sends a message.
        """
        generation = words.load(self.words, self.at)
        words.store(self.words, self.at, generation + 1 + (generation % 2 == is_live))


class SlotTable:
    """The control segments and their free slots. The caller holds a lock."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        """The control segments, in order."""
        self.descriptors: list[int] = []
        """Descriptors of the control segments, to pass on."""
        self.free: list[int] = []
        """A heap of returned slots. No row holds them."""
        self.free_ranges: list[tuple[int, int]] = []
        """First slot and length of returned ranges."""
        self._count = 0

    def take(self) -> Slot:
        """Return the lowest free slot, live, from a new segment if necessary.

        Raises
        ------
        DriverError, OutOfMemoryError, OSError
            As for :meth:`grow`.
        """
        if self.free:
            number = heappop(self.free)
        else:
            number = self._count
            if number == SLOTS * len(self.segments):
                self.grow()
            self._count += 1
        which, at = divmod(number, SLOTS)
        slot = Slot(number, self.segments[which].words, HEADER_WORDS + at)
        slot.move_on(is_live=True)
        return slot

    def take_range(self, count: int) -> Slot:
        """Return the first slot of a range of ``count`` slots, all in one segment.

        The generations of the slots do not change.

        Raises
        ------
        DriverError, OutOfMemoryError, OSError
            As for :meth:`grow`.
        """
        self._join_ranges()
        for place, (first, length) in enumerate(self.free_ranges):
            if count <= length:
                rest = [(first + count, length - count)] if count < length else []
                self.free_ranges[place : place + 1] = rest
                break
        else:
            if self._count + count > SLOTS * len(self.segments):
                self.grow()
                # A range must not cross the end of a segment.
                first = SLOTS * (len(self.segments) - 1)
                if first > self._count:
                    self.free_ranges.append((self._count, first - self._count))
            else:
                first = self._count
            self._count = first + count
        which, at = divmod(first, SLOTS)
        words_of = self.segments[which].words
        return Slot(first, words_of, HEADER_WORDS + at, count)

    def _join_ranges(self) -> None:
        """Join neighbouring ranges, so that pools of other sizes find room."""
        joined: list[tuple[int, int]] = []
        for first, length in sorted(self.free_ranges):
            if joined and sum(joined[-1]) == first and first % SLOTS:
                joined[-1] = joined[-1][0], joined[-1][1] + length
            else:
                joined.append((first, length))
        self.free_ranges[:] = joined

    def grow(self) -> None:
        """Add a control segment.

        Raises
        ------
        DriverError, OutOfMemoryError, OSError
            This process has no descriptor or no room for a segment.
        """
        try:
            segment = segments.create(
                segments.CONTROL_NAME, self.descriptors, is_written_by_maker=True
            )
            words.store(segment.words, MODE, OWN_MODE)
            self.segments.append(segment)
        except BaseException:
            close_each(self.descriptors, len(self.segments))
            raise

    def close(self) -> None:
        """Close the descriptors."""
        close_each(self.descriptors)
