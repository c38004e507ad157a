# SPDX-License-Identifier: Apache-2.0
"""The index that finds objects by device address, in logarithmic time."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import deque
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["Described", "RegionIndex"]

_T = TypeVar("_T")
_Key = tuple[int, int, _T]
"""A key: the first address of an object, its ``id()``, and the object."""

_MAX_NEW: Final = 100
_START: Final = itemgetter(0)
_PLACE: Final = itemgetter(0, 1)


class Described(Protocol):
    """An object of crossmem at an address."""

    def describe(self) -> str:
        """Return why the memory cannot be adopted, as a text that continues "memory at ... "."""
        ...


class RegionIndex(Generic[_T]):
    """Finds objects by device address. Each object has one region of addresses at a time.

    Adding or removing an object changes only a dictionary. The next lookup updates the sorted keys.
    Until that lookup, the index may keep some hundred removed objects alive.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._regions: dict[_T, tuple[int, int, object]] = {}
        """The first address, the end address, and the space of the addresses of each object."""
        self._keys: list[_Key[_T]] = []
        """Sorted keys, including those of objects that were removed since the last update."""
        self._new: deque[_T] = deque()
        """Objects whose keys the next lookup adds to the list."""

    def add(self, what: _T, start: int, nbytes: int, space: object) -> None:
        """Add an object.

        Parameters
        ----------
        what
            The object. If a signal handler interrupts the call, :meth:`remove` removes the object.
        start, nbytes
            First address, and number of bytes, of the object.
        space
            Any object that stands for the address space, such as its driver. Regions of one space
            do not overlap. Regions of different spaces may overlap.
        """
        self._regions[what] = (start, start + nbytes, space)
        self._new.append(what)
        if len(self._new) > len(self._regions) + _MAX_NEW:
            with self._lock:
                self._settle()

    def remove(self, what: _T) -> None:
        """Remove an object. A second call does nothing."""
        self._regions.pop(what, None)

    def find(self, space: object, start: int, end: int) -> _T | None:
        """Return an object whose region overlaps these addresses of a space, else None."""
        with self._lock:
            self._settle()
            keys = self._keys
            index = bisect_right(keys, start, key=_START)
            # Regions that begin after the first address.
            for key in keys[index : bisect_left(keys, end, key=_START)]:
                if self._end_of(key, space) is not None:
                    return key[2]
            # The last region of this space that begins at or before the first address. Regions of
            # other spaces may lie in between.
            while index:
                index -= 1
                last = self._end_of(keys[index], space)
                if last is not None:
                    return keys[index][2] if start < last else None
        return None

    def _end_of(self, key: _Key[_T], space: object) -> int | None:
        """Return the end of a region in a space, None if it was removed or is in another space."""
        start, end, owner = self._regions.get(key[2], (None, 0, None))
        return end if start == key[0] and owner == space else None

    def _is_there(self, key: _Key[_T]) -> bool:
        region = self._regions.get(key[2])
        return region is not None and region[0] == key[0]

    def _settle(self) -> None:
        """Update the keys. The caller holds the lock.

        A signal handler may run in this method and add objects itself. A key may then be in the
        list twice, which is harmless.
        """
        while self._new:
            what = self._new[0]
            region = self._regions.get(what)
            if region is not None:
                insort(self._keys, (region[0], id(what), what), key=_PLACE)
            if self._new and self._new[0] is what:
                self._new.popleft()
        if len(self._keys) > 2 * len(self._regions) + _MAX_NEW:
            self._keys = list(filter(self._is_there, self._keys))
