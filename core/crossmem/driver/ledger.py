# SPDX-License-Identifier: Apache-2.0
"""What a traced driver has reserved, and which rules of address ranges its calls break."""

from dataclasses import dataclass, field

from crossmem.driver.base import Block, Imported

__all__ = ["RangeLedger"]

_Rules = list[tuple[bool, str]]
"""Whether each rule is broken, and what to say then."""


@dataclass(slots=True)
class _Range:
    """Reserved addresses, and what is mapped there."""

    ordinal: int
    nbytes: int
    shows_own: bool | None = None
    pieces: dict[int, Block | Imported] = field(default_factory=dict)


class RangeLedger:
    """Follows the calls of the group :class:`crossmem.driver.AddressRanges`; takes no lock."""

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}

    @property
    def ranges(self) -> int:
        """How many ranges are reserved."""
        return len(self._ranges)

    @property
    def pieces(self) -> int:
        """How many pieces are mapped."""
        return sum(len(one.pieces) for one in self._ranges.values())

    def shows(self, memory: Block | Imported) -> bool:
        """Whether memory is mapped in a range."""
        return any(
            piece is memory for one in self._ranges.values() for piece in one.pieces.values()
        )

    def reserve(self, ordinal: int, pointer: int, nbytes: int) -> None:
        """Note a range."""
        self._ranges[pointer] = _Range(ordinal, nbytes)

    def check_release(self, ordinal: int, pointer: int, nbytes: int) -> _Rules:
        """Return the rules for a range that is to be released."""
        found = self._ranges.get(pointer)
        if found is None or (found.ordinal, found.nbytes) != (ordinal, nbytes):
            return [(True, f"{nbytes} bytes at {pointer:#x} are not an address range")]
        return [(bool(found.pieces), "pieces are still mapped")]

    def release(self, pointer: int) -> None:
        """Forget a range."""
        self._ranges.pop(pointer, None)

    def map_at(self, memory: Block | Imported, pointer: int) -> _Rules:
        """Note a piece."""
        end = pointer + memory.capacity
        for start, one in self._ranges.items():
            if start <= pointer and end <= start + one.nbytes:
                break
        else:
            return [(True, f"bytes [{pointer:#x}, {end:#x}) are not reserved")]
        is_own = isinstance(memory, Block)
        rules = [
            (memory.ordinal != one.ordinal, "the range is another device's"),
            (one.shows_own not in {None, is_own}, "own and imported memory in one range"),
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
        """Return the rules for a piece that is to be unmapped."""
        is_mapped = any(one.pieces.get(pointer) is memory for one in self._ranges.values())
        return [(not is_mapped, f"this memory is not mapped at {pointer:#x}")]

    def unmap_at(self, pointer: int) -> None:
        """Forget a piece."""
        for one in self._ranges.values():
            one.pieces.pop(pointer, None)
