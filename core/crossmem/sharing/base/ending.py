# SPDX-License-Identifier: Apache-2.0
"""The end of objects that applications hold: one protocol for all of them.

A method such as ``unmap`` ends an object in two steps. The first step moves the record of the
object's resources to the queue of deferred work. No signal handler can interrupt this step. The
second step releases the resources. A finaliser only moves the record.
"""

import warnings
from typing import Any, ClassVar, Final, NoReturn, Self, TypeVar

from typing_extensions import override

from crossmem.errors import BusyError, ClosedError
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.process import Process, may_release, refuse_foreign

__all__ = ["Endable", "end_because", "end_later", "leave_to_references"]


def _reduce_ended(one: "Endable") -> NoReturn:
    raise one._ended()


_OF_ENDED: Final = {
    "__slots__": (),
    "__del__": object.__hash__,
    "__reduce__": _reduce_ended,
    "_when_ended": None,
}


class Endable:
    """An object that releases its resources once."""

    __slots__ = ("__weakref__", "_is_left", "_process", "_record", "_why_ended")

    _ended_by: ClassVar[str]
    """Name of the method that ends the object."""

    _is_left: bool
    """If this is set, the object ends with its last reference, without a warning."""

    _process: Process
    _record: Record | None
    _why_ended: str
    """The reason why crossmem itself ended the object. Unset in all other cases."""

    _when_ended: ClassVar[Any] = None
    """The class that an object gets at its end. The finaliser of this class is a C function that
    does nothing. In a finaliser written in Python, a signal handler may run, and Python swallows
    the handler's exception."""
    _when_alive: ClassVar[Any] = None
    """The class of an object that has not ended. If a call ends an object and then fails, the call
    can give this class back to the object."""

    @override
    def __init_subclass__(cls) -> None:
        if "_when_ended" not in cls.__dict__:
            cls._when_alive = cls
            cls._when_ended = type(cls.__name__, (cls,), {**_OF_ENDED, "__doc__": cls.__doc__})
            cls._when_ended.__module__ = cls.__module__
            cls._when_ended.__qualname__ = cls.__qualname__

    @property
    def closed(self) -> bool:
        """Whether the object has ended."""
        return self._record is None

    def _ended(self) -> Exception:
        """Return the error for a use of this ended object."""
        refuse_foreign(self._process, self)
        why = getattr(self, "_why_ended", None)
        return ClosedError(f"{self!r} cannot be used any more{f': {why}' if why else ''}")

    def _end(self) -> None:
        """End the object. A second call does nothing.

        Raises
        ------
        BusyError
            The object is in use, and nothing has changed. Or the object has ended, but its
            resources are not released yet: the release must wait for the device, and this wait is
            impossible now. Later calls of crossmem continue with the release.
        CrossmemError
            The vendor refused the release. Later calls of crossmem try again.
        """
        process, record = self._process, self._record
        if record is None:
            return
        if process.is_inherited:
            # This check comes before the locks, which may be held for ever in a forked child.
            refuse_foreign(process, self)
        if process.is_closed:
            return
        deferred = process.deferred
        ready = deferred.ready
        if ready or deferred.idle:
            # A dropped object, such as a piece, may count as a user of this object until the record
            # of the dropped object is released. So queued records are released first.
            process.drain()
            if ready and self._is_used():
                process.drain(patient=True)
        with process.state:
            self._refuse_if_used(self._ended_by)
            if not self._detach(record):
                return
            if record.is_shared and record.leave_to_others():
                ready.pop(record, None)
                return
        self._release(record)

    def _detach(self, record: Record) -> bool:
        """Move the record to the queue of deferred work. Return False if it was moved before.

        The caller holds the lock of the state, and has checked that the object is not in use.
        """
        if self._record is None:
            return False
        ready = self._process.deferred.ready
        # No signal handler runs between these statements, so the record is never lost.
        self._record = None
        ready[record] = None
        self.__class__ = self._when_ended
        return True

    def _release(self, record: Record) -> None:
        """Release the resources of a record that is in the queue of deferred work."""
        deferred = self._process.deferred
        if self._process.is_inside:
            # This call runs in a signal handler or finaliser, and the thread that it interrupted
            # holds a lock. So the reaper releases the resource.
            deferred.start_reaper()
            return
        deferred.run(record)
        if deferred.ready or deferred.idle:
            deferred.drain()

    def _refuse_if_used(self, operation: str) -> None:
        """Raise if the object is in use. The caller holds the lock of the state."""

    def _is_used(self) -> bool:
        with self._process.state:
            try:
                self._refuse_if_used(self._ended_by)
            except BusyError:
                return True
        return False

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
            # The error inside the "with" block says more than BusyError, so that error is raised.
            # Its traceback may keep views alive, so the object ends later, with its last reference.
            self._is_left = True

    def __del__(self) -> None:
        record = getattr(self, "_record", None)
        if record is None or not may_release(self._process):
            return
        self._process.deferred.ready[record] = None
        is_left = getattr(self, "_is_left", False)
        if is_left or self._is_reaped():
            self._process.deferred.start_reaper()
        if not is_left:
            warnings.warn(
                f"{self!r} was dropped without {self._ended_by}()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _is_reaped(self) -> bool:
        """Whether the reaper releases this object if it is dropped while ``_is_left`` is unset.

        The release of a GPU's memory waits for the device. In the reaper's thread, this wait could
        break the capture of a graph. So the next call of crossmem releases memory of GPUs.
        """
        device = getattr(self, "device", None)
        return device is not None and bool(device.capabilities.host_visible)


def end_later(one: Endable) -> None:
    """Queue the resources of an object for their release.

    A caller that only drops the object could lose the resources: a signal handler may raise at the
    entry of the finaliser. If the object is in use, this function leaves the release to the
    object's finaliser. Afterwards, the caller must call :meth:`Process.drain`, unless deferred work
    called this function.
    """
    process, one._is_left = one._process, True
    with process.state:
        try:
            one._refuse_if_used(one._ended_by)
        except BusyError:
            return
        record = one._record
        if record is not None:
            # No signal handler runs between these statements, so the record is never lost.
            one._record = None
            process.deferred.ready[record] = None
            one.__class__ = one._when_ended


def end_because(one: Endable, why: str) -> None:
    """End an object for a reason of crossmem's own. Errors of later uses contain the text ``why``.

    Raises
    ------
    BusyError, CrossmemError
        As for :meth:`Endable._end`.
    """
    # The reason is set before the object ends, so that every error of a later use contains it.
    one._why_ended = why
    try:
        one._end()
    finally:
        if one._record is not None:
            del one._why_ended


_E = TypeVar("_E", bound=Endable)


def leave_to_references(one: _E) -> _E:
    """Let an object end with its last reference, and return the object."""
    one._is_left = True
    return one
