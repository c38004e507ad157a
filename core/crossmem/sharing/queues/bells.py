# SPDX-License-Identifier: Apache-2.0
"""Sleeping and waking: an eventfd for each place, and a word that says whether somebody sleeps.

A sleeper sets its word, takes the barrier, looks once more, and sleeps on its eventfd. Whoever has
published something reads the word afterwards, and writes to the eventfd. So no wake-up is lost, and
without sleepers nobody makes a system call.
"""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from crossmem.control import words
from crossmem.control.barrier import IS_REGISTERED
from crossmem.sharing.queues.layout import SLEEPING

__all__ = ["Sleeper", "ring"]

_T = TypeVar("_T")

_SPIN_S: Final = 30e-6
_LOOK_S: Final = 0.25
"""The longest sleep between two looks at the owner."""
_PAUSE_S: Final = 1e-3
"""The pause between two looks at words that streams write, or in a process without barriers."""


def ring(cell: memoryview, bell: int) -> None:
    """Wake the process of a place if it sleeps, after a store that it waits for."""
    if not IS_REGISTERED:
        words.fence()
    if words.load(cell, SLEEPING):
        # A full counter is as good as one more write.
        with suppress(BlockingIOError):
            os.eventfd_write(bell, 1)


class Sleeper:
    """The sleep of this process at its place.

    Parameters
    ----------
    cell
        The words of the place, which this process writes.
    bell
        Its eventfd.
    """

    def __init__(self, cell: memoryview, bell: int) -> None:
        self._cell = cell
        self._bell = bell
        self.is_armed = False
        """Whether a selector watches the eventfd."""

    def fileno(self) -> int:
        """Return the eventfd, which becomes readable after a look that found nothing."""
        self.is_armed = True
        return self._bell

    def wait(
        self,
        look: Callable[[], _T | None],
        check: Callable[[], None],
        timeout_s: float,
        *,
        polls: Callable[[], bool],
    ) -> _T | None:
        """Return what a look finds, None if it finds nothing in time.

        Parameters
        ----------
        look
            Looks at the words.
        check
            Raises if nothing can come any more.
        timeout_s
            The longest wait; 0 looks once.
        polls
            Whether a stream may write the words, which wakes nobody.
        """
        began = time.monotonic()
        while True:
            found = look()
            if found is not None:
                return found
            if time.monotonic() - began >= min(timeout_s, _SPIN_S):
                break
        try:
            while True:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
                words.store(self._cell, SLEEPING, 1)
                words.barrier()
                found = look()
                if found is not None:
                    return found
                check()
                left_s = began + timeout_s - time.monotonic()
                if left_s <= 0:
                    return None
                if polls() or not IS_REGISTERED:
                    time.sleep(min(left_s, _PAUSE_S))
                else:
                    poller = select.poll()
                    poller.register(self._bell, select.POLLIN)
                    poller.poll(1000 * min(left_s, _LOOK_S))
        finally:
            if not self.is_armed:
                words.store(self._cell, SLEEPING, 0)
