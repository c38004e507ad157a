# SPDX-License-Identifier: Apache-2.0
"""The pages of a pool: allocated ones, and unused ones that it keeps."""

from dataclasses import dataclass, field

from crossmem_emulated.pages import Pages, PageStore

__all__ = ["Pool"]


@dataclass(slots=True, eq=False)
class Pool:
    """A pool for allocations in stream order, which keeps freed pages for later ones."""

    handle: int
    device: int
    """The device's number in this process."""
    handle_type: int = 0
    """The type of handle for exports of the pool."""
    is_imported: bool = False
    """Whether the pool was imported, from another process or this one."""
    flags: dict[int, int] = field(default_factory=dict)
    access: dict[int, int] = field(default_factory=dict)
    threshold_nbytes: int = 0
    """The maximum number of unused bytes that the pool keeps."""
    kept: list[Pages] = field(default_factory=list)
    used_nbytes: int = 0
    taken_nbytes: int = 0
    """Allocated bytes, in whole pages."""
    most_used_nbytes: int = 0
    most_reserved_nbytes: int = 0

    @property
    def kept_nbytes(self) -> int:
        """The unused bytes that the pool keeps."""
        return sum(pages.nbytes for pages in self.kept)

    @property
    def reserved_nbytes(self) -> int:
        """All bytes of the pool."""
        return self.taken_nbytes + self.kept_nbytes

    def note(self, nbytes: int, pages: Pages) -> None:
        """Count an allocation."""
        self.used_nbytes += nbytes
        self.taken_nbytes += pages.nbytes
        self.most_used_nbytes = max(self.most_used_nbytes, self.used_nbytes)
        self.most_reserved_nbytes = max(self.most_reserved_nbytes, self.reserved_nbytes)

    def take_back(self, store: PageStore, nbytes: int, pages: Pages) -> None:
        """Keep freed pages, up to the threshold."""
        self.used_nbytes -= nbytes
        self.taken_nbytes -= pages.nbytes
        self.kept.append(pages)
        self.trim(store, self.threshold_nbytes)

    def trim(self, store: PageStore, nbytes: int) -> None:
        """Release unused pages until at most ``nbytes`` are left."""
        while self.kept_nbytes > nbytes:
            store.release(self.kept.pop(0))
