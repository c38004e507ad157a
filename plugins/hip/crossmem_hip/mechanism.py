# SPDX-License-Identifier: Apache-2.0
"""What the two ways to share have in common."""

from dataclasses import dataclass
from typing import Protocol

from crossmem.driver import Block, Exported, Foreign, Imported
from crossmem.models import Access

__all__ = ["Mechanism", "Reference"]


class Mechanism(Protocol):
    """One way to share. Its callers see to the device.

    Attributes
    ----------
    name
        As users ask for it.
    payload_sizes, descriptors
        What an export is made of: the size of each payload in bytes, and how many descriptors.
    raw_handles
        Whether programs without crossmem can use what it exports.
    survives_owner
        Whether importers keep the memory of a process that is gone.
    address_ranges
        Whether memory can be mapped at addresses that were reserved before.
    foreign_memory
        Whether it says what it knows of memory that others allocated.
    """

    name: str
    payload_sizes: tuple[int, ...]
    descriptors: int
    raw_handles: bool
    survives_owner: bool
    address_ranges: bool
    foreign_memory: bool

    def granularity(self, ordinal: int) -> int:
        """Return what capacities on a device are multiples of; 0 where it is not offered."""
        ...

    def allocate(self, ordinal: int, nbytes: int) -> Block:
        """Allocate and map memory."""
        ...

    def free(self, block: Block) -> None:
        """Give memory back, in the vendor's order."""
        ...

    def export(self, block: Block) -> Exported:
        """Return what importers need."""
        ...

    def release_export(self, exported: Exported) -> None:
        """Give back what an export holds."""
        ...

    def import_(
        self, ordinal: int, exported: Exported, capacity: int, access: Access, *, home: int
    ) -> Imported:
        """Open another process's memory; the caller has checked sizes and numbers of what came.

        Descriptors are closed by the caller.
        """
        ...

    def close(self, imported: Imported) -> None:
        """Give an import back."""
        ...

    def map(self, imported: Imported) -> int:
        """Give an import an address and return it."""
        ...

    def keep_mapped(self, imported: Imported) -> None:
        """Give up what only a further mapping would need. No device is current for this."""
        ...

    def unmap(self, imported: Imported) -> None:
        """Take the address away."""
        ...

    def inspect(self, ordinal: int, pointer: int) -> Foreign:
        """Return what the vendor knows of the memory around an address."""
        ...

    def adopt(self, ordinal: int, foreign: Foreign) -> Block:
        """Return a block that stands for others' memory."""
        ...

    def disown(self, block: Block) -> None:
        """End that; the memory is left as it is."""
        ...


@dataclass(slots=True)
class Reference:
    """What finds a block or an import again.

    Attributes
    ----------
    mechanism
        How it is shared.
    """

    mechanism: Mechanism
