# SPDX-License-Identifier: Apache-2.0
"""Optional groups of driver methods. A driver implements all of a group or none of it."""

from dataclasses import dataclass
from typing import Protocol, cast

from crossmem.driver.base import Block, Driver, Imported, Mapped, Reserved

__all__ = [
    "AddressRanges",
    "Foreign",
    "ForeignMemory",
    "ReadonlyAlias",
    "Witness",
    "address_ranges_of",
    "check_groups",
    "foreign_memory_of",
    "readonly_alias_of",
    "witness_of",
]


class ReadonlyAlias(Protocol):
    """A second, read-only mapping of memory that this process owns (law C8)."""

    def map_readonly(self, block: Block) -> Mapped:
        """Map a block read-only."""
        ...

    def unmap_readonly(self, mapped: Mapped) -> None:
        """Take that address away again."""
        ...


class AddressRanges(Protocol):
    """Addresses reserved first and given memory later.

    Core has checked that a place is free, on the granularity, and inside the range; that memory
    and range are of one device; and that a range never gets both blocks and imports. Memory may
    be mapped at several places, and in its usual one, at the same time.
    """

    def reserve(self, ordinal: int, nbytes: int) -> Reserved:
        """Reserve consecutive addresses, without memory.

        ``nbytes`` is a multiple of the granularity. Nothing else of the process gets addresses
        there before :meth:`release`.
        """
        ...

    def release(self, reserved: Reserved) -> None:
        """Give a whole range back, in which nothing is mapped."""
        ...

    def map_at(self, memory: Block | Imported, pointer: int) -> Mapped:
        """Map the whole capacity of memory at reserved addresses.

        An import keeps its access. It may have been mapped with ``remappable=False``; then that
        mapping still stands.
        """
        ...

    def unmap_at(self, mapped: Mapped) -> None:
        """Take memory away from reserved addresses, which stay reserved.

        Core has synchronised the device before (law C9).
        """
        ...


@dataclass(frozen=True, slots=True)
class Foreign:
    """What a vendor knows of the memory around an address, whoever allocated it.

    Parameters
    ----------
    base, nbytes
        Where the vendor's allocation around the address begins, and its size. No size where
        these bounds cannot be known; then there is an obstacle.
    exposed_base, exposed_nbytes
        What importers of an export of that allocation can reach: it, and where the vendor puts
        several allocations into one block, its neighbours.
    obstacle
        Why the mechanism cannot carry this memory, None where it can: the end of a sentence that
        begins with the memory, such as ``"is managed memory, which legacy IPC cannot carry"``.
    generation
        What differs where the memory was freed and something else was allocated at the address,
        None where the vendor knows nothing of that kind.
    """

    base: int = 0
    nbytes: int = 0
    exposed_base: int = 0
    exposed_nbytes: int = 0
    obstacle: str | None = None
    generation: int | None = None


class ForeignMemory(Protocol):
    """Memory that someone else allocated through the same vendor."""

    def inspect(self, ordinal: int, pointer: int, mechanism: str) -> Foreign:
        """Return what the vendor knows of the memory around an address, and change nothing.

        The address is positive and below 2**63; it may be anything, also nobody's. What the
        vendor does not know, or the mechanism cannot carry on this device, is an obstacle and no
        error: memory that is managed, pooled, virtual, imported, the host's or another device's.
        """
        ...

    def adopt(self, ordinal: int, foreign: Foreign, mechanism: str) -> Block:
        """Return a block that stands for memory without an obstacle, and take nothing.

        It begins at ``foreign.base``, and ``foreign.nbytes`` is both its size and its capacity,
        which need be no multiple of the granularity. What works on an allocated block works on
        it, but for :meth:`crossmem.driver.Driver.free` and pieces of address ranges. Core adopts
        a vendor's allocation once for each mechanism, however many parts of it are adopted.
        """
        ...

    def disown(self, block: Block) -> None:
        """End what :meth:`adopt` began, with every export released. It never frees the memory."""
        ...


class Witness(Protocol):
    """A strict emulation under the driver that notes each call which the vendor forbids."""

    def violations(self) -> list[str]:
        """Return a line for each forbidden call, by any process, the oldest first."""
        ...


_GROUPS: tuple[type, ...] = (ReadonlyAlias, AddressRanges, ForeignMemory, Witness)


def _methods(group: type) -> list[str]:
    return sorted(name for name in vars(group) if not name.startswith("_"))


def _offers(driver: Driver, group: type) -> bool:
    return all(callable(getattr(driver, name, None)) for name in _methods(group))


def address_ranges_of(driver: Driver) -> AddressRanges | None:
    """Return the driver as :class:`AddressRanges`, None where it does not offer the group."""
    return cast("AddressRanges", driver) if _offers(driver, AddressRanges) else None


def foreign_memory_of(driver: Driver) -> ForeignMemory | None:
    """Return the driver as :class:`ForeignMemory`, None where it does not offer the group."""
    return cast("ForeignMemory", driver) if _offers(driver, ForeignMemory) else None


def readonly_alias_of(driver: Driver) -> ReadonlyAlias | None:
    """Return the driver as a :class:`ReadonlyAlias`, None where it does not offer the group."""
    return cast("ReadonlyAlias", driver) if _offers(driver, ReadonlyAlias) else None


def witness_of(driver: Driver) -> Witness | None:
    """Return the driver as a :class:`Witness`, None where it does not offer the group."""
    return cast("Witness", driver) if _offers(driver, Witness) else None


def check_groups(driver: Driver) -> list[str]:
    """Return what is wrong with a driver's optional groups, one line for each fault.

    A group is wrong where a driver has some of its methods but not all, and where it has them and
    the group's capability says otherwise for every device and mechanism, or the other way round.
    """
    faults = []
    for group in _GROUPS:
        methods = _methods(group)
        missing = [name for name in methods if not callable(getattr(driver, name, None))]
        if missing and len(missing) < len(methods):
            faults.append(f"{group.__name__} is incomplete: {', '.join(missing)} missing")
    said = [
        driver.capabilities(device.ordinal, mechanism)
        for device in driver.devices()
        for mechanism in driver.capabilities(device.ordinal, None).mechanisms
    ]
    for says, group in (
        (any(one.address_ranges for one in said), AddressRanges),
        (any(one.foreign_memory for one in said), ForeignMemory),
    ):
        if says != _offers(driver, group):
            faults.append(f"the capabilities of the devices contradict {group.__name__}")
    return faults
