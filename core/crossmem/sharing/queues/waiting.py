# SPDX-License-Identifier: Apache-2.0
"""Time limits of queues, and waits in an event loop."""

import os
from collections.abc import Callable
from math import inf
from typing import Final, TypeVar

from crossmem.errors import ConfigurationError, QueueEmptyError, QueueFullError
from crossmem.guards import shorten
from crossmem.sharing.base.process import Process
from crossmem.sharing.queues.place import LOOK_S, PAUSE_S, Place

__all__ = ["may_look", "repeat", "wait_s"]

_T = TypeVar("_T")
_NUMBERS: Final = (float, int)


async def repeat(place: Place, call: Callable[[], _T]) -> _T:
    """Repeat a call as long as it finds the queue empty or full. Return the call's result."""
    # Every program that waits here has imported asyncio already. For all other programs, the slow
    # import would be a waste.
    import asyncio  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    # An event loop has one reader for each descriptor. So each waiting task uses a duplicate.
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


def may_look(process: Process, timeout: object) -> bool:
    """Whether a call may try the hot path: the time limit and the process are valid."""
    is_valid = timeout is None or (type(timeout) in _NUMBERS and timeout >= 0)  # type: ignore[operator]
    return is_valid and not (process.is_inherited or process.is_closed)


def wait_s(timeout: object) -> float:
    """Return a time limit in seconds, infinity for None."""
    if timeout is None:
        return inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        msg = f"timeout is {shorten(timeout)}; it must be a number of seconds, 0 or more, or None"
        raise ConfigurationError(msg, hint="pass 0 to return at once, or None to wait")
    return float(timeout)
