# SPDX-License-Identifier: Apache-2.0
"""Allocations: memory that this process owns, with its exports and its release."""

import time
from typing import Any, ClassVar, Final, Literal

from typing_extensions import override

from crossmem.control.leases import name_holders
from crossmem.control.records import Allow, Unit
from crossmem.errors import (
    BusyError,
    ConfigurationError,
    OutOfMemoryError,
    UnsupportedError,
)
from crossmem.guards import check_choice, check_size, check_timeout, clause, shorten
from crossmem.locks import Rank
from crossmem.models import Access, ShareableHandle
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.memory import Memory
from crossmem.sharing.base.process import CATCH_UP_S, Process, drain
from crossmem.sharing.exporter.exporting import export_again
from crossmem.sharing.exporter.record import AllocationRecord, Allocations, BlockRecord
from crossmem.sharing.exporter.withdrawal import withdraw

__all__ = ["Allocation", "Busy", "allocate", "record_of"]

Busy = Literal["defer", "raise", "wait"]
"""What ``free`` does if leases on the memory remain."""

_MOST_TURNS: Final = 3


class Allocation(Memory):
    """Device memory that this process owns. Made by :meth:`crossmem.Device.allocate`.

    As a context manager, an allocation frees its memory at the end of the ``with`` block. If leases
    remain, the memory is freed when the last lease ends.

    Attributes
    ----------
    nbytes
        Requested size, in bytes.
    device
        The device that holds the memory.
    """

    __slots__ = ()

    _ended_by: ClassVar = "free"

    _record: AllocationRecord | None

    def __init__(self, record: AllocationRecord) -> None:
        super().__init__(record.process, record.device, record.nbytes, record.usage, readonly=False)
        # This statement comes last: it makes the finaliser responsible for the release. If an
        # earlier statement raises, the caller must release the memory.
        self._record = record

    @override
    def __repr__(self) -> str:
        kind = type(self).__name__
        if self._record is None:
            return f"<{kind} of {self.nbytes} bytes on {self.device.name}, freed>"
        return f"<{kind} {self._record.number} of {self.nbytes} bytes on {self.device.name}>"

    @property
    @override
    def ptr(self) -> int:
        """Address of the memory's first byte, for calls of the vendor's API in this process."""
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        try:
            return record.memory.blocks[0].pointer + record.offset
        except IndexError:
            # Another thread has freed the memory since the check.
            raise self._ended() from None

    @property
    def capacity(self) -> int:
        """Reserved size of the memory, in bytes."""
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        try:
            return record.memory.block.capacity
        except IndexError:
            raise self._ended() from None

    def export(
        self,
        *,
        allow: Allow | None = None,
        access: Access = "rw",
        lease: bool = True,
        synchronize: bool = True,
        stream: Any = None,
    ) -> ShareableHandle:
        """Return a handle with which other processes import this memory.

        A second export with the same arguments returns an equal handle, and makes no vendor call
        (C3). With a ``stream``, or if the handle was withdrawn, the call returns a new handle.

        Parameters
        ----------
        allow
            The processes that may import; None: all processes of the same user (C13).
        access
            ``"ro"`` makes importers' mappings read-only. It needs the capability
            ``readonly_exports``.
        lease
            False: return a raw handle, which contains the vendor's bytes for programs without
            crossmem. No lease protects the memory: keep it until all importers are done.
        synchronize
            Whether to wait for the device work issued so far. If an earlier call has waited and
            this call returns the same handle, this call does not wait (C21).
        stream
            The stream that writes the memory: a stream of CuPy, PyTorch or torch-npu, or the
            stream's handle. Importers call :meth:`crossmem.Mapping.wait` to wait for the work that
            was issued on the stream before this call. This call waits for the stream only if the
            device's strongest timeline level is ``"host"``.
            Each call with a stream returns a new handle.

        Raises
        ------
        ConfigurationError
            An argument is invalid.
        UnsupportedError
            The backend cannot give the requested access, offers no raw handles, or cannot admit the
            users in ``allow``. With ``stream``: the device has no streams, or the handle is raw.
        DriverError
            The vendor's call failed.
        ClosedError, ForkedProcessError
            The memory was freed, or a forked child made this call.
        """
        if stream is not None:
            return self._export_on(stream, allow, access, lease)
        record = self._record
        if record is not None:
            # The hot path: an earlier call with these arguments has made the handle.
            try:
                handle = record.handles.get((allow, access, lease))
            except TypeError:
                # An argument cannot be hashed, so it is invalid. The checks below raise the error.
                handle = None
            # lease=1 finds the entry of lease=True, because 1 == True, but 1 is not a valid value.
            is_valid = lease is True or lease is False
            if handle is not None and is_valid and not self._process.is_inherited:
                return handle
        if allow is not None and not isinstance(allow, Allow):
            msg = f"allow must be a crossmem.Allow or None, not {shorten(allow)}"
            raise ConfigurationError(msg, operation="export")
        drain()
        if record is None or not self._process.is_usable:
            raise self._ended()
        handle = export_again(record, allow, access, lease=lease, synchronize=synchronize)
        if self._record is None:
            raise self._ended()
        return handle

    def _export_on(
        self,
        stream: Any,
        allow: Allow | None,
        access: Access,
        lease: bool,  # noqa: FBT001
    ) -> ShareableHandle:
        base = self.export(allow=allow, access=access, lease=lease, synchronize=False)
        if base.raw is not None:
            msg = "a raw handle cannot say when the work of a stream is complete"
            hint = "leave out stream=, or export with lease=True"
            raise UnsupportedError(msg, operation="export", hint=hint)
        return self.device._ready_handle(base, stream, allow)

    def withdraw(self, handle: ShareableHandle | bytes | bytearray | memoryview) -> None:
        """Withdraw a handle: refuse importers that do not hold the memory yet (C28).

        The memory stays allocated. Processes that hold the memory through this handle keep the
        memory. A message that was sent before this call can still be received. Later calls of
        :meth:`export` return a new handle. A second withdrawal does nothing.

        Parameters
        ----------
        handle
            A handle that :meth:`export` returned, or a slice of one. The handle and all its slices
            become stale. Other exports of this memory stay valid.

        Raises
        ------
        UnsupportedError
            The handle is raw, so importers send no request that this process could refuse.
        InvalidHandleError
            The handle does not belong to this allocation.
        DriverError
            The kernel refuses the barrier (``membarrier``). Until a repeated call succeeds,
            importers with an earlier grant can still begin to hold the memory.
        ClosedError, ForkedProcessError
            The memory was freed, or a forked child made this call.
        """
        drain()
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        if not isinstance(handle, ShareableHandle):
            handle = ShareableHandle.from_bytes(handle)
        withdraw(record, handle)

    def free(self, *, busy: Busy = "defer", timeout: float | None = None) -> None:
        """Free the memory. A second call does nothing.

        When this call returns, the memory's handles are stale (C6).

        Parameters
        ----------
        busy
            What to do if leases remain. ``"defer"``: do not wait for them; the memory is freed when
            the last lease ends. ``"raise"``: raise and change nothing. ``"wait"``: wait for the
            leases to end, then free the memory.
        timeout
            Time limit of ``"wait"`` in seconds; None: ``CROSSMEM_TIMEOUT``.

        Raises
        ------
        BusyError
            The memory is in use, and this call has changed nothing. One of these is true:

            - A view of the memory is alive.
            - Another thread reads or writes the memory.
            - A piece of an address range maps the memory.
            - Leases remain, and ``busy`` is not ``"defer"``.

            This method also raises this error while a stream is captured into a graph, because the
            vendor then forbids a wait for the device's work. In that case, this object has ended,
            and a later call of crossmem frees the memory.
        """
        record = self._record
        if record is None or (self._process.is_closed and not self._process.is_inherited):
            return
        if timeout is not None or type(busy) is not str or busy != "defer":
            check_choice("busy", busy, ("defer", "raise", "wait"), "free")
            wait_s = check_timeout(timeout, default_s=self._process.settings.timeout_s)
            if busy != "defer" and self._process.is_usable and not self._process.is_inside:
                self._await_leases(record, wait_s if busy == "wait" else 0.0)
        self._end()

    def _await_leases(self, record: AllocationRecord, wait_s: float) -> None:
        """Wait for the leases to end, then retire and release the memory.

        Raises
        ------
        BusyError
            A lease remains after ``wait_s`` seconds, or this object is in use.
        """
        process = self._process
        deadline = time.monotonic() + wait_s
        turns = 0
        while (unit := self._unit_of(record)) is not None and process.server is not None:
            leases = process.server.leases
            if unit.pins or leases.leases_of(unit):
                process.server.catch_up(CATCH_UP_S)
            with process.state:
                self._refuse_if_used("free")
                try:
                    if self._record is not None:
                        leases.retire(unit, even_if_leased=False)
                finally:
                    # This thread has held the lock since it called _refuse_if_used(). So no view
                    # has begun since then, and this code can end the object. If a signal handler
                    # has raised, the next call of crossmem frees the memory.
                    if unit.is_retired and self._record is not None:
                        # These are the statements of _detach(). If this code called _detach(), a
                        # signal handler could raise before the first of them.
                        self._record = None
                        process.deferred.ready[record] = None
                        self.__class__ = self._when_ended
            if self._record is None:
                break
            turns += 1
            left_s = max(0.0, deadline - time.monotonic())
            # Other processes may take new leases while old ones end. So the number of attempts
            # after the deadline is limited.
            if not leases.wait_idle(unit, left_s) or (turns > _MOST_TURNS and not left_s):
                holders = name_holders(leases.leases_of(unit))
                msg = f"allocation {record.number} is leased by {clause(holders)}"
                raise BusyError(
                    msg,
                    operation="free",
                    hint='unmap it in that process, or free with busy="defer"',
                    details=holders,
                )
        if self._record is None:
            self._release(record)

    def _unit_of(self, record: AllocationRecord) -> Unit | None:
        """Return the memory's unit in the lease registry.

        If no export of the memory can have leases, there is no unit. In this case, end this object
        and return None.
        """
        if record.unit is None:
            if self._is_used():
                # Dropped objects may count as users until their records are released.
                self._process.drain(patient=True)
            # If another thread is exporting the memory, this thread gets the lock after that
            # export, and the check below sees the unit. A later export raises.
            with record.lock, self._process.state:
                self._refuse_if_used("free")
                if record.unit is None:
                    self._detach(record)
        return record.unit

    @override
    def _refuse_if_used(self, operation: str) -> None:
        if self._usage.copies or self._anchor is not None or self._is_lent:
            super()._refuse_if_used(operation)
        record = self._record
        if record is not None and record.pieces:
            msg = f"{self!r} is mapped by {len(record.pieces)} pieces of address ranges"
            raise BusyError(msg, operation=operation, hint="unmap them first")


