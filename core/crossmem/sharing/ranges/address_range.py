# SPDX-License-Identifier: Apache-2.0
"""Address ranges: consecutive addresses, reserved first and mapped later."""

from typing import Any, ClassVar, Final

from typing_extensions import override

from crossmem.driver import address_ranges_of
from crossmem.errors import BusyError, ConfigurationError, UnsupportedError
from crossmem.guards import check_integer, check_size, shorten
from crossmem.models import BlockHandle
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.ending import Endable
from crossmem.sharing.base.memory import Memory, is_block
from crossmem.sharing.base.process import Process
from crossmem.sharing.exporter.allocation import Allocation, record_of
from crossmem.sharing.importer.mapping import Import, children_of, record_of_import
from crossmem.sharing.importer.watcher import end_with_owner
from crossmem.sharing.ranges.record import PieceRecord, RangeRecord, Source

__all__ = ["AddressRange", "Piece", "reserve"]

_MAX_NBYTES: Final = 1 << 47
"""The largest size of a range: the usual size of a 64-bit process's address space."""


class AddressRange(Endable):
    """Consecutive addresses of this process, to which memory is mapped in pieces.

    Made by :meth:`crossmem.Device.reserve`; a context manager that releases the addresses. An
    access to an address without a mapping is undefined behaviour.

    Attributes
    ----------
    device
        The device that holds the memory of the pieces, and for which the pieces are mapped.
    nbytes
        Size in bytes: the requested size, rounded up to the granularity.
    """

    __slots__ = ("device", "nbytes")

    _ended_by: ClassVar = "release"

    device: LocalDevice
    _record: RangeRecord | None

    def __init__(self, record: RangeRecord) -> None:
        self._process = record.process
        self.device = record.device
        self.nbytes = record.nbytes
        # The last statement: from here on, the finaliser of this object releases the addresses.
        self._record = record

    @override
    def __repr__(self) -> str:
        try:
            at = "released" if self._record is None else f"at {self._record.pointer:#x}"
        except IndexError:
            at = "released"
        return f"<AddressRange of {self.nbytes} bytes on {self.device.name}, {at}>"

    def _live(self) -> RangeRecord:
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        return record

    @property
    def ptr(self) -> int:
        """The first address."""
        try:
            return self._live().pointer
        except IndexError:
            raise self._ended() from None

    def map(self, memory: Allocation | Import, *, at: int) -> "Piece":
        """Map the whole capacity of some memory at an offset.

        Existing mappings of the memory stay. While the piece exists, ``memory`` cannot be freed or
        closed.

        Parameters
        ----------
        memory
            An allocation of the range's device, or an import of such an allocation. The import must
            have been opened for the range's device, and must cover the whole allocation. The first
            piece of a range decides whether the range takes only memory of this process or only
            imported memory.
        at
            Offset in bytes from the start of the range, a multiple of the granularity.

        Returns
        -------
        Piece
            The caller unmaps the piece, or uses it as a context manager.

        Raises
        ------
        InvalidSizeError
            The capacity does not fit at the offset, or the offset is not a multiple of the
            granularity.
        BusyError
            Another piece overlaps these addresses.
        UnsupportedError
            The range cannot map this memory (see ``memory``), or the memory's capacity is not a
            multiple of the granularity. Blocks of pools and buffers of queues are refused, too.
        ConfigurationError
            ``memory`` is neither an allocation nor an import.
        DriverError, OutOfMemoryError
            The vendor's call failed.
        ClosedError, ForkedProcessError
            The range or the memory was closed, or the caller is a forked child.
        """
        record, process = self._live(), self._process
        source = _source_of(memory)
        offset = check_integer("at", at)
        # A dropped piece occupies its addresses until its release, so deferred work is done first.
        process.drain(patient=True)
        piece = PieceRecord(record, source, offset, (self, memory))
        try:
            with process.state:
                # Another thread may have ended the range or the memory. Then these calls raise.
                self._live()
                _source_of(memory)
                record.claim(piece)
                # A signal handler may have ended the range or the memory during claim().
                self._live()
                _source_of(memory)
            piece.map()
            made = Piece(piece, memory.nbytes)
            if isinstance(memory, Import):
                use, _imported = record_of_import(memory)
                if use.ends_with_owner:
                    end_with_owner(made, piece, use)
            return made
        except BaseException:
            process.deferred.ready[piece] = None
            process.drain()
            raise

    def release(self) -> None:
        """Release the addresses. A second call does nothing.

        Raises
        ------
        BusyError
            A piece is still mapped. The range is unchanged.
        """
        self._end()

    @override
    def _refuse_if_used(self, operation: str) -> None:
        record = self._record
        if record is not None and record.pieces:
            msg = f"{self!r} has {len(record.pieces)} pieces"
            raise BusyError(msg, operation=operation, hint="unmap them first")

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "an AddressRange stays in its process; send the handles of the memory in it"
        raise UnsupportedError(msg)


