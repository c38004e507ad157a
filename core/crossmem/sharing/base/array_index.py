# SPDX-License-Identifier: Apache-2.0
"""Finds the memory of crossmem in which an array or tensor lies, by its address."""

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import count
from typing import NamedTuple, Protocol

from crossmem.driver.recording import call_into

__all__ = ["ArrayIndex", "Indexed"]


class Indexed(Protocol):
    """Memory as the index sees it."""

    nbytes: int

    @property
    def closed(self) -> bool:
        """Whether the memory may not be used any more."""
        ...


class _Spot(NamedTuple):
    """The addresses of one object, for as long as something keeps them in use."""

    start: int
    end: int
    number: int
    memory: weakref.ref[Indexed]
    anchor: weakref.ref[object]


class ArrayIndex:
    """What can have arrays in it: memory that is viewed, and memory that was adopted.

    Looking up takes time that grows with the logarithm of their number. Several objects may show
    the same addresses.

    A finaliser or a signal handler may come in between any two steps of a thread that is in here,
    and make arrays or look for them. So only the outermost call changes the lists, and whatever
    comes in between finds them as they are.

    Parameters
    ----------
    lock
        Guards the lists.
    inherited
        The index of the process that forked this one. Its arrays are readable here, but no handle
        of them can be made.
    """

    def __init__(self, lock: threading.RLock, inherited: "ArrayIndex | None" = None) -> None:
        self._lock = lock
        self._is_busy = False
        self._inherited = inherited
        if inherited is not None:
            # A thread that is not in this process may have the parent's lock for ever.
            inherited._lock, inherited._is_busy = lock, False
        self._spots: dict[int, list[_Spot]] = {}
        """By start, those of similar lengths together: lengths of one list have as many bits. So
        only few neighbours in a list can reach an address, however large others are."""
        self._new: deque[_Spot] = deque()
        """What is not in the lists yet."""
        self._gone: deque[tuple[int, int, int]] = deque()
        """Start, end and number of what no longer counts; the garbage collector fills this."""
        self._numbers = count()

    def add(self, memory: Indexed, pointer: int, anchor: object) -> None:
        """Remember where some memory lies, as long as ``anchor`` lives."""
        gone = self._gone
        key = (pointer, pointer + memory.nbytes, next(self._numbers))
        reference = weakref.ref(anchor, lambda _: gone.append(key))
        self._new.append(_Spot(*key, weakref.ref(memory), reference))
        # Never waited for: the caller holds locks that a finaliser, in a thread that has this one,
        # may be waiting for. Whoever looks next brings the lists up to date.
        taken: list[bool] = []
        try:
            call_into(taken, self._lock.acquire, False)  # noqa: FBT003
            if taken[0] and not self._is_busy:
                self._settle()
        finally:
            if taken and taken[0]:
                self._lock.release()

    def find(self, pointer: int, nbytes: int) -> Indexed | None:
        """Return what shows all of these addresses and is usable, None where nothing does.

        Of several, that which starts last.
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
        """Return what showed all of these addresses in a parent process, None where nothing did."""
        parent = self._inherited
        while parent is not None:
            found = parent.find(pointer, nbytes)
            if found is not None:
                return found
            parent = parent._inherited
        return None

    def is_inherited(self, pointer: int, nbytes: int) -> bool:
        """Whether memory of a parent process shows all of these addresses."""
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
        for spot in self._new.copy():
            if last < spot.start <= pointer:
                memory = _usable(spot, pointer + nbytes)
                if memory is not None:
                    found, last = memory, spot.start
        return found

    def _settle(self) -> None:
        """Bring the lists up to date. The lock is held, by the outermost call of its thread."""
        self._is_busy = True
        try:
            while self._new or self._gone:
                # In the lists first, so that it is found at all times.
                while self._new:
                    spot = self._new[0]
                    spots = self._spots.setdefault(_bits(spot.start, spot.end), [])
                    index, is_there = _find(spots, spot[:3])
                    if not is_there:
                        spots.insert(index, spot)
                    self._new.popleft()
                if self._gone:
                    # Taken out afterwards: forgetting twice is harmless, and an interrupt is not.
                    self._forget(self._gone[0])
                    self._gone.popleft()
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
        elif any(spot[:3] == gone for spot in self._new.copy()):
            # It came and went since this began to look.
            self._gone.append(gone)


def _find(spots: list[_Spot], key: tuple[int, int, int]) -> tuple[int, bool]:
    """Return where a spot is or would be, and whether it is there."""
    index = bisect_left(spots, key)
    return index, index < len(spots) and spots[index][:3] == key


def _usable(spot: _Spot, end: int) -> Indexed | None:
    """Return the memory of a spot, where it reaches that far and can be used."""
    memory = spot.memory() if end <= spot.end else None
    return memory if memory is not None and not memory.closed else None


def _start_of(spot: _Spot) -> int:
    return spot.start


def _bits(start: int, end: int) -> int:
    return (end - start).bit_length()
