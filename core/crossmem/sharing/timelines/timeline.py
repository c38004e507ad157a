# SPDX-License-Identifier: Apache-2.0
"""Timelines: values that one process signals, and that others await on the host or on streams."""

from typing import Any, ClassVar, Final

from typing_extensions import override

from crossmem.errors import ConfigurationError, StaleHandleError, UnsupportedError
from crossmem.guards import check_timeout, is_within, plain_integer, shorten
from crossmem.models import TimelineHandle
from crossmem.sharing.base.devices import LocalDevice, find_by_identity, find_device
from crossmem.sharing.base.ending import Endable
from crossmem.sharing.base.process import drain
from crossmem.sharing.base.streams import stream_of
from crossmem.sharing.importer.attach import attach
from crossmem.sharing.timelines.cell import CARE, IDENTITY, VALUE, VOID, Awaited, Cell
from crossmem.sharing.timelines.memory import LeftMemory, check_memory
from crossmem.sharing.timelines.readers import ReaderWord, await_readers
from crossmem.sharing.timelines.record import IS_FENCED, TimelineRecord

__all__ = ["Timeline", "open_timeline"]

_MOST_READERS: Final = 2**31 - 1
_SPINS: Final = () if IS_FENCED else (None,) * 600
"""A waiting thread first reads the value once for each item of this tuple. All these reads together
take some 20 microseconds. If a read needs a fence, the tuple is empty, and only :meth:`Cell.wait`
reads."""


