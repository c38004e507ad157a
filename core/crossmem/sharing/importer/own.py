# SPDX-License-Identifier: Apache-2.0
"""Imports of this process's own memory. They call no import function of the vendor (law C8)."""

import threading
from collections.abc import Callable
from typing import Final

from typing_extensions import override

from crossmem.control.link import Deadline
from crossmem.control.segments import SLOTS
from crossmem.driver import Block, Imported, Mapped, readonly_alias_of
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError, StaleHandleError, UnsupportedError
from crossmem.models import ShareableHandle
from crossmem.sharing.base.process import Process
from crossmem.sharing.exporter.record import AllocationRecord
from crossmem.sharing.importer.errors import error_of, not_of_the_pool
from crossmem.sharing.importer.key import ImportKey, ImportRequest
from crossmem.sharing.importer.record import ImportRecord, LeaseWords, State

__all__ = ["OwnImport"]

_HINT: Final = "keep the allocation until all readers have received its handle"


class OwnImport(ImportRecord):
    """An import of this process's own memory."""

    __slots__ = ("_alias", "_owned")

    def __init__(
        self,
        process: Process,
        request: ImportRequest,
        key: ImportKey,
        forget: Callable[[ImportRecord], None],
        owned: AllocationRecord,
    ) -> None:
        super().__init__(process, request, key, forget)
        self._owned = owned
        self.usage = owned.usage
        is_readonly = self.access == "ro"
        self._alias = readonly_alias_of(self.device.driver) if is_readonly else None
        if is_readonly and self._alias is None:
            msg = f"{self.device.name} cannot map this process's own memory read-only"
            raise UnsupportedError(msg, hint='import with readonly="advisory"')

    def open(self, handle: ShareableHandle, reservation: int) -> None:
        """Lease the memory to this process. The caller holds the lock of this import.

        Raises
        ------
        CrossmemError
            The lease registry refuses the lease, or this process has no lease server.
        """
        server = self.process.server
        if server is None:
            raise own_memory_gone(self.process, handle)
        refusal = server.leases.lease_to_myself(handle, reservation, self.leases)
        if refusal is not None:
            raise error_of(refusal, handle)
        self.state = State.OPEN
        if len(self.leases) > 1:
            self.tidy()

    @override
    def end_reservations(self, numbers: list[int]) -> None:
        """End the reservations in this process's own registry."""
        if self.process.server is not None:
            self.process.server.leases.release_mine(numbers)

    @override
    def words_of(self, core: bytes, slot: int) -> tuple[memoryview, memoryview, bool]:
        """Return the control segment, this process's own row, and False: no fences are used."""
        server = self.process.start_server()
        which = slot // SLOTS
        with server.leases.lock:
            granted = server.leases.granted.get(slot)
            if granted is None or granted.handle.core != core:
                raise not_of_the_pool()
            row = server.leases.pools.own_row(which)
        return server.leases.slots.segments[which].words, row, False

    @override
    def row_of(self, core: bytes) -> LeaseWords:
        """Return the slot of an export, the slot's control segment, and this process's own row."""
        leases = self.process.start_server().leases
        with leases.lock:
            for slot, export in leases.granted.items():
                if export.handle.core == core:
                    which = slot // SLOTS
                    control, row = leases.slots.segments[which].words, leases.pools.own_row(which)
                    return LeaseWords(slot, control, row, 0)
        raise not_of_the_pool()

    @override
    def reserved_generation(
        self, handle: ShareableHandle, reservation: int, deadline: Deadline
    ) -> int:
        """Return the reserved block's generation, from this process's own lease registry."""
        leases = self.process.start_server().leases
        with leases.lock:
            held = leases.leases.find_reservation(reservation, handle.allocation, handle.export)
            export = held and held.unit.exports.get(handle.export)
            if export is None or export.slot is None or not export.has(handle.generation):
                raise own_memory_gone(self.process, handle)
            return export.slot.generation

    @override
    def hint(self, slot: int) -> None:
        """Wake the threads of this process that wait for the end of a hold on a block."""
        self.process.start_server().leases.hint((slot,))

    @property
    @override
    def is_retired(self) -> bool:
        """Whether this process has freed the memory."""
        return self._owned.is_retired

    @property
    @override
    def is_owner_alive(self) -> bool:
        """Always true, because this process is the owner."""
        return True

    @property
    @override
    def source(self) -> Block | Imported:
        """The driver's block, which an address range can map.

        Raises
        ------
        UnsupportedError
            This import is read-only.
        """
        if self._alias is not None:
            msg = f"{self.device.name} cannot map this process's own memory read-only in a range"
            raise UnsupportedError(msg, operation="map", hint="map the allocation itself")
        return self._owned.source

    @property
    @override
    def source_lock(self) -> "threading.RLock":
        """The lock for driver calls on the block."""
        return self._owned.lock

    @override
    def _map(self, *, remappable: bool) -> None:
        owned = self._owned
        block = owned.memory.block
        if self._alias is None:
            self.mapped.append(Mapped(block, block.pointer))
            return
        with owned.lock:
            call_into(self.mapped, self._alias.map_readonly, block)

    @override
    def _unmap_at_vendor(self, mapped: Mapped) -> None:
        if self._alias is not None:
            with self._owned.lock:
                self._alias.unmap_readonly(mapped)
                self.mapped.clear()
        self.mapped.clear()

    @override
    def _close(self) -> None:
        self.ending += self.leases.values()
        self.leases.clear()
        self._end_leases()

    @override
    def _end_leases(self) -> None:
        self.end_reservations(self.ending)
        self.ending.clear()


def own_memory_gone(process: Process, handle: ShareableHandle) -> CrossmemError:
    """Return the error for memory that this process has freed or never exported."""
    server = process.server
    # A raw export enters the lease registry only when this process imports the raw handle. Before
    # that, the registry may wrongly report that the export never existed. So this function does not
    # ask the registry about raw handles.
    refusal = None
    if server is not None and handle.raw is None:
        refusal = server.leases.refusal_of(handle)
    if refusal is not None:
        return error_of(refusal, handle)
    msg = f"allocation {handle.allocation} of this process was freed"
    return StaleHandleError(msg, operation="import", hint=_HINT)
