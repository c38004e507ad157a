# SPDX-License-Identifier: Apache-2.0
"""The index that finds the object at a device address. It searches sorted keys by bisection."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import count
from operator import itemgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Described", "RegionIndex"]

_T = TypeVar("_T")
_Key = tuple[int, int]
"""A key: the first address of an object, and the number of its region."""

_MAX_NEW: Final = 100
_START: Final = itemgetter(0)


class Described(Protocol):
    """An object of crossmem at an address."""

    def describe(self) -> str:
        """Return the reason why an application cannot adopt the memory at the object's addresses.

        The text begins with a verb, because the error message names the memory before the text.
        """
        ...


class _Region(NamedTuple):
    """The addresses of an object, with a number that no other region of the index has."""

    start: int
    end: int
    space: object
    number: int


class RegionIndex(Generic[_T]):
    """Finds objects by device address. Each object has one region of addresses at a time.

    The next lookup inserts the keys of new objects into the sorted keys. The keys of removed
    objects stay until there are too many of them. The index does not keep removed objects alive.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._numbers = count()
        self._regions: dict[_T, _Region] = {}
        """The region of each object."""
        self._objects: dict[int, _T] = {}
        """The object of each region. Each key is the number of a region."""
        self._keys: list[_Key] = []
        """Sorted keys, including keys of removed objects."""
        self._new: deque[_Key] = deque()
        """Keys that the next lookup adds to the sorted keys."""

    def add(self, what: _T, start: int, nbytes: int, space: object) -> None:
        """Add an object.

        Parameters
        ----------
        what
            The object. If a signal handler raises during the call, the index may or may not contain
            the object. :meth:`remove` works in both cases.
        start, nbytes
            The object's first address, and its size in bytes.
        space
            Any object that stands for the address space, such as the driver of the memory. Regions
            of one space must not overlap. Regions of different spaces may overlap.
        """
        self.remove(what)
        region = _Region(start, start + nbytes, space, next(self._numbers))
        # The region is stored first, because remove() reads the region's number from ``_regions``.
        self._regions[what] = region
        self._objects[region.number] = what
        self._new.append((start, region.number))
        if len(self._new) > len(self._regions) + _MAX_NEW:
            with self._lock:
                self._settle()

    def remove(self, what: _T) -> None:
        """Remove an object. A second call does nothing."""
        region = self._regions.get(what)
        if region is not None:
            self._objects.pop(region.number, None)
            self._regions.pop(what, None)

    def find(self, space: object, start: int, end: int) -> _T | None:
        """Return an object whose region overlaps these addresses of a space, else None."""
        with self._lock:
            self._settle()
            keys = self._keys
            index = bisect_right(keys, start, key=_START)
            # First, search the regions that begin after ``start``.
            for key in keys[index : bisect_left(keys, end, key=_START)]:
                if self._end_of(key, space) is not None:
                    return self._objects.get(key[1])
            # Then check the last region of this space that begins at or before ``start``. Keys of
            # other spaces and of removed regions may lie between that region and ``start``.
            while True:
                if not index:
                    break
                index -= 1
                last = self._end_of(keys[index], space)
                if last is not None:
                    return self._objects.get(keys[index][1]) if start < last else None
        return None

    def _end_of(self, key: _Key, space: object) -> int | None:
        """Return the end of a region, or None if the region was removed or is in another space."""
        what = self._objects.get(key[1])
        region = None if what is None else self._regions.get(what)
        return region.end if region is not None and region.space == space else None

    def _settle(self) -> None:
        """Update the keys. The caller holds the lock.

        A signal handler may interrupt this method and add objects. ``_keys`` may then contain a key
        twice, which is harmless.
        """
        while self._new:
            key = self._new[0]
            if key[1] in self._objects:
                insort(self._keys, key)
            if self._new and self._new[0] is key:
                self._new.popleft()
        if len(self._keys) > 2 * len(self._objects) + _MAX_NEW:
            self._keys = [key for key in self._keys if key[1] in self._objects]
