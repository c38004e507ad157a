# SPDX-License-Identifier: Apache-2.0
"""The words of one timeline in shared host memory, and the host's waits for their values.

The process that signals is the only writer of the words, with two exceptions. A waiter sets
``CARE`` and ``WAITING`` before it sleeps. After the death of the signalling process, any other
process may write ``VOID`` into the value and wake the sleepers.

Before a thread sleeps, it reads ``SEQUENCE``, sets ``WAITING``, executes a fence and reads the
value. The signalling process writes the value, executes a fence and then reads ``WAITING``. So
either the thread sees the new value, or the signalling process sees ``WAITING``. In the second
case, the signalling process clears ``WAITING``, increments ``SEQUENCE`` and wakes all sleeping
threads. The increment also prevents the sleep of a thread that has only set ``WAITING`` so far: the
kernel lets a thread sleep only if ``SEQUENCE`` still has the value that the thread has read. Only
this file writes ``WAITING``, ``SEQUENCE`` and ``CARE``.

If the processes can use the barrier, the signalling process executes no fence before a thread has
slept. The first sleeper sets ``CARE`` to 1 and executes the barrier, which orders the accesses of
the signalling process, too. After the barrier, the signalling process sees ``CARE`` and executes
fences. The sleeper then sets ``CARE`` to 2, so that later sleepers execute a fence instead of the
barrier.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from crossmem.control import futex, words
from crossmem.control.barrier import IS_REGISTERED
from crossmem.errors import CrossmemError, WaitTimeoutError

__all__ = [
    "CARE",
    "CELL_NBYTES",
    "IDENTITY",
    "ISSUED",
    "VALUE",
    "VOID",
    "WAITING",
    "Awaited",
    "Cell",
]

VALUE: Final = 0
"""The largest value that was reached. At level ``"event"``, this word may contain a smaller value,
because streams do not write it."""
IDENTITY: Final = 1
"""The identity of the timeline; 0 after the signalling process has closed the timeline."""
WAITING: Final = 2
"""1 if a thread may be asleep."""
SEQUENCE: Final = 3
"""The word on which threads sleep. It is incremented before they are woken."""
ISSUED: Final = 4
"""The largest value that was issued to a stream. At level ``"event"``, this word also includes the
values that were signalled without a stream. ISSUED is larger than VALUE while work is running."""
CARE: Final = 5
"""0 before a thread sleeps for the first time, 1 while that thread executes the barrier, then 2."""
_KNOWN: Final = 2
CELL_NBYTES: Final = 64
"""Size of the words. Each timeline has its own cache line."""

VOID: Final = 2**63 - 1
"""The value after the signalling process has closed the timeline, or after another process has
noticed that the signalling process is dead. This value ends every wait. Because it is below 2**63,
it also ends the wait of a stream that compares values cyclically."""

_SHORTEST_S: Final = 20e-6
_LONGEST_S: Final = 2e-3
"""The longest pause between two reads of a value in a wait without wake-ups."""
_LOOK_S: Final = 0.25
"""The longest sleep between two checks of the signalling process."""


class Awaited(NamedTuple):
    """The value for which a caller waits, and the limits of the wait.

    Parameters
    ----------
    value
        The smallest sufficient value.
    timeout_s
        The longest wait in seconds. 0 means no wait.
    check
        Raises if the value can never be reached.
    name
        The name of the value in an error.
    """

    value: int
    timeout_s: float
    check: Callable[[], None]
    name: str

    def passed(self, reached: int) -> WaitTimeoutError:
        """Return the error for a wait that took too long."""
        msg = f"{self.name} was not reached within {self.timeout_s:g} s; the value is {reached}"
        return WaitTimeoutError(msg, operation="wait", hint="pass a longer timeout")


class Cell:
    """The words of one timeline.

    Parameters
    ----------
    memory
        The words as a view of bytes, which keeps the memory mapped.
    pointer
        The address of the words in this process.
    """

    __slots__ = ("pointer", "words")

    def __init__(self, memory: memoryview, pointer: int) -> None:
        self.words = memory.cast("Q")
        self.pointer = pointer

    def read(self, word: int) -> int:
        """Return a word. Later accesses of this thread are ordered after the read."""
        return words.observe(self.words, word)

    def write(self, word: int, value: int) -> None:
        """Write a word after all earlier accesses of this thread, and wake sleepers."""
        words.release()
        words.store(self.words, word, value)
        self.wake()

    def wake(self) -> None:
        """Wake the threads that sleep."""
        if not words.load(self.words, CARE) and IS_REGISTERED:
            # No thread has slept yet. The barrier of the first sleeper will make the value visible.
            return
        words.fence()
        if words.load(self.words, WAITING):
            words.store(self.words, WAITING, 0)
            words.release()
            sequence = words.load(self.words, SEQUENCE)
            # Another process may have written any value, so the sum is limited to 64 bits.
            words.store(self.words, SEQUENCE, (sequence + 1) % 2**64)
            futex.wake_all(self.pointer + 8 * SEQUENCE)

    def wait(self, word: int, awaited: Awaited) -> int:
        """Return a word as soon as it is at least the awaited value.

        Raises
        ------
        WaitTimeoutError
            The word has not reached the value in time.
        CrossmemError
            The check has raised this error, and the word has not reached the value.
        """
        load, cell, target = words.load, self.words, awaited.value
        end = time.monotonic() + awaited.timeout_s
        pause_s = _SHORTEST_S
        while True:
            # This read comes before WAITING is set. In the reverse order, a signal between the two
            # accesses could clear WAITING, and the thread would sleep although nobody wakes it.
            sequence = words.observe(cell, SEQUENCE)
            self._announce()
            if load(cell, word) >= target or self._is_reached(word, awaited):
                return words.observe(cell, word)
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise awaited.passed(load(cell, word))
            if IS_REGISTERED and load(cell, ISSUED) <= load(cell, VALUE):
                futex.sleep(self.pointer + 8 * SEQUENCE, sequence, min(left_s, _LOOK_S))
            else:
                # A stream cannot wake this thread. If this process cannot execute the barrier, the
                # signalling process may not see WAITING, and then does not wake this thread either.
                time.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _LONGEST_S)

    def _announce(self) -> None:
        """Announce that this thread may sleep. Later reads are ordered after the announcement."""
        cell, is_known = self.words, words.load(self.words, CARE) == _KNOWN
        if is_known or not IS_REGISTERED:
            words.store(cell, WAITING, 1)
            words.fence()
            return
        words.store(cell, CARE, _KNOWN - 1)
        words.store(cell, WAITING, 1)
        words.barrier()
        words.store(cell, CARE, _KNOWN)

    def _is_reached(self, word: int, awaited: Awaited) -> bool:
        """Call the check. Return True if the check raises although the value is reached."""
        try:
            awaited.check()
        except CrossmemError:
            if words.load(self.words, word) < awaited.value:
                raise
            return True
        return False
