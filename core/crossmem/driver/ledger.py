# SPDX-License-Identifier: Apache-2.0
"""The address ranges of a traced driver, and the rules for the calls that use the ranges."""

from dataclasses import dataclass, field

from crossmem.driver.base import Block, Imported

__all__ = ["RangeLedger"]

_Rules = list[tuple[bool, str]]
"""For each rule: whether the call breaks it, and the text for the list of violations."""


@dataclass(slots=True)
class _Range:
    """A reserved range, and its pieces."""

    ordinal: int
    nbytes: int
    shows_own: bool | None = None
    pieces: dict[int, Block | Imported] = field(default_factory=dict)


class RangeLedger:
    """Tracks the calls of the group :class:`crossmem.driver.AddressRanges`.

    The caller holds a lock.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}

    @property
    def ranges(self) -> int:
        """Number of reserved ranges."""
        return len(self._ranges)

    @property
    def pieces(self) -> int:
        """Number of mapped pieces."""
        return sum(len(one.pieces) for one in self._ranges.values())

    def shows(self, memory: Block | Imported) -> bool:
        """Whether memory is mapped in a range."""
        return any(
            piece is memory for one in self._ranges.values() for piece in one.pieces.values()
        )

    def reserve(self, ordinal: int, pointer: int, nbytes: int) -> None:
        """Add a range."""
        self._ranges[pointer] = _Range(ordinal, nbytes)

    def check_release(self, ordinal: int, pointer: int, nbytes: int) -> _Rules:
        """Return the rules for the release of a range."""
        found = self._ranges.get(pointer)
        if found is None or (found.ordinal, found.nbytes) != (ordinal, nbytes):
            return [(True, f"{nbytes} bytes at {pointer:#x} are not an address range")]
        return [(bool(found.pieces), "pieces are still mapped")]

    def release(self, pointer: int) -> None:
        """Remove a range."""
        self._ranges.pop(pointer, None)

    def map_at(self, memory: Block | Imported, pointer: int) -> _Rules:
        """Return the rules for the mapping of a piece. Add the piece if a range contains it."""
        end = pointer + memory.capacity
        for start, one in self._ranges.items():
            if start <= pointer and end <= start + one.nbytes:
                break
        else:
            return [(True, f"bytes [{pointer:#x}, {end:#x}) are not reserved")]
        is_own = isinstance(memory, Block)
        rules = [
            (memory.ordinal != one.ordinal, "the range belongs to another device"),
            (one.shows_own not in {None, is_own}, "the range has both own and imported memory"),
            (
                any(
                    other < end and pointer < other + piece.capacity
                    for other, piece in one.pieces.items()
                ),
                "another piece is mapped there",
            ),
        ]
        one.shows_own = is_own
        one.pieces[pointer] = memory
        return rules

    def check_unmap(self, memory: Block | Imported, pointer: int) -> _Rules:
        """Return the rules for the unmapping of a piece."""
        is_mapped = any(one.pieces.get(pointer) is memory for one in self._ranges.values())
        return [(not is_mapped, f"this memory is not mapped at {pointer:#x}")]

    def unmap_at(self, pointer: int) -> None:
        """Remove a piece."""
        for one in self._ranges.values():
            one.pieces.pop(pointer, None)
