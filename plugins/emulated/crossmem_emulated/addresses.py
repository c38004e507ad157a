# SPDX-License-Identifier: Apache-2.0
"""Device addresses of one process: which are reserved, and what memory stands behind them.

A strict emulation gives out addresses that the host cannot touch, as those of a device in a
server are: an access ends the process where it happens. The emulation itself reaches the memory
elsewhere. An emulation that is not strict maps the memory at the device's addresses too, and both
map there what is memory of the host itself.
"""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from crossmem_emulated import memory
from crossmem_emulated.pages import HOST, Pages

__all__ = ["BLOCK_NBYTES", "Piece", "Region", "Space", "numbers"]

BLOCK_NBYTES: Final = 2 << 20
"""Size of the huge pages of devices; their addresses are reserved at multiples of it."""

numbers: Final = itertools.count(1).__next__
"""Gives each memory of this process a number of its own."""


@dataclass(slots=True, eq=False)
class Region:
    """Consecutive addresses that belong together.

    Parameters
    ----------
    start, nbytes
        Where it is, and its size in bytes.
    is_reservation
        Whether the program reserved it, and maps into it what it likes.
    device
        Device to which it is bound, None before the first mapping.
    """

    start: int
    nbytes: int
    is_reservation: bool
    device: int | None = None


@dataclass(slots=True, eq=False)
class Piece:
    """Memory behind some addresses.

    Parameters
    ----------
    start, nbytes
        Where it is, and its size in bytes.
    region
        The addresses that it is part of.
    pages, offset
        The memory, and the first byte of it that is meant.
    origin
        How it came here, as the vendor names it.
    source
        What it was mapped from.
    is_small
        Whether it has small pages.
    is_part
        Whether it is one of several in memory that is mapped as a whole.
    keys
        Keys by which it is exported.
    is_read_only
        Whether the program only reads it.
    is_synchronous
        Whether the host was told to wait for every copy that it is part of.
    number
        No other memory of this process has it, or had it.
    """

    start: int
    nbytes: int
    region: Region
    pages: Pages
    offset: int
    origin: StrEnum
    source: Any = None
    is_small: bool = False
    is_part: bool = False
    keys: set[str] = field(default_factory=set)
    is_read_only: bool = False
    is_synchronous: bool = False
    is_freed: bool = False
    """Whether a stream is to give it back, which has other work to do before."""
    number: int = field(default_factory=numbers)

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.nbytes

    @property
    def backing(self) -> int:
        """Where the emulation itself reaches the memory."""
        return self.pages.address + self.offset


class Space:
    """The device addresses of this process.

    Parameters
    ----------
    is_host_readable
        Whether the host can read and write at device addresses.
    """

    def __init__(self, *, is_host_readable: bool) -> None:
        self._is_host_readable = is_host_readable
        self.regions: Final[dict[int, Region]] = {}
        self.pieces: Final[dict[int, Piece]] = {}
        self._starts: list[int] = []
        """Of the regions, in order."""
        self._piece_starts: list[int] = []
        """Of the pieces, in order; no two of them overlap."""

    def reserve(
        self, nbytes: int, *, is_reservation: bool, at: int = 0, alignment: int = BLOCK_NBYTES
    ) -> Region:
        """Reserve addresses, at a multiple of 2 MiB or another power of two.

        Raises
        ------
        SystemCallError
            Where the process has none left, or those that are asked for are taken.
        """
        start = memory.reserve(nbytes, alignment, at=at)
        region = self.regions[start] = Region(start, nbytes, is_reservation)
        insort(self._starts, start)
        return region

    def release(self, region: Region) -> None:
        """Give reserved addresses back."""
        del self.regions[region.start]
        del self._starts[bisect_left(self._starts, region.start)]
        memory.unmap(region.start, region.nbytes)

    def region_of(self, pointer: int) -> Region | None:
        """Return the region that an address is in, None for the host's addresses."""
        index = bisect_right(self._starts, pointer) - 1
        if index < 0:
            return None
        region = self.regions[self._starts[index]]
        return region if pointer < region.start + region.nbytes else None

    def attach(self, piece: Piece) -> None:
        """Put memory behind addresses."""
        if self._is_seen(piece):
            memory.duplicate_at(piece.backing, _whole_pages(piece.nbytes), piece.start)
        self.pieces[piece.start] = piece
        insort(self._piece_starts, piece.start)

    def detach(self, piece: Piece) -> None:
        """Take memory away again."""
        del self.pieces[piece.start]
        del self._piece_starts[bisect_left(self._piece_starts, piece.start)]
        if self._is_seen(piece):
            memory.cover(piece.start, _whole_pages(piece.nbytes))

    def _is_seen(self, piece: Piece) -> bool:
        """Whether a piece was mapped for the host to read and write."""
        return not piece.is_part and (self._is_host_readable or piece.pages.device == HOST)

    def show(self, backing: int, nbytes: int, start: int) -> None:
        """Let the host read and write at device addresses, where that is wanted."""
        if self._is_host_readable:
            memory.duplicate_at(backing, _whole_pages(nbytes), start)

    def overlapping(self, pointer: int, nbytes: int) -> list[Piece]:
        """Return the pieces that have a byte in a range, in order."""
        first = max(0, bisect_right(self._piece_starts, pointer) - 1)
        last = bisect_left(self._piece_starts, pointer + nbytes, lo=first)
        found = [self.pieces[start] for start in self._piece_starts[first:last]]
        return [one for one in found if one.end > pointer]

    def spans(self, pointer: int, nbytes: int) -> Iterator[tuple[Piece, int, int]]:
        """Yield the pieces behind a range, each with the place of its bytes and their number.

        What is missing is left out: the numbers then do not sum up to ``nbytes``.
        """
        for piece in self.overlapping(pointer, nbytes):
            first = max(pointer, piece.start)
            yield (
                piece,
                piece.backing + first - piece.start,
                min(pointer + nbytes, piece.end) - first,
            )


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // memory.PAGE_NBYTES) * memory.PAGE_NBYTES
