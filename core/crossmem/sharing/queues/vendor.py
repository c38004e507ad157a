# SPDX-License-Identifier: Apache-2.0
"""Queues of the vendor, with those methods of crossmem's queues that the vendor supports."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from math import inf
from typing import Any, NoReturn

from typing_extensions import override

from crossmem.errors import (
    BusyError,
    ClosedError,
    DriverError,
    OwnerGoneError,
    QueueEmptyError,
    QueueFullError,
    UnsupportedError,
)
from crossmem.guards import check_choice, check_wait
from crossmem.models import QueueRole
from crossmem.models.queue_handle import ROLES, QueueHandle
from crossmem.sharing.queues.buffer import SharedBuffer, taken_from
from crossmem.sharing.queues.copies import copied
from crossmem.sharing.queues.queue import Queue
from crossmem.sharing.queues.stats import QueueStats
from crossmem.sharing.queues.vendor_buffer import VendorBufferRecord
from crossmem.sharing.queues.vendor_record import VendorQueueRecord
from crossmem.sharing.queues.vendor_terms import refuse
from crossmem.sharing.queues.waiting import checked_most

__all__ = ["QueueOfVendor"]


class QueueOfVendor(Queue):
    """A queue of the vendor, with the methods of :class:`crossmem.Queue`.

    The vendor keeps the buffers in order, and gives each buffer to one consumer. A method that the
    vendor does not support raises :class:`UnsupportedError`.
    """

    __slots__ = ()

    _record: VendorQueueRecord | None  # type: ignore[assignment]

    def __init__(self, record: VendorQueueRecord) -> None:
        self._process = record.process
        self.device = record.device
        self.nbytes = record.terms.nbytes
        self.depth = record.terms.depth
        # The last statement: from here on, the finaliser of this object closes the queue.
        self._record = record

    @override
    def __repr__(self) -> str:
        device = self.device
        what = f"{self.depth} buffers of {self.nbytes} bytes on {device.name}, {device.mechanism}"
        record = self._record
        if record is None:
            return f"<Queue of {what}, closed>"
        role = "owned here" if record.is_owner else f"opened to {next(iter(record.mine))}"
        return f"<Queue of {what}, {role}>"

    @override
    def _usable(self) -> VendorQueueRecord:  # type: ignore[override]
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        return record

    def _joined(self, role: QueueRole) -> VendorQueueRecord:
        record = self._usable()
        if role not in record.roles:
            record.join(role, self._process.settings.timeout_s)
        record.check_open()
        if role == "produce":
            # A consumer can still read the buffers that are in the queue of a dead owner. So get()
            # checks the owner only if it finds no buffer.
            record.check_owner()
        return record

    def _refuse(self, what: str) -> NoReturn:
        self._usable()
        raise refuse(self.device, what)

    @override
    def export(self, *, role: QueueRole) -> QueueHandle:
        record = self._usable()
        if not record.is_owner:
            msg = "only the process that made a queue may call export()"
            raise UnsupportedError(msg, operation="export", hint="call it in that process")
        check_choice("role", role, ROLES, "export")
        return QueueHandle(role, record.directories[role])

    # Putting ------------------------------------------------------------------------------

    @override
    def allocate(self, *, timeout: float | None = 0.0) -> SharedBuffer:
        """Allocate a buffer. Its contents are undefined.

        Parameters
        ----------
        timeout
            No effect: :meth:`put` waits for room in the queue, and this method does not wait.

        Raises
        ------
        OutOfMemoryError
            The vendor's memory group has no room.
        DriverError
            The vendor's call failed for another reason.
        BusyError, AccessDeniedError, OwnerGoneError, ClosedError, ForkedProcessError
            As for :meth:`crossmem.Queue.allocate`.
        """
        check_wait(timeout, default_s=inf)
        return self._joined("produce").allocate()

    @override
    def put(
        self,
        item: Any,
        *,
        stream: Any = None,
        timeout: float | None = None,
        copy: str | bool | None = None,
    ) -> None:
        """Hand a buffer over to a consumer.

        Parameters
        ----------
        item, copy
            As for :meth:`crossmem.Queue.put`.
        stream
            Not supported: this method waits for all work of the device.
        timeout
            Time limit of the wait for room in the queue, in seconds; 0 tries once; None waits as
            long as the owner lives. With ``overflow="raise"``, this method always tries once.

        Raises
        ------
        QueueFullError
            The queue stayed full. The buffer still belongs to the caller.
        DriverError
            The vendor's call failed for another reason.
        CrossmemError
            As for :meth:`crossmem.Queue.put`.
        """
        timeout_s = check_wait(timeout, default_s=inf)
        if stream is not None:
            self._refuse("put(stream=)")
        record = self._joined("produce")
        buffer = item
        if not isinstance(item, SharedBuffer):
            allocate = partial(self.allocate, timeout=timeout)
            buffer = copied(item, self.nbytes, allocate, copy=copy)
        length, user_data = buffer._data_length, buffer._user_data
        timeout_s = timeout_s if record.terms.waits else 0.0
        # No signal handler runs between the next assignment and the ``try`` block.
        taken = taken_from(buffer, record.producing)
        try:
            assert isinstance(taken, VendorBufferRecord)  # noqa: S101 - a Side has no others
            if not record.put(taken, length, user_data, timeout_s):
                msg = f"the queue of {self.depth} buffers stayed full for {timeout_s:g} s"
                hint = "wait longer with timeout=, or make the queue deeper"
                raise QueueFullError(msg, operation="put", hint=hint)
        except BaseException:
            if isinstance(taken, VendorBufferRecord) and not taken.vendor.pointer:
                # The buffer was handed over, and then a signal handler raised.
                taken.forget()
            else:
                buffer.__class__, buffer._record = buffer._when_alive, taken
                if buffer is not item:
                    buffer.release()
            raise

    # Getting ------------------------------------------------------------------------------

    @override
    def get(self, *, timeout: float | None = None, stream: Any = None) -> SharedBuffer:
        """Return the next buffer. The caller releases the buffer after its use.

        The ``user_data`` of the buffer always has 96 bytes. The vendor does not keep the number of
        bytes that the producer set, so zeros follow the bytes of the producer.

        Parameters
        ----------
        timeout
            Time limit in seconds; 0 tries once; None waits as long as the owner lives.
        stream
            Not supported.

        Raises
        ------
        QueueEmptyError
            No buffer arrived in time.
        DriverError
            The vendor's call failed.
        ClosedError, OwnerGoneError
            The queue was closed, or the owner is dead and everything was read.
        BusyError, AccessDeniedError, UnsupportedError, ForkedProcessError
            As for :meth:`crossmem.Queue.get`.
        """
        timeout_s = check_wait(timeout, default_s=inf)
        if stream is not None:
            self._refuse("get(stream=)")
        found = self._joined("consume").get(timeout_s)
        if found is None:
            msg = f"no buffer arrived within {timeout_s:g} s"
            raise QueueEmptyError(msg, operation="get", hint="wait longer with timeout=")
        return found

    @override
    def get_many(self, most: int, *, timeout: float | None = None) -> list[SharedBuffer]:
        most = checked_most(most)
        found = [self.get(timeout=timeout)]
        while len(found) < most:
            try:
                found.append(self.get(timeout=0))
            except (QueueEmptyError, ClosedError, OwnerGoneError):
                # The next call raises the error of a closed queue or dead owner.
                break
            except DriverError as error:
                # This call returns the buffers that it has read. The next call raises the error.
                self._joined("consume").failure = error
                break
        return found

    # What the vendor lacks ----------------------------------------------------------------

    @override
    def __iter__(self) -> Iterator[SharedBuffer]:
        self._refuse("end, so iteration would never stop")

    @override
    def fileno(self) -> int:
        self._refuse("fileno()")

    @override
    async def get_async(self) -> SharedBuffer:
        self._refuse("get_async()")

    @override
    async def put_async(
        self, item: Any, *, stream: Any = None, copy: str | bool | None = None
    ) -> None:
        self._refuse("put_async()")

    @override
    def __aiter__(self) -> AsyncIterator[SharedBuffer]:
        self._refuse("end, so iteration would never stop")

    @override
    def wait_for(
        self, *, producers: int = 0, consumers: int = 0, timeout: float | None = None
    ) -> None:
        self._refuse("wait_for()")

    @override
    def finish(self) -> None:
        self._refuse("finish()")

    @override
    def revoke(self, pid: int) -> None:
        self._refuse("revoke()")

    @override
    def stats(self) -> QueueStats:
        self._refuse("stats()")

    @override
    def _refuse_if_used(self, operation: str) -> None:
        record = self._record
        if record is not None and record.consuming.held:
            msg = f"{self!r} has {len(record.consuming.held)} buffers that were not released"
            raise BusyError(msg, operation=operation, hint="release them first")