class Piece(Memory):
    """Memory that is mapped in an address range; a context manager that unmaps the memory.

    Made by :meth:`AddressRange.map`.

    Attributes
    ----------
    offset
        Offset of the piece in the range, in bytes.
    nbytes
        Size of the memory in bytes. In the range, the piece occupies the memory's capacity, which
        can be larger.
    readonly
        Whether writes are refused: in a piece of an allocation, False; in a piece of an import, the
        import's ``readonly``.
    """

    __slots__ = ("_pointer", "offset")

    _ended_by: ClassVar = "unmap"

    _record: PieceRecord | None

    def __init__(self, record: PieceRecord, nbytes: int) -> None:
        addresses, source = record.addresses, record.source
        super().__init__(
            addresses.process, addresses.device, nbytes, source.usage, readonly=source.readonly
        )
        self._pointer = addresses.pointer + record.offset
        self.offset = record.offset
        # The last statement: from here on, the finaliser of this object releases the piece.
        self._record = record

    @override
    def __repr__(self) -> str:
        state = "unmapped" if self._record is None else f"at {self._pointer:#x}"
        return f"<Piece of {self.nbytes} bytes at offset {self.offset} of a range, {state}>"

    @property
    @override
    def ptr(self) -> int:
        """Address of the first byte in this process, for calls of the vendor's API."""
        if self._record is None or not self._process.is_usable:
            raise self._ended()
        return self._pointer

    def unmap(self) -> None:
        """Wait for the device's running work and unmap the piece (C9).

        The addresses stay reserved. A second call does nothing.

        Raises
        ------
        BusyError
            A view of the piece is alive, or another thread reads or writes the piece. In these
            cases, the piece stays mapped. Also raised if a stream capture prevents the wait for the
            device's work. In this case, this object is closed, and a later call of crossmem unmaps
            the piece.
        """
        self._end()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "a Piece stays in its process; send the handle of the mapped memory"
        raise UnsupportedError(msg)


def _source_of(memory: object) -> Source:
    if isinstance(memory, Allocation):
        record = record_of(memory)
        return Source(
            record.source,
            memory.device.identity,
            memory.device,
            record.lock,
            record.pieces,
            record.usage,
            readonly=False,
        )
    if (isinstance(memory, Memory) and is_block(memory)) or (
        isinstance(memory, Import) and isinstance(memory.handle, BlockHandle)
    ):
        msg = "an address range takes whole allocations, not blocks of a pool or buffers of a queue"
        hint = "map an allocation or its import; the blocks of a pool are already consecutive"
        raise UnsupportedError(msg, hint=hint, operation="map")
    if not isinstance(memory, Import):
        msg = f"memory must be a crossmem.Allocation or crossmem.Import, not {shorten(memory)}"
        raise ConfigurationError(msg, operation="map")
    use, imported = record_of_import(memory)
    handle = memory.handle
    if memory.nbytes != handle.nbytes:
        msg = (
            f"{memory!r} is only a part of an allocation of {handle.nbytes} bytes, from byte "
            f"{handle.offset} on; an address range takes whole allocations"
        )
        raise UnsupportedError(msg, operation="map", hint="import the whole allocation")
    with use.process.state:
        users = children_of(use)
    return Source(
        imported.source,
        handle.device,
        memory.device,
        imported.source_lock,
        users,
        imported.usage,
        readonly=memory.readonly,
    )


def reserve(process: Process, device: LocalDevice, nbytes: object) -> AddressRange:
    """Reserve addresses; see :meth:`crossmem.Device.reserve`."""
    size = check_size("nbytes", nbytes, limit=_MAX_NBYTES)
    driver = address_ranges_of(device.driver)
    if driver is None or not device.capabilities.address_ranges:
        msg = f"{device.name} does not offer address ranges (capability address_ranges)"
        raise UnsupportedError(msg, operation="reserve", backend=device.backend)
    granularity = device.capabilities.granularity_nbytes
    record = RangeRecord(process, device, driver, -(-size // granularity) * granularity)
    try:
        record.reserve()
        return AddressRange(record)
    except BaseException:
        process.deferred.ready[record] = None
        process.drain()
        raise
