# SPDX-License-Identifier: Apache-2.0
"""Signals that end a step of a worker of test_storm.py with an exception."""

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGALRM, signal.SIGINT, signal.SIGUSR1)
"""What interrupts a worker."""

armed: list[bool] = []
"""Empty while no signal may raise."""


late: list[bool] = []
"""Not empty if a signal came between two steps: a timer then interrupts the next one."""

_LONGEST_S: Final = 0.03


class Interrupted(BaseException):
    """What the signal handlers raise."""


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Raise, once, if the main thread is in a step; CPython runs handlers in that thread."""
    if armed:
        del armed[:]
        raise Interrupted
    late[:] = [True]


def arm(chance: random.Random) -> None:
    """Let signals raise from now on; one that came before comes again at a random moment."""
    if late:
        # Most calls take less than a millisecond; some wait.
        delay_s = _LONGEST_S * 10 ** chance.uniform(-3.5, 0.0)
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        del late[:]
    armed.append(True)


def disarm() -> None:
    """Let no signal raise from now on."""
    del armed[:]
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        late[:] = [True]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no interrupt come in between: what runs here does not promise to bear one."""
    if threading.current_thread() is not threading.main_thread() or not armed:
        yield
        return
    del armed[:]
    yield
    armed.append(True)
