# SPDX-License-Identifier: Apache-2.0
"""The queue of deferred work: every release of a resource passes through it.

The record of an object enters the queue when the object ends, and leaves the queue when all of the
object's resources are released. If the vendor refuses a release, or a signal handler interrupts it,
the next call of crossmem continues with the release. A finaliser releases nothing: it adds the
record to the queue, and for some objects it also starts the reaper.
"""

import logging
import time
from collections.abc import Callable
from threading import get_ident
from typing import ClassVar, Final

from typing_extensions import override

from crossmem.control.threads import LOOK_AGAIN_S, PassingThread
from crossmem.errors import BusyError, CrossmemError
from crossmem.signals import raise_if_of_handler

__all__ = ["Call", "DeferredWork", "Record", "StreamsWaitError"]

_log = logging.getLogger(__name__)

_MOST_S: Final = 1.0
_PAUSE_S: Final = 1e-3
"""The longest wait for releases by other threads, and the pause between two checks, in seconds."""


class StreamsWaitError(BusyError):
    """A release was put off, because a stream of the device's driver waits for a timeline.

    The reaper tries the release again.
    """


class Record:
    """The record of an object's resources. It lives until all of them are released."""

    __slots__ = ("__weakref__", "is_done")

    is_shared: ClassVar = False
    """Whether several records can share one resource; see :meth:`leave_to_others`."""

    def __init__(self) -> None:
        self.is_done = False
        """Whether everything was released."""

    def leave_to_others(self) -> bool:
        """End this record's use of a resource that other records also use.

        Return True if :meth:`give_back` has nothing left to do. The caller holds the lock
        ``Process.state``.
        """
        return False

    def give_back(self, *, blocking: bool) -> None:
        """Release the remaining resources. Set ``is_done`` once all are released.

        Any thread may call this method at any time. Several threads may call it at the same time,
        and a thread may call it again after an error.

        Parameters
        ----------
        blocking
            False: return at once if another thread works on the same resource.

        Raises
        ------
        CrossmemError
            The vendor refused a release, or reports that work of the device failed.
        """
        raise NotImplementedError


class Call(Record):
    """A call that waits in the queue, because the thread that requested the call held a lock."""

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
    """Stand in for a finished call, so that the record keeps none of the call's objects alive."""


class DeferredWork:
    """The resources that wait for their release."""

    def __init__(self) -> None:
        self.ready: dict[Record, None] = {}
        """Records that can be released now, the oldest first. A single statement adds a record, so
        an interrupt cannot lose the record."""
        self.waiting: set[Record] = set()
        """Records that the reaper checks periodically, such as freed memory with leases."""
        self.idle: dict[Record, None] = {}
        """Freed memory whose last lease has ended. The lease registry adds the records."""
        self.draining: set[int] = set()
        """The ids of threads that execute a release which their current call does not need."""
        self.trying: dict[int, Record | None] = {}
        """The record that each thread is releasing. The key is the thread's id. A release by
        :meth:`run` has no entry."""
        self.streams_wait: Callable[[object], bool] = lambda _driver: False
        """Returns whether a stream of a driver waits for a value of a timeline."""
        self._look_at = 0.0
        """Time of the reaper's next check of ``waiting``; 0 until it is set."""
        self._reaper = PassingThread(self._reap, self._is_pending)

    def run(self, record: Record, *, blocking: bool = True) -> None:
        """Release the resources of a record in ``ready``. If the release fails, raise its error.

        Parameters
        ----------
        blocking
            False: if another thread works on the same resource, leave the record to the reaper.
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

    def drain(self, *, look: bool = False, patient: bool = False) -> None:
        """Continue with all work that is ready.

        Parameters
        ----------
        look
            Whether to check the leases of all freed memory. If another thread is releasing this
            memory, the check waits for that thread.
        patient
            Whether to wait for the work of a device even if a stream waits for a timeline.
        """
        freed = tuple(self.waiting) if look else ()
        tried: set[Record] = set()
        # A release may drop the last reference to another object, whose record then enters the
        # queue. So the queue is read until it has no new record.
        while todo := [one for one in (*freed, *self.idle, *self.ready) if one not in tried]:
            tried.update(todo)
            for record in todo:
                self._try(record, blocking=look and record not in self.ready, patient=patient)

    def settle(self) -> None:
        """Wait, at most a second, until other threads end the releases that they have begun."""
        begun = {key: one for key, one in list(self.trying.items()) if key != get_ident()}
        end = time.monotonic() + _MOST_S
        while any(self.trying.get(key) is one for key, one in begun.items()):
            if time.monotonic() > end:
                return
            time.sleep(_PAUSE_S)

    def may_wait(self, driver: object) -> bool:
        """Whether this thread may wait for all work of a driver's devices.

        A stream of the driver may be waiting for a value that only this thread will signal. So this
        thread must not wait for streams in a release that its current call does not need.
        """
        return get_ident() not in self.draining or not self.streams_wait(driver)

    def _try(self, record: Record, *, blocking: bool, patient: bool) -> None:
        me = get_ident()
        is_inner, outer = me in self.draining, self.trying.get(me)
        try:
            (self.draining.discard if patient else self.draining.add)(me)
            self.trying[me] = record
            record.give_back(blocking=blocking)
            if record in self.waiting:
                self.ready.pop(record, None)
            elif not record.is_done:
                # Another thread works on this resource, or a stream still uses it. Perhaps no
                # further call of crossmem follows, so the reaper tries again.
                self.start_reaper()
        except CrossmemError as error:
            # The current call did not end the object, so the error is not raised. The record stays
            # in the queue for the next attempt.
            if isinstance(error, StreamsWaitError):
                self.start_reaper()
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            raise_if_of_handler(error)
            # The caller did not cause this fault of a driver, so the fault is only logged.
            _log.exception("the release of a resource failed")
        finally:
            # CPython runs no signal handler between the next statement and the ``del``. If a
            # handler raised there, this thread's entry would stay and keep the record alive.
            self.trying[me] = outer
            if outer is None:
                del self.trying[me]
            (self.draining.add if is_inner else self.draining.discard)(me)
            if record.is_done:
                self.idle.pop(record, None)
                self.ready.pop(record, None)

    def start_reaper(self) -> None:
        """Start a thread that releases ready and waiting records until none is left.

        If no thread can be started, the next call of crossmem does this work.
        """
        self._reaper.start()

    def note_idle(self, record: Record) -> None:
        """Queue freed memory whose last lease has ended, and wake the reaper."""
        self.idle[record] = None
        self._reaper.bell.ring()

    def _is_pending(self) -> bool:
        # One thread may free memory just before another thread adds the memory's record to
        # ``waiting``. Such a record is removed here, because it would keep the reaper alive.
        self.waiting.difference_update([one for one in list(self.waiting) if one.is_done])
        return bool(self.ready or self.idle or self.waiting)

    def _reap(self) -> None:
        """Release ready records, and check waiting records periodically."""
        self._look_at = self._look_at or time.monotonic() + LOOK_AGAIN_S
        self.drain()
        self._reaper.bell.wait(max(0.0, self._look_at - time.monotonic()))
        if time.monotonic() >= self._look_at:
            self._look_at = 0.0
            for record in list(self.waiting):
                # An importer may be killed after it has ended its hold and before it sends a hint.
                # So the reaper reads the rows.
                self._try(record, blocking=False, patient=False)

    def stop(self) -> None:
        """End the reaper at a normal exit."""
        self._reaper.stop()
