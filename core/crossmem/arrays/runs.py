# SPDX-License-Identifier: Apache-2.0
"""Where bytes go that are copied because arrays cover them: each once, whatever overlaps."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Final, NamedTuple

__all__ = ["Run", "find_run", "pack"]

_ALIGNMENT: Final = 256
"""Copies keep their addresses modulo this, and with that what their elements need."""


class Run(NamedTuple):
    """Consecutive bytes that arrays cover.

    Parameters
    ----------
    low, high
        First byte, and the one past the last.
    start
        Where the first byte goes.
    """

    low: int
    high: int
    start: int

    @property
    def end(self) -> int:
        """Where the byte past the last would go."""
        return self.start + self.high - self.low


def pack(extents: Iterable[tuple[int, int]]) -> list[Run]:
    """Return what arrays cover that lie in these bytes, in order and without overlaps."""
    runs: list[Run] = []
    for low, high in sorted(extents):
        if runs and low < runs[-1].high:
            first, last, start = runs[-1]
            runs[-1] = Run(first, max(last, high), start)
        else:
            end = runs[-1].end if runs else 0
            runs.append(Run(low, high, end + (low - end) % _ALIGNMENT))
    return runs


def find_run(runs: list[Run], low: int) -> int:
    """Return the number of the run in which an array begins that was packed with the others."""
    return bisect_right(runs, low, key=itemgetter(0)) - 1
