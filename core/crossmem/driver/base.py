# SPDX-License-Identifier: Apache-2.0
"""The driver contract. A backend implements it in one class, with a vendor's calls.

crossmem's core owns identities, reference counts, leases and locks, and checks each size, offset
and ordinal before it calls a driver. A driver translates calls, and keeps its data about an import
only in :attr:`Imported.reference`. Any thread may call any method, and calls for different memory
may be concurrent. Each method preserves the calling thread's current device and context (law C19).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from crossmem.errors import UnsupportedError
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
"""Version of this contract. crossmem refuses a driver whose ``api_version`` is not this number."""


class CopyKind(StrEnum):
    """The kinds of memory on both sides of a copy."""

    HOST_TO_DEVICE = "host-to-device"
    DEVICE_TO_HOST = "device-to-host"
    DEVICE_TO_DEVICE = "device-to-device"


@dataclass(slots=True)
class Block:
    """Memory that this process allocated or adopted.

    :meth:`Driver.allocate` or :meth:`crossmem.driver.ForeignMemory.adopt` makes the object, and
    core owns it.

    Parameters
    ----------
    ordinal
        Device that holds the memory.
    pointer
        The block's address in this process.
    nbytes, capacity
        The requested size, and the size that the vendor has allocated, in bytes.
    reference
        The driver's own reference to the vendor's objects. The reference may have any type. Core
        only passes it back to the same driver. The driver may change it.
    """

    ordinal: int
    pointer: int
    nbytes: int
    capacity: int
    reference: Any = None


@dataclass(slots=True)
class Exported:
    """The data that importers need to open a block. It travels with each lease.

    Parameters
    ----------
    payloads
        The vendor's bytes, in order; one item for each vendor object. While an export lives, its
        payloads are unique among this process's exports, unless they are empty. Every process that
        core admits must be able to open the payloads. If processes of other users cannot open them,
        the capability ``other_users`` must be false, so that core admits only the exporter's user.
    descriptors
        File descriptors that core sends to importers. The kernel duplicates them, so the exporter's
        driver keeps its descriptors, and closes them in ``release_export`` or ``free``.

    A lease carries at most 1,024 payloads and 16 descriptors. The total size of the payloads is
    at most 65,408 bytes, including 4 bytes for the length of each payload. Core refuses larger
    exports.
    """

    payloads: tuple[bytes, ...] = ()
    descriptors: tuple[int, ...] = ()


@dataclass(slots=True)
class Imported:
    """Another process's memory, opened but not necessarily mapped. Core owns the object.

    Parameters
    ----------
    ordinal
        Device for which the memory was opened.
    capacity
        Size of the whole allocation in bytes. The driver has checked it against the vendor or the
        descriptor.
    access
        The access that every mapping of the import has.
    reference
        The driver's own reference, like :attr:`Block.reference`.
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
        The mapped memory.
    pointer
        The address. Right before the vendor call that unmaps the memory, the driver sets this field
        to 0, or clears its own record of the mapping in ``source.reference``. If the vendor
        refuses, the driver restores the field or the record.
    """

    source: Block | Imported
    pointer: int


@dataclass(slots=True)
class Reserved:
    """Reserved addresses of this process, from ``reserve`` until ``release``.

    Parameters
    ----------
    ordinal
        Device for which the addresses are reserved.
    pointer
        The first address. The driver sets it to 0 right before the vendor call that releases the
        addresses, and restores it if the vendor refuses.
    nbytes
        Size of the range in bytes.
    """

    ordinal: int
    pointer: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that requests a lease, or a role in a vendor's queue.

    Parameters
    ----------
    pid
        The peer's process id as this process sees it, or 0 if the peer is not visible.
    reported
        The value of the peer's own :meth:`Driver.peer_identity`.
    """

    pid: int
    reported: int


