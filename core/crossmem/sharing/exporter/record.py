# SPDX-License-Identifier: Apache-2.0
"""The records of this process's memory. They outlive the ``Allocation`` objects of applications."""

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
    """A block of the driver, and the vendor's exports of the block.

    The vendor makes each kind of export once.
    """

    __slots__ = ("blocks", "device", "exported", "lock")

    def __init__(self, device: LocalDevice, rank: Rank) -> None:
        self.device = device
        self.blocks: list[Block] = []
        """A list with the block, or an empty list before and after the block's life."""
        self.exported: dict[tuple[Access, bool], list[Exported]] = {}
        """For each kind of export, a list with the vendor's export. The list is empty while the
        export does not exist. A key names the access and says whether the export is raw."""
        self.lock = ordered_lock(rank)
        """Held during driver calls on the block."""

    @property
    def block(self) -> Block:
        """The block. It must exist."""
        return self.blocks[0]

    def find_export(self, access: Access, *, raw: bool) -> Exported | None:
        """Return the vendor's export, or None if the vendor has not made it yet."""
        made = self.exported.get((access, raw))
        return made[0] if made else None

    def export(self, access: Access, *, raw: bool) -> Exported:
        """Return the vendor's export of one kind. The first call for the kind makes the export.

        The caller holds the lock.
        """
        made = self.exported.setdefault((access, raw), [])
        if not made:
            device = self.device
            export = partial(device.driver.export, raw=raw)
            call_into(made, export, self.blocks[0], device.mechanism, access)
        return made[0]

    def release_exports(self, block: Block) -> None:
        """Release the vendor's exports.

        The caller holds the lock, or no other thread uses the block.
        """
        driver = self.device.driver
        for made in self.exported.values():
            if made:
                driver.release_export(block, made[0])
                made.clear()


class AllocationRecord(Record):
    """The record of an allocation: made before the driver allocates, kept until the release."""

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
    """Whether another library allocated the memory."""
    _began: ClassVar = EventKind.ALLOCATED
    _ended: ClassVar = EventKind.FREED

    def __init__(self, process: Process, device: LocalDevice, memory: BlockRecord) -> None:
        self.is_done = False
        self.process = process
        self.allocations = process.part(Allocations)
        self.device = device
        self.memory = memory
        self.nbytes = 0
        """Requested size, in bytes."""
        self.number = next(process.numbers)
        """The allocation's number in handles. All adoptions of memory in one allocation of the
        vendor have the same number."""
        self.export_numbers = itertools.count()
        self.handles: dict[Any, ShareableHandle] = {}
        """The handles that were returned and not withdrawn. A key has the arguments of the export.
        If the call did not wait for the device, the key also has the word "early"."""
        self.unit: Unit | None = None
        """The memory's unit in the lease registry. The first export that can have leases makes it.
        None before that export, and after the release of the memory."""
        self.is_retired = False
        """Whether the application has freed the memory. Leases may still keep the memory."""
        self.pieces: set[object] = set()
        """Pieces of address ranges that map the allocation."""
        self.usage = Usage()
        self.loose_exports: set[tuple[int, int]] = set()
        """Exports that ``handles`` does not name: withdrawn exports that may still have holders,
        and exports whose call of :meth:`Allocation.export` is running or was interrupted."""

    @property
    def lock(self) -> "threading.RLock":
        """Held during driver calls on the block."""
        return self.memory.lock

    @property
    def source(self) -> Block:
        """The block that a piece of an address range maps."""
        return self.memory.block

    @property
    def offset(self) -> int:
        """Offset of the memory in the driver's block."""
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
        """Add the memory to the records of the process."""
        self.allocations.live[self] = None
        if self.process.registry.observed:
            self.tell(self._began)

    def describe(self) -> str:
        """Return the reason why the memory cannot be adopted."""
        if self.is_retired:
            return f"belongs to allocation {self.number} of crossmem, which was freed"
        return f"belongs to allocation {self.number} of crossmem: export that allocation"

    def tell(self, kind: EventKind) -> None:
        """Emit an event about this allocation."""
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
        """Return the memory's unit in the lease registry. The first call makes the unit."""
        unit = self.unit
        if unit is None:
            block, driver = self.memory.block, self.device.driver
            grant = None
            if type(driver).grant is not Driver.grant:
                grant = lambda export, peer: driver.grant(block, export.exported, (peer,))  # noqa: E731
            self.unit = unit = Unit(self.number, grant, self._on_idle)
        return unit

    def _on_idle(self) -> None:
        """Queue the freed memory for its release, because its last lease has ended.

        Any thread may call this method.
        """
        self.process.deferred.note_idle(self)

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Free the memory if it has no leases. Otherwise, the reaper frees it after the last lease.

        This method first waits for the device's running work, because some vendors do not promise
        that their free function waits for the work.
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
                # The server's thread pins memory while it answers a request. The pin may end while
                # this thread waits for the server.
                process.server.catch_up(CATCH_UP_S)
                is_idle = leases.retire(unit, even_if_leased=True)
            if not is_idle:
                waiting.add(self)
                process.deferred.start_reaper()
                return
        self.free_now(blocking=blocking)
        if self.is_done:
            # Memory that the vendor refuses to free now, or that another thread is freeing, must
            # stay in the waiting set.
            process.deferred.waiting.discard(self)

    def free_now(self, *, blocking: bool) -> None:
        """Free the memory, even if leases remain.

        With ``blocking=False``, return at once if another thread holds the lock.
        """
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
        """Wait for the device's work, and free the memory. Return the error of failed work.

        The caller holds the lock.
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
        """Remove the memory from the records of the process. The caller holds the lock."""
        allocations = self.allocations
        self.process.regions.remove(self)
        for handle in self.handles.values():
            allocations.exported.pop((handle.allocation, handle.export), None)
        for export in self.loose_exports:
            allocations.exported.pop(export, None)
        allocations.live.pop(self, None)
        unit, server = self.unit, self.process.server
        if unit is not None:
            if not unit.is_retired and server is not None:
                # give_back() has not retired the unit, for one of two reasons. Another thread may
                # have made the unit after give_back() had looked for a unit; the call of export()
                # in that thread raises. Or free_at_exit() frees the memory without give_back().
                server.leases.retire(unit, even_if_leased=False)
            self.unit = None
            # The unit and its exports refer to each other. This statement breaks the cycle.
            unit.exports.clear()
        self.is_done = True

    def free_at_exit(self) -> None:
        """Free the memory at a normal exit, with two exceptions.

        Memory with a view, a running copy or a piece of an address range stays until the end of the
        process. Leased memory also stays if the capability ``survives_owner`` is false (law C20).
        If it is true, importers can use the memory after the owner has freed it.
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
        # Reservations of messages do not count: after the owner's exit, no process can receive the
        # memory that a message reserves.
        server, unit = self.process.server, self.unit
        return server is not None and unit is not None and not server.leases.cut_off(unit)


class Allocations(Part):
    """The memory of this process that is not released yet, and its exports."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.live: dict[AllocationRecord, None] = {}
        self.exported: dict[tuple[int, int], AllocationRecord] = {}
        """The records of exported memory, by the numbers of the allocation and of the export."""

    def find(self, handle: ShareableHandle) -> AllocationRecord | None:
        """Return the record of a handle's memory, or None if there is no such record.

        Freed memory keeps its record until its last lease has ended.
        """
        return self.exported.get((handle.allocation, handle.export))

    @override
    def close_at_exit(self) -> None:
        """Free all memory, with the exceptions of :meth:`AllocationRecord.free_at_exit`."""
        for record in list(self.live):
            record.free_at_exit()
