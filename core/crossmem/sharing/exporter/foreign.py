# SPDX-License-Identifier: Apache-2.0
"""Memory that someone else allocated: what is known of it, and which of it is adopted."""

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
    """Return an address of device memory, else raise.

    Raises
    ------
    ConfigurationError
        Where the value is no number, or none that an address can be.
    """
    if hasattr(value, "__index__") and not isinstance(value, bool):
        pointer = check_integer(name, value)
        if 0 < pointer <= MAX_ADDRESS:
            return pointer
    msg = f"{name} is {shorten(value)}; it must be an address of device memory, as an integer"
    raise ConfigurationError(msg)


def look_at(process: Process, device: LocalDevice, pointer: int) -> Foreign:
    """Return what is known of the memory around an address, and why it cannot be adopted.

    What crossmem itself has there is never asked of the vendor.

    Raises
    ------
    DriverError
        Where the vendor's call failed, or the driver's answer cannot be.
    """
    mine = process.regions.find(device.driver, pointer, pointer + 1)
    obstacle = None if mine is None else mine.describe()
    driver = foreign_memory_of(device.driver)
    if obstacle is None and (driver is None or not device.capabilities.foreign_memory):
        obstacle = (
            f"cannot be adopted: mechanism {device.mechanism!r} does not offer it "
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
    """One allocation of the vendor's in which memory is adopted, however often.

    Attributes
    ----------
    number
        Stands for the allocation in handles; each adoption is an export of it.
    foreign
        What the vendor said of the memory when it was adopted.
    users
        The records of its adoptions.
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
        """Have the driver make a block that stands for the memory."""
        device = self.device
        call_into(self.blocks, self._group.adopt, device.ordinal, self.foreign, device.mechanism)

    def disown(self) -> None:
        """Give the block up. If this raises, call it again.

        The lock of the foreign allocations is held, and nobody uses this one. Its own lock comes
        before that, so it is not taken here.
        """
        if self.blocks:
            self.release_exports(self.blocks[0])
            self._group.disown(self.blocks[0])
            self.blocks.clear()

    def is_still(self, foreign: Foreign) -> bool:
        """Whether the vendor has the same allocation there as when it was adopted."""
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
        """Make the one record of a vendor's allocation the memory of one more adoption.

        Raises
        ------
        BusyError
            Memory at these addresses is adopted that is no longer there.
        CrossmemError
            The driver cannot adopt it, or not yet give up what was adopted there before.
        """
        space = (device.driver, device.ordinal, device.mechanism)
        end = foreign.base + foreign.nbytes
        with self._lock:
            while (known := self._known.find(space, foreign.base, end)) is not None:
                if known.users and not known.is_still(foreign):
                    raise _replaced(known, device, foreign)
                if known.users:
                    break
                self._end(known)
            if known is None:
                group = foreign_memory_of(device.driver)
                assert group is not None  # noqa: S101 - look_at has asked it
                known = ForeignAllocation(next(self._process.numbers), device, foreign, group)
                try:
                    self._known.add(known, foreign.base, foreign.nbytes, space)
                    known.adopt()
                except BaseException:
                    self._end(known)
                    raise
            # The record knows its memory when the memory knows the record.
            user.memory = known
            known.users.add(user)

    def leave(self, user: AllocationRecord) -> None:
        """Remove an adoption; the last one gives the block up. If this raises, call it again."""
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
        hint="free the adoptions of the old memory first, and keep memory while it is adopted",
    )
