# SPDX-License-Identifier: Apache-2.0
"""The common interface of the two mechanisms, legacy IPC and virtual memory."""

from dataclasses import dataclass
from typing import Protocol

from crossmem.driver import Block, Exported, Foreign, Imported
from crossmem.models import Access

__all__ = ["Mechanism", "Reference"]


class Mechanism(Protocol):
    """One mechanism, such as legacy IPC.

    Some methods use the current device. Before the driver calls such a method, the driver selects
    the device of the block or import as the current device.

    Attributes
    ----------
    name
        The mechanism's name for users.
    payload_sizes, descriptors
        The parts of an export: the size of each payload in bytes, and the number of descriptors.
    raw_handles
        Whether programs without crossmem can use the exports.
    survives_owner
        Whether the memory stays valid in importers after the death of its exporter.
    address_ranges
        Whether memory can be mapped at reserved addresses.
    foreign_memory
        Whether the mechanism can inspect and share memory that other libraries allocated.
    """

    name: str
    payload_sizes: tuple[int, ...]
    descriptors: int
    raw_handles: bool
    survives_owner: bool
    address_ranges: bool
    foreign_memory: bool

    def granularity(self, ordinal: int) -> int:
        """Return the granularity of capacities on a device; 0 if the device lacks the mechanism."""
        ...

    def allocate(self, ordinal: int, nbytes: int) -> Block:
        """Allocate and map memory."""
        ...

    def free(self, block: Block) -> None:
        """Free memory, with the vendor's calls in the order that the vendor requires."""
        ...

    def export(self, block: Block) -> Exported:
        """Export memory. Return the payloads and descriptors for importers."""
        ...

    def release_export(self, exported: Exported) -> None:
        """Release the resources of an export."""
        ...

    def import_(
        self, ordinal: int, exported: Exported, capacity: int, access: Access, *, home: int
    ) -> Imported:
        """Open another process's memory for a device.

        Before this call, the driver has checked the sizes of the payloads and the number of
        descriptors. This method does not close the descriptors. ``home`` is the device that holds
        the memory.
        """
        ...

    def close(self, imported: Imported) -> None:
        """Close an import."""
        ...

    def map(self, imported: Imported) -> int:
        """Map an import and return the address."""
        ...

    def keep_mapped(self, imported: Imported) -> None:
        """Release those resources of an import that only a further call of :meth:`map` would need.

        The mapping stays. The driver will not map the import again. The driver does not change the
        current device for this call.
        """
        ...

    def unmap(self, imported: Imported) -> None:
        """Unmap an import."""
        ...

    def inspect(self, ordinal: int, pointer: int) -> Foreign:
        """Return the vendor's information about the memory around an address."""
        ...

    def adopt(self, ordinal: int, foreign: Foreign) -> Block:
        """Return a block that stands for memory of another library."""
        ...

    def disown(self, block: Block) -> None:
        """Undo an adoption. The memory stays."""
        ...


@dataclass(slots=True)
class Reference:
    """The driver's reference to a block or an import.

    Attributes
    ----------
    mechanism
        The mechanism that shares the memory.
    """

    mechanism: Mechanism
