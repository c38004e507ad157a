# SPDX-License-Identifier: Apache-2.0
"""Byte ranges for copies of arrays. A byte that several arrays cover lies in only one range."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Final, NamedTuple

__all__ = ["ALIGNMENT", "BLOCK_ALIGNMENT", "CopyRange", "find_range", "pack_ranges"]

ALIGNMENT: Final = 256
"""The alignment of copies, in bytes. The address of an array and the offset of its copy are equal
modulo this number, so aligned elements stay aligned."""

BLOCK_ALIGNMENT: Final = 16
"""The alignment of copies in a block of a pool, in bytes. It is smaller than :data:`ALIGNMENT`, so
the gaps between the copies take less of the block."""


class CopyRange(NamedTuple):
    """Consecutive bytes that arrays cover.

    Parameters
    ----------
    low, high
        Address of the first byte, and the address after the last byte.
    start
        Byte offset of the range in the memory that receives the copies.
    """

    low: int
    high: int
    start: int

    @property
    def end(self) -> int:
        """Byte offset of the end of the range in the memory that receives the copies."""
        return self.start + self.high - self.low


def pack_ranges(extents: Iterable[tuple[int, int]], alignment: int = ALIGNMENT) -> list[CopyRange]:
    """Return the ranges that arrays cover, sorted; overlapping arrays share one range.

    ``extents`` holds the address of each array's first byte, and the address after its last byte.
    """
    ranges: list[CopyRange] = []
    for low, high in sorted(extents):
        if ranges and low < ranges[-1].high:
            first, last, start = ranges[-1]
            ranges[-1] = CopyRange(first, max(last, high), start)
        else:
            end = ranges[-1].end if ranges else 0
            ranges.append(CopyRange(low, high, end + (low - end) % alignment))
    return ranges


def find_range(ranges: list[CopyRange], low: int) -> int:
    """Return the index of the range that contains the array whose lowest address is ``low``."""
    return bisect_right(ranges, low, key=itemgetter(0)) - 1
