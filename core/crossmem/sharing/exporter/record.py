# SPDX-License-Identifier: Apache-2.0
"""The records of this process's memory, which outlive the objects that applications hold."""

import itertools
import threading
import warnings
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from crossmem.control.records import Unit
from crossmem.driver import Block, Driver, Exported
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError
from crossmem.locks import Rank, ordered_lock
from crossmem.models import Access, Event, EventKind, ShareableHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.process import CATCH_UP_S, Part, Process
from crossmem.sharing.base.usage import Usage

__all__ = ["AllocationRecord", "Allocations", "BlockRecord"]


class BlockRecord:
    """A block of a driver's, and what the vendor exported of it, each once."""

    __slots__ = ("blocks", "device", "exported", "lock")

    def __init__(self, device: LocalDevice, rank: Rank) -> None:
        self.device = device
        self.blocks: list[Block] = []
        """The block, until it was given back."""
        self.exported: dict[tuple[Access, bool], list[Exported]] = {}
        """By access and whether it is raw: one, from the moment the vendor has made it."""
        self.lock = ordered_lock(rank)
        """Held while the driver works on the block."""

    @property
    def block(self) -> Block:
        """The block, which is there."""
        return self.blocks[0]

    def find_export(self, access: Access, *, raw: bool) -> Exported | None:
        """Return what was exported before, None if nothing was."""
        made = self.exported.get((access, raw))
        return made[0] if made else None

    def export(self, access: Access, *, raw: bool) -> Exported:
        """Have the vendor export the block, once for each access. The lock is held."""
        made = self.exported.setdefault((access, raw), [])
        if not made:
            device = self.device
            export = partial(device.driver.export, raw=raw)
            call_into(made, export, self.blocks[0], device.mechanism, access)
        return made[0]

    def release_exports(self, block: Block) -> None:
        """End what the vendor exported. The lock is held."""
        driver = self.device.driver
        for made in self.exported.values():
            if made:
                driver.release_export(block, made[0])
                made.clear()


