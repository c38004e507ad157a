# SPDX-License-Identifier: Apache-2.0
"""Any sequence of calls in three processes, with deaths among them, compared with a model.

The model is a few dictionaries: what every allocation holds, who has it open in which way, and
what therefore each call must give. After each step the processes are asked what they hold.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.strategies import contents, parts
from crossmem.driver import readonly_alias_of

__all__ = ["SharingMachine"]

MAX_NBYTES: Final = 9000
HERE: Final = 0
PLACES: Final = (HERE, 1, 2)

_places = st.sampled_from(PLACES)


@dataclass(eq=False)
class Block:
    """An allocation: where it is, what it holds, and what became of it."""

    name: str
    place: int
    contents: bytearray
    exports: set[str] = field(default_factory=set)
    is_freed: bool = False
    is_orphaned: bool = False


@dataclass(eq=False)
class Handle:
    """A handle to all of a block or a part of it."""

    block: Block
    handle: crossmem.ShareableHandle

    @property
    def span(self) -> slice:
        """Which bytes of the block it names."""
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
    """One (allocation, access) that a process has open: how often, and by which exports."""

    block: Block
    users: int = 0
    exports: set[str] = field(default_factory=set)


class SharingMachine(RuleBasedStateMachine):
    """Rules for three processes. A subclass says which.

    Attributes
    ----------
    start
        Starts a peer.
    peers
        The other two processes, kept from run to run; a peer that was killed is replaced.
    """

    start: ClassVar[Callable[[], Peer]]
    peers: ClassVar[dict[int, Peer]]

    def __init__(self) -> None:
        super().__init__()
        self.names = itertools.count(1)
        self.blocks: list[Block] = []
        self.handles: list[Handle] = []
        self.imports: list[Held] = []
        self.mappings: list[Held] = []
        self.entries: dict[tuple[int, str, str], Entry] = {}
        self.has_killed = False
        for place in PLACES[1:]:
            if place not in self.peers or self.peers[place].exitcode is not None:
                self.peers[place] = type(self).start()
        self.capabilities = actions.device().capabilities
        self.accesses = ("ro", "rw") if self.capabilities.readonly_exports else ("rw",)
        self.has_readonly_alias = readonly_alias_of(actions.device().driver) is not None

    # Helpers ------------------------------------------------------------------------------

    def at(self, place: int, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function in one of the processes."""
        if place == HERE:
            return function(*args, **options)
        return self.peers[place].call(function, *args, **options)

    def new_name(self, kind: str) -> str:
        """Return a name that no object has."""
        return f"{kind}{next(self.names)}"

    def attempt(self, expected: type[Exception] | None, call: Callable[[], Any]) -> bool:
        """Make a call that must succeed, or must fail in one way; return which."""
        try:
            call()
        except crossmem.CrossmemError as error:
            if expected is None or type(error) is not expected:
                raise
            return False
        assert expected is None, f"it worked, but should have raised {expected.__name__}"
        return True

    def access_of(self, handle: Handle, *, readonly: bool | str) -> str:
        """Return how a place has a block open that it imports by this handle."""
        return "ro" if readonly is True else handle.handle.access

    def refusal(self, place: int, handle: Handle, access: str) -> type[Exception] | None:
        """Return why an import must fail, None where it must succeed."""
        entry = self.entries.get((place, handle.block.name, access))
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

    def enter(self, place: int, handle: Handle, name: str, *, readonly: bool | str) -> Held:
        """Note an import that succeeded."""
        access = self.access_of(handle, readonly=readonly)
        key = (place, handle.block.name, access)
        entry = self.entries.setdefault(key, Entry(handle.block))
        entry.users += 1
        entry.exports.add(handle.handle.access)
        return Held(name, place, handle, key, access == "ro" or bool(readonly))

    def leave(self, held: Held) -> None:
        """Note the end of an import."""
        entry = self.entries[held.key]
        entry.users -= 1
        if not entry.users:
            del self.entries[held.key]

    def holders(self, block: Block) -> set[int]:
        """Return which processes have a block open."""
        return {place for (place, name, _), _ in self.entries.items() if name == block.name}

    def draw_readonly(self, data: st.DataObject) -> bool | str:
        """Choose how to ask for an import."""
        choices: list[bool | str] = [False, "advisory"]
        if self.capabilities.readonly_imports:
            choices.append(True)
        return data.draw(st.sampled_from(choices), "readonly")

    @initialize(data=contents(MAX_NBYTES))
    def begin(self, data: bytes) -> None:
        """Share something with everybody, so that every rule has something to work on."""
        for owner in PLACES:
            self.allocate(owner, data)
            for access in self.accesses:
                self.note_export(self.blocks[-1], access)
            for place in PLACES:
                name = self.new_name("import")
                handle = self.handles[-1]
                self.at(place, actions.import_, name, handle.handle.to_bytes(), readonly=False)
                self.imports.append(self.enter(place, handle, name, readonly=False))

    # Rules of the exporter ------------------------------------------------------------------

    @rule(place=_places, data=contents(MAX_NBYTES))
    def allocate(self, place: int, data: bytes) -> None:
        """Allocate, and fill: fresh contents are undefined."""
        block = Block(self.new_name("block"), place, bytearray(data))
        self.at(place, actions.allocate, block.name, len(data))
        self.at(place, actions.write, block.name, data)
        self.blocks.append(block)

    @precondition(lambda self: self.own())
    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        """Export a block, perhaps once more."""
        block = data.draw(st.sampled_from(self.own()))
        self.note_export(block, data.draw(st.sampled_from(self.accesses)))

    def note_export(self, block: Block, access: str) -> None:
        """Export, twice, and note the handle."""
        blob = self.at(block.place, actions.export, block.name, access=access)
        again = self.at(block.place, actions.export, block.name, access=access)

        assert blob == again
        handle = crossmem.ShareableHandle.from_bytes(blob)
        assert handle.nbytes == len(block.contents)
        block.exports.add(access)
        self.handles.append(Handle(block, handle))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def take_part(self, data: st.DataObject) -> None:
        """Name a part."""
        whole = data.draw(st.sampled_from(self.handles))
        part = whole.handle.slice(*data.draw(parts(whole.handle.length)))
        self.handles.append(Handle(whole.block, part))

    @precondition(lambda self: self.own())
    @rule(data=st.data(), busy=st.sampled_from(("defer", "defer", "raise")))
    def free(self, data: st.DataObject, busy: str) -> None:
        """Free, whoever holds it."""
        block = data.draw(st.sampled_from(self.own()))
        is_busy = busy == "raise" and self.holders(block)
        expected = crossmem.BusyError if is_busy else None
        if self.attempt(
            expected, lambda: self.at(block.place, actions.free, block.name, busy=busy)
        ):
            block.is_freed = True

    def own(self) -> list[Block]:
        """Return the blocks that are not freed and whose owner lives."""
        return [one for one in self.blocks if not (one.is_freed or one.is_orphaned)]

    # Rules of the importer ------------------------------------------------------------------

    @precondition(lambda self: self.handles)
    @rule(place=_places, data=st.data())
    def import_(self, place: int, data: st.DataObject) -> None:
        """Import without mapping."""
        handle = data.draw(st.sampled_from(self.handles))
        readonly, name = self.draw_readonly(data), self.new_name("import")
        expected = self.refusal(place, handle, self.access_of(handle, readonly=readonly))
        blob = handle.handle.to_bytes()
        if self.attempt(
            expected, lambda: self.at(place, actions.import_, name, blob, readonly=readonly)
        ):
            self.imports.append(self.enter(place, handle, name, readonly=readonly))

    @precondition(lambda self: self.imports)
    @rule(data=st.data())
    def map(self, data: st.DataObject) -> None:
        """Map an import, perhaps a second time."""
        parent = data.draw(st.sampled_from(self.imports))
        name = self.new_name("mapping")
        self.at(parent.place, actions.map_, name, parent.name)
        parent.mappings += 1
        mapping = Held(name, parent.place, parent.handle, parent.key, parent.readonly, parent)
        self.mappings.append(mapping)

    @precondition(lambda self: self.handles)
    @rule(place=_places, data=st.data())
    def attach(self, place: int, data: st.DataObject) -> None:
        """Attach one handle, or several together: all or none."""
        chosen = data.draw(st.lists(st.sampled_from(self.handles), min_size=1, max_size=4))
        readonly = self.draw_readonly(data)
        names = [self.new_name("mapping") for _ in chosen]
        refusals = [
            self.refusal(place, one, self.access_of(one, readonly=readonly)) for one in chosen
        ]
        blobs = [one.handle.to_bytes() for one in chosen]
        try:
            self.at(place, actions.attach_many, names, blobs, readonly=readonly)
        except crossmem.CrossmemError as error:
            # Which of several reasons is found first is not promised.
            if type(error) not in refusals:
                raise
            return
        assert refusals == [None] * len(chosen)
        for name, handle in zip(names, chosen, strict=True):
            self.mappings.append(self.enter(place, handle, name, readonly=readonly))

    @precondition(lambda self: self.mappings)
    @rule(data=st.data())
    def unmap(self, data: st.DataObject) -> None:
        """Unmap; what was attached is closed by that. Twice is harmless."""
        mapping = data.draw(st.sampled_from(self.mappings))
        self.at(mapping.place, actions.unmap, mapping.name, mapping.name)
        self.mappings.remove(mapping)
        if mapping.parent is None:
            self.leave(mapping)
        else:
            mapping.parent.mappings -= 1
        self.attempt(
            crossmem.ClosedError, lambda: self.at(mapping.place, actions.read, mapping.name)
        )

    @precondition(lambda self: self.imports)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """Close an import, which works where it is not mapped."""
        held = data.draw(st.sampled_from(self.imports))
        expected = crossmem.BusyError if held.mappings else None
        if self.attempt(expected, lambda: self.at(held.place, actions.close, held.name)):
            self.imports.remove(held)
            self.leave(held)

    # Bytes ----------------------------------------------------------------------------------

    def memories(self) -> list[tuple[str, int, Block, slice, bool]]:
        """Return all that can be read: name, place, block, which bytes, and whether read-only."""
        mapped = [
            (one.name, one.place, one.handle.block, one.handle.span, one.readonly)
            for one in self.mappings
            if self.capabilities.survives_owner or not one.handle.block.is_orphaned
        ]
        owned = [
            (one.name, one.place, one, slice(0, len(one.contents)), False) for one in self.own()
        ]
        return mapped + owned

    @precondition(lambda self: self.memories())
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Read a part of what is mapped somewhere."""
        name, place, block, span, _ = data.draw(st.sampled_from(self.memories()))
        offset, nbytes = data.draw(parts(span.stop - span.start))
        got = self.at(place, actions.read, name, nbytes, offset=offset)

        assert got == block.contents[span][offset : offset + nbytes]

    @precondition(lambda self: self.memories())
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Write a part; everybody else sees it, as the next reads show."""
        name, place, block, span, readonly = data.draw(st.sampled_from(self.memories()))
        offset, nbytes = data.draw(parts(span.stop - span.start))
        fresh = data.draw(st.binary(min_size=nbytes, max_size=nbytes))
        expected = crossmem.AccessDeniedError if readonly else None
        if self.attempt(
            expected, lambda: self.at(place, actions.write, name, fresh, offset=offset)
        ):
            start = span.start + offset
            block.contents[start : start + nbytes] = fresh

    # Death ----------------------------------------------------------------------------------

    @precondition(lambda self: self.entries and not self.has_killed)
    @rule(place=st.sampled_from(PLACES[1:]))
    def kill(self, place: int) -> None:
        """Kill a process; what it owned is orphaned, what it held is let go."""
        self.has_killed = True  # a new process takes long to start: one death in each run
        self.peers[place].kill()
        self.peers[place].destroy()
        self.peers[place] = type(self).start()
        for block in self.blocks:
            block.is_orphaned = block.is_orphaned or block.place == place
        self.imports = [one for one in self.imports if one.place != place]
        self.mappings = [one for one in self.mappings if one.place != place]
        self.entries = {key: one for key, one in self.entries.items() if key[0] != place}

    # What must always hold --------------------------------------------------------------------

    @invariant()
    def every_process_holds_what_the_model_says(self) -> None:
        """Compare each process's own account with the model; a death may take a second."""
        for place in PLACES:
            problems = settle(lambda where=place: self.differences(where), within=1.0)
            assert not problems, problems

    def differences(self, place: int) -> list[str]:
        """Return in which ways a process differs from the model."""
        state = self.at(place, actions.state)
        here = {key: one for key, one in self.entries.items() if key[0] == place}
        blocks = [
            one
            for one in self.blocks
            if one.place == place
            and not one.is_orphaned
            and (not one.is_freed or self.holders(one))
        ]
        expected = {
            "blocks": len(blocks),
            "exports": sum(len(one.exports) for one in blocks),
            "imports": sum(
                one.block.place != place or one.block.is_orphaned for one in here.values()
            ),
        }
        found = {kind: state["live"][kind] for kind in expected}
        problems = [] if found == expected else [f"{place} holds {found}, not {expected}"]
        problems += state["violations"]
        pids = {HERE: actions.pid(), **{n: peer.pid for n, peer in self.peers.items()}}
        leases = sorted(
            (block.is_freed, sorted(pids[one] for one in self.holders(block)))
            for block in blocks
            if block.exports
        )
        told: dict[int, tuple[bool, set[int]]] = {}
        for info in self.at(place, actions.exports):
            _, known = told.setdefault(info.handle.allocation, (info.waiting, set()))
            known.update(lease.pid for lease in info.leases)
        got = sorted((waiting, sorted(known)) for waiting, known in told.values())
        if got != leases:
            problems.append(f"{place} says that it is leased {got}, not {leases}")
        return problems

    @override
    def teardown(self) -> None:
        """Give everything back, and look whether that is so."""
        super().teardown()
        for place in PLACES:
            self.at(place, actions.reset)
        for place in PLACES:
            problems = settle(lambda where=place: self.leftovers(where))
            assert not problems, problems

    def leftovers(self, place: int) -> list[str]:
        """Return what a process still holds when it should hold nothing."""
        live = self.at(place, actions.state)["live"]
        return [f"{place} still holds {count} {kind}" for kind, count in live.items() if count]
