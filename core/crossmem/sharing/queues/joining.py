# SPDX-License-Identifier: Apache-2.0
"""How a process that joins a queue waits for the end of the owner's round.

A round is the part of ``QueueOwner.tend()`` during which the word ROUND is 1.
"""

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
    """Return True if the session is open and no round runs.

    Return None if the session is not open, or if a round still runs at the time ``end``. The round
    that opens the session also hands out the first entries of the session, so the joining process
    waits for the end of that round. If a later round has begun, the process cannot tell the two
    rounds apart, and the owner may not wake the process after the later round. So this function
    polls.

    Parameters
    ----------
    control
        The words of the owner.
    at, wish
        Index of the member word, and its value while the session is open.
    end
        The value of ``time.monotonic()`` at which the wait ends.
    check
        Raises if the session cannot begin, for example because the owner is dead.
    """
    while words.observe(control, at) == wish:
        if not words.observe(control, ROUND):
            return True
        if time.monotonic() >= end:
            return None
        check()
        time.sleep(_PAUSE_S)
    return None
