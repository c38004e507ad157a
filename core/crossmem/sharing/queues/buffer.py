# SPDX-License-Identifier: Apache-2.0
"""Buffers of queues. A buffer belongs either to its producer or to the consumers."""

from sys import gettrace
from typing import Any, ClassVar, NoReturn, Protocol

from typing_extensions import override

from crossmem.driver import streams_of
from crossmem.errors import ConfigurationError, InvalidSizeError, UnsupportedError
from crossmem.guards import is_within, plain_integer, shorten
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.memory import Memory
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.streams import stream_of
from crossmem.sharing.base.usage import Usage
from crossmem.sharing.queues.layout import MAX_USER_DATA_NBYTES

__all__ = ["BufferRecord", "Holder", "SharedBuffer", "Source", "stream_on", "taken_from"]


class _Terms(Protocol):
    @property
    def nbytes(self) -> int:
        """Capacity of a buffer."""
        ...


class Source(Protocol):
    """The part of a queue object that the buffers of the queue use."""

    @property
    def process(self) -> Process:
        """The process of this queue object."""
        ...

    @property
    def device(self) -> LocalDevice:
        """The device that uses the buffers in this process."""
        ...

    @property
    def usage(self) -> Usage:
        """The copies and views of the queue's buffers in this process."""
        ...

    @property
    def terms(self) -> _Terms:
        """The declared sizes and rules of the queue."""
        ...

    def pointer(self, producer: int, buffer: int) -> int:
        """Return the address of a buffer."""
        ...


class Holder(Protocol):
    """The producer or consumer that has a buffer."""

    @property
    def opened(self) -> Source:
        """The queue."""
        ...

    is_readonly: bool
    """Whether the application may only read the buffers of this holder."""

    def end_plainly(self, buffer: "SharedBuffer", /) -> bool:
        """End and release a buffer on the hot path, and return True.

        If only a slower path can release the buffer, change nothing and return False.
        """
        ...

    def take_back(self, record: "BufferRecord", stream: int | None) -> None:
        """Take back a buffer that the application has released. A second call does nothing."""
        ...


class BufferRecord(Record):
    """The record of a buffer that this process has allocated or received."""

    __slots__ = ("buffer", "count", "holder", "producer", "stamp", "stream")

    def __init__(self, holder: Holder, producer: int, buffer: int, stamp: int, count: int) -> None:
        # This constructor does not call the constructor of the base class, because that call would
        # take as long as all assignments below. The base class's constructor sets only is_done.
        self.is_done = False
        self.holder = holder
        self.producer = producer
        """Number of the producer that owns the buffer."""
        self.buffer = buffer
        self.stamp = stamp
        """The stamp of the buffer's entry; 0 before the put."""
        self.count = count
        """How often the entry was delivered."""
        self.stream: int | None = None
        """The stream whose work must be complete before the release."""

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Give the buffer back to its producer."""
        try:
            self.holder.take_back(self, self.stream)
        except BaseException:
            # The vendor may have refused the stream. The next attempt waits for the whole device.
            self.stream = None
            raise
        self.is_done = True


class SharedBuffer(Memory):
    """A buffer of a queue. Made by :meth:`crossmem.Queue.allocate` and :meth:`crossmem.Queue.get`.

    It has the methods of an allocation, but no handle. A buffer is a context manager: the end of
    the ``with`` block releases the buffer.

    Attributes
    ----------
    nbytes
        Capacity in bytes.
    device
        The device that uses the buffer in this process.
    """

    __slots__ = ("_data_length", "_user_data")

    _is_block: ClassVar = True
    _ended_by: ClassVar = "release"

    _record: BufferRecord | None

    def __init__(self, record: BufferRecord, length: int, user_data: bytes) -> None:
        # Until the caller sets the record, the finaliser of this object releases nothing.
        self._record = None
        # As in BufferRecord, the constructor of the base class is not called, to save time.
        holder = record.holder
        opened = holder.opened
        self._process = opened.process
        self.device = opened.device
        self.nbytes = opened.terms.nbytes
        self.readonly = holder.is_readonly
        self._usage = opened.usage
        self._anchor = None
        self._is_lent = self._is_left = False
        self._data_length = length
        self._user_data = user_data

    @override
    def __repr__(self) -> str:
        what = f"{self._data_length} of {self.nbytes} bytes on {self.device.name}"
        return f"<SharedBuffer with {what}{', released' if self._record is None else ''}>"

    def _usable(self) -> BufferRecord:
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        return record

    @property
    @override
    def ptr(self) -> int:
        """Address of the first byte in this process, for calls of the vendor's API."""
        record = self._usable()
        return record.holder.opened.pointer(record.producer, record.buffer)

    @property
    def data_length(self) -> int:
        """Number of valid bytes. The producer sets this number for the consumers.

        In a new buffer, the number is the capacity.

        Raises
        ------
        InvalidSizeError
            The number is negative or larger than the capacity.
        UnsupportedError
            A consumer tries to set the number.
        """
        self._usable()
        return self._data_length

    @data_length.setter
    def data_length(self, value: int) -> None:
        self._refuse_consumer("data_length")
        length = plain_integer(value)
        if not is_within(length, 0, self.nbytes):
            msg = f"data_length is {shorten(value)}; it must be from 0 to {self.nbytes} bytes"
            hint = "set the number of bytes that consumers read"
            raise InvalidSizeError(msg, operation="data_length", hint=hint)
        self._data_length = length

    @property
    def user_data(self) -> bytes:
        """At most 96 bytes that the producer sets, and that consumers receive with the buffer.

        Raises
        ------
        InvalidSizeError
            There are more than 96 bytes.
        ConfigurationError
            The value is not bytes, a bytearray or a memoryview.
        UnsupportedError
            A consumer tries to set the bytes.
        """
        process = self._process
        if self._record is None or process.is_inherited or process.is_closed:
            raise self._ended()
        return self._user_data

    @user_data.setter
    def user_data(self, value: bytes) -> None:
        record, process = self._record, self._process
        if record is None or record.stamp or process.is_inherited or process.is_closed:
            self._refuse_consumer("user_data")
        if value.__class__ is not bytes:
            if not isinstance(value, bytes | bytearray | memoryview):
                msg = f"user_data must be bytes, not {type(value).__name__}"
                raise ConfigurationError(
                    msg, operation="user_data", hint="encode the value, for example as JSON"
                )
            value = bytes(value)
        if len(value) > MAX_USER_DATA_NBYTES:
            msg = f"user_data has {len(value)} bytes; at most {MAX_USER_DATA_NBYTES} are allowed"
            hint = "put the rest into the buffer"
            raise InvalidSizeError(msg, operation="user_data", hint=hint)
        self._user_data = value

    @property
    def delivery_count(self) -> int:
        """How often the buffer was delivered since its put; 0 before the put.

        With ``redeliver=True``, the number is more than 1 if an earlier consumer of the buffer has
        died or lost its role.
        """
        return self._usable().count

    def release(self, *, stream: Any = None) -> None:
        """Give the buffer back to its producer. A second call does nothing.

        Parameters
        ----------
        stream
            The stream whose work uses the buffer: a stream of CuPy, PyTorch or torch-npu, or the
            vendor's handle of a stream. The buffer is released when the work that was issued on the
            stream before this call is complete. The call itself waits for that work in two cases: a
            producer releases the buffer, or the device has no timelines of level ``"word"``. With
            None, the call waits for all work of the device.

        Raises
        ------
        BusyError
            A view of the buffer is alive, or another thread reads or writes the buffer. The
            buffer object stays usable.
        UnsupportedError, ConfigurationError
            The device has no streams, or the value is not a stream.
        """
        record = self._record
        if stream is None or record is None:
            self._end()
            return
        record.stream = stream_on(self.device, stream)
        try:
            self._end()
        finally:
            if self._record is record:
                # The buffer was not released, and other streams may still use it. Without a stream,
                # a later release waits for all work of the device.
                record.stream = None

    @override
    def _end(self) -> None:
        record = self._record
        if record is None or not record.holder.end_plainly(self):
            super()._end()

    def export(self, **_options: object) -> NoReturn:
        """Refuse: a buffer of a queue has no handle.

        Raises
        ------
        UnsupportedError
            Always.
        """
        msg = "a buffer of a queue has no handle"
        raise UnsupportedError(
            msg, operation="export", hint="put the buffer, or export an allocation"
        )

    def _refuse_consumer(self, name: str) -> None:
        if self._usable().stamp:
            msg = f"only the producer of a buffer sets its {name}"
            raise UnsupportedError(msg, operation=name, hint="set it before put(), in the producer")

    @override
    def __reduce__(self) -> NoReturn:
        self.export()


