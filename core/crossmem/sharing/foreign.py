# SPDX-License-Identifier: Apache-2.0
"""Memory that someone else allocated: what is known of it, and which of it is adopted."""

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from crossmem.driver import (
    Block,
    Driver,
    Exported,
    Foreign,
    ForeignMemory,
    foreign_memory_of,
)
from crossmem.errors import BusyError, ConfigurationError, DriverError
from crossmem.guards import check_integer
from crossmem.models import Access

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.process import Process

__all__ = ["MAX_ADDRESS", "Ground", "GroundTable", "check_address", "look_at"]

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
    msg = f"{name} is {value!r}; it must be an address of device memory, as a number"
    raise ConfigurationError(msg)


def look_at(process: "Process", device: "Device", pointer: int) -> Foreign:
    """Return what is known of the memory around an address, and why it cannot be adopted.

    What crossmem itself has there is never asked of the vendor.

    Raises
    ------
    DriverError
        Where the vendor's call failed, or the driver's answer cannot be.
    """
    obstacle = _own_use_of(process, device, pointer)
    driver = foreign_memory_of(device.driver)
    if obstacle is None and (driver is None or not device.capabilities.foreign_memory):
        obstacle = (
            f"cannot be adopted: mechanism {device.mechanism!r} does not offer that here "
            "(capability foreign_memory)"
        )
    if obstacle is not None or driver is None:
        return Foreign(obstacle=obstacle)
    foreign = driver.inspect(device.ordinal, pointer, device.mechanism)
    if foreign.obstacle is None and not _is_possible(foreign, pointer):
        msg = f"the driver of {device.name} says {foreign} of address {pointer:#x}"
        raise DriverError(msg, operation="adopt", backend=device.backend)
    return foreign


def _is_possible(foreign: Foreign, pointer: int) -> bool:
    end, exposed_end = (
        foreign.base + foreign.nbytes,
        foreign.exposed_base + foreign.exposed_nbytes,
    )
    return foreign.exposed_base <= foreign.base <= pointer < end <= exposed_end


def _own_use_of(process: "Process", device: "Device", pointer: int) -> str | None:
    """Return what crossmem itself has at an address, None where that is nothing."""
    driver = device.driver
    for owned in list(process.owned.values()):
        block = owned.block
        if owned.is_adopted or owned.device.driver is not driver:
            continue
        if block.pointer <= pointer < block.pointer + block.capacity:
            if owned.is_retired:
                return f"is allocation {owned.number} of crossmem, which was freed"
            return f"is allocation {owned.number} of crossmem: export that"
    pid = process.imports.openings.owner_at(driver, pointer)
    if pid is not None:
        return f"was imported from process {pid}: pass its handle on"
    for reservation in list(process.ranges.values()):
        first = reservation.pointer
        if reservation.device.driver is driver and first <= pointer < first + reservation.nbytes:
            return "is in an address range of crossmem: export what is mapped there"
    return None


@dataclass(slots=True, eq=False)
class Ground:
    """One allocation of the vendor's in which memory is adopted, however often.

    Parameters
    ----------
    driver
        The driver that made the block.
    foreign
        What offered the memory.
    mechanism
        How it is shared.
    block
        What the driver works on.
    generation
        What the vendor tells apart allocations at one address by, None where it does not.
    exported
        What was exported of it, by access and whether it is raw: each once for all adoptions.
    users
        Numbers of the adoptions.
    lock
        Held while the driver works on the block.
    """

    driver: Driver
    foreign: ForeignMemory
    mechanism: str
    block: Block
    generation: int | None
    exported: dict[tuple[Access, bool], Exported] = field(default_factory=dict)
    users: set[int] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def is_still(self, foreign: Foreign) -> bool:
        """Whether the vendor has the same allocation there as when it was adopted."""
        now = (foreign.base, foreign.nbytes, foreign.generation)
        return (self.block.pointer, self.block.nbytes, self.generation) == now

    def overlaps(self, driver: Driver, ordinal: int, mechanism: str, foreign: Foreign) -> bool:
        """Whether memory of that place is part of this."""
        block = self.block
        return (
            (self.driver, block.ordinal, self.mechanism) == (driver, ordinal, mechanism)
            and block.pointer < foreign.base + foreign.nbytes
            and foreign.base < block.pointer + block.nbytes
        )


class GroundTable:
    """The vendor's allocations in which this process has adopted memory."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while a driver adopts memory or gives it up."""
        self._grounds: list[Ground] = []

    def enter(self, device: "Device", foreign: Foreign, number: int) -> Ground:
        """Return the one record of a vendor's allocation, with one more user.

        Raises
        ------
        BusyError
            Where memory at these addresses is adopted that is no longer there.
        CrossmemError
            Where the driver cannot adopt it, or not yet give up what was adopted there before.
        """
        driver, mechanism = device.driver, device.mechanism
        with self.lock:
            for ground in list(self._grounds):
                if not ground.overlaps(driver, device.ordinal, mechanism, foreign):
                    continue
                if not ground.users:
                    self._end(ground)
                elif ground.is_still(foreign):
                    ground.users.add(number)
                    return ground
                else:
                    block = ground.block
                    msg = (
                        f"{block.nbytes} bytes at {block.pointer:#x} are adopted, and the vendor "
                        f"now has other memory there, {foreign.nbytes} bytes at "
                        f"{foreign.base:#x}: somebody freed the memory although its owner lives"
                    )
                    raise BusyError(
                        msg,
                        operation="adopt",
                        backend=device.backend,
                        hint="give up its adoptions first, as owners promise to keep the memory",
                    )
            group = foreign_memory_of(driver)
            assert group is not None  # noqa: S101 - look_at has asked it
            block = group.adopt(device.ordinal, foreign, mechanism)
            ground = Ground(driver, group, mechanism, block, foreign.generation)
            ground.users.add(number)
            self._grounds.append(ground)
            return ground

    def leave(self, ground: Ground, number: int) -> None:
        """Count a user less; the last one gives the block up. Where it raises, call it again."""
        with self.lock:
            ground.users.discard(number)
            if not ground.users and ground in self._grounds:
                self._end(ground)

    def _end(self, ground: Ground) -> None:
        while ground.exported:
            key, exported = next(iter(ground.exported.items()))
            ground.driver.release_export(ground.block, exported)
            del ground.exported[key]
        ground.foreign.disown(ground.block)
        self._grounds.remove(ground)