class Driver(ABC):
    """Translates the operations of crossmem to one vendor's memory calls.

    Errors: raise :class:`crossmem.OutOfMemoryError` if the device has no room, and
    :class:`crossmem.StaleHandleError` if the vendor reports that the exporter released the memory.
    For any other failed call of the vendor, raise :class:`crossmem.DriverError` with call, code,
    name and hint. A method that raises leaves no new resource behind.

    Some methods release a resource: ``free``, ``release_export``, ``close``, ``unmap`` and similar
    methods of the optional groups. If such a method raises, core calls the method again later.
    The repeated call continues at the failed step, and releases nothing twice. Therefore the driver
    clears its reference to a resource, such as ``Block.reference``, right before the vendor call
    that releases the resource. The driver restores the reference only if the vendor refuses.

    These rules also apply if a signal handler raises (law C30). A method that returns a new object
    records each resource with :func:`crossmem.driver.recording.call_into`. If the method raises, it
    releases the recorded resources.
    """

    api_version: ClassVar[int] = DRIVER_API_VERSION

    backend: str
    """Name of the backend, such as ``"hip"``."""

    @abstractmethod
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the devices that this process can see, in the order of their ordinals.

        Core calls this once per process and caches the result. The call must not create contexts.
        """

    @abstractmethod
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        """Return the capabilities of a device for a mechanism. None means the preferred mechanism.

        The fields ``mechanisms`` and ``fork_safe`` of a device are the same for all mechanisms.
        Core passes only None and names from ``mechanisms``. Only the first call for a device may
        make vendor calls. Core calls this once per device, mechanism and process.
        """

    def refusal(self, ordinal: int, mechanism: str) -> UnsupportedError | None:  # noqa: ARG002
        """Return the error for a mechanism that the backend has but this device does not offer.

        None, the default, means that the backend has no such mechanism or knows no reason. Core
        calls this when an application requests a mechanism that is not in the device's
        capabilities.
        """
        return None

    @abstractmethod
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        """Allocate and map ``nbytes`` bytes, rounded up to the granularity.

        The memory can be shared only through ``mechanism``. ``device.allocate`` calls this on the
        application's thread; ``nbytes`` is positive and at most ``max_allocation_nbytes``. An
        export of the block must not make bytes of another allocation reachable.

        The driver raises ``OutOfMemoryError`` if its blocks would exceed the device's capacity. If
        the mechanism's memory has names, such as file names, killed exporters leave names behind.
        Before an allocation, the driver removes the names that no process uses (law C12).
        """

    @abstractmethod
    def free(self, block: Block) -> None:
        """Free a block. Core first releases all exports of the block.

        The block's last lease has ended. Exception: if the capability ``survives_owner`` is true,
        core also frees leased blocks at a normal exit of the process. Called on a thread of the
        application or on the reaper, never on the lease server's thread.
        """

    @abstractmethod
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        """Make a block importable.

        Called at most once for each (block, access, raw).

        Parameters
        ----------
        mechanism
            The mechanism for which the block was allocated or adopted.
        access
            ``"ro"`` only if the capability ``readonly_exports`` is true.
        raw
            True: only the payloads reach the importing programs, without leases and without
            :meth:`grant`. Core passes True only if the capability ``raw_handles`` is true. If a
            vendor does not allow both raw and leased exports of a block, the driver raises
            ``UnsupportedError`` for the kind that core requests second.
        """

    def release_export(self, block: Block, exported: Exported) -> None:  # noqa: B027
        """Release an export, for vendors whose export is a separate object.

        Called once for each export, before :meth:`free` or
        :meth:`crossmem.driver.ForeignMemory.disown`. No lease is left. Exception: at a normal exit,
        leases may be left, as for :meth:`free`.
        """

    def after_fork_in_child(self) -> None:  # noqa: B027
        """Close each descriptor of the driver. Called in a forked child, on the inherited driver.

        That driver is not used again: a child that imports gets a new driver (law C18). The method
        must not make vendor calls. If the capability ``host_visible`` is true, the method leaves
        mappings in place, because the child may have views of them. If the capability is false, no
        memory of the driver may be mapped in the child.
        """

    def peer_identity(self) -> int:
        """Return this process's number for the vendor's whitelist; 0 if there is no whitelist.

        Called in the importing process for each lease request, so it must be cheap.
        """
        return 0

    def grant(self, block: Block, exported: Exported, peers: Sequence[Peer]) -> None:  # noqa: B027
        """Put processes on the vendor's whitelist, for vendors that have one.

        Called before core first grants this export to a peer; core may repeat the call for the same
        peer. The method must not synchronise, block or call crossmem, because it runs on the lease
        server's thread. A peer's reported number is untrusted: check the number against the peer's
        pid as far as the vendor allows, and raise on a contradiction.
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

        While an import is open, core opens no second import of the same (allocation, device,
        access). Exception: different raw handles have separate imports. During this call, core
        holds no lock that another import needs. After success the driver owns
        ``exported.descriptors``. If this method raises, core closes the descriptors that are still
        in ``exported.descriptors``.

        Parameters
        ----------
        ordinal
            Device for which to open the memory.
        exported
            The result of the exporter's driver.
        home
            Ordinal in this process of the device that holds the memory. ``home`` differs from
            ``ordinal`` only if the capability ``peer_access`` is true.
        nbytes, capacity
            The sizes that the exporter claims. Check them against the descriptor or the vendor, and
            raise ``InvalidHandleError`` on a mismatch.
        access
            The access that every mapping of the import gets.
        """

    @abstractmethod
    def close(self, imported: Imported) -> None:
        """Close an import that is not mapped now.

        Exception: if :meth:`map` raised and could not undo its steps, the import may be mapped.
        """

    @abstractmethod
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        """Map an import at an address of this process.

        Not called while the import has a mapping from an earlier call. If a call with
        ``remappable=False`` succeeds, core does not call this method again for the import. In such
        a call, the driver releases everything that only a further mapping needs, such as a
        descriptor. Otherwise, many mappings would exhaust the process's descriptors (law C16).

        A later :meth:`crossmem.driver.AddressRanges.map_at` for the import may need this mapping,
        so core keeps the mapping as long as such a call is possible.
        """

    @abstractmethod
    def unmap(self, mapped: Mapped) -> None:
        """Unmap the address. Core first synchronises the device (law C9)."""

    @abstractmethod
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        """Copy from or to device memory, and return when the copy is complete.

        With ``DEVICE_TO_DEVICE``, both addresses are device memory. If they are on different
        devices, ``ordinal`` is the target's device and the capability ``peer_access`` is true.
        """

    def fill(self, block: Block, offset: int, source: int, nbytes: int) -> None:
        """Copy host bytes into an unwritten part of a block that only this process has mapped.

        The default is :meth:`copy`. The first write to each page of a mapping costs a page fault. A
        driver overrides this method if it can write fresh memory faster, without the mapping.

        Parameters
        ----------
        block
            The result of :meth:`allocate`.
        offset, nbytes
            The part, in bytes. It lies inside the block and is not empty.
        source
            Address of the host bytes in this process.
        """
        self.copy(block.ordinal, block.pointer + offset, source, nbytes, CopyKind.HOST_TO_DEVICE)

    @abstractmethod
    def synchronize(self, ordinal: int) -> None:
        """Wait for all work that this process has issued on a device."""
