# SPDX-License-Identifier: Apache-2.0
"""What the two ways to share have in common."""

from dataclasses import dataclass, field
from typing import Final, Protocol

from crossmem.driver import Block, Imported
from crossmem.models import Access

__all__ = ["GRANULARITY_NBYTES", "Mechanism", "Reference"]

GRANULARITY_NBYTES: Final = 2 << 20
"""Size of a huge page, the unit of device memory that can be shared."""


class Mechanism(Protocol):
    """One way to share. Its callers see to device and context.

    Attributes
    ----------
    name
        As users ask for it.
    needs
        Functions of ``acl.rt`` without which it cannot be offered.
    whitelist_limit
        How many processes the vendor puts on the whitelist of one export.
    """

    name: str
    needs: frozenset[str]
    whitelist_limit: int

    def allocate(self, ordinal: int, nbytes: int) -> Block:
        """Allocate and map memory."""
        ...

    def free(self, block: Block) -> None:
        """Give memory back, in the vendor's order."""
        ...

    def export(self, block: Block, *, raw: bool) -> bytes:
        """Return what importers need; the vendor exports once."""
        ...

    def admit(self, block: Block, tgids: list[int]) -> None:
        """Put processes on the whitelist."""
        ...

    def import_(self, ordinal: int, payload: bytes, capacity: int, access: Access) -> Imported:
        """Open another process's memory."""
        ...

    def close(self, imported: Imported) -> None:
        """Give an import back."""
        ...

    def map(self, imported: Imported) -> int:
        """Give an import an address and return it."""
        ...

    def keep_mapped(self, imported: Imported) -> None:
        """Give up what only a further mapping would need."""
        ...

    def unmap(self, imported: Imported) -> None:
        """Take the address away."""
        ...


@dataclass(slots=True)
class Reference:
    """What finds a block or an import again.

    Attributes
    ----------
    mechanism
        How it is shared.
    raw
        Which kind of export was made; None before the first.
    admitted
        Processes on the whitelist, from which none can be removed.
    """

    mechanism: Mechanism
    raw: bool | None = field(default=None, kw_only=True)
    admitted: set[int] = field(default_factory=set, kw_only=True)
