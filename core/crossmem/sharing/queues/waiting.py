# SPDX-License-Identifier: Apache-2.0
"""Functions for queue methods. They check arguments, make errors, or wait."""

import os
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final, TypeVar

from crossmem.control.limits import name_limit
from crossmem.driver.recording import call_into
from crossmem.errors import (
    ConfigurationError,
    InvalidSizeError,
    QueueEmptyError,
    QueueFullError,
    WaitTimeoutError,
)
from crossmem.guards import is_within, plain_integer, shorten
from crossmem.sharing.base.process import Process
from crossmem.sharing.queues.layout import Terms
from crossmem.sharing.queues.opened import LOOK_S, Opened
from crossmem.sharing.queues.place import PAUSE_S, Place
from crossmem.sharing.queues.stats import members_of

__all__ = [
    "checked_most",
    "checked_pid",
    "empty",
    "for_members",
    "full",
    "may_look",
    "repeat",
]

_T = TypeVar("_T")
_NUMBERS: Final = (float, int)


def full(terms: Terms, timeout_s: float) -> QueueFullError:
    """Return the error for a queue without a free buffer."""
    msg = f"none of the {terms.depth} buffers became free within {timeout_s:g} s"
    hint = "wait longer with timeout=, or make the queue deeper"
    if terms.overflow != "wait":
        msg = f"all {terms.depth} buffers are in use, and the queue has overflow={terms.overflow!r}"
        hint = "make a deeper queue, or make the queue with overflow='wait'"
    return QueueFullError(msg, operation="allocate", hint=hint)


def empty(held: int, timeout_s: float) -> QueueEmptyError:
    """Return the error for an empty queue. This consumer holds ``held`` buffers."""
    msg = f"no buffer arrived within {timeout_s:g} s"
    hint = "wait longer with timeout="
    if held:
        hint += f", or release one of the {held} buffers that this process has received"
    return QueueEmptyError(msg, operation="get", hint=hint)


def check_numbers(terms: Terms, **numbers: object) -> None:
    """Check the numbers of producers and consumers for which a call waits.

    Raises
    ------
    InvalidSizeError
        A number is not an integer, is negative, or is larger than the queue's number of places.
    """
    for name, number in numbers.items():
        most = getattr(terms, name)
        if not is_within(plain_integer(number), 0, most):
            msg = f"{name} is {shorten(number)}; it must be an integer from 0 to {most}"
            hint = f"the queue was made with {name}={most}"
            raise InvalidSizeError(msg, operation="wait_for", hint=hint)


def checked_most(most: object) -> int:
    """Return ``most``, the largest number of buffers for one call, as an ``int``.

    Raises
    ------
    InvalidSizeError
        ``most`` is not an integer, or is smaller than 1.
    """
    number = plain_integer(most)
    if not is_within(number, 1, inf):
        msg = f"most is {shorten(most)}; it must be an integer, 1 or more"
        raise InvalidSizeError(msg, operation="get_many", hint="ask for at least one buffer")
    return int(number)


def checked_pid(pid: Any) -> int:
    """Return ``pid`` as an ``int``.

    Raises
    ------
    ConfigurationError
        ``pid`` is not an integer that can be the id of a process.
    """
    if not is_within(pid, 1, 2**31 - 1):
        msg = f"pid is {shorten(pid)}; it must be the id of a process"
        raise ConfigurationError(msg, operation="revoke", hint="pass os.getpid() of a peer")
    return int(pid)


def for_members(
    look: Callable[[], Opened], producers: int, consumers: int, timeout_s: float
) -> None:
    """Wait for this many producers and consumers; see :meth:`crossmem.Queue.wait_for`."""
    check_numbers(look().terms, producers=producers, consumers=consumers)
    end = time.monotonic() + timeout_s
    while True:
        opened = look()
        found = members_of(opened)
        if found[0] >= producers and found[1] >= consumers:
            return
        opened.check_owner()
        if time.monotonic() > end:
            msg = f"there are only {found[0]} producers and {found[1]} consumers"
            raise WaitTimeoutError(msg, operation="wait_for", hint="pass a longer timeout")
        time.sleep(PAUSE_S)


async def repeat(place: Place, call: Callable[[], _T], *, waits: bool = True) -> _T:
    """Repeat a call as long as it finds the queue empty or full. Return the call's result.

    With ``waits=False``, the first QueueEmptyError or QueueFullError is raised.
    """
    # The import is slow, so only programs that wait in an event loop import asyncio.
    import asyncio  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    found: list[_T] = []
    numbers: list[int] = []
    try:
        place.sleepers += 1
        try:
            # One task of a loop waits at a time. If several tasks waited for the bell, each ring
            # would wake all of them, and some of them might never get a buffer.
            async with place.turns.setdefault(loop, asyncio.Lock()):
                while True:
                    if _has_called(call, found, waits=waits):
                        break
                    if not numbers:
                        # An event loop has at most one reader for each descriptor, and the
                        # application may watch the bell itself. So this task watches a duplicate.
                        with name_limit("dup"):
                            call_into(numbers, os.dup, place.fileno())
                    came = loop.create_future()
                    loop.add_reader(numbers[0], came.cancel)
                    # The bell may have rung before it had a reader.
                    if _has_called(call, found, waits=waits):
                        break
                    pause_s = PAUSE_S if place.waits_for_streams() else LOOK_S
                    await asyncio.wait([came], timeout=pause_s)
        finally:
            place.sleepers -= 1
            if not place.sleepers:
                place.turns.clear()
            for number in numbers:
                try:
                    loop.remove_reader(number)
                finally:
                    os.close(number)
    except BaseException:
        for one in found:
            place.keep(one)
        raise
    return found[0]


def _has_called(call: Callable[[], _T], found: list[_T], *, waits: bool) -> bool:
    """Call once and append the result to ``found``. Return False if the queue was empty or full.

    With ``waits=False``, raise the QueueEmptyError or QueueFullError instead.
    """
    try:
        call_into(found, call)
    except (QueueEmptyError, QueueFullError):
        if not waits:
            raise
    return bool(found)


def may_look(process: Process, timeout: object) -> bool:
    """Whether a call may try the hot path.

    The result is False in three cases: the time limit is invalid, crossmem has shut down in this
    process, or this process is a forked child that has inherited the queue.
    """
    is_valid = timeout is None or (type(timeout) in _NUMBERS and timeout >= 0)  # type: ignore[operator]
    return is_valid and not (process.is_inherited or process.is_closed)
