# SPDX-License-Identifier: Apache-2.0
"""What a backend author writes: one class that translates the contract to a vendor's calls.

crossmem's core owns identities, reference counts, leases, bounds checks and locks. A driver
translates, and keeps no state per import. Every method may be called from any thread, also from
several at once for different memory; each leaves the calling thread's current device and context
as it found them (law C19). Core never calls a driver with a size, offset or ordinal that it has
not checked.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from crossmem.models import Access, Capabilities, DeviceInfo

__all__ = [
    "DRIVER_API_VERSION",
    "Block",
    "CopyKind",
    "Driver",
    "Exported",
    "Imported",
    "Mapped",
    "Peer",
    "Reserved",
]

DRIVER_API_VERSION: Final = 1
"""Version of this contract. A backend says which one it was written for."""


class CopyKind(StrEnum):
    """Which sides of a copy are host memory."""

    HOST_TO_DEVICE = "host-to-device"
    DEVICE_TO_HOST = "device-to-host"
    DEVICE_TO_DEVICE = "device-to-device"


@dataclass(slots=True)
class Block:
    """Memory that this process allocated. Made by :meth:`Driver.allocate`, owned by core.

    Parameters
    ----------
    ordinal
        Device that holds the memory.
    pointer
        Its address in this process.
    nbytes, capacity
        Requested and reserved size in bytes.
    reference
        Whatever the driver needs to find the vendor's objects again, of any type. Core passes it
        back to the same driver and does nothing else with it; the driver may change it.
    """

    ordinal: int
    pointer: int
    nbytes: int
    capacity: int
    reference: Any = None


@dataclass(slots=True)
class Exported:
    """What importers need to open a block; it travels with each lease.

    Parameters
    ----------
    payloads
        The vendor's bytes, in order; one for each vendor object. As long as an export lives, no
        other memory of this process is exported with the same ones, unless there are none. Every
        process that an export admits can open them; if only those of the exporter's user can, the
        capability ``other_users`` is false.
    descriptors
        File descriptors to pass along. They stay the driver's: core sends copies, and the
        driver closes them in ``release_export`` or ``free``.

    A lease carries at most 64 KiB of payloads and 16 descriptors. Core refuses to export what has
    more.
    """

    payloads: tuple[bytes, ...] = ()
    descriptors: tuple[int, ...] = ()


@dataclass(slots=True)
class Imported:
    """Another process's memory, referenced but perhaps not yet mapped. Owned by core.

    Parameters
    ----------
    ordinal
        Device for which it was opened.
    capacity
        Size of the whole allocation in bytes, checked against the vendor or the descriptor.
    access
        What the mapping may do.
    reference
        As :attr:`Block.reference`.
    """

    ordinal: int
    capacity: int
    access: Access
    reference: Any = None


@dataclass(slots=True)
class Mapped:
    """Memory at an address of this process, from ``map`` until ``unmap``.

    Parameters
    ----------
    source
        What is mapped.
    pointer
        The address. The driver sets it to 0 right before the vendor call that gives it back, and
        back to the address if the vendor refused: so an interrupted ``unmap`` can be called again.
    """

    source: Block | Imported
    pointer: int


@dataclass(slots=True)
class Reserved:
    """Reserved addresses of this process, from ``reserve`` until ``release``.

    Parameters
    ----------
    ordinal
        Device for which they are reserved.
    pointer
        The first address; as in :class:`Mapped`, 0 from right before the vendor call that gives
        the addresses back.
    nbytes
        How many.
    """

    ordinal: int
    pointer: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that asks for a lease, as the vendor's whitelist wants to know it.

    Parameters
    ----------
    pid
        Its process id as this process sees it, 0 where it is not visible.
    reported
        What the peer's own driver returned from :meth:`Driver.peer_identity`.
    """

    pid: int
    reported: int


