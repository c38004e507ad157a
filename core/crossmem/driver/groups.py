# SPDX-License-Identifier: Apache-2.0
"""Optional groups of driver methods. A driver implements all of a group or none of it."""

from dataclasses import dataclass
from typing import Protocol, cast

from crossmem.driver.base import Block, Driver, Imported, Mapped, Reserved
from crossmem.driver.queues import VendorQueues
from crossmem.driver.streams import StreamEvents, Streams, StreamWords, StreamWork

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
    "stream_events_of",
    "stream_words_of",
    "stream_work_of",
    "streams_of",
    "vendor_queues_of",
    "witness_of",
]


class ReadonlyAlias(Protocol):
    """A second, read-only mapping of memory that this process owns (law C8)."""

    def map_readonly(self, block: Block) -> Mapped:
        """Map a block read-only."""
        ...

    def unmap_readonly(self, mapped: Mapped) -> None:
        """Unmap the read-only mapping."""
        ...


class AddressRanges(Protocol):
    """Address ranges that are reserved first and mapped later.

    Before crossmem's core maps memory, it checks that the addresses are free, aligned to the
    granularity, and inside one range. The memory and the range belong to one device. Core maps
    either blocks or imports in one range, never both. Core can map the same memory several times,
    in one range or in several ranges. If the memory also has a mapping from
    :meth:`crossmem.driver.Driver.allocate` or :meth:`crossmem.driver.Driver.map`, that mapping
    stays valid.
    """

    def reserve(self, ordinal: int, nbytes: int) -> Reserved:
        """Reserve consecutive addresses, without memory.

        ``nbytes`` is a multiple of the granularity. The process gets no other mapping at these
        addresses before :meth:`release`.
        """
        ...

    def release(self, reserved: Reserved) -> None:
        """Release a whole range, in which nothing is mapped."""
        ...

    def map_at(self, memory: Block | Imported, pointer: int) -> Mapped:
        """Map the whole capacity of memory at reserved addresses.

        The mapping of an import has the import's access. If core has called
        :meth:`crossmem.driver.Driver.map` with ``remappable=False`` for the import, core has not
        yet unmapped the mapping of that call.
        """
        ...

    def unmap_at(self, mapped: Mapped) -> None:
        """Unmap memory from reserved addresses, which stay reserved.

        Core synchronises the device before it calls this method (law C9).
        """
        ...


@dataclass(frozen=True, slots=True)
class Foreign:
    """The vendor's information about the memory around an address.

    Any library may have allocated this memory.

    Parameters
    ----------
    base, nbytes
        Start and size of the vendor's allocation around the address. If these bounds are unknown,
        the size is 0 and ``obstacle`` is set.
    exposed_base, exposed_nbytes
        Start and size of the memory that importers of that allocation can access. If the vendor
        puts several allocations into one block, this memory contains the allocation's neighbours.
    obstacle
        The reason for which the mechanism cannot share this memory. None if the mechanism can share
        the memory. The text is the predicate of a sentence about the memory, such as ``"is managed
        memory, which legacy IPC cannot carry"``.
    generation
        A number that changes if the memory is freed and the address is allocated again; None if the
        vendor has no such number.
    """

    base: int = 0
    nbytes: int = 0
    exposed_base: int = 0
    exposed_nbytes: int = 0
    obstacle: str | None = None
    generation: int | None = None


class ForeignMemory(Protocol):
    """Memory that another library allocated through the same vendor."""

    def inspect(self, ordinal: int, pointer: int, mechanism: str) -> Foreign:
        """Return the vendor's information about the memory around an address; change nothing.

        The address is positive and below 2**63, and may be invalid. If the vendor does not know the
        memory, or if the mechanism cannot share it on this device, the method does not raise: the
        result has an obstacle. For example, managed memory, memory of the host and memory of
        another device cannot be shared. Some mechanisms also cannot share pooled, virtual or
        imported memory.
        """
        ...

    def adopt(self, ordinal: int, foreign: Foreign, mechanism: str) -> Block:
        """Return a block for memory whose ``obstacle`` is None.

        Another library still owns the memory. The block begins at ``foreign.base``.
        ``foreign.nbytes`` is both its size and its capacity, which need not be a multiple of the
        granularity. Core uses the block like an allocated one, but never passes it to
        :meth:`crossmem.driver.Driver.free` or ``map_at``. Core adopts a vendor's allocation once
        for each mechanism, even if the application adopts several parts of the allocation.
        """
        ...

    def disown(self, block: Block) -> None:
        """Undo :meth:`adopt`, after the release of every export. The memory is not freed."""
        ...


