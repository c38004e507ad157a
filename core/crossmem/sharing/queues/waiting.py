# SPDX-License-Identifier: Apache-2.0
"""Time limits of queues, and waits in an event loop."""

import asyncio
import os
from collections.abc import Callable
from math import inf
from typing import TypeVar

from crossmem.errors import ConfigurationError, QueueEmptyError, QueueFullError
from crossmem.guards import shorten
from crossmem.sharing.queues.place import LOOK_S, PAUSE_S, Place

__all__ = ["repeat", "wait_s"]

_T = TypeVar("_T")


async def repeat(place: Place, call: Callable[[], _T]) -> _T:
    """Return what a call returns when the queue is not empty or full any more."""
    loop = asyncio.get_running_loop()
    # A loop has one reader for each descriptor, and several tasks may wait.
    number = os.dup(place.fileno())
    place.sleepers += 1
    try:
        while True:
            came = loop.create_future()
            loop.add_reader(number, came.cancel)
            try:
                return call()
            except (QueueEmptyError, QueueFullError):
                await asyncio.wait([came], timeout=PAUSE_S if place.waits_for_streams() else LOOK_S)
    finally:
        place.sleepers -= 1
        loop.remove_reader(number)
        os.close(number)


def wait_s(timeout: object) -> float:
    """Return a time limit in seconds, infinity for None."""
    if timeout is None:
        return inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        msg = f"timeout is {shorten(timeout)}; it must be a number of seconds, 0 or more, or None"
        raise ConfigurationError(msg, hint="pass 0 to look once, or None to wait")
    return float(timeout)
