# SPDX-License-Identifier: Apache-2.0
"""The records of address ranges and pieces, which outlive the objects of applications."""

import threading
import warnings
from bisect import bisect
from functools import partial
from typing import NamedTuple

from typing_extensions import override

from crossmem.driver import AddressRanges, Block, Imported, Mapped, Reserved
from crossmem.driver.recording import call_into
from crossmem.errors import (
    BusyError,
    ClosedError,
    CrossmemError,
    InvalidSizeError,
    UnsupportedError,
)
from crossmem.guards import shorten
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.base.usage import Usage

__all__ = ["PieceRecord", "RangeRecord", "Ranges", "Source"]


class Source(NamedTuple):
    """The memory that one piece of an address range maps: always a whole allocation.

    Parameters
    ----------
    memory
        The driver's object for the memory.
    home
        Identity of the device that holds the memory.
    device
        The device for which the memory was opened.
    lock
        Held during driver calls on that memory.
    users
        The pieces that keep the allocation or import open. For an import, also its mappings.
    usage
        The copies, views and pieces of the memory in this process.
    readonly
        Whether the piece refuses writes.
    """

    memory: Block | Imported
    home: str
    device: LocalDevice
    lock: "threading.RLock"
    users: set[object]
    usage: Usage
    readonly: bool

    @property
    def is_own(self) -> bool:
        """Whether this process allocated the memory. A process can also import its own memory."""
        return isinstance(self.memory, Block)


class PieceRecord(Record):
    """The record of a piece. The record is made before the memory is mapped."""

    __slots__ = ("addresses", "keep", "mapped", "offset", "source")

    def __init__(
        self, addresses: "RangeRecord", source: Source, offset: int, keep: tuple[object, object]
    ) -> None:
        super().__init__()
        self.addresses = addresses
        self.source = source
        self.offset = offset
        self.keep: tuple[object, ...] = keep
        """The address range, and the mapped allocation or import. This tuple keeps them alive."""
        self.mapped: list[Mapped] = []

    @property
    def end(self) -> int:
        """First offset after the piece."""
        return self.offset + self.source.memory.capacity

    def map(self) -> None:
        """Map the memory at the piece's offset in the address range."""
        addresses, source = self.addresses, self.source
        with source.lock:
            if self.is_done:
                msg = "the memory was unmapped, because this process is exiting"
                raise ClosedError(msg, operation="map")
            call_into(
                self.mapped,
                addresses.driver.map_at,
                source.memory,
                addresses.pointer + self.offset,
            )
            addresses.shows_own = source.is_own

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Wait for the device's running work (law C9), and then unmap the piece."""
        taken: list[bool] = []
        lock = self.source.lock
        try:
            call_into(taken, lock.acquire, blocking)
            if not taken[0] or self.is_done:
                return
            failure = self._unmap()
        finally:
            if taken and taken[0]:
                lock.release()
        self.keep = ()
        if failure is not None:
            raise failure

    def _unmap(self) -> CrossmemError | None:
        failure = None
        addresses, source = self.addresses, self.source
        if self.mapped:
            failure = wait_for_work(addresses.device)
            addresses.driver.unmap_at(self.mapped[0])
            self.mapped.pop()
        with addresses.process.state:
            if self in addresses.pieces:
                addresses.pieces.remove(self)
            source.usage.pieces.discard(self)
            source.users.discard(self)
        self.is_done = True
        return failure


