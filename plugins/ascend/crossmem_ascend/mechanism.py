# SPDX-License-Identifier: Apache-2.0
"""The common interface of the mechanisms ``key`` and ``shareable``."""

from dataclasses import dataclass, field
from typing import Final, Protocol

from crossmem.driver import Block, Imported
from crossmem.models import Access

__all__ = ["GRANULARITY_NBYTES", "Mechanism", "Reference"]

GRANULARITY_NBYTES: Final = 2 << 20
"""Size of a huge page. The capacity of shared memory is a multiple of this size."""


class Mechanism(Protocol):
    """One mechanism. The driver makes the device current before it calls a method.

    The only exception is :meth:`keep_mapped`, which needs no current device.

    Attributes
    ----------
    name
        The mechanism's name for users.
    needs
        Functions of ``acl.rt`` that the mechanism needs.
    whitelist_limit
        The maximum number of processes on the whitelist of one export.
    """

    name: str
    needs: frozenset[str]
    whitelist_limit: int

    def allocate(self, ordinal: int, nbytes: int) -> Block:
        """Allocate and map memory."""
        ...

    def free(self, block: Block) -> None:
        """Free memory, with the vendor's calls in the order that the vendor requires."""
        ...

    def export(self, block: Block, *, raw: bool) -> bytes:
        """Return the bytes for importers. Only the first call for a block makes a vendor export."""
        ...

    def admit(self, block: Block, tgids: list[int]) -> None:
        """Put processes on the whitelist."""
        ...

    def import_(self, ordinal: int, payload: bytes, capacity: int, access: Access) -> Imported:
        """Open another process's memory."""
        ...

    def close(self, imported: Imported) -> None:
        """Close an import."""
        ...

    def map(self, imported: Imported) -> int:
        """Map an import and return the address."""
        ...

    def keep_mapped(self, imported: Imported) -> None:
        """Keep the mapping of an import that will not be mapped again.

        Release the resources that only another call of :meth:`map` would need.
        """
        ...

    def unmap(self, imported: Imported) -> None:
        """Unmap an import."""
        ...


@dataclass(slots=True)
class Reference:
    """The driver's reference to a block or an import.

    Attributes
    ----------
    mechanism
        The mechanism that shares the memory.
    raw
        Whether the vendor's export is raw; None before the export.
    admitted
        The bare tgids of the processes on the whitelist. A process's bare tgid is its pid outside
        all containers. The vendor never removes a process from the whitelist.
    """

    mechanism: Mechanism
    raw: bool | None = field(default=None, kw_only=True)
    admitted: set[int] = field(default_factory=set, kw_only=True)
