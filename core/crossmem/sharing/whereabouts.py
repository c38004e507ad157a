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
        self._spots: dict[int, list[_Spot]] = {}
        """By start, those of similar lengths together: lengths of one list have as many bits. So
        only few neighbours in a list can reach an address, however large others are."""
        self._gone: deque[tuple[int, int, int]] = deque()
        """Start, end and number of what no longer counts; the garbage collector fills this."""
        self._number = 0

    def add(self, memory: "Memory", pointer: int, keeper: object) -> None:
        """Remember where some memory lies, as long as ``keeper`` lives."""
        gone = self._gone
        with self._lock:
            self._purge()
            self._number += 1
            key = (pointer, pointer + memory.nbytes, self._number)
            reference = weakref.ref(keeper, lambda _: gone.append(key))
            spots = self._spots.setdefault(memory.nbytes.bit_length(), [])
            insort(spots, _Spot(*key, weakref.ref(memory), reference))

    def find(self, pointer: int, nbytes: int) -> "Memory | None":
        """Return what shows all of these addresses and is usable, None where nothing does.

        Of several, that which starts last.
        """
        found, last = None, -1
        with self._lock:
            self._purge()
            for bits, spots in self._spots.items():
                index = bisect_right(spots, pointer, key=_start_of)
                while index:
                    index -= 1
                    spot = spots[index]
                    if spot.start <= max(last, pointer - (1 << bits)):
                        break
                    memory = spot.memory() if pointer + nbytes <= spot.end else None
                    if memory is not None and not memory.closed:
                        found, last = memory, spot.start
                        break
        return found

    def _purge(self) -> None:
        """Forget what no longer counts. The lock is held."""
        while self._gone:
            gone = self._gone.popleft()
            bits = (gone[1] - gone[0]).bit_length()
            spots = self._spots[bits]
            # Each number is there once, so nothing behind it is ever compared.
            del spots[bisect_left(spots, gone)]
            if not spots:
                del self._spots[bits]


def _start_of(spot: _Spot) -> int:
    return spot.start