class Witness(Protocol):
    """A driver of a strict emulation. The emulation records each call that the vendor forbids."""

    def violations(self) -> list[str]:
        """Return one line for each forbidden call of any process, in the order of the calls."""
        ...


_GROUPS: tuple[type, ...] = (
    ReadonlyAlias,
    AddressRanges,
    ForeignMemory,
    Streams,
    StreamWords,
    StreamEvents,
    StreamWork,
    VendorQueues,
    Witness,
)


def _methods(group: type) -> list[str]:
    return sorted(name for name in vars(group) if not name.startswith("_"))


def _offers(driver: Driver, group: type) -> bool:
    return all(callable(getattr(driver, name, None)) for name in _methods(group))


def address_ranges_of(driver: Driver) -> AddressRanges | None:
    """Return the driver as :class:`AddressRanges`, or None if it does not offer the group."""
    return cast("AddressRanges", driver) if _offers(driver, AddressRanges) else None


def foreign_memory_of(driver: Driver) -> ForeignMemory | None:
    """Return the driver as :class:`ForeignMemory`, or None if it does not offer the group."""
    return cast("ForeignMemory", driver) if _offers(driver, ForeignMemory) else None


def readonly_alias_of(driver: Driver) -> ReadonlyAlias | None:
    """Return the driver as a :class:`ReadonlyAlias`, or None if it does not offer the group."""
    return cast("ReadonlyAlias", driver) if _offers(driver, ReadonlyAlias) else None


def streams_of(driver: Driver) -> Streams | None:
    """Return the driver as :class:`Streams`, or None if its devices have no streams."""
    return cast("Streams", driver) if _offers(driver, Streams) else None


def stream_words_of(driver: Driver) -> StreamWords | None:
    """Return the driver as :class:`StreamWords`, or None if it does not offer the group."""
    return cast("StreamWords", driver) if _offers(driver, StreamWords) else None


def stream_events_of(driver: Driver) -> StreamEvents | None:
    """Return the driver as :class:`StreamEvents`, or None if it does not offer the group."""
    return cast("StreamEvents", driver) if _offers(driver, StreamEvents) else None


def stream_work_of(driver: Driver) -> StreamWork | None:
    """Return the driver as :class:`StreamWork`, or None if it does not offer the group."""
    return cast("StreamWork", driver) if _offers(driver, StreamWork) else None


def vendor_queues_of(driver: Driver) -> VendorQueues | None:
    """Return the driver as :class:`VendorQueues`, or None if it does not offer the group."""
    return cast("VendorQueues", driver) if _offers(driver, VendorQueues) else None


def witness_of(driver: Driver) -> Witness | None:
    """Return the driver as a :class:`Witness`, or None if it does not offer the group."""
    return cast("Witness", driver) if _offers(driver, Witness) else None


def check_groups(driver: Driver) -> list[str]:
    """Return the faults of a driver's optional groups, one line for each.

    A driver must have all methods of a group or none. Some groups belong to a capability: if a
    device of the driver has the capability, the driver must offer the group. If no device has the
    capability, the driver must not offer the group.
    """
    faults = []
    for group in _GROUPS:
        methods = _methods(group)
        missing = [name for name in methods if not callable(getattr(driver, name, None))]
        if missing and len(missing) < len(methods):
            faults.append(f"{group.__name__} is incomplete: the driver lacks {', '.join(missing)}")
    said = [
        driver.capabilities(device.ordinal, mechanism)
        for device in driver.devices()
        for mechanism in driver.capabilities(device.ordinal, None).mechanisms
    ]
    for says, group in (
        (any(one.address_ranges for one in said), AddressRanges),
        (any(one.foreign_memory for one in said), ForeignMemory),
        (any(one.vendor_queues for one in said), VendorQueues),
        (any("event" in one.timeline_levels for one in said), StreamEvents),
        # Devices without streams can have the level "word", but need no StreamWords for it.
        (
            _offers(driver, Streams) and any("word" in one.timeline_levels for one in said),
            StreamWords,
        ),
    ):
        if says != _offers(driver, group):
            faults.append(f"the capabilities of the devices contradict {group.__name__}")
    return faults
