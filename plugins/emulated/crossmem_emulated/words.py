# SPDX-License-Identifier: Apache-2.0
"""Words in memory that streams write and wait for. Other processes write them with plain stores."""

import ctypes
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

__all__ = ["SLOW_S", "Comparison", "is_satisfied", "load", "store", "wait_until"]

SLOW_S: Final = 0.05
"""The time after which a slow stream writes a value by itself.

Another process may wait for the value, and cannot make this process's streams execute their work.
"""

_TYPES: Final[dict[int, Any]] = {4: ctypes.c_uint32, 8: ctypes.c_uint64}
_SPINS: Final = 50
_FIRST_PAUSE_S: Final = 0.00005
_LONGEST_PAUSE_S: Final = 0.002


class Comparison(IntEnum):
    """The conditions of a wait. The numbers are the same in HIP, CUDA and ACL."""

    AT_LEAST = 0
    EQUAL = 1
    ANY_BIT = 2
    NOT_ALL_BITS = 3


def load(place: int, nbytes: int) -> int:
    """Return an aligned word of 4 or 8 bytes, which is read at once."""
    word: int = _TYPES[nbytes].from_address(place).value
    return word


def store(place: int, nbytes: int, value: int) -> None:
    """Write an aligned word of 4 or 8 bytes at once."""
    _TYPES[nbytes].from_address(place).value = value


def is_satisfied(
    comparison: Comparison,
    word: int,
    value: int,
    *,
    nbytes: int,
    mask: int | None = None,
) -> bool:
    """Whether a word satisfies the condition of a wait.

    Parameters
    ----------
    comparison
        The condition.
    word, value
        The word in memory, and the operand of the wait.
    nbytes
        Size of the word in bytes.
    mask
        AMD's mask of the word. None for the other vendors, whose comparison is cyclic: a word is at
        least a value if the difference, as a signed number, is not negative.
    """
    bits = 8 * nbytes
    every_bit = (1 << bits) - 1
    is_cyclic = mask is None
    mask = every_bit if mask is None else mask & every_bit
    masked = word & mask
    if comparison is Comparison.AT_LEAST:
        return (word - value) & every_bit < 1 << (bits - 1) if is_cyclic else masked >= value
    if comparison is Comparison.EQUAL:
        return masked == value
    if comparison is Comparison.ANY_BIT:
        return bool(masked & value)
    return (word | value) & mask != mask


def wait_until(is_over: Callable[[], bool]) -> None:
    """Return as soon as a condition is true: spin first, then sleep with growing pauses."""
    for _ in range(_SPINS):
        if is_over():
            return
        time.sleep(0)
    pause_s = _FIRST_PAUSE_S
    while not is_over():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
