# SPDX-License-Identifier: Apache-2.0
"""The device addresses of one process: the reserved regions, and the memory that is mapped there.

In this module, the host is the CPU. In a strict emulation, the host cannot access device memory at
its device addresses, as with a real device: an access causes SIGSEGV. The emulation itself uses
other addresses for the same memory. A lax emulation also maps device memory at its device
addresses, so that the host can access it. In both modes, memory that the CPU of a real system can
access, such as host memory, is mapped at its device addresses.
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
"""Size of the huge pages of devices. By default, regions begin at multiples of this size."""

numbers: Final = itertools.count(1).__next__
"""Returns a new number at each call. Each piece of memory gets a number that is unique in this
process."""


@dataclass(slots=True, eq=False)
class Region:
    """Consecutive device addresses, which are reserved and released as a whole.

    Parameters
    ----------
    start, nbytes
        The region's first address, and its size in bytes.
    is_reservation
        Whether the program itself reserved the region, and maps memory in it. If False, the
        emulation reserved the region for allocations or for an import.
    device
        Host-wide index of the only device for which memory can be mapped in the region, or
        ``HOST``. Only reservations of ACL have this index, from their first mapping on. In all
        other cases, ``device`` is None.
    """

    start: int
    nbytes: int
    is_reservation: bool
    device: int | None = None


@dataclass(slots=True, eq=False)
class Piece:
    """Memory at consecutive device addresses.

    Parameters
    ----------
    start, nbytes
        The first address, and the size in bytes.
    region
        The region that contains the piece.
    pages, offset
        The pages that contain the memory, and the memory's offset in these pages, in bytes.
    origin
        The vendor's function that put the memory at these addresses.
    source
        The vendor's object to which the memory belongs, such as a pool or an import; None if there
        is none.
    is_small
        In ACL, whether the memory has pages of the CPU's page size instead of huge pages.
    is_part
        Whether the piece shares a mapping with other pieces, and so has no mapping of its own.
    keys
        In ACL, the keys by which the memory is exported.
    is_read_only
        In ACL, whether the program allocated the memory as read-only.
    is_host_visible
        Whether the host may access the memory at these addresses even in a strict emulation.
    is_synchronous
        In HIP and CUDA, whether each synchronous copy or fill of the memory returns only after its
        work is done. Without this flag, a copy or fill in which only devices take part may return
        earlier.
    number
        A number that no other piece of this process has, not even a freed piece.
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
    is_host_visible: bool = False
    is_synchronous: bool = False
    is_freed: bool = False
    """Whether the program has told a stream to free the memory. The stream frees it later."""
    number: int = field(default_factory=numbers)

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.start + self.nbytes

    @property
    def backing(self) -> int:
        """Address at which the emulation itself uses the memory."""
        return self.pages.address + self.offset


class Space:
    """The device addresses of this process.

    Parameters
    ----------
    is_host_readable
        Whether the host can read and write all memory at its device addresses.
    """

    def __init__(self, *, is_host_readable: bool) -> None:
        self._is_host_readable = is_host_readable
        self.regions: Final[dict[int, Region]] = {}
        self.pieces: Final[dict[int, Piece]] = {}
        self._starts: list[int] = []
        """Start addresses of the regions, sorted."""
        self._piece_starts: list[int] = []
        """Start addresses of the pieces, sorted; no two pieces overlap."""

    def reserve(
        self, nbytes: int, *, is_reservation: bool, at: int = 0, alignment: int = BLOCK_NBYTES
    ) -> Region:
        """Reserve a region that begins at ``at``.

        If ``at`` is 0, the region begins at a multiple of ``alignment``.

        Raises
        ------
        SystemCallError
            The process has too few free addresses, or the requested addresses are in use.
        """
        start = memory.reserve(nbytes, alignment, at=at)
        region = self.regions[start] = Region(start, nbytes, is_reservation)
        insort(self._starts, start)
        return region

    def release(self, region: Region) -> None:
        """Release the addresses of a region."""
        del self.regions[region.start]
        del self._starts[bisect_left(self._starts, region.start)]
        memory.unmap(region.start, region.nbytes)

    def region_of(self, pointer: int) -> Region | None:
        """Return the region that contains an address, or None if no region does."""
        index = bisect_right(self._starts, pointer) - 1
        if index < 0:
            return None
        region = self.regions[self._starts[index]]
        return region if pointer < region.start + region.nbytes else None

    def attach(self, piece: Piece) -> None:
        """Add a piece, and map it at its device addresses if the host may access them."""
        if self._is_seen(piece):
            memory.duplicate_at(piece.backing, _whole_pages(piece.nbytes), piece.start)
        self.pieces[piece.start] = piece
        insort(self._piece_starts, piece.start)

    def detach(self, piece: Piece) -> None:
        """Remove a piece, and unmap it from its device addresses."""
        del self.pieces[piece.start]
        del self._piece_starts[bisect_left(self._piece_starts, piece.start)]
        if self._is_seen(piece):
            memory.cover(piece.start, _whole_pages(piece.nbytes))

    def _is_seen(self, piece: Piece) -> bool:
        """Whether a piece has its own mapping at its device addresses, for accesses by the host."""
        return not piece.is_part and (
            self._is_host_readable or piece.is_host_visible or piece.pages.device == HOST
        )

    def show(self, backing: int, nbytes: int, start: int) -> None:
        """In a lax emulation, map memory at device addresses, so that the host can access it.

        In a strict emulation, do nothing. ``backing`` is the address at which the emulation itself
        uses the memory, and ``start`` is the device address.
        """
        if self._is_host_readable:
            memory.duplicate_at(backing, _whole_pages(nbytes), start)

    def overlapping(self, pointer: int, nbytes: int) -> list[Piece]:
        """Return the pieces that overlap a range, in the order of their addresses."""
        first = max(0, bisect_right(self._piece_starts, pointer) - 1)
        last = bisect_left(self._piece_starts, pointer + nbytes, lo=first)
        found = [self.pieces[start] for start in self._piece_starts[first:last]]
        return [one for one in found if one.end > pointer]

    def spans(self, pointer: int, nbytes: int) -> Iterator[tuple[Piece, int, int]]:
        """Yield each piece that overlaps a range, with the address and the size of the overlap.

        The address is the emulation's own address of the memory, and not a device address. If some
        of the range has no memory, the sum of the sizes is less than ``nbytes``.
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
