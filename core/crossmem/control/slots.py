# SPDX-License-Identifier: Apache-2.0
"""The slots of exports, and the control segments in which the owner writes their generations.

A slot stands for one export, or for one block of a pool. The slot's word in the control segment is
the generation, which never repeats. The generation is odd while the export lives. It becomes even
when the memory is freed, or when a withdrawn export has no holder any more. Two kinds of slots have
no generation: the second slot of a pool (:data:`crossmem.control.segments.BLOCKS_AT`), and the
slots for the acknowledgements of timelines.
"""

from heapq import heappop
from typing import Final, NamedTuple

from crossmem.control import segments, words
from crossmem.control.barrier import IS_REGISTERED
from crossmem.control.descriptors import close_each
from crossmem.control.segments import HEADER_WORDS, SLOTS, Segment

__all__ = ["FENCED", "MODE", "REGISTERED", "Slot", "SlotTable"]

MODE: Final = 0
"""Index of the mode word, which says how the segment's writer orders its accesses."""
REGISTERED: Final = 1
"""A mode: the writer is registered for ``membarrier``, so an exporter's barrier orders the
accesses of the writer."""
FENCED: Final = 2
"""A mode: the writer uses fences. A process that is not registered has this mode. An importer that
reads this mode in a control segment must use fences, too."""
OWN_MODE: Final = REGISTERED if IS_REGISTERED else FENCED
"""The mode of this process. The process writes it into its control segments, and sends it to
importers in the message HELLO."""


class Slot(NamedTuple):
    """The position of one export's word in the control segment and in each row.

    Parameters
    ----------
    number
        Number of the slot, counted over all segments.
    words
        The words of the control segment.
    at
        Index of the word, in the control segment and in each row.
    length
        Number of slots that become free together. For a pool or a page of timelines: the number of
        its slots. For a block: 0, because its slot becomes free with the pool.
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
        """Begin the next odd generation if ``is_live``; otherwise, begin the next even one.

        No importer can begin a hold of the earlier generation any more. An importer that already
        holds the earlier generation sends a hint when it ends its hold.
        """
        generation = words.load(self.words, self.at)
        words.store(self.words, self.at, generation + 1 + (generation % 2 == is_live))


class SlotTable:
    """The control segments and their free slots.

    The methods take no lock: concurrent callers must hold the lock of the lease registry.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        """The control segments, in order."""
        self.descriptors: list[int] = []
        """Descriptors of the control segments, for the replies to importers."""
        self.free: list[int] = []
        """A heap of free single slots. No importer has a hold in any of these slots."""
        self.free_ranges: list[tuple[int, int]] = []
        """The first slot and the length of each free range. Ranges are for pools and pages of
        timelines."""
        self._count = 0

    def take(self) -> Slot:
        """Return a free slot with a new odd generation. Add a segment if necessary.

        This method takes no slot from the free ranges, which are for :meth:`take_range`.

        Raises
        ------
        DriverError, OutOfMemoryError, OSError
            See :meth:`grow`.
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

        Unlike :meth:`take`, this method begins no odd generation.

        Raises
        ------
        DriverError, OutOfMemoryError, OSError
            See :meth:`grow`.
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
                # A range must not cross the end of a segment, so this range begins in the new
                # segment. The unused slots of the previous segment become a free range.
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
        """Join adjacent free ranges, so that a larger range finds room."""
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
            This process has no free descriptor or too little memory, or the kernel has no memfds.
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
