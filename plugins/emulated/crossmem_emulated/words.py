# SPDX-License-Identifier: Apache-2.0
"""Words in memory. Streams write words, and wait until a word satisfies a condition.

Other processes write the words with plain stores, which do not notify this process. So a thread of
this process reads the word of each wait again and again.
"""

import ctypes
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final

from crossmem_emulated.machine import HostLostError
from crossmem_emulated.queues import Caller, Queue, Work

__all__ = ["SLOW_S", "Comparison", "finish_later", "is_satisfied", "load", "store", "waiting"]

SLOW_S: Final = 0.05
"""The time in seconds after which a slow stream writes a value on its own.

Usually, a slow stream works only when a thread of its process waits for the work. Another process
may wait for the value, but cannot start the work of this process's streams.
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
    """Read an aligned word of 4 or 8 bytes in one access, and return the word."""
    word: int = _TYPES[nbytes].from_address(place).value
    return word


def store(place: int, nbytes: int, value: int) -> None:
    """Write an aligned word of 4 or 8 bytes in one access."""
    _TYPES[nbytes].from_address(place).value = value


def is_satisfied(
    comparison: Comparison,
    word: int,
    value: int,
    *,
    nbytes: int,
    mask: int | None = None,
) -> bool:
    """Whether a word of ``nbytes`` bytes satisfies the condition of a wait.

    ``value`` is the operand of the wait. ``mask`` is AMD's mask of the word; None for the other
    vendors. Devices of the other vendors subtract the value from the word, and read the difference
    as a signed number. The word is at least the value if the difference is not negative.
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


def waiting(
    call: str,
    stream: Queue,
    lock: threading.RLock,
    word: tuple[int, int],
    is_over: Callable[[], bool],
) -> Work:
    """Return work that waits, on a thread of its own, until a word satisfies a condition.

    Parameters
    ----------
    call
        Name of the emulated function.
    stream
        The stream that will get the work.
    lock
        The process's lock.
    word
        Address of the word, and its size in bytes. If this memory is released, the work is
        discarded.
    is_over
        Says whether the word satisfies the condition.
    """

    def is_done() -> bool:
        # A release of the memory removes this work from the stream. While this thread holds the
        # lock, no other thread can release the memory.
        with lock:
            return work not in stream.queue or is_over()

    def run() -> None:
        for _ in range(_SPINS):
            if is_done():
                return
            time.sleep(0)
        pause_s = _FIRST_PAUSE_S
        while not is_done():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    work = Work(call, (word,), run, caller=Caller(), is_over=is_over)
    return work


def finish_later(lock: threading.RLock, finish: Callable[[], object]) -> None:
    """Start a thread that calls ``finish`` after ``SLOW_S`` seconds, to do a slow stream's work."""

    def run() -> None:
        time.sleep(SLOW_S)
        # If the emulated host is lost, no other process can wait for the work, so the error is
        # ignored.
        with lock, suppress(HostLostError, sqlite3.OperationalError):
            finish()

    threading.Thread(target=run, name="crossmem-value", daemon=True).start()
