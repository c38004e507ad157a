# SPDX-License-Identifier: Apache-2.0
"""Adoptions: memory that another library allocated, and that this process can export."""

from typing import ClassVar, Literal, cast

from typing_extensions import override

from crossmem.driver import Block, Foreign
from crossmem.errors import (
    ConfigurationError,
    CrossmemError,
    InvalidSizeError,
    UnsupportedError,
)
from crossmem.guards import check_size, clause, shorten
from crossmem.locks import Rank
from crossmem.models import EventKind
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.exporter.foreign import (
    MAX_ADDRESS,
    ForeignAllocation,
    ForeignAllocations,
    check_address,
    look_at,
)
from crossmem.sharing.exporter.record import AllocationRecord, BlockRecord

__all__ = ["Adoption", "AdoptionRecord", "Neighbours", "adopt", "neighbours_of"]

Neighbours = Literal["expose"]
"""``"expose"``: ``adopt`` accepts that importers can access neighbours of the adopted memory."""


class AdoptionRecord(AllocationRecord):
    """The record of an adoption.

    The record keeps the owner object of the memory alive until the adoption is freed and the last
    lease has ended.
    """

    __slots__ = ("_offset", "_owner")

    is_adopted: ClassVar = True
    _began: ClassVar = EventKind.ADOPTED
    _ended: ClassVar = EventKind.GIVEN_UP

    def __init__(
        self,
        process: Process,
        device: LocalDevice,
        *,
        offset: int,
        nbytes: int,
        owner: object,
    ) -> None:
        super().__init__(process, device, BlockRecord(device, Rank.ALLOCATION))
        self._owner: object = owner
        self._offset = offset
        self.nbytes = nbytes

    def adopt(self, foreign: Foreign) -> None:
        """Add this adoption to the record of the vendor's allocation."""
        self.process.part(ForeignAllocations).enter(self.device, foreign, self)
        memory = cast("ForeignAllocation", self.memory)
        # All adoptions in one allocation of the vendor have the same allocation number. They take
        # their export numbers from one counter, so no export number occurs twice.
        self.number, self.export_numbers = memory.number, memory.export_numbers
        self.enter()

    @property
    @override
    def source(self) -> Block:
        """Raise, because an address range cannot map adopted memory."""
        msg = "an address range cannot map adopted memory"
        raise UnsupportedError(msg, operation="map", backend=self.device.backend)

    @property
    @override
    def offset(self) -> int:
        """Offset of the adopted memory in the vendor's allocation."""
        return self._offset

    @override
    def free_now(self, *, blocking: bool) -> None:
        """End the adoption, and then drop the reference to the owner object of the memory.

        Dropping the reference may run the object's finaliser, which may execute any code. So this
        method holds no lock while it drops the reference.
        """
        super().free_now(blocking=blocking)
        if self.is_done:
            self._owner = None

    @override
    def _release(self) -> CrossmemError | None:
        # The library that allocated the memory must wait for the device's work before it frees the
        # memory. So the end of an adoption does not wait.
        self._leave()
        return None

    @override
    def _leave(self) -> None:
        """Remove the adoption from the vendor's allocation, then from the process's records."""
        self.process.part(ForeignAllocations).leave(self)
        super()._leave()


class Adoption(Allocation):
    """Memory that another library allocated. Made by :meth:`crossmem.Device.adopt`.

    An adoption has the interface of an allocation. An adoption in a ``with`` statement ends when
    the statement ends. crossmem never frees adopted memory.

    Attributes
    ----------
    nbytes
        Size of the adopted memory, in bytes.
    device
        The device that holds the memory.
    """

    __slots__ = ()


def adopt(
    process: Process,
    device: LocalDevice,
    ptr: object,
    nbytes: object,
    owner: object,
    neighbours: object,
) -> Adoption:
    """Adopt memory; see :meth:`crossmem.Device.adopt`."""
    if owner is None:
        msg = "owner must be the object that keeps the memory alive, not None"
        raise ConfigurationError(msg, operation="adopt")
    if neighbours is not None and not (isinstance(neighbours, str) and neighbours == "expose"):
        msg = f'neighbours must be "expose" or None, not {shorten(neighbours)}'
        raise ConfigurationError(msg, operation="adopt")
    pointer = check_address("ptr", ptr)
    size = check_size("nbytes", nbytes, limit=MAX_ADDRESS)
    foreign = look_at(process, device, pointer)
    if foreign.obstacle is not None:
        msg = f"memory at {pointer:#x} on {device.name} {clause(foreign.obstacle)}"
        raise UnsupportedError(
            msg,
            operation="adopt",
            backend=device.backend,
            device=device.identity,
            hint="copy the contents to memory of device.allocate(), and export that memory",
        )
    offset = pointer - foreign.base
    if offset + size > foreign.nbytes:
        msg = (
            f"{size} bytes at {pointer:#x} do not lie in the vendor's allocation of "
            f"{foreign.nbytes} bytes at {foreign.base:#x}"
        )
        raise InvalidSizeError(msg, operation="adopt", backend=device.backend)
    around = neighbours_of(foreign.exposed_nbytes, size)
    if around is not None and neighbours is None:
        msg = f"{size} bytes at {pointer:#x} on {device.name}: {around}"
        raise UnsupportedError(
            msg,
            operation="adopt",
            backend=device.backend,
            device=device.identity,
            hint='adopt the whole block, or pass neighbours="expose" to expose the whole block',
        )
    record = AdoptionRecord(process, device, offset=offset, nbytes=size, owner=owner)
    try:
        record.adopt(foreign)
        adoption = Adoption(record)
        process.arrays.add(adoption, adoption.ptr, adoption)
    except BaseException:
        process.deferred.ready[record] = None
        process.drain()
        raise
    return adoption


def neighbours_of(exposed_nbytes: int, nbytes: int) -> str | None:
    """Return a text about the neighbours that importers can access. Return None if there are none.

    Importers can access ``exposed_nbytes`` bytes. ``nbytes`` of these bytes are adopted.
    """
    if exposed_nbytes == nbytes:
        return None
    others = f"{exposed_nbytes - nbytes} other bytes would become accessible"
    return f"the vendor shares only whole blocks: {others}"
