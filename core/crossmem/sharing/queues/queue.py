# SPDX-License-Identifier: Apache-2.0
"""Queues. One process owns a queue, and other processes join as producers and consumers."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, ClassVar, NoReturn

from typing_extensions import override

from crossmem.errors import BusyError, UnsupportedError
from crossmem.guards import check_choice, check_wait
from crossmem.models.queue_handle import ROLES, QueueHandle, QueueRole
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.ending import Endable
from crossmem.sharing.queues import waiting
from crossmem.sharing.queues.buffer import SharedBuffer, stream_on, taken_from
from crossmem.sharing.queues.consumer import Consumer, QueueEndedError
from crossmem.sharing.queues.copies import copied
from crossmem.sharing.queues.owner import QueueOwner
from crossmem.sharing.queues.producer import Producer
from crossmem.sharing.queues.record import QueueRecord
from crossmem.sharing.queues.stats import QueueStats, stats_of

__all__ = ["Queue"]


class Queue(Endable):
    """A bounded queue of device buffers between processes.

    The owner makes a queue with :meth:`crossmem.Device.queue`. Other processes open the queue with
    :func:`crossmem.open_queue`. The owner may put and get, too. The end of a ``with`` block closes
    the queue. Iteration yields received buffers until the queue ends.

    Attributes
    ----------
    device
        The device that uses the buffers in this process.
    nbytes
        Capacity of a buffer, in bytes.
    depth
        Number of buffers of each producer.
    """

    __slots__ = ("depth", "device", "nbytes")

    _ended_by: ClassVar = "close"
    _record: QueueRecord | None

    def __init__(self, record: QueueRecord) -> None:
        self._process = record.opened.process
        self.device = record.opened.device
        self.nbytes = record.opened.terms.nbytes
        self.depth = record.opened.terms.depth
        # The last statement: from here on, the finaliser of this object closes the queue.
        self._record = record

    @override
    def __repr__(self) -> str:
        what = f"{self.depth} buffers of {self.nbytes} bytes on {self.device.name}"
        record = self._record
        if record is None:
            return f"<Queue of {what}, closed>"
        role = "owned here" if record.owner else f"opened to {next(iter(record.mine))}"
        return f"<Queue of {what}, {role}>"

    def _usable(self) -> QueueRecord:
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        return record

    def _producer(self) -> Producer:
        record = self._usable()
        return record.producer or record.produce(self._process.settings.timeout_s)

    def _consumer(self) -> Consumer:
        record = self._usable()
        return record.consumer or record.consume(self._process.settings.timeout_s)

    def _owner(self, operation: str) -> QueueOwner:
        owner = self._usable().owner
        if owner is None:
            msg = f"only the process that made a queue may call {operation}()"
            raise UnsupportedError(msg, operation=operation, hint="call it in that process")
        return owner

    def export(self, *, role: QueueRole) -> QueueHandle:
        """Return the handle with which other processes open the queue.

        Parameters
        ----------
        role
            ``"produce"`` or ``"consume"``: the role of each process that uses the handle.

        Raises
        ------
        UnsupportedError
            Another process owns the queue.
        """
        owner = self._owner("export")
        check_choice("role", role, ROLES, "export")
        return QueueHandle(role, owner.segments.directories[role])

    def allocate(self, *, timeout: float | None = 0.0) -> SharedBuffer:
        """Return a free buffer. Its contents are undefined.

        Parameters
        ----------
        timeout
            With ``overflow="wait"``: seconds to wait for a free buffer; 0 does not wait; None waits
            as long as the owner lives.

        Raises
        ------
        QueueFullError, BusyError
            No buffer became free in time, or all places for producers are taken.
        OwnerGoneError, ForkedProcessError
            The owner is dead, or this process is a forked child.
        AccessDeniedError, ClosedError
            This process has no right to produce. Or the queue has ended, or this process has
            finished or closed the queue.
        """
        record = self._record
        known = None if record is None else record.producer
        if known is not None:
            free = known.hand_out() if waiting.may_look(self._process, timeout) else None
            if free is not None:
                return free
        timeout_s = check_wait(timeout, default_s=inf)
        producer = self._producer()
        producer.check()
        if producer.opened.terms.overflow != "wait":
            timeout_s = 0.0
        buffer = producer.wait(
            producer.take, producer.check, timeout_s, polls=producer.waits_for_streams
        )
        if buffer is None:
            raise waiting.full(producer.opened.terms, timeout_s)
        return buffer

    def put(
        self,
        item: Any,
        *,
        stream: Any = None,
        timeout: float | None = None,
        copy: str | bool | None = None,
    ) -> None:
        """Hand a buffer over to the consumers.

        Parameters
        ----------
        item
            A buffer of :meth:`allocate`, which the caller cannot use afterwards. Or bytes, an array
            or a tensor, if ``copy`` permits a copy of the values, in C order, to a free buffer.
        stream
            The stream that fills the buffer: a stream of CuPy, PyTorch or torch-npu, or its handle.
            Consumers get the buffer when the stream has completed the work that was issued before
            this call. If no stream is passed, or the item is copied, this method waits for all work
            of the device.
        timeout
            For a copied item: the time limit of :meth:`allocate`.
        copy
            ``"allow"`` or True permits a copy. None or False refuses an item that is not a buffer.

        Raises
        ------
        BusyError
            A view of the buffer is alive, another thread reads or writes the buffer, or all places
            for producers are taken. The call has no effect then.
        UnsupportedError
            The item is neither a buffer of :meth:`allocate` nor an item that ``copy`` permits. Or
            ``stream`` was passed, and the device has no streams.
        QueueFullError, InvalidSizeError
            No buffer became free in time, or the item does not fit.
        OwnerGoneError, AccessDeniedError, ClosedError, ForkedProcessError
            As for :meth:`allocate`. ClosedError also means that the buffer was put or released.
        """
        number = None if stream is None else stream_on(self.device, stream)
        record = self._record
        producer = None if record is None else record.producer
        if producer is None or not producer.is_open():
            producer = self._producer()
            producer.check()
        buffer = item
        if not isinstance(item, SharedBuffer):
            buffer = copied(item, self.nbytes, partial(self.allocate, timeout=timeout), copy=copy)
            # The item's library chose the stream of the copy, so put() waits for the device.
            number = None
        length, user_data = buffer._data_length, buffer._user_data
        taken = taken_from(buffer, producer)
        try:
            producer.put(taken, length, user_data, number)
        except BaseException:
            if not taken.is_done:
                # Nothing was published: the buffer belongs to the application again.
                buffer.__class__, buffer._record = buffer._when_alive, taken
                if buffer is not item:
                    buffer.release()
            raise

    def put_many(self, items: Iterable[Any], **options: Any) -> None:
        """Put items in order; see :meth:`put`. The items before a failed item stay in the queue."""
        for item in items:
            self.put(item, **options)

    def get(self, *, timeout: float | None = None, stream: Any = None) -> SharedBuffer:
        """Return the next buffer. The caller releases the buffer after its use.

        Parameters
        ----------
        timeout
            Time limit in seconds; 0 does not wait; None waits until the queue ends.
        stream
            Checked but not used: a buffer arrives only when the work that fills it is complete.

        Raises
        ------
        QueueEmptyError
            No buffer arrived in time.
        ClosedError
            This object is closed. Or the queue ended or was closed, and nothing is left to read.
        OwnerGoneError
            The owner is dead, and nothing is left to read.
        BusyError
            All places for consumers are taken.
        AccessDeniedError, ForkedProcessError
            The process opened the queue to produce, lost its role, or is a forked child.
        """
        record = self._record
        known = None if record is None else record.consumer
        if stream is None and known is not None:
            found = known.look() if waiting.may_look(self._process, timeout) else None
            if found is not None:
                return found
        timeout_s = check_wait(timeout, default_s=inf)
        stream_on(self.device, stream)
        consumer = self._consumer()
        found = consumer.wait(
            consumer.look, consumer.check_reading, timeout_s, polls=consumer.waits_for_streams
        )
        if found is None:
            raise waiting.empty(len(consumer.held), timeout_s)
        return found

    def get_many(self, most: int, *, timeout: float | None = None) -> list[SharedBuffer]:
        """Wait for one buffer. Return the available buffers, but not more than ``most``."""
        most = waiting.checked_most(most)
        found: list[Any] = []
        try:
            found.append(self.get(timeout=timeout))
            look = self._consumer().look
            # Each buffer is in the list before a signal handler can run, so no buffer is lost.
            for _ in range(1, most):
                if found[-1] is None:
                    break
                found.append(look())
        except BaseException:
            record = self._record
            if record is not None and record.consumer is not None:
                record.consumer.keep_all(found)
            raise
        return found if found[-1] is not None else found[:-1]

    def __iter__(self) -> Iterator[SharedBuffer]:
        with suppress(QueueEndedError):
            while True:
                yield self.get()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a buffer may have arrived.

        When ``select`` reports the descriptor, call :meth:`get` with ``timeout=0`` until the call
        raises :class:`QueueEmptyError`. The owner's death does not make the descriptor readable. So
        give ``select`` a timeout, after which :meth:`get` finds out whether the owner is dead.
        """
        return self._consumer().fileno()

    async def get_async(self) -> SharedBuffer:
        """Return the next buffer; see :meth:`get`. The event loop runs during the wait."""
        return await waiting.repeat(self._consumer(), partial(self.get, timeout=0))

    async def put_async(
        self, item: Any, *, stream: Any = None, copy: str | bool | None = None
    ) -> None:
        """Put an item; see :meth:`put`. The event loop runs while all buffers are in use.

        Without ``overflow="wait"``, the call raises :class:`QueueFullError` if no buffer is free.
        """
        producer = self._producer()
        call = partial(self.put, item, stream=stream, timeout=0, copy=copy)
        await waiting.repeat(producer, call, waits=producer.opened.terms.overflow == "wait")

    async def __aiter__(self) -> AsyncIterator[SharedBuffer]:
        with suppress(QueueEndedError):
            while True:
                yield await self.get_async()

    def wait_for(
        self, *, producers: int = 0, consumers: int = 0, timeout: float | None = None
    ) -> None:
        """Wait until the queue has enough producers and consumers.

        Parameters
        ----------
        producers, consumers
            The numbers to wait for. A consumer counts only if it gets new entries.
        timeout
            Time limit in seconds; 0 does not wait; None: ``CROSSMEM_TIMEOUT``.

        Raises
        ------
        WaitTimeoutError
            Too few joined in time. The message says how many there are.
        InvalidSizeError
            The queue has fewer places, or a number is negative or not an integer.
        """
        timeout_s = check_wait(timeout, default_s=self._process.settings.timeout_s)
        waiting.for_members(lambda: self._usable().tended(), producers, consumers, timeout_s)

    def finish(self) -> None:
        """Declare that this process puts nothing more.

        The queue ends when as many producers as ``Device.queue`` declared have joined, and each has
        finished, closed the queue or died. If the owner has finished, no others have to join.
        """
        self._usable().finish()

    def revoke(self, pid: int) -> None:
        """Revoke the roles of a process. The process cannot open this queue again.

        Later calls of the process on this queue raise :class:`AccessDeniedError`. Entries that the
        process puts later reach no consumer. Entries that the process holds are lost or delivered
        again, as after its death. Its mappings remain, so a hostile process can write to buffers.

        Parameters
        ----------
        pid
            The process id, as the owner sees it.

        Raises
        ------
        UnsupportedError
            Another process owns the queue.
        ConfigurationError
            ``pid`` is not the id of a process.
        """
        owner = self._owner("revoke")
        owner.revoke(waiting.checked_pid(pid))

    def stats(self) -> QueueStats:
        """Return the state of the queue at this moment."""
        return stats_of(self._usable().tended())

    def close(self) -> None:
        """Give up the places of this process. A second call does nothing.

        The owner's call closes the queue for all processes. Consumers can still read the entries
        that were distributed to them. Entries that wait for a consumer with room are lost. To lose
        no entry, the owner first calls :meth:`finish`, and waits until all entries were read.

        Raises
        ------
        BusyError
            This process has received buffers that it has not released.
        """
        self._end()

    @override
    def _refuse_if_used(self, operation: str) -> None:
        record = self._record
        consumer = None if record is None else record.consumer
        if consumer is not None and (count := len(consumer.held)):
            msg = f"{self!r} has {count} buffers that were not released"
            raise BusyError(msg, operation=operation, hint="release them first")

    @override
    def _detach(self, record: Record) -> bool:
        ready = self._process.deferred.ready
        while (mine := self._record) is not None:
            consumer = mine.consumer
            # One step: between the check and the last of these statements, no signal handler runs,
            # and no other thread receives a buffer or gets a place.
            if consumer is None or not consumer.held:
                if consumer is not None:
                    consumer.session = 0
                mine.is_ending = True
                self._record = None
                ready[record] = None
                self.__class__ = self._when_ended
                return True
            self._refuse_if_used(self._ended_by)
        return False

    @override
    def __reduce__(self) -> NoReturn:
        msg = "a Queue stays in its process"
        raise UnsupportedError(msg, hint="send the handle of queue.export(role=...)")
