# SPDX-License-Identifier: Apache-2.0
"""The wait of a process that joins a queue for the end of the owner's round."""

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
    """Return whether the owner has opened a session, and is in no round; None if it has not.

    After the round, the owner has handed out what this process can get at once. The owner wakes
    this process when it opens the session. By then, the owner may be in its next round, whose end
    wakes nobody. So this function waits for the end of a round, which comes soon.

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
