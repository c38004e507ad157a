# SPDX-License-Identifier: Apache-2.0
"""The index that finds the crossmem memory of an array or tensor by its address."""

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

from crossmem.driver.recording import call_into

__all__ = ["ArrayIndex", "Indexed"]

_MOST_NEW: Final = 64
"""If the index has this many new entries, ``add`` moves them into the sorted lists. Most views end
before such a move, so their entries never enter the lists."""


class Indexed(Protocol):
    """The attributes of a memory object that the index reads."""

    nbytes: int

    @property
    def closed(self) -> bool:
        """Whether the memory was closed."""
        ...


class _Spot(NamedTuple):
    """An entry of the index: the addresses of one memory object."""

    start: int
    end: int
    number: int
    memory: weakref.ref[Indexed]
    anchor: "_Anchor"


class _Anchor(weakref.ref[Any]):
    """A weak reference to an anchor, with the start, end and number of the anchor's entry."""

    __slots__ = ("key",)

    key: tuple[int, int, int]


class ArrayIndex:
    """An index of the memory that may contain arrays: memory with views, and adopted memory.

    If few entries overlap, the time of a lookup is logarithmic in the number of all entries.
    Several memory objects can have the same addresses.

    A finaliser or a signal handler may interrupt a thread inside this class at any point, and may
    itself add or look up arrays. Therefore, a call that interrupts a search or an update of the
    lists does not change the lists.

    Parameters
    ----------
    lock
        Guards the lists.
    inherited
        In a forked child: the index of the parent. It finds the parent's arrays, which the child
        cannot share.
    """

    def __init__(self, lock: threading.RLock, inherited: "ArrayIndex | None" = None) -> None:
        self._lock = lock
        self._is_busy = False
        self._inherited = inherited
        if inherited is not None:
            # At the fork, another thread of the parent may have held the old lock. The child does
            # not have that thread, so the old lock may stay locked for ever.
            inherited._lock, inherited._is_busy = lock, False
        self._spots: dict[int, list[_Spot]] = {}
        """Entries sorted by start address, in one list for each bit length of the size. The entries
        of a list have similar sizes, so only a few entries that start before an address can contain
        the address."""
        self._new: dict[int, _Spot] = {}
        """New entries. The key is the number of the entry. The next lookup moves the entries into
        the lists. An addition moves them if there are ``_MOST_NEW`` of them."""
        self._gone: deque[_Anchor] = deque()
        """The weak references to anchors that have ended. At the end of an anchor, Python calls the
        callback of the reference, which adds the reference here."""
        self._numbers = count()

    def add(self, memory: Indexed, pointer: int, anchor: object) -> None:
        """Add the addresses of memory. The entry exists as long as ``anchor`` lives."""
        new, number = self._new, next(self._numbers)
        # The callback is C code, so no signal handler runs in it.
        reference = _Anchor(anchor, self._gone.append)
        reference.key = key = (pointer, pointer + memory.nbytes, number)
        new[number] = _Spot(*key, weakref.ref(memory), reference)
        if len(new) < _MOST_NEW:
            return
        # A wait for the lock could deadlock: the thread that holds the lock may run a finaliser
        # that waits for another lock, which this thread holds. If the index's lock is not free, the
        # next lookup updates the lists.
        taken: list[bool] = []
        try:
            call_into(taken, self._lock.acquire, False)  # noqa: FBT003
            if taken[0] and not self._is_busy:
                self._settle()
        finally:
            if taken and taken[0]:
                self._lock.release()

    def find(self, pointer: int, nbytes: int) -> Indexed | None:
        """Return memory that contains all of these addresses and is not closed, else None.

        If several objects qualify, return the object with the highest start address.
        """
        with self._lock:
            was_busy = self._is_busy
            if not was_busy:
                self._settle()
            self._is_busy = True
            try:
                return self._search(pointer, nbytes)
            finally:
                self._is_busy = was_busy

    def find_inherited(self, pointer: int, nbytes: int) -> Indexed | None:
        """Return memory of an ancestor process that contains all of these addresses, else None."""
        parent = self._inherited
        while parent is not None:
            found = parent.find(pointer, nbytes)
            if found is not None:
                return found
            parent = parent._inherited
        return None

    def is_inherited(self, pointer: int, nbytes: int) -> bool:
        """Whether all of these addresses lie in one memory object of an ancestor process."""
        return self.find_inherited(pointer, nbytes) is not None

    def _search(self, pointer: int, nbytes: int) -> Indexed | None:
        found, last = None, -1
        for bits, spots in self._spots.copy().items():
            index = bisect_right(spots, pointer, key=_start_of)
            while index:
                index -= 1
                spot = spots[index]
                if spot.start <= max(last, pointer - (1 << bits)):
                    break
                memory = _usable(spot, pointer + nbytes)
                if memory is not None:
                    found, last = memory, spot.start
                    break
        for spot in self._new.copy().values():
            if last < spot.start <= pointer:
                memory = _usable(spot, pointer + nbytes)
                if memory is not None:
                    found, last = memory, spot.start
        return found

    def _settle(self) -> None:
        """Move new entries into the lists, and remove entries whose anchors have ended.

        The caller holds the lock, and has checked that ``_is_busy`` is false.
        """
        self._is_busy = True
        try:
            while True:
                if not (self._new or self._gone):
                    break
                while True:
                    if not self._gone:
                        break
                    # The reference leaves the queue after the removal of the entry. So after an
                    # interrupt, a later call repeats the removal.
                    key = self._gone[0].key
                    self._new.pop(key[2], None)
                    self._forget(key)
                    self._gone.popleft()
                for number, spot in self._new.copy().items():
                    # The entry enters the list before it leaves the dict, so an interrupting lookup
                    # always finds it.
                    spots = self._spots.setdefault(_bits(spot.start, spot.end), [])
                    index, is_there = _find(spots, spot[:3])
                    if not is_there:
                        spots.insert(index, spot)
                    self._new.pop(number, None)
        finally:
            self._is_busy = False

    def _forget(self, gone: tuple[int, int, int]) -> None:
        bits = _bits(*gone[:2])
        spots = self._spots.get(bits, [])
        index, is_there = _find(spots, gone)
        if is_there:
            del spots[index]
            if not spots:
                del self._spots[bits]


def _find(spots: list[_Spot], key: tuple[int, int, int]) -> tuple[int, bool]:
    """Return the index of an entry in a list, and whether the list contains the entry."""
    index = bisect_left(spots, key)
    return index, index < len(spots) and spots[index][:3] == key


def _usable(spot: _Spot, end: int) -> Indexed | None:
    """Return an entry's memory.

    Return None if the entry ends before ``end``, or if the memory is closed or no longer exists.
    """
    memory = spot.memory() if end <= spot.end else None
    return memory if memory is not None and not memory.closed else None


def _start_of(spot: _Spot) -> int:
    return spot.start


def _bits(start: int, end: int) -> int:
    return (end - start).bit_length()
