# SPDX-License-Identifier: Apache-2.0
"""Finds the memory of crossmem in which an array or tensor lies, by its address."""

import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from crossmem.sharing.memory import Memory

__all__ = ["Whereabouts"]


class _Spot(NamedTuple):
    """The addresses of one object, for as long as something keeps them in use."""

    start: int
    end: int
    number: int
    memory: "weakref.ref[Memory]"
    keeper: weakref.ref[object]


class Whereabouts:
    """What can have arrays in it: memory that is viewed, and memory that was adopted.

    Looking up takes time that grows with the logarithm of their number. Several objects may show
    the same addresses.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._spots: list[_Spot] = []
        self._gone: deque[tuple[int, int, int]] = deque()
        """Start, end and number of what no longer counts; the garbage collector fills this."""
        self._longest = 0
        self._number = 0

    def add(self, memory: "Memory", pointer: int, keeper: object) -> None:
        """Remember where some memory lies, as long as ``keeper`` lives."""
        gone = self._gone
        with self._lock:
            self._purge()
            self._number += 1
            key = (pointer, pointer + memory.nbytes, self._number)
            reference = weakref.ref(keeper, lambda _: gone.append(key))
            insort(self._spots, _Spot(*key, weakref.ref(memory), reference))
            self._longest = max(self._longest, memory.nbytes)

    def find(self, pointer: int, nbytes: int) -> "Memory | None":
        """Return what shows all of these addresses and is usable, None where nothing does."""
        with self._lock:
            self._purge()
            index = bisect_right(self._spots, pointer, key=_start_of)
            while index:
                index -= 1
                spot = self._spots[index]
                if spot.start + self._longest <= pointer:
                    break
                memory = spot.memory() if pointer + nbytes <= spot.end else None
                if memory is not None and not memory.closed:
                    return memory
        return None

    def _purge(self) -> None:
        """Forget what no longer counts. The lock is held."""
        while self._gone:
            gone = self._gone.popleft()
            # Each number is there once, so nothing behind it is ever compared.
            del self._spots[bisect_left(self._spots, gone)]
        if not self._spots:
            self._longest = 0


def _start_of(spot: _Spot) -> int:
    return spot.start
