# SPDX-License-Identifier: Apache-2.0
"""The wait of a joining process for the end of the owner's round, a call of ``tend()``."""

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

    In the round that opens the session, the owner also hands out all entries that this process can
    get at once. At the end of that round, the owner wakes this process. When this process reads the
    words, the owner may be in its next round. The end of the next round may wake no process, so
    this function polls until that round ends, which takes little time.

    Parameters
    ----------
    control
        The words of the owner.
    at, wish
        Index of the member word, and the value of this word while the session is open.
    end
        The value of ``time.monotonic()`` at which the wait ends.
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
