# SPDX-License-Identifier: Apache-2.0
"""Memory of other libraries: the driver's report about an address, and the adoptions."""

import itertools
from typing import Final

from crossmem.driver import Foreign, ForeignMemory, foreign_memory_of
from crossmem.driver.recording import call_into
from crossmem.errors import BusyError, ConfigurationError, DriverError
from crossmem.guards import check_integer, shorten
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.base.regions import RegionIndex
from crossmem.sharing.exporter.record import AllocationRecord, BlockRecord

__all__ = ["MAX_ADDRESS", "ForeignAllocation", "ForeignAllocations", "check_address", "look_at"]

MAX_ADDRESS: Final = (1 << 63) - 1


def check_address(name: str, value: object) -> int:
    """Check an address of device memory and return it.

    Raises
    ------
    ConfigurationError
        The value is not an integer, or is out of the range of addresses.
    """
    if hasattr(value, "__index__") and not isinstance(value, bool):
        pointer = check_integer(name, value)
        if 0 < pointer <= MAX_ADDRESS:
            return pointer
    msg = f"{name} is {shorten(value)}; it must be an address of device memory, as an integer"
    raise ConfigurationError(msg)


def look_at(process: Process, device: LocalDevice, pointer: int) -> Foreign:
    """Return a report about the memory at an address, with any obstacle to an adoption.

    The driver makes the report, with two exceptions. If crossmem itself allocated or imported the
    memory, or if the device does not offer adoptions, the report contains only the obstacle.

    Raises
    ------
    DriverError
        The vendor's call failed, or the driver's answer contradicts itself.
    """
    mine = process.regions.find(device.driver, pointer, pointer + 1)
    obstacle = None if mine is None else mine.describe()
    driver = foreign_memory_of(device.driver)
    if obstacle is None and (driver is None or not device.capabilities.foreign_memory):
        obstacle = (
            f"cannot be adopted: mechanism {device.mechanism!r} does not offer adoptions "
            "(capability foreign_memory)"
        )
    if obstacle is not None or driver is None:
        return Foreign(obstacle=obstacle)
    foreign = driver.inspect(device.ordinal, pointer, device.mechanism)
    if foreign.obstacle is None and not _is_possible(foreign, pointer):
        msg = f"the driver of {device.name} describes {pointer:#x} wrongly: {shorten(foreign)}"
        raise DriverError(msg, operation="adopt", backend=device.backend)
    return foreign


def _is_possible(foreign: Foreign, pointer: int) -> bool:
    end, exposed_end = (
        foreign.base + foreign.nbytes,
        foreign.exposed_base + foreign.exposed_nbytes,
    )
    return foreign.exposed_base <= foreign.base <= pointer < end <= exposed_end


class ForeignAllocation(BlockRecord):
    """One allocation of the vendor, in which this process has one or several adoptions.

    Attributes
    ----------
    number
        Number by which handles refer to the allocation.
    foreign
        The driver's report about the memory at the time of the first adoption.
    users
        The records of the adoptions in this allocation.
    """

    __slots__ = ("_group", "export_numbers", "foreign", "number", "users")

    def __init__(
        self, number: int, device: LocalDevice, foreign: Foreign, group: ForeignMemory
    ) -> None:
        super().__init__(device, Rank.ALLOCATION)
        self.number = number
        self.export_numbers = itertools.count()
        self.foreign = foreign
        self.users: set[object] = set()
        self._group = group

    def adopt(self) -> None:
        """Let the driver make a block that stands for the memory."""
        device = self.device
        call_into(self.blocks, self._group.adopt, device.ordinal, self.foreign, device.mechanism)

    def disown(self) -> None:
        """Let the driver forget the block, after the end of the last adoption.

        The caller holds the lock of :class:`ForeignAllocations`. A thread that holds this lock must
        not take a block's lock, so this method works without the block's lock.
        """
        if self.blocks:
            self.release_exports(self.blocks[0])
            self._group.disown(self.blocks[0])
            self.blocks.clear()

    def is_still(self, foreign: Foreign) -> bool:
        """Return whether a later report of the driver describes the same allocation."""
        then = self.foreign
        return (then.base, then.nbytes, then.generation) == (
            foreign.base,
            foreign.nbytes,
            foreign.generation,
        )


class ForeignAllocations(Part):
    """The vendor's allocations in which this process has adopted memory."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._lock = ordered_lock(Rank.FOREIGN)
        self._known: RegionIndex[ForeignAllocation] = RegionIndex(process.index_lock)

    def enter(self, device: LocalDevice, foreign: Foreign, user: AllocationRecord) -> None:
        """Add an adoption to the record of the vendor's allocation.

        The first adoption makes the record.

        Raises
        ------
        BusyError
            Memory at these addresses was freed before the end of its adoption, and the vendor now
            has other memory there.
        CrossmemError
            The driver cannot adopt the memory, or cannot yet disown an earlier block.
        """
        space = (device.driver, device.ordinal, device.mechanism)
        end = foreign.base + foreign.nbytes
        with self._lock:
            while True:
                known = self._known.find(space, foreign.base, end)
                if known is None:
                    break
                if known.users and not known.is_still(foreign):
                    raise _replaced(known, device, foreign)
                if known.users:
                    break
                self._end(known)
            if known is None:
                group = foreign_memory_of(device.driver)
                assert group is not None  # noqa: S101 - look_at() has checked that
                known = ForeignAllocation(next(self._process.numbers), device, foreign, group)
                try:
                    self._known.add(known, foreign.base, foreign.nbytes, space)
                    known.adopt()
                except BaseException:
                    self._end(known)
                    raise
            # No signal handler runs between these statements, so the two references are set
            # together.
            user.memory = known
            known.users.add(user)

    def leave(self, user: AllocationRecord) -> None:
        """Remove an adoption. If no adoption remains, let the driver disown the block.

        If this method raises, a second call completes the removal.
        """
        known = user.memory
        if not isinstance(known, ForeignAllocation):
            return
        with self._lock:
            known.users.discard(user)
            if not known.users:
                self._end(known)

    def _end(self, known: ForeignAllocation) -> None:
        known.disown()
        self._known.remove(known)


def _replaced(known: ForeignAllocation, device: LocalDevice, foreign: Foreign) -> BusyError:
    then = known.foreign
    return BusyError(
        f"{then.nbytes} bytes at {then.base:#x} were freed while they were adopted; the vendor now "
        f"has other memory there, {foreign.nbytes} bytes at {foreign.base:#x}",
        operation="adopt",
        backend=device.backend,
        hint="free the adoptions of the old memory; end all adoptions of memory before you free it",
    )
