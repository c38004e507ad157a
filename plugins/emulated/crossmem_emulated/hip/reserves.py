# SPDX-License-Identifier: Apache-2.0
"""A pool of device memory, and the pages that the pool keeps."""

from dataclasses import dataclass, field

from crossmem_emulated.pages import Pages, PageStore

__all__ = ["Pool"]


@dataclass(slots=True, eq=False)
class Pool:
    """A pool of device memory. It keeps the pages of freed allocations for later allocations."""

    handle: int
    device: int
    """The device's number in this process."""
    handle_type: int = 0
    """The type of the handles by which the pool is exported; 0 if the pool cannot be exported."""
    is_imported: bool = False
    """Whether the pool was imported, from another process or this one."""
    flags: dict[int, int] = field(default_factory=dict)
    access: dict[int, int] = field(default_factory=dict)
    threshold_nbytes: int = 0
    """The largest number of unused bytes that the pool keeps when an allocation is freed."""
    kept: list[Pages] = field(default_factory=list)
    used_nbytes: int = 0
    """The total requested size of the allocations that are not freed."""
    taken_nbytes: int = 0
    """The total size of the pages of the allocations that are not freed."""
    most_used_nbytes: int = 0
    most_reserved_nbytes: int = 0

    @property
    def kept_nbytes(self) -> int:
        """The number of bytes in the unused pages that the pool keeps."""
        return sum(pages.nbytes for pages in self.kept)

    @property
    def reserved_nbytes(self) -> int:
        """The number of bytes in all pages of the pool, used and unused."""
        return self.taken_nbytes + self.kept_nbytes

    def note(self, nbytes: int, pages: Pages) -> None:
        """Count a new allocation of ``nbytes`` bytes in ``pages``."""
        self.used_nbytes += nbytes
        self.taken_nbytes += pages.nbytes
        self.most_used_nbytes = max(self.most_used_nbytes, self.used_nbytes)
        self.most_reserved_nbytes = max(self.most_reserved_nbytes, self.reserved_nbytes)

    def take_back(self, store: PageStore, nbytes: int, pages: Pages) -> None:
        """Keep the pages of a freed allocation. Then trim the pool.

        At most ``threshold_nbytes`` unused bytes are left.
        """
        self.used_nbytes -= nbytes
        self.taken_nbytes -= pages.nbytes
        self.kept.append(pages)
        self.trim(store, self.threshold_nbytes)

    def trim(self, store: PageStore, nbytes: int) -> None:
        """Release unused pages until at most ``nbytes`` unused bytes are left."""
        while self.kept_nbytes > nbytes:
            store.release(self.kept.pop(0))