class Timeline(Endable):
    """A 64-bit value that only grows: one process signals it, and others wait for it.

    Made by :meth:`crossmem.Device.timeline` in the process that signals, and by
    :func:`crossmem.open_timeline` in the others. A context manager.

    Attributes
    ----------
    device
        The device whose streams this object uses.
    level
        How the timeline orders streams: ``"word"``, ``"event"`` or ``"host"``.
    """

    __slots__ = ("device", "level")

    _ended_by: ClassVar = "close"
    _record: TimelineRecord | None

    def __init__(self, record: TimelineRecord) -> None:
        self._process = record.process
        self.device = record.level.device
        self.level = record.handle.level
        # From this statement on, the finaliser of this object releases the timeline.
        self._record = record

    @override
    def __repr__(self) -> str:
        record = self._record
        if record is None or not self._process.is_usable:
            return f"<Timeline of {self.device.name}, level {self.level!r}, closed>"
        pid = record.handle.memory.owner.pid
        role = "signalled here" if record.is_own else f"signalled by pid {pid}"
        return f"<Timeline of {self.device.name}, level {self.level!r}, {role}>"

    def _usable(self) -> TimelineRecord:
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        return record

    @property
    def value(self) -> int:
        """The largest value that was reached.

        If a stream signalled this value, the work that was issued on the stream before the signal
        is complete. If :attr:`void` is true, the value says nothing about any work, and usually is
        2**63 - 1.
        """
        return self._usable().level.reached

    @property
    def void(self) -> bool:
        """Whether the value is meaningless, because no process signals the timeline any more.

        If the signalling process dies, streams that wait for its signals are released (law L4). So
        the host must check this attribute before it uses data for which a stream has waited. At
        level ``"event"``, the attribute is true as soon as the signalling process is dead, because
        crossmem cannot know whether the vendor completes the events of a dead process.
        """
        record = self._usable()
        if record.is_closed or record.level.is_void:
            return True
        return self.level == "event" and not record.is_owner_alive

    @property
    def owner_alive(self) -> bool:
        """Whether the process that signals the timeline still runs."""
        return self._usable().is_owner_alive

    def export(self) -> TimelineHandle:
        """Return the handle with which other processes open this timeline."""
        return self._usable().handle

    def signal(self, value: int, *, stream: Any = None) -> None:
        """Set the value, at once or when the work that was issued on a stream is complete.

        Parameters
        ----------
        value
            The new value: larger than every earlier value, and at most 2**63 - 2.
        stream
            A stream of CuPy, PyTorch or torch-npu, or the vendor's handle as an integer; 0 is the
            default stream. At level ``"host"``, the call waits until the stream's work is complete.
            With None, the call waits until streams have made all earlier signals, and then sets the
            value at once.

        Raises
        ------
        ConfigurationError
            ``value`` is not an integer in the valid range, or ``stream`` is not a stream.
        UnsupportedError
            This object is a result of :func:`open_timeline`, or the device has no streams.
        WaitTimeoutError
            Earlier work on streams is not complete within ``CROSSMEM_TIMEOUT``.
        DriverError, BusyError
            The vendor's call failed, or the stream is being captured into a graph. The value is
            unchanged.
        ClosedError, ForkedProcessError
            The timeline was closed, or a forked child made this call.
        """
        record = self._record
        if (
            stream is None
            and record is not None
            and type(value) is int
            and not record.process.is_inherited
        ):
            # The hot path takes no lock. This statement stands on one line, so that no signal
            # handler, other thread or trace function runs between its condition and its store.
            # fmt: off
            if record.last < value < VOID: record.words[VALUE] = record.last = value  # noqa: E701
            # fmt: on
            else:
                self._signal(value, None)
                return
            if record.words[CARE]:
                with record.lock:
                    record.cell.wake()
            return
        self._signal(value, None if stream is None else stream_of(stream))

    def signal_next(self, stream: int | None) -> int:
        """Signal the next value, at once or on a stream, and return that value."""
        return self._signal(None, stream, is_next=True)

    def _signal(self, value: Any, stream: int | None, *, is_next: bool = False) -> int:
        record = self._usable()
        if not record.is_own:
            msg = f"{self!r}: only the result of Device.timeline() can signal"
            raise UnsupportedError(msg, operation="signal")
        level = record.level
        while True:
            with record.lock:
                # While ``last`` is VOID, all other signals leave the hot path and take the lock.
                record.last = VOID
                try:
                    if record.is_ended:
                        raise self._ended()
                    level.settle()
                    issued = level.issued
                    if issued >= VOID:
                        raise self._ended()
                    next_ = issued + 1
                    number = _checked(next_ if is_next else value, next_, VOID - 1, "signal")
                    if stream is not None or issued <= level.reached:
                        level.signal(number, stream)
                        return number
                finally:
                    record.allow_stores()
            # This thread waits without the lock: the work of a stream may wait for a signal that
            # another thread must issue, and that thread needs the lock.
            level.wait_on_host(self._awaited(record, issued, None))

    def wait(self, value: int, *, stream: Any = None, timeout: float | None = None) -> int:
        """Wait until the value is at least ``value``.

        Parameters
        ----------
        value
            From 1 to 2**63 - 2.
        stream
            As for :meth:`signal`. Work that is issued on the stream after this call waits for the
            value. At level ``"word"``, the host does not wait. At level ``"event"``, the host only
            waits until the signalling process has called :meth:`signal`. At level ``"host"``, the
            host waits until the value is reached.
            With None, the host waits until the value is reached.
        timeout
            Time limit of the host's wait in seconds; None: ``CROSSMEM_TIMEOUT``; 0: no wait.

        Returns
        -------
        int
            The value that was reached, or ``value`` if the wait is on a stream.

        Raises
        ------
        WaitTimeoutError
            The host's wait took longer than the time limit.
        OwnerGoneError
            The signalling process is dead, and the value was not reached. If the process dies while
            a stream waits, the stream is released within a second, and :attr:`void` is true (L4).
        ConfigurationError, UnsupportedError, DriverError
            An argument is invalid, the device has no streams, or the vendor's call failed.
        ClosedError, ForkedProcessError
            This object was closed, or the signalling process closed the timeline, or a forked child
            made this call.
        """
        record = self._record
        if stream is None and record is not None and type(value) is int and value > 0:
            process, words = record.process, record.words
            if not (process.is_inherited or process.is_closed):
                for _ in _SPINS:
                    if value <= (reached := words[VALUE]) < VOID:
                        return reached
        record = self._usable()
        value = _checked(value, 1, VOID - 1, "wait")
        if stream is None:
            reached = record.level.wait_on_host(self._awaited(record, value, timeout))
            record.refuse_void(reached)
            return reached
        record.hold(self._awaited(record, value, timeout), stream_of(stream))
        return value

    def _awaited(self, record: TimelineRecord, value: int, timeout: float | None) -> Awaited:
        timeout_s = 0.0
        if timeout != 0 or isinstance(timeout, bool):
            timeout_s = check_timeout(timeout, default_s=self._process.settings.timeout_s)

        def check() -> None:
            self._usable()
            record.check()

        return Awaited(value, timeout_s, check, f"value {value} of the timeline")

    def done(self, value: int, *, stream: Any = None) -> None:
        """Acknowledge a value: this process does not use the value's data any more.

        All objects of this process for one timeline share one acknowledgement. The first call makes
        this process a reader. The process stays a reader until it dies or has closed all objects
        that have acknowledged a value. If the signalling process has ended, the call has no effect.

        Parameters
        ----------
        value
            From 0 to 2**63 - 3. The value 0 only makes this process a reader.
        stream
            The stream that uses the data, as for :meth:`signal`. The value is acknowledged when the
            work that was issued on the stream is complete. At level ``"word"``, the call does not
            wait for that work.

        Raises
        ------
        ConfigurationError, UnsupportedError, DriverError
            As for :meth:`wait`, or this object signals the timeline.
        ClosedError, ForkedProcessError
            This object was closed, or a forked child made this call.
        """
        record = self._usable()
        value = _checked(value, 0, VOID - 2, "done")
        if record.is_own:
            msg = f"{self!r}: the object that signals a timeline cannot acknowledge its values"
            hint = "call done() on the result of open_timeline() in another process"
            raise UnsupportedError(msg, operation="done", hint=hint)
        with record.lock:
            if record.mapping is None:
                raise self._ended()
            use = record.mapping._record
            if record.reader is None and use is not None:
                offset = record.handle.memory.offset
                record.reader = ReaderWord(record.process, record.level, use, offset)
            if record.reader is not None:
                record.reader.done(value, stream)

    def wait_for_readers(
        self, value: int, *, readers: int | None = None, timeout: float | None = None
    ) -> int:
        """Wait until the readers have acknowledged a value, and return their number.

        Parameters
        ----------
        value
            From 0 to 2**63 - 3. With 0, the call only waits until the timeline has enough readers.
        readers
            The call returns when the timeline has at least this many readers, and all its readers
            have acknowledged the value. None means 0.
        timeout
            Time limit in seconds; None: ``CROSSMEM_TIMEOUT``; 0: no wait.

        Raises
        ------
        WaitTimeoutError
            The readers did not acknowledge in time. The message says how many have acknowledged.
        ConfigurationError
            ``value`` or ``readers`` is not an integer in the valid range.
        UnsupportedError
            This object is a result of :func:`open_timeline`.
        ClosedError, ForkedProcessError
            The timeline was closed, or a forked child made this call.
        """
        record = self._usable()
        value = _checked(value, 0, VOID - 2, "wait_for_readers")
        if readers is not None and not is_within(readers, 0, _MOST_READERS):
            msg = f"readers is {shorten(readers)}; it must be None or from 0 to {_MOST_READERS}"
            raise ConfigurationError(msg, operation="wait_for_readers")
        if not record.is_own:
            msg = f"{self!r}: only the result of Device.timeline() can wait for readers"
            raise UnsupportedError(msg, operation="wait_for_readers")
        page = record.page
        if page is None:
            raise self._ended()
        awaited = self._awaited(record, value, timeout)
        return await_readers(page, record.handle.memory.offset, awaited, readers or 0)

    def close(self) -> None:
        """Release the timeline. A second call does nothing.

        In the process that signals, the call waits until streams have made all issued signals.
        Then all waits end: waits of the host raise :class:`ClosedError`, and streams are released.
        In other processes, the timeline's memory stays mapped while a stream of the backend waits
        for any timeline.
        """
        self._end()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return open_timeline, (self.export(),)


