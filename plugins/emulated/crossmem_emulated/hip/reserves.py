# SPDX-License-Identifier: Apache-2.0
"""What a pool has: pages that are taken from it, and pages that it keeps."""

from dataclasses import dataclass, field

from crossmem_emulated.pages import Pages, PageStore

__all__ = ["Pool"]


@dataclass(slots=True, eq=False)
class Pool:
    """Where memory is taken from in the order of a stream, and kept for the next who wants some."""

    handle: int
    device: int
    """By its number in this process."""
    handle_type: int = 0
    """As what it may be exported."""
    is_imported: bool = False
    """Whether another export of this or another process is where it came from."""
    flags: dict[int, int] = field(default_factory=dict)
    access: dict[int, int] = field(default_factory=dict)
    threshold_nbytes: int = 0
    """How much it keeps that nobody uses."""
    kept: list[Pages] = field(default_factory=list)
    used_nbytes: int = 0
    taken_nbytes: int = 0
    """What is used, in whole pages."""
    most_used_nbytes: int = 0
    most_reserved_nbytes: int = 0

    @property
    def kept_nbytes(self) -> int:
        """What it has, and nobody uses."""
        return sum(pages.nbytes for pages in self.kept)

    @property
    def reserved_nbytes(self) -> int:
        """What it has."""
        return self.taken_nbytes + self.kept_nbytes

    def note(self, nbytes: int, pages: Pages) -> None:
        """Count what was taken."""
        self.used_nbytes += nbytes
        self.taken_nbytes += pages.nbytes
        self.most_used_nbytes = max(self.most_used_nbytes, self.used_nbytes)
        self.most_reserved_nbytes = max(self.most_reserved_nbytes, self.reserved_nbytes)

    def take_back(self, store: PageStore, nbytes: int, pages: Pages) -> None:
        """Keep what was freed, as far as it may."""
        self.used_nbytes -= nbytes
        self.taken_nbytes -= pages.nbytes
        self.kept.append(pages)
        self.trim(store, self.threshold_nbytes)

    def trim(self, store: PageStore, nbytes: int) -> None:
        """Give back what nobody uses until no more than some of it is left."""
        while self.kept_nbytes > nbytes:
            store.release(self.kept.pop(0))