def stream_on(device: LocalDevice, stream: Any) -> int | None:
    """Return the vendor's handle of a stream, or None if no stream was passed.

    Raises
    ------
    UnsupportedError, ConfigurationError
        The device has no streams, or the value is not a stream.
    """
    if stream is None:
        return None
    number = stream_of(stream)
    if streams_of(device.driver) is None:
        msg = f"{device.name} has no streams"
        raise UnsupportedError(msg, backend=device.backend, hint="leave out stream=")
    return number


def taken_from(buffer: SharedBuffer, holder: Holder) -> BufferRecord:
    """End a buffer object without releasing the buffer; return the buffer's record for the put.

    Raises
    ------
    BusyError
        A view of the buffer is alive, or another thread reads or writes the buffer. The
        buffer object stays usable.
    ClosedError, ForkedProcessError
        The buffer was handed over or released before.
    UnsupportedError
        The buffer belongs to another queue or producer, or was received.
    """
    record, anchor, process = buffer._record, buffer._anchor, buffer._process
    is_plain = gettrace() is None and (anchor is None or anchor() is None)
    # This condition and its branch call no function. So no signal handler and no other thread runs
    # from here to the return. A thread that copies or views the buffer first records
    # the copy or view, and then reads ``_record`` again. So either this condition sees the copy or
    # view, or that thread sees that the buffer has ended.
    if (
        is_plain
        and record is not None
        and buffer._record is record
        and record.holder is holder
        and buffer._anchor is anchor
        and not (buffer._is_lent or buffer._usage.copies)
        and not (process.is_inherited or process.is_closed)
    ):
        buffer._record = None
        buffer.__class__ = buffer._when_ended
        return record
    # This check comes before the lock, which may be held for ever in a forked child.
    buffer._usable()
    taken: BufferRecord | None = None
    try:
        with process.state:
            record = buffer._usable()
            if record.holder is not holder:
                msg = "this buffer belongs to another queue or producer, or was received"
                hint = "allocate a buffer of this queue, or pass an array with copy='allow'"
                raise UnsupportedError(msg, operation="put", hint=hint)
            buffer._refuse_if_used("put")
            taken, buffer._record = record, None
            buffer.__class__ = buffer._when_ended
    except BaseException:
        # A signal handler may have raised at the end of the ``with`` block. The caller gets this
        # error and keeps the buffer, so the buffer object becomes usable again.
        if taken is not None:
            buffer.__class__, buffer._record = buffer._when_alive, taken
        raise
    return record
