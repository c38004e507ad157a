# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and fences for words that processes share.

A signal handler or another thread can run between two calls of these functions, but not between
two consecutive subscripts of a ``memoryview``. So code that must not be interrupted subscripts the
``memoryview`` of the words. For code that only reads words, an interruption does no harm. So this
code may also call the functions or slice the ``memoryview``.

A word has 8 bytes and is aligned. Only one process writes it, with the exceptions that
:mod:`crossmem.sharing.timelines.cell` names. CPython copies an item of a ``memoryview`` with format
``Q`` by one instruction, so no reader sees half of a store.

x86-64 keeps stores in order and loads in order, but it may execute a load before an earlier store
becomes visible to other processors. On other architectures, :func:`release` and :func:`observe` add
a fence. Only :func:`fence` and :func:`barrier` order a store before a later load.
"""

from _thread import allocate_lock
from collections.abc import Callable, Iterable
from operator import getitem, itemgetter, setitem
from typing import Final, cast

from crossmem.control.barrier import IS_ORDERED, IS_REGISTERED, membarrier

__all__ = ["any_of", "barrier", "fence", "load", "observe", "release", "store"]


load: Final[Callable[[memoryview, int], int]] = getitem
"""Return a word. A signal handler can run after this call, before the caller compares the word. If
the caller calls :data:`store` directly after the comparison, no handler runs between the comparison
and the store."""

store: Final = cast("Callable[[memoryview, int, int], None]", setitem)
"""Write a word."""


def release() -> None:
    """Order all earlier accesses of this thread before its next store."""
    if not IS_ORDERED:
        fence()


def observe(words: memoryview, index: int) -> int:
    """Load a word, and order the load before all later accesses of this thread."""
    value: int = words[index]
    if not IS_ORDERED:
        fence()
    return value


def any_of(several: Iterable[memoryview], index: int) -> bool:
    """Whether the word at an index is not 0 in at least one of several segments."""
    return any(map(itemgetter(index), several))


def fence() -> None:
    """Order all earlier accesses of this thread before all later ones.

    The release and the next acquisition of one lock form a full fence. On x86-64, both are
    instructions with the lock prefix. On aarch64, they are a store-release and a load-acquire,
    which stay in order.
    """
    lock = allocate_lock()
    lock.acquire()
    lock.release()
    lock.acquire()


barrier = membarrier if IS_REGISTERED else fence
"""Order the accesses of this thread. If this process is registered for ``membarrier``, also order
the accesses of all other registered processes."""
