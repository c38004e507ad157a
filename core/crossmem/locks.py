# SPDX-License-Identifier: Apache-2.0
"""The locks of crossmem, and the order in which a thread takes them.

While a thread holds a lock, it waits only for locks of an equal or a higher rank. It may also take
a lock that it holds already. The lock of a timeline and the lock of the timeline's memory have the
same rank, and a thread takes the timeline's lock first. A thread that calls a driver, plugin,
observer or finaliser may hold locks of the ranks ``IMPORT``, ``ALLOCATION`` and ``FOREIGN``, but no
lock of another rank. Exception: a forked child calls ``after_fork_in_child`` of drivers while it
holds all locks that its parent took for the fork. A thread holds a lock of rank ``STATE`` or above
only briefly. While the thread holds such a lock, it closes no descriptor that a peer has sent,
because closing the descriptor may take long.

Every lock with a rank is a ``threading.RLock``. In a ``with`` statement, such a lock is released
even if a signal handler raises. After a call of ``acquire`` with a timeout, a handler can raise
before the caller stores the result. So the caller of ``acquire`` records the result with
:func:`crossmem.driver.recording.call_into`.
"""

import os
import threading
from _thread import RLock
from enum import IntEnum
from typing import Final

__all__ = [
    "CHECKED",
    "DebugLock",
    "LockOrderError",
    "Rank",
    "forbidden_ranks",
    "ordered_lock",
]

_VARIABLE: Final = "CROSSMEM_TEST_LOCK_ORDER"

CHECKED: Final = os.environ.get(_VARIABLE) == "1"
"""Whether each lock checks the order when a thread takes the lock. Only test runs set the
environment variable."""


class Rank(IntEnum):
    """The state that a lock guards. A thread takes locks in ascending rank."""

    FORK = 1
    """The state of crossmem in this process. A thread holds the lock while it makes this state, or
    forks."""
    PROCESS = 2
    """The start of the lease server, and the beginning of the exit."""
    IMPORT = 3
    """One import. A thread holds the lock while the vendor opens, maps or closes the import."""
    ALLOCATION = 4
    """One allocation, address range, timeline, ring, place or vendor's buffer. A thread holds the
    lock during driver calls on this object."""
    FOREIGN = 5
    """The foreign allocations, and the registered pages and the events of timelines. A thread holds
    the lock during driver calls on these objects."""
    CONNECTION = 6
    """One connection to an exporter. A thread holds the lock during a request and its reply."""
    STATE = 7
    """The open objects and their users, and the decisions of the owner of a queue."""
    LEASES = 8
    """The lease registry."""
    INDEX = 9
    """The index of addresses."""


_DRIVERS_RUN_UNDER: Final = frozenset({Rank.IMPORT, Rank.ALLOCATION, Rank.FOREIGN})
"""The ranks of the locks that a thread may hold while it calls a driver."""


class LockOrderError(AssertionError):
    """A thread took a lock out of order."""


_held = threading.local()


class DebugLock:
    """A reentrant lock that asserts the lock order, for test runs."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """Take the lock, or raise :class:`LockOrderError` if the call breaks the order."""
        mine: list[DebugLock] = _held.__dict__.setdefault("locks", [])
        highest = max((one.rank for one in mine), default=self.rank)
        if blocking and highest > self.rank and self not in mine:
            names = ", ".join(one.rank.name for one in mine)
            msg = f"a thread that holds {names} takes {self.rank.name}"
            raise LockOrderError(msg)
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            mine.append(self)
        return taken

    def release(self) -> None:
        """Release the lock."""
        mine: list[DebugLock] = _held.locks
        self._lock.release()
        del mine[len(mine) - 1 - mine[::-1].index(self)]

    def _is_owned(self) -> bool:
        # threading.Condition calls this method to find out whether the thread holds the lock.
        return self in getattr(_held, "locks", ())

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


def ordered_lock(rank: Rank) -> threading.RLock:
    """Return a new reentrant lock of a rank."""
    return DebugLock(rank) if CHECKED else RLock()  # type: ignore[return-value]


def forbidden_ranks() -> tuple[str, ...]:
    """Return the ranks of the held locks that forbid a call of a driver, plugin or finaliser.

    The result ignores the locks that other threads hold. If :data:`CHECKED` is false, the result is
    empty.
    """
    held: list[DebugLock] = getattr(_held, "locks", [])
    return tuple(one.rank.name for one in held if one.rank not in _DRIVERS_RUN_UNDER)