def record_of(allocation: Allocation) -> AllocationRecord:
    """Return the record of an allocation.

    Raises
    ------
    ClosedError, ForkedProcessError
        The memory was freed, or a forked child made this call.
    """
    record = allocation._record
    if record is None or not allocation._process.is_usable:
        raise allocation._ended()
    return record


def allocate(process: Process, device: LocalDevice, nbytes: object) -> Allocation:
    """Allocate memory; see :meth:`crossmem.Device.allocate`."""
    size = check_size("nbytes", nbytes, limit=device.capabilities.max_allocation_nbytes)
    if device.capabilities.vendor_queues:
        msg = f"mechanism {device.mechanism!r} can share only queues, not allocations"
        hint = "leave out mechanism=, or make a queue"
        raise UnsupportedError(msg, operation="allocate", hint=hint, backend=device.backend)
    record = AllocationRecord(process, device, BlockRecord(device, Rank.ALLOCATION))
    try:
        try:
            record.obtain(size)
        except OutOfMemoryError:
            process.catch_up(patient=True)
            try:
                record.obtain(size)
            except OutOfMemoryError as error:
                raise _out_of_memory(process, device, error, size) from error
        return Allocation(record)
    except BaseException:
        process.deferred.ready[record] = None
        process.drain()
        raise


def _out_of_memory(
    process: Process, device: LocalDevice, error: OutOfMemoryError, nbytes: int
) -> OutOfMemoryError:
    waiting = [
        one
        for one in list(process.part(Allocations).live)
        if one.is_retired and not one.is_adopted and one.device.info is device.info
    ]
    held = sum(block.capacity for one in waiting for block in one.memory.blocks)
    return OutOfMemoryError(
        f"{device.name} has no room for {nbytes} bytes: {clause(error.message, 80)}; importers "
        f"still hold {held} bytes in {len(waiting)} freed allocations",
        hint="crossmem.exports() shows which processes hold them" if waiting else error.hint,
        details="\n".join(filter(None, (error.message, error.details))),
        operation="allocate",
        backend=device.backend,
        device=device.identity,
    )