class AllocationRecord(Record):
    """The record of an allocation, from before the driver allocates until all is given back."""

    __slots__ = (
        "allocations",
        "device",
        "export_numbers",
        "handles",
        "is_retired",
        "loose_exports",
        "memory",
        "nbytes",
        "number",
        "pieces",
        "process",
        "unit",
        "usage",
    )

    is_adopted: ClassVar = False
    """Whether someone else allocated the memory."""
    _began: ClassVar = EventKind.ALLOCATED
    _ended: ClassVar = EventKind.FREED

    def __init__(self, process: Process, device: LocalDevice, memory: BlockRecord) -> None:
        self.is_done = False
        self.process = process
        self.allocations = process.part(Allocations)
        self.device = device
        self.memory = memory
        self.nbytes = 0
        """Size that was asked for, in bytes."""
        self.number = next(process.numbers)
        """Number of the vendor's allocation, in handles."""
        self.export_numbers = itertools.count()
        self.handles: dict[Any, ShareableHandle] = {}
        """Handles that were given out, by the arguments of the export."""
        self.unit: Unit | None = None
        """What the lease registry knows of the memory, None before its first leased export."""
        self.is_retired = False
        """Whether it was freed, and perhaps waits for leases."""
        self.pieces: set[object] = set()
        """Pieces of address ranges that were mapped through the allocation."""
        self.usage = Usage()
        self.loose_exports: set[tuple[int, int]] = set()
        """Exports of which no handle is given out any more, or yet: those that were withdrawn, as
        long as somebody may have them, and those that were interrupted."""

    @property
    def lock(self) -> "threading.RLock":
        """Held while the driver works on the block."""
        return self.memory.lock

    @property
    def source(self) -> Block:
        """The block, for an address range to show."""
        return self.memory.block

    @property
    def offset(self) -> int:
        """Where the memory begins in the driver's block."""
        return 0

    def obtain(self, nbytes: int) -> None:
        """Allocate the memory."""
        device = self.device
        block = call_into(
            self.memory.blocks, device.driver.allocate, device.ordinal, nbytes, device.mechanism
        )
        self.nbytes = block.nbytes
        self.process.regions.add(self, block.pointer, block.capacity, device.driver)
        self.enter()

    def enter(self) -> None:
        """Enter the memory into the records of the process."""
        self.allocations.live[self] = None
        if self.process.registry.observed:
            self.tell(self._began)

    def describe(self) -> str:
        """Return why the memory cannot be adopted."""
        if self.is_retired:
            return f"is allocation {self.number} of crossmem, which was freed"
        return f"is allocation {self.number} of crossmem: export that"

    def tell(self, kind: EventKind) -> None:
        """Send an event about this allocation."""
        self.process.registry.emit(
            Event(
                kind,
                backend=self.device.backend,
                device=self.device.identity,
                allocation=self.number,
                nbytes=self.nbytes,
                owner_pid=self.process.identity.pid,
            )
        )

    def unit_for_leases(self) -> Unit:
        """Return the unit of the lease registry, made at the first call."""
        unit = self.unit
        if unit is None:
            block, driver = self.memory.block, self.device.driver
            grant = None
            if type(driver).grant is not Driver.grant:
                grant = lambda export, peer: driver.grant(block, export.exported, (peer,))  # noqa: E731
            self.unit = unit = Unit(self.number, grant, self._on_idle)
        return unit

    def _on_idle(self) -> None:
        """Note that the last lease has ended. Called by the lease server's thread."""
        self.process.deferred.note_idle(self)

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Free the memory if nobody leases it; else note that it waits.

        The device's running work is waited for first: no vendor promises that freeing does.
        """
        process, unit = self.process, self.unit
        if self.is_done:
            return
        self.is_retired = True
        if unit is not None and process.server is not None:
            waiting = process.deferred.waiting
            leases = process.server.leases
            is_idle = leases.retire(unit, even_if_leased=True)
            if not is_idle and blocking and unit.pins:
                # The server's thread is about to finish what an importer has received.
                process.server.catch_up(CATCH_UP_S)
                is_idle = leases.retire(unit, even_if_leased=True)
            if not is_idle:
                waiting.add(self)
                process.deferred.start_reaper()
                return
        self.free_now(blocking=blocking)
        if self.is_done:
            # Not before: nobody else may know of memory that another thread works on, or that the
            # vendor does not take back now.
            process.deferred.waiting.discard(self)

    def free_now(self, *, blocking: bool) -> None:
        """Give the memory back, whoever leases it."""
        taken: list[bool] = []
        failure = None
        lock = self.memory.lock
        try:
            call_into(taken, lock.acquire, blocking)
            if not taken[0] or self.is_done:
                return
            failure = self._release()
        finally:
            if taken and taken[0]:
                lock.release()
        if self.nbytes and self.process.registry.observed:
            self.tell(self._ended)
        if failure is not None:
            raise failure

    def _release(self) -> CrossmemError | None:
        """Give the memory back, and return what the vendor says of the work before it.

        The lock is held.
        """
        failure = None
        blocks = self.memory.blocks
        if blocks:
            failure = wait_for_work(self.device)
            if self.memory.exported:
                self.memory.release_exports(blocks[0])
            self.device.driver.free(blocks[0])
            blocks.clear()
        self._leave()
        return failure

    def _leave(self) -> None:
        """Leave the records of the process. The lock is held."""
        allocations = self.allocations
        self.process.regions.remove(self)
        for handle in self.handles.values():
            allocations.exported.pop((handle.allocation, handle.export), None)
        for export in self.loose_exports:
            allocations.exported.pop(export, None)
        allocations.live.pop(self, None)
        unit, self.unit = self.unit, None
        if unit is not None:
            # Unit and exports name each other. This record is freed without the garbage collector.
            unit.exports.clear()
        self.is_done = True

    def free_at_exit(self) -> None:
        """Give the memory back at a normal exit, whoever holds it then.

        Memory that is viewed or copied at this moment is left to the end of the process. So is
        memory that others hold, if a vendor's call would take it from them (law C20).
        """
        if self.usage.is_active:
            return
        try:
            if self.device.capabilities.survives_owner or not self._is_leased:
                self.free_now(blocking=False)
        except CrossmemError as error:
            warnings.warn(f"at exit: {error}", ResourceWarning, stacklevel=1)

    @property
    def _is_leased(self) -> bool:
        # A message that is still under way leads nowhere once this process has exited.
        server, unit = self.process.server, self.unit
        return server is not None and unit is not None and not server.leases.cut_off(unit)


class Allocations(Part):
    """The memory of this process that was not given back yet, and its exports."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.live: dict[AllocationRecord, None] = {}
        self.exported: dict[tuple[int, int], AllocationRecord] = {}
        """By the numbers of allocation and export."""

    def find(self, handle: ShareableHandle) -> AllocationRecord | None:
        """Return the memory of this process that a handle names, None if it was given back."""
        return self.exported.get((handle.allocation, handle.export))

    @override
    def close_at_exit(self) -> None:
        """Give everything back."""
        for record in list(self.live):
            record.free_at_exit()
