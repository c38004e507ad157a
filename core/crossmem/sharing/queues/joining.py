# SPDX-License-Identifier: Apache-2.0
"""A process that joins a queue waits for the end of the owner's round."""

import time
from collections.abc import Callable
from typing import Final

from crossmem.control import words
from crossmem.sharing.queues.layout import ROUND

__all__ = ["is_open"]

_PAUSE_S: Final = 5e-5


def is_open(
    control: memoryview, at: int, wish: int, end: float, check: Callable[[], None]
) -> bool | None:
    """Return True if the owner has opened a session and is in no round, else None.

    At the end of the round in which it opens the session, the owner has handed out all entries that
    this process can get at once. Then it wakes this process. When this process reads the words, the
    owner may be in its next round, whose end wakes no process. So this function waits for the end
    of that round, which comes soon.

    Parameters
    ----------
    control
        The words of the owner.
    at, wish
        The word of the session, and its value for the session of this process.
    end
        The time at which the wait ends.
    check
        Raises if the owner is dead, or has closed the queue.
    """
    while words.observe(control, at) == wish:
        if not words.observe(control, ROUND):
            return True
        if time.monotonic() >= end:
            return None
        check()
        time.sleep(_PAUSE_S)
    return None