def _checked(value: Any, least: int, most: int, operation: str) -> int:
    """Return a value as an ``int``, or raise if it is not an integer in the range."""
    value = plain_integer(value)
    if not is_within(value, least, most):
        msg = f"value is {shorten(value)}; it must be from {least} to 2**63 - {2**63 - most}"
        raise ConfigurationError(msg, operation=operation)
    return int(value)


def open_timeline(
    handle: TimelineHandle | bytes | bytearray | memoryview,
    *,
    device: LocalDevice | str | None = None,
    timeout: float | None = None,
) -> Timeline:
    """Open a timeline that another process signals.

    Parameters
    ----------
    handle
        A handle or its bytes.
    device
        The device whose streams wait in this process; None: the device of the handle.
    timeout
        How long the signalling process may take to reply, in seconds; None: ``CROSSMEM_TIMEOUT``.

    Returns
    -------
    Timeline
        Close it, or use it as a context manager.

    Raises
    ------
    InvalidHandleError
        The bytes are not the handle of a timeline.
    StaleHandleError
        The timeline was closed.
    OwnerGoneError, OwnerUnresponsiveError
        The signalling process is dead, or does not reply.
    AccessDeniedError
        The signalling process does not admit this process.
    WrongHostError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        This process cannot reach the timeline or the device.
    """
    process = drain()
    # attach() does not check the timeout if this process has imported the memory already.
    check_timeout(timeout, default_s=process.settings.timeout_s)
    if not isinstance(handle, TimelineHandle):
        handle = TimelineHandle.from_bytes(handle)
    check_memory(handle)
    if device is None:
        found = find_by_identity(process, handle.backend, handle.device, None)
    else:
        found = device if isinstance(device, LocalDevice) else find_device(process, device, None)
    mapping = attach(handle.memory, timeout=timeout)
    process.part(LeftMemory).add(mapping)
    cell = Cell(mapping.view(), mapping.ptr)
    if cell.read(IDENTITY) != handle.identity:
        msg = f"process {handle.memory.owner.pid} closed this timeline"
        raise StaleHandleError(msg, operation="open_timeline")
    return Timeline(TimelineRecord(process, handle, cell, found, mapping))
