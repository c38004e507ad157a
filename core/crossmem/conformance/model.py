# SPDX-License-Identifier: Apache-2.0
"""The model with which the state machine in ``machine`` compares the processes of a test."""

from dataclasses import dataclass, field

import crossmem
from crossmem.conformance import actions, blocks

__all__ = ["Account", "Block", "Entry", "Handle", "Held", "Model", "account"]

Account = tuple[dict[str, int], list[str], list[tuple[bool, list[int]]]]
"""The number of open objects of each kind in the driver, the forbidden driver calls that were made,
and the holders of each exported allocation."""


def account() -> Account:
    """Return the :data:`Account` of the calling process.

    The entry about holders has a pair for each exported allocation: whether the allocation waits
    for the end of its leases, and the pids of its holders.
    """
    crossmem.collect()
    holders: dict[int | bytes, tuple[bool, set[int]]] = {}
    for info in actions.exports():
        handle = info.handle
        which = handle.to_bytes() if blocks.are_used() else handle.allocation
        _, known = holders.setdefault(which, (info.waiting, set()))
        known.update(lease.pid for lease in info.leases)
    leased = sorted((waiting, sorted(known)) for waiting, known in holders.values())
    return actions.live(), actions.violations(), leased


@dataclass(eq=False)
class Block:
    """An allocation: its process, contents and state."""

    name: str
    place: int
    contents: bytearray
    exports: set[str] = field(default_factory=set)
    is_freed: bool = False
    is_orphaned: bool = False


@dataclass(eq=False)
class Handle:
    """A handle of a whole block, or of a part of a block."""

    block: Block
    handle: crossmem.ShareableHandle

    @property
    def span(self) -> slice:
        """The range of the block that the handle names."""
        return slice(self.handle.offset, self.handle.offset + self.handle.length)


@dataclass(eq=False)
class Held:
    """An import or a mapping in one of the processes."""

    name: str
    place: int
    handle: Handle
    key: tuple[int, str, str]
    readonly: bool
    parent: "Held | None" = None
    mappings: int = 0


@dataclass
class Entry:
    """Memory that a process has open with one access, ``"ro"`` or ``"rw"``.

    ``users`` counts the imports and the attached mappings. ``exports`` contains the accesses of the
    imported handles.
    """

    block: Block
    users: int = 0
    exports: set[str] = field(default_factory=set)


class Model:
    """The expected state: the contents of memory, the open imports, and the results of calls.

    Each process has a number, its ``place``. A process that replaces a killed process gets the same
    number.

    Parameters
    ----------
    has_readonly_alias
        Whether a process can map its own memory read-only.
    survives_owner
        As in :class:`crossmem.Capabilities`.
    """

    def __init__(self, *, has_readonly_alias: bool, survives_owner: bool) -> None:
        self.has_readonly_alias = has_readonly_alias
        self.survives_owner = survives_owner
        self.blocks: list[Block] = []
        self.handles: list[Handle] = []
        self.imports: list[Held] = []
        self.mappings: list[Held] = []
        self.entries: dict[tuple[int, str, str], Entry] = {}

    def access_of(self, handle: Handle, *, readonly: bool | str) -> str:
        """Return the access that an import of this handle has."""
        return "ro" if readonly is True else handle.handle.access

    def refusal(self, place: int, handle: Handle, access: str) -> type[Exception] | None:
        """Return the error that an import must raise; None if the import must succeed."""
        entry = self.entries.get((place, handle.block.name, access))
        if blocks.are_used() and not handle.block.is_orphaned:
            # If a process imports a pool's block several times, all these imports share one word
            # of the process's row, whatever their access. So while one import is open, the process
            # can import the same export again, even with the other access and even if the owner
            # has freed the block.
            entry = entry or self.entries.get((place, handle.block.name, "rw"))
            entry = entry or self.entries.get((place, handle.block.name, "ro"))
        if entry is not None and handle.handle.access in entry.exports:
            return None
        if handle.block.is_orphaned:
            return crossmem.OwnerGoneError
        if handle.block.is_freed:
            return crossmem.StaleHandleError
        is_own = place == handle.block.place
        if is_own and access == "ro" and not self.has_readonly_alias:
            return crossmem.UnsupportedError
        return None

    def is_lost(self, error: Exception, handles: list[Handle]) -> bool:
        """Whether the error is right because the memory of a handle was lost with its owner."""
        return (
            isinstance(error, crossmem.OwnerGoneError)
            and not self.survives_owner
            and any(one.block.is_orphaned for one in handles)
        )

    def enter(self, place: int, handle: Handle, name: str, *, readonly: bool | str) -> Held:
        """Record a successful import, and return its :class:`Held`."""
        access = self.access_of(handle, readonly=readonly)
        key = (place, handle.block.name, access)
        entry = self.entries.setdefault(key, Entry(handle.block))
        entry.users += 1
        entry.exports.add(handle.handle.access)
        return Held(name, place, handle, key, access == "ro" or bool(readonly))

    def leave(self, held: Held) -> None:
        """Record the end of an import."""
        entry = self.entries[held.key]
        entry.users -= 1
        if not entry.users:
            del self.entries[held.key]

    def holders(self, block: Block) -> set[int]:
        """Return the numbers of the processes that have a block open."""
        return {place for (place, name, _), _ in self.entries.items() if name == block.name}

    def own(self) -> list[Block]:
        """Return the blocks that are not freed and whose owner lives."""
        return [one for one in self.blocks if not (one.is_freed or one.is_orphaned)]

    def memories(self) -> list[tuple[str, int, Block, slice, bool]]:
        """Return all readable memory.

        An item is a name, a process, a block, a range, and whether the memory is read-only.
        """
        mapped = [
            (one.name, one.place, one.handle.block, one.handle.span, one.readonly)
            for one in self.mappings
            if self.survives_owner or not one.handle.block.is_orphaned
        ]
        owned = [
            (one.name, one.place, one, slice(0, len(one.contents)), False) for one in self.own()
        ]
        return mapped + owned

    def kill(self, place: int) -> None:
        """Record the death of a process: its memory is orphaned, and its holds end."""
        for block in self.blocks:
            block.is_orphaned = block.is_orphaned or block.place == place
        self.imports = [one for one in self.imports if one.place != place]
        self.mappings = [one for one in self.mappings if one.place != place]
        self.entries = {key: one for key, one in self.entries.items() if key[0] != place}

    def held_by(self, place: int) -> tuple[list[Block], dict[str, int]]:
        """Return the live or held blocks that a process owns, and the expected counts of objects.

        The counts are the numbers of open objects of each kind in the driver of the process.
        """
        blocks = [
            one
            for one in self.blocks
            if one.place == place
            and not one.is_orphaned
            and (not one.is_freed or self.holders(one))
        ]
        entries = [one for (where, *_), one in self.entries.items() if where == place]
        # A process makes no vendor import of its own memory. The owner of orphaned memory is dead.
        # Even if this process has the owner's number, it makes a vendor import of such memory.
        foreign = [one for one in entries if one.block.place != place or one.block.is_orphaned]
        expected = {
            "blocks": len(blocks),
            "exports": sum(len(one.exports) for one in blocks),
            "imports": len(foreign),
        }
        return blocks, expected
