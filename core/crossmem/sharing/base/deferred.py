# SPDX-License-Identifier: Apache-2.0
"""The queue of deferred work: every resource that is given back passes through it.

A resource enters the queue when its object ends, and leaves the queue when all of it was given
back. So nothing is lost if the vendor refuses or a signal handler raises: the next call of crossmem
goes on with what is left. Finalisers only enter records here.
"""

import logging
import time
from collections.abc import Callable
from typing import ClassVar

from typing_extensions import override

from crossmem.control.threads import LOOK_AGAIN_S, PassingThread
from crossmem.errors import CrossmemError

__all__ = ["Call", "DeferredWork", "Record"]

_log = logging.getLogger(__name__)


class Record:
    """What outlives an object that applications hold, until its resources are given back."""

    __slots__ = ("__weakref__", "is_done")

    is_shared: ClassVar = False
    """Whether others may keep the resource, see :meth:`leave_to_others`."""

    def __init__(self) -> None:
        self.is_done = False
        """Whether everything was given back."""

    def leave_to_others(self) -> bool:
        """Leave a resource that others keep, if that is all there is to do; say so.

        The lock of the state is held.
        """
        return False

    def give_back(self, *, blocking: bool) -> None:
        """Give back what is left, and set ``is_done`` after the last of it.

        Any thread may call this at any time, also several at once, and again after it raised.

        Parameters
        ----------
        blocking
            False returns at once if another thread works on the same resource.

        Raises
        ------
        CrossmemError
            The vendor refused a step, or reports failed work of the device.
        """
        raise NotImplementedError


class Call(Record):
    """A call that had to wait, because its thread held a lock when it was made."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Make the call once."""
        call, self._call = self._call, _nothing
        self.is_done = True
        call()


def _nothing() -> None:
    """Take the place of a call that was made, so that the record keeps nothing alive."""


class DeferredWork:
    """What waits to be given back."""

    def __init__(self) -> None:
        self.ready: dict[Record, None] = {}
        """What can be given back now, in order. One statement enters a record."""
        self.waiting: set[Record] = set()
        """Freed memory whose leases have not ended."""
        self.idle: dict[Record, None] = {}
        """Freed memory whose last lease has ended. The lease server enters records."""
        self._look_at = 0.0
        """When the reaper looks at what waits, 0 if it has not begun to count."""
        self._reaper = PassingThread(self._reap, self._is_pending)

    def run(self, record: Record, *, blocking: bool = True) -> None:
        """Give back what a record in ``ready`` stands for, and raise what the vendor says.

        Parameters
        ----------
        blocking
            False leaves the record to the reaper if another thread works on the same resource.
        """
        try:
            record.give_back(blocking=blocking)
        finally:
            if record.is_done:
                self.ready.pop(record, None)
        if record in self.waiting:
            self.ready.pop(record, None)
        elif not (blocking or record.is_done):
            self.start_reaper()

    def drain(self, *, wait: bool = False) -> None:
        """Go on with everything that is ready.

        Parameters
        ----------
        wait
            Whether to look at the leases of all freed memory, and to wait for a thread that frees
            it. No other thread is waited for.
        """
        freed = tuple(self.waiting) if wait else ()
        tried: set[Record] = set()
        # Giving back one resource may drop the object of another.
        while todo := [one for one in (*freed, *self.idle, *self.ready) if one not in tried]:
            tried.update(todo)
            for record in todo:
                self._try(record, blocking=wait and record not in self.ready)

    def _try(self, record: Record, *, blocking: bool) -> None:
        try:
            record.give_back(blocking=blocking)
            if record in self.waiting:
                self.ready.pop(record, None)
            elif not record.is_done:
                # Another thread works on the resource, and may not look here again.
                self.start_reaper()
        except CrossmemError:
            # The caller who ended the object was told. The record stays, for the next attempt.
            pass
        except Exception:  # noqa: BLE001 - logged with its traceback
            # A fault of the driver's, which has nothing to do with the present caller.
            _log.exception("giving back a resource failed")
        finally:
            if record.is_done:
                self.idle.pop(record, None)
                self.ready.pop(record, None)

    def start_reaper(self) -> None:
        """Have a thread give back what is ready or waits, until nothing is left.

        If no thread can be had, the next call of crossmem does this work.
        """
        self._reaper.start()

    def note_idle(self, record: Record) -> None:
        """Enter freed memory whose last lease has ended, and wake the reaper."""
        self.idle[record] = None
        self._reaper.bell.ring()

    def _is_pending(self) -> bool:
        # Another thread may have freed the memory before its first thread noted that it waits.
        self.waiting.difference_update([one for one in list(self.waiting) if one.is_done])
        return bool(self.ready or self.idle or self.waiting)

    def _reap(self) -> None:
        """Give back what is ready, and from time to time look at what waits."""
        self._look_at = self._look_at or time.monotonic() + LOOK_AGAIN_S
        self.drain()
        self._reaper.bell.wait(max(0.0, self._look_at - time.monotonic()))
        if time.monotonic() >= self._look_at:
            self._look_at = 0.0
            for record in list(self.waiting):
                # Its importers may have been cut off before they could send a message.
                self._try(record, blocking=False)

    def stop(self) -> None:
        """End the reaper; for a normal exit."""
        self._reaper.stop()
