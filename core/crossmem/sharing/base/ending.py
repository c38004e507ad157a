# SPDX-License-Identifier: Apache-2.0
"""How an object that applications hold ends: one protocol for all of them.

The object has a record of its resources. Ending the object moves the record, in one step, from the
object to the queue of deferred work, and then works on it. A finaliser does the first half.
"""

import warnings
from typing import ClassVar, Self

from crossmem.errors import BusyError, ClosedError
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.process import Process, may_release, refuse_foreign

__all__ = ["Endable", "end_because"]


class Endable:
    """An object that gives its resources back once."""

    __slots__ = ("__weakref__", "_is_left", "_process", "_record", "_why_ended")

    _ended_by: ClassVar[str]
    """Name of the method that ends it."""

    _is_left: bool
    """Whether dropping the object is the way to end it; unset if it is not."""

    _process: Process
    _record: Record | None
    _why_ended: str
    """Why crossmem itself has ended the object; unset if it has not."""

    @property
    def closed(self) -> bool:
        """Whether the object may not be used any more."""
        return self._record is None

    def _ended(self) -> Exception:
        """Return the error for the use of this object, which has no record."""
        refuse_foreign(self._process, self)
        why = getattr(self, "_why_ended", None)
        return ClosedError(f"{self!r} cannot be used any more{f': {why}' if why else ''}")

    def _end(self) -> None:
        """End the object. Ending it twice is harmless.

        Raises
        ------
        BusyError
            The object is in use. Nothing has changed then.
        CrossmemError
            The vendor refused to take the resource. Later calls of crossmem go on with it.
        """
        process, record = self._process, self._record
        if record is None:
            return
        if process.is_inherited:
            # Before any lock: a thread that is not in this child may have it for ever.
            refuse_foreign(process, self)
        if process.is_closed:
            return
        deferred = process.deferred
        ready = deferred.ready
        if ready or deferred.idle:
            # What was dropped counts as a user until it is given back.
            process.drain()
        with process.state:
            self._refuse_if_used(self._ended_by)
            if self._record is None:
                return
            # Two statements that no signal handler can separate.
            self._record = None
            ready[record] = None
            if record.is_shared and record.leave_to_others():
                ready.pop(record, None)
                return
        if process.is_inside:
            # A signal handler or finaliser came in while this thread held a lock, so another thread
            # gives the resource back.
            deferred.start_reaper()
            return
        deferred.run(record)
        if ready or deferred.idle:
            deferred.drain()

    def _refuse_if_used(self, operation: str) -> None:
        """Raise if the object is in use. The lock of the state is held."""

    def __enter__(self) -> Self:
        if self._record is None or not self._process.is_usable:
            raise self._ended()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._end()
        except BusyError:
            if error is None:
                raise
            # That error says more, and its traceback may be what keeps the users of this object.
            self._is_left = True

    def __del__(self) -> None:
        record = getattr(self, "_record", None)
        if record is None or not may_release(self._process):
            return
        self._process.deferred.ready[record] = None
        if getattr(self, "_is_left", False):
            self._process.deferred.start_reaper()
        else:
            warnings.warn(
                f"{self!r} was dropped without {self._ended_by}()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


def end_because(one: Endable, why: str) -> None:
    """End an object that its user has not ended; later uses raise an error that says why.

    Raises
    ------
    BusyError
        The object is in use. Nothing has changed then.
    CrossmemError
        The vendor refused to take the resource. Later calls of crossmem go on with it.
    """
    # Before the end, so that no use after it misses the reason.
    one._why_ended = why
    try:
        one._end()
    finally:
        if one._record is not None:
            del one._why_ended