class RangeRecord(Record):
    """The record of an address range. The record is made before the addresses are reserved."""

    __slots__ = (
        "_reserved",
        "device",
        "driver",
        "lock",
        "nbytes",
        "pieces",
        "process",
        "shows_own",
    )

    def __init__(
        self, process: Process, device: LocalDevice, driver: AddressRanges, nbytes: int
    ) -> None:
        super().__init__()
        self.process = process
        self.device = device
        self.driver = driver
        self.nbytes = nbytes
        self.lock = ordered_lock(Rank.ALLOCATION)
        """Held while the driver releases the addresses, so that only one thread does so."""
        self.pieces: list[PieceRecord] = []
        """The pieces, in the order of their offsets. Guarded by the lock ``process.state``."""
        self.shows_own: bool | None = None
        """True if the range accepts only this process's own memory. False if the range accepts only
        imported memory. None until a piece was mapped."""
        self._reserved: list[Reserved] = []

    @property
    def pointer(self) -> int:
        """The first address."""
        return self._reserved[0].pointer

    def reserve(self) -> None:
        """Reserve the addresses."""
        device = self.device
        reserved = call_into(self._reserved, self.driver.reserve, device.ordinal, self.nbytes)
        self.process.regions.add(self, reserved.pointer, self.nbytes, device.driver)
        self.process.part(Ranges).live[self] = None

    def describe(self) -> str:
        """Return the reason why memory at these addresses cannot be adopted."""
        return "is in an address range of crossmem: export the memory that is mapped there"

    def claim(self, piece: PieceRecord) -> None:
        """Record a piece before it is mapped, so that no other piece gets the same addresses.

        If the range cannot map the piece, raise, and record nothing. The caller holds the lock
        ``process.state``.
        """
        self._check_memory(piece.source, piece.keep[1])
        self._check_place(piece)
        self.pieces.insert(bisect(self.pieces, piece.offset, key=_offset_of), piece)
        piece.source.usage.pieces.add(piece)
        piece.source.users.add(piece)

    def _check_place(self, piece: PieceRecord) -> None:
        offset, end = piece.offset, piece.end
        granularity = self.device.capabilities.granularity_nbytes
        if offset % granularity:
            rule = f"a multiple of the granularity, {granularity} bytes"
            msg = f"at={shorten(offset, 50)} must be {rule}"
            raise InvalidSizeError(msg, operation="map")
        if offset < 0 or end > self.nbytes:
            place = f"[{shorten(offset, 50)}, {shorten(end, 50)})"
            msg = f"bytes {place} do not lie in a range of {self.nbytes} bytes"
            raise InvalidSizeError(
                msg, operation="map", hint="memory occupies its capacity, not only its nbytes"
            )
        index = bisect(self.pieces, offset, key=_offset_of)
        for other in self.pieces[max(0, index - 1) : index + 1]:
            if other.offset < end and offset < other.end:
                msg = f"bytes [{other.offset}, {other.end}) of the range are mapped already"
                raise BusyError(msg, operation="map", hint="unmap that piece first")

    def _check_memory(self, source: Source, lender: object) -> None:
        device, refused = self.device, None
        if source.device is not device or source.home != device.identity:
            refused = (
                "the memory must be on this device, and opened for this device with the range's "
                "mechanism"
            )
        elif source.memory.capacity % device.capabilities.granularity_nbytes:
            refused = "the memory's capacity must be a multiple of the granularity"
        elif any(shows_own is not source.is_own for shows_own in self._kinds()):
            kind = "imported" if source.is_own else "this process's own"
            refused = f"the range takes only {kind} memory, because its first piece was such memory"
        if refused is not None:
            msg = f"this range of {device.name} cannot map {shorten(lender, 65)}: {refused}"
            raise UnsupportedError(
                msg,
                operation="map",
                backend=device.backend,
                hint="reserve another range for this memory",
            )

    def _kinds(self) -> list[bool]:
        """Return ``is_own`` of the memory in the range. A new piece must have the same value."""
        if self.shows_own is not None:
            return [self.shows_own]
        return [one.source.is_own for one in self.pieces]

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Release the addresses. The caller has made sure that no piece is mapped."""
        taken: list[bool] = []
        lock = self.lock
        try:
            call_into(taken, lock.acquire, blocking)
            if not taken[0] or self.is_done:
                return
            if self._reserved:
                self.driver.release(self._reserved[0])
                self._reserved.clear()
            self.process.regions.remove(self)
            self.process.part(Ranges).live.pop(self, None)
            self.is_done = True
        finally:
            if taken and taken[0]:
                lock.release()


class Ranges(Part):
    """The address ranges of this process that are not released yet."""

    closing = -2

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.live: dict[RangeRecord, None] = {}

    @override
    def close_at_exit(self) -> None:
        """Unmap the pieces that are not in use. Release each range that then has no piece.

        The kernel unmaps the other pieces at the end of the process. A piece is in use if its
        memory has an active view or copy, or if another thread works on the memory.
        """
        for addresses in list(self.live):
            steps = [
                partial(piece.give_back, blocking=False)
                for piece in list(addresses.pieces)
                if not piece.source.usage.is_touched
            ]
            try:
                for step in steps:
                    step()
                if not addresses.pieces:
                    addresses.give_back(blocking=False)
            except CrossmemError as error:
                warnings.warn(f"at exit: {error}", ResourceWarning, stacklevel=1)


def _offset_of(piece: PieceRecord) -> int:
    return piece.offset