class Driver(ABC):
    """Translates the neutral verbs to one vendor's memory calls.

    Errors: raise :class:`crossmem.OutOfMemoryError` where the device has no room,
    :class:`crossmem.StaleHandleError` where the vendor says that the exporter released the
    memory, and :class:`crossmem.DriverError` with call, code, name and hint for everything else.
    A method that raises has left nothing behind. One that gives something back (``free``,
    ``release_export``, ``close``, ``unmap``, and their like in the optional groups) is called
    again, in later calls of crossmem, after it raised: it then goes on where it stopped, and does
    nothing twice. So it forgets each resource, in the block, import, export or mapping that core
    passes, right before the vendor call that gives the resource back, and puts it back there only
    if the vendor refused.

    Both hold for exceptions of signal handlers, too (law C30), which Python raises at the entry of
    a function, at a backward jump and after a call. A method that returns something new records
    each resource with :func:`crossmem.driver.recording.call_into`, and gives back what is recorded
    if it raises.
    """

    api_version: ClassVar[int] = DRIVER_API_VERSION

    backend: str
    """Name of the backend, such as ``"hip"``."""

    @abstractmethod
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the devices that this process can see, by ordinal.

        Core calls it once per process and keeps the answer. It must not create contexts.
        """

    @abstractmethod
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        """Return what a device can do with memory of a mechanism; None: of the preferred one.

        ``mechanisms`` is the same whichever is asked about; core asks only about those in it.
        It may make vendor calls at the first call for a device, and none after that: core asks
        once per device, mechanism and process.
        """

    @abstractmethod
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        """Allocate and map ``nbytes`` bytes, rounded up to the granularity.

        The memory is made to be shared through ``mechanism``, and through no other one. Called
        by ``device.allocate`` on the application's thread; ``nbytes`` is positive and at
        most ``max_allocation_nbytes``. The block stands alone: no other allocation's bytes may
        be reachable through what :meth:`export` gives away.

        The driver enforces the capacity of the device: it raises ``OutOfMemoryError`` if its
        blocks would need more. If memory has a name, the driver first removes what killed
        exporters left without a holder (law C12).
        """

    @abstractmethod
    def free(self, block: Block) -> None:
        """Give a block back, after its last lease ended and with every export released.

        Called on an application's thread or in the reaper, never on the lease server's.
        """

    @abstractmethod
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        """Make a block importable.

        Called at most once for each (block, access, raw); core remembers the result.

        Parameters
        ----------
        block
            What to export.
        mechanism
            The one that the block was allocated for.
        access
            ``"ro"`` only where the capability ``readonly_exports`` is true.
        raw
            True: the payloads alone go to programs that ask nobody for a lease, and nobody is
            granted access. Only where the capability ``raw_handles`` is true. A vendor whose
            first export decides raises ``UnsupportedError`` for the other kind.
        """

    def release_export(self, block: Block, exported: Exported) -> None:  # noqa: B027
        """Withdraw an export, for vendors whose export is an object of its own.

        Called before :meth:`free`, once for each export, when no lease is left. The default is
        for vendors whose export needs no release.
        """

    def after_fork_in_child(self) -> None:  # noqa: B027
        """Close every inherited descriptor; called in a forked child, on a driver of its parent.

        The driver is not used again: a child that imports gets a new one (law C18). It must not
        make vendor calls. If the capability ``host_visible`` is true, it leaves mappings alone: the
        child may have views of them. Other memory must not be mapped in the child.
        """

    def peer_identity(self) -> int:
        """Return this process's number for the exporter's whitelist, 0 where there is none.

        Called in the importing process for each lease request; it must be cheap.
        """
        return 0

    def grant(self, block: Block, exported: Exported, peers: Sequence[Peer]) -> None:  # noqa: B027
        """Put processes on the vendor's whitelist, for vendors that have one.

        Called before a peer's first lease on this export is answered, on the lease server's
        thread or on one of the application's that reads requests while it frees: it must not
        synchronise, block or call back into crossmem. What a peer reported
        is its own claim: check it against its pid as far as the vendor lets both be compared,
        and raise where they contradict each other.
        """

    @abstractmethod
    def import_(
        self,
        ordinal: int,
        exported: Exported,
        *,
        home: int,
        mechanism: str,
        nbytes: int,
        capacity: int,
        access: Access,
    ) -> Imported:
        """Open another process's memory for a device of this process.

        Called once for each (allocation, device, access), without any lock of core held that
        another import needs. On success the driver owns ``exported.descriptors``; where it
        raises, core closes those that are still in ``exported.descriptors``.

        Parameters
        ----------
        ordinal
            Device for which to open it.
        exported
            What the exporter's driver made.
        home
            Device of this process that holds the memory; another one than ``ordinal`` only
            where the capability ``peer_access`` is true.
        mechanism
            The one that the memory was exported with.
        nbytes, capacity
            The sizes that the exporter tells. Check them against the descriptor or the vendor,
            do not believe them: raise ``InvalidHandleError`` on a mismatch.
        access
            What mappings may do.
        """

    @abstractmethod
    def close(self, imported: Imported) -> None:
        """Give an import back. It is not mapped any more."""

    @abstractmethod
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        """Give an import an address in this process.

        Never called while the import has one from here. With ``remappable=False``, core promises
        not to call this again for the import, so the driver may give up at once what only a
        further mapping would need, such as a descriptor. The address then stands as long as
        :meth:`crossmem.driver.AddressRanges.map_at` may be called for the import.
        """

    @abstractmethod
    def unmap(self, mapped: Mapped) -> None:
        """Take the address away again. Core has synchronised the device before (law C9)."""

    @abstractmethod
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        """Copy from or to device memory and return when it is done.

        With ``DEVICE_TO_DEVICE``, both addresses are device memory; where they are of different
        devices, ``ordinal`` is the target's and the capability ``peer_access`` is true.
        """

    def fill(self, block: Block, offset: int, source: int, nbytes: int) -> None:
        """Copy host bytes into a part of a block that nobody has written or mapped elsewhere yet.

        The default is :meth:`copy`. A driver overrides this if fresh memory can be written in a
        faster way than through its mapping, whose pages the kernel gives one by one.

        Parameters
        ----------
        block
            What :meth:`allocate` returned.
        offset, nbytes
            The part, in bytes. It lies inside the block and is not empty.
        source
            Address of the host bytes in this process.
        """
        self.copy(block.ordinal, block.pointer + offset, source, nbytes, CopyKind.HOST_TO_DEVICE)

    @abstractmethod
    def synchronize(self, ordinal: int) -> None:
        """Wait for all work that this process has issued on a device."""
