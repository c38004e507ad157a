# SPDX-License-Identifier: Apache-2.0
"""Finds what lies at a device address, in time that grows with the logarithm of their number."""

import threading
from bisect import bisect_left, bisect_right, insort
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Described", "Region", "RegionIndex"]

_T = TypeVar("_T")
_LAST_NUMBER = 1 << 63


class Described(Protocol):
    """What crossmem has at an address."""

    def describe(self) -> str:
        """Return why the memory cannot be adopted: the end of a sentence that begins with it."""
        ...


class Region(NamedTuple):
    """Consecutive addresses.

    Parameters
    ----------
    start, end
        The first address, and the one past the last.
    number
        Tells apart regions with the same start: addresses are reused.
    space
        Whose addresses they are, such as a driver. Regions of one space do not overlap.
    """

    start: int
    end: int
    number: int
    space: object


class RegionIndex(Generic[_T]):
    """Regions, and what lies there."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._numbers = count()
        self._keys: list[tuple[int, int]] = []
        """Start and number of each region, in order."""
        self._found: dict[int, tuple[Region, _T]] = {}

    def add(self, start: int, nbytes: int, space: object, what: _T) -> Region:
        """Enter a region and return it."""
        region = Region(start, start + nbytes, next(self._numbers), space)
        self._found[region.number] = (region, what)
        try:
            with self._lock:
                insort(self._keys, (start, region.number))
        except BaseException:
            # Nobody has the region yet, so nobody else could remove it.
            self.remove(region)
            raise
        return region

    def remove(self, region: Region) -> None:
        """Forget a region. Doing so twice is harmless."""
        key = (region.start, region.number)
        with self._lock:
            index = bisect_left(self._keys, key)
            if index < len(self._keys) and self._keys[index] == key:
                del self._keys[index]
            self._found.pop(region.number, None)

    def find(self, space: object, start: int, end: int) -> _T | None:
        """Return what overlaps addresses of a space, None if nothing does."""
        with self._lock:
            index = bisect_right(self._keys, (start, _LAST_NUMBER))
            # Regions that begin after the first address.
            for key in self._keys[index : bisect_left(self._keys, (end, 0))]:
                region, what = self._found[key[1]]
                if region.space == space:
                    return what
            # The last region that begins before it; those of other spaces may lie in between.
            while index:
                index -= 1
                region, what = self._found[self._keys[index][1]]
                if region.space == space:
                    return what if start < region.end else None
        return None
