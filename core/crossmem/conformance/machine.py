# SPDX-License-Identifier: Apache-2.0
"""Random sequences of calls and deaths in three processes, compared with a model."""

import itertools
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.model import Block, Handle, Held, Model, account
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.strategies import contents, parts
from crossmem.driver import readonly_alias_of

__all__ = ["SharingMachine"]

MAX_NBYTES: Final = 9000
HERE: Final = 0
PLACES: Final = (HERE, 1, 2)

_places = st.sampled_from(PLACES)


class SharingMachine(RuleBasedStateMachine):
    """Rules for three processes. A subclass sets the attributes.

    Attributes
    ----------
    start
        A function that starts a peer.
    peers
        The other two processes. The key is the number of the process. All examples of Hypothesis
        use the same dict. A killed peer is replaced.
    """

    start: ClassVar[Callable[[], Peer]]
    peers: ClassVar[dict[int, Peer]]

    def __init__(self) -> None:
        super().__init__()
        self.names = itertools.count(1)
        self.has_killed = False
        for place in PLACES[1:]:
            if place not in self.peers or self.peers[place].exitcode is not None:
                self.peers[place] = type(self).start()
        self.capabilities = actions.device().capabilities
        has_both = self.capabilities.readonly_exports and not blocks.are_used()
        self.accesses = ("ro", "rw") if has_both else ("rw",)
        self.model = Model(
            has_readonly_alias=readonly_alias_of(actions.device().driver) is not None,
            survives_owner=self.capabilities.survives_owner,
        )

    # Helpers ------------------------------------------------------------------------------

    def at(self, place: int, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function in one of the processes."""
        if place == HERE:
            return function(*args, **options)
        return self.peers[place].call(function, *args, **options)

    def new_name(self, kind: str) -> str:
        """Return an unused name."""
        return f"{kind}{next(self.names)}"

    def give_pools_back(self, place: int) -> None:
        """With ``--crossmem-blocks``, let a process release imported pools that it does not use."""
        if blocks.are_used():
            self.at(place, blocks.close_idle)

    def attempt(self, expected: type[Exception] | None, call: Callable[[], Any]) -> bool:
        """Call a function, and return whether the call succeeded.

        The call must raise ``expected``. If ``expected`` is None, the call must succeed.
        """
        try:
            call()
        except crossmem.CrossmemError as error:
            if expected is None or type(error) is not expected:
                raise
            return False
        assert expected is None, f"the call succeeded instead of raising {expected.__name__}"
        return True

    def draw_readonly(self, data: st.DataObject) -> bool | str:
        """Draw the ``readonly`` argument of an import."""
        choices: list[bool | str] = [False, "advisory"]
        if self.capabilities.readonly_imports:
            choices.append(True)
        return data.draw(st.sampled_from(choices), "readonly")

    @initialize(data=contents(MAX_NBYTES))
    def begin(self, data: bytes) -> None:
        """Share memory among all processes, so that every rule can run."""
        for owner in PLACES:
            self.allocate(owner, data)
            for access in self.accesses:
                self.note_export(self.model.blocks[-1], access)
            for place in PLACES:
                name = self.new_name("import")
                handle = self.model.handles[-1]
                self.at(place, actions.import_, name, handle.handle.to_bytes(), readonly=False)
                self.model.imports.append(self.model.enter(place, handle, name, readonly=False))

    # Rules of the exporter ------------------------------------------------------------------

    @rule(place=_places, data=contents(MAX_NBYTES))
    def allocate(self, place: int, data: bytes) -> None:
        """Allocate memory and fill it, because the contents of new memory are undefined."""
        block = Block(self.new_name("block"), place, bytearray(data))
        self.at(place, actions.allocate, block.name, len(data))
        self.at(place, actions.write, block.name, data)
        self.model.blocks.append(block)

    @precondition(lambda self: self.model.own())
    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        """Export an allocation, which may have been exported before."""
        block = data.draw(st.sampled_from(self.model.own()))
        self.note_export(block, data.draw(st.sampled_from(self.accesses)))

    def note_export(self, block: Block, access: str) -> None:
        """Export a block twice. Check that both handles are equal, and record one of them."""
        blob = self.at(block.place, actions.export, block.name, access=access)
        again = self.at(block.place, actions.export, block.name, access=access)

        assert blob == again
        handle = crossmem.ShareableHandle.from_bytes(blob)
        assert handle.nbytes == len(block.contents)
        block.exports.add(access)
        self.model.handles.append(Handle(block, handle))

    @precondition(lambda self: self.model.handles)
    @rule(data=st.data())
    def take_part(self, data: st.DataObject) -> None:
        """Slice a handle, which may itself be a slice."""
        whole = data.draw(st.sampled_from(self.model.handles))
        part = whole.handle.slice(*data.draw(parts(whole.handle.length)))
        self.model.handles.append(Handle(whole.block, part))

    @precondition(lambda self: self.model.own())
    @rule(data=st.data(), busy=st.sampled_from(("defer", "defer", "raise")))
    def free(self, data: st.DataObject, busy: str) -> None:
        """Free an allocation. With ``busy="raise"``, the call must fail if the memory is held."""
        block = data.draw(st.sampled_from(self.model.own()))
        is_busy = busy == "raise" and self.model.holders(block)
        expected = crossmem.BusyError if is_busy else None
        if self.attempt(
            expected, lambda: self.at(block.place, actions.free, block.name, busy=busy)
        ):
            block.is_freed = True

    # Rules of the importer ------------------------------------------------------------------

    @precondition(lambda self: self.model.handles)
    @rule(place=_places, data=st.data())
    def import_(self, place: int, data: st.DataObject) -> None:
        """Import a handle without mapping it."""
        handle = data.draw(st.sampled_from(self.model.handles))
        readonly, name = self.draw_readonly(data), self.new_name("import")
        expected = self.model.refusal(
            place, handle, self.model.access_of(handle, readonly=readonly)
        )
        blob = handle.handle.to_bytes()
        if self.attempt(
            expected, lambda: self.at(place, actions.import_, name, blob, readonly=readonly)
        ):
            self.model.imports.append(self.model.enter(place, handle, name, readonly=readonly))

    @precondition(lambda self: self.model.imports)
    @rule(data=st.data())
    def map(self, data: st.DataObject) -> None:
        """Map an import, possibly a second time."""
        parent = data.draw(st.sampled_from(self.model.imports))
        name = self.new_name("mapping")
        try:
            self.at(parent.place, actions.map_, name, parent.name)
        except crossmem.OwnerGoneError as error:
            if not self.model.is_lost(error, [parent.handle]):
                raise
            return
        parent.mappings += 1
        mapping = Held(name, parent.place, parent.handle, parent.key, parent.readonly, parent)
        self.model.mappings.append(mapping)

    @precondition(lambda self: self.model.handles)
    @rule(place=_places, data=st.data())
    def attach(self, place: int, data: st.DataObject) -> None:
        """Attach one or several handles by one call, which attaches all of them or none."""
        chosen = data.draw(st.lists(st.sampled_from(self.model.handles), min_size=1, max_size=4))
        readonly = self.draw_readonly(data)
        names = [self.new_name("mapping") for _ in chosen]
        refusals = [
            self.model.refusal(place, one, self.model.access_of(one, readonly=readonly))
            for one in chosen
        ]
        blobs = [one.handle.to_bytes() for one in chosen]
        try:
            self.at(place, actions.attach_many, names, blobs, readonly=readonly)
        except crossmem.CrossmemError as error:
            # If several handles are refused, the laws do not say which of the errors is raised.
            if type(error) not in refusals and not self.model.is_lost(error, chosen):
                raise
            return
        assert refusals == [None] * len(chosen)
        for name, handle in zip(names, chosen, strict=True):
            self.model.mappings.append(self.model.enter(place, handle, name, readonly=readonly))

    @precondition(lambda self: self.model.mappings)
    @rule(data=st.data())
    def unmap(self, data: st.DataObject) -> None:
        """Unmap a mapping twice. The first call also closes an import that ``attach`` made."""
        mapping = data.draw(st.sampled_from(self.model.mappings))
        self.at(mapping.place, actions.unmap, mapping.name, mapping.name)
        self.model.mappings.remove(mapping)
        self.give_pools_back(mapping.place)
        if mapping.parent is None:
            self.model.leave(mapping)
        else:
            mapping.parent.mappings -= 1
        self.attempt(
            crossmem.ClosedError, lambda: self.at(mapping.place, actions.read, mapping.name)
        )

    @precondition(lambda self: self.model.imports)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """Close an import. The call must fail while the import is mapped."""
        held = data.draw(st.sampled_from(self.model.imports))
        expected = crossmem.BusyError if held.mappings else None
        if self.attempt(expected, lambda: self.at(held.place, actions.close, held.name)):
            self.give_pools_back(held.place)
            self.model.imports.remove(held)
            self.model.leave(held)

    # Bytes ----------------------------------------------------------------------------------

    @precondition(lambda self: self.model.memories())
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Read a part of an allocation or mapping, and compare it with the model."""
        name, place, block, span, _ = data.draw(st.sampled_from(self.model.memories()))
        offset, nbytes = data.draw(parts(span.stop - span.start))
        got = self.at(place, actions.read, name, nbytes, offset=offset)

        assert got == block.contents[span][offset : offset + nbytes]

    @precondition(lambda self: self.model.memories())
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Write to an allocation or mapping. Later reads check that all processes see the bytes."""
        name, place, block, span, readonly = data.draw(st.sampled_from(self.model.memories()))
        offset, nbytes = data.draw(parts(span.stop - span.start))
        fresh = data.draw(st.binary(min_size=nbytes, max_size=nbytes))
        expected = crossmem.AccessDeniedError if readonly else None
        if self.attempt(
            expected, lambda: self.at(place, actions.write, name, fresh, offset=offset)
        ):
            start = span.start + offset
            block.contents[start : start + nbytes] = fresh

    # Death ----------------------------------------------------------------------------------

    @precondition(lambda self: self.model.entries and not self.has_killed)
    @rule(place=st.sampled_from(PLACES[1:]))
    def kill(self, place: int) -> None:
        """Kill a peer, and start a new peer.

        The holds of the killed peer end, and its memory has no owner any more.
        """
        self.has_killed = True  # one kill in an example, because a new process starts slowly
        self.peers[place].kill()
        self.peers[place].destroy()
        self.peers[place] = type(self).start()
        self.model.kill(place)
        if blocks.are_used():
            # crossmem checks only every half second whether the owner of an open pool lives. Until
            # the next check, attaching another block of the pool can succeed although the owner is
            # dead.
            time.sleep(0.6)

    # What must always hold --------------------------------------------------------------------

    @invariant()
    def every_process_holds_what_the_model_says(self) -> None:
        """Compare each process's resources with the model, until they agree or time is up."""
        for place in PLACES:
            problems = settle(lambda where=place: self.differences(where))
            assert not problems, problems

    def differences(self, place: int) -> list[str]:
        """Return the differences between a process and the model."""
        live, violations, leased = self.at(place, account)
        blocks, expected = self.model.held_by(place)
        found = {kind: live[kind] for kind in expected}
        problems = [] if found == expected else [f"process {place} holds {found}, not {expected}"]
        pids = {HERE: actions.pid(), **{n: peer.pid for n, peer in self.peers.items()}}
        leases = sorted(
            (block.is_freed, sorted(pids[one] for one in self.model.holders(block)))
            for block in blocks
            if block.exports
        )
        if leased != leases:
            problems.append(f"process {place} reports the leases {leased}, not {leases}")
        return [*problems, *violations]

    @override
    def teardown(self) -> None:
        """Release everything, and check that nothing is left."""
        super().teardown()
        for place in PLACES:
            self.at(place, actions.reset)
        for place in PLACES:
            problems = settle(lambda where=place: self.leftovers(where))
            assert not problems, problems

    def leftovers(self, place: int) -> list[str]:
        """Return the resources that a process has not released."""
        live, _, _ = self.at(place, account)
        return [
            f"process {place} still holds {count} {kind}" for kind, count in live.items() if count
        ]
