# SPDX-License-Identifier: Apache-2.0
"""A process killed at any access to the words of a pool harms nobody else, and no block is lost.

Every access is numbered. Which ones each operation makes, and in which order, is a promise of its
own: a change of the protocol shows here. ``busy`` stands for the owner's look at all rows.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance import actions
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import pool_actions, word_actions
    from tests.integration.conftest import StartPeer
else:
    import pool_actions
    import word_actions

NBYTES = 4096
BLOCKS = 6

Step = Callable[[Peer, dict[str, bytes]], object]


class Scene:
    """The owner of a pool with live blocks ``a``, ``b``, ``c``, an importer, one that survives."""

    def __init__(self, start_peer: "StartPeer") -> None:
        self.owner, self.importer, self.survivor = (start_peer(tracing=False) for _ in range(3))
        self.owner.call(pool_actions.make, "pool", NBYTES, BLOCKS)
        self.blobs = {
            name: self.owner.call(pool_actions.give, name, "pool", name.encode()) for name in "abc"
        }
        self.importer.call(pool_actions.stay_untidy)
        self.survivor.call(actions.attach, "a", self.blobs["a"])

    def unexpected(self) -> list[object]:
        """Return who beside the survivor holds a block, and whether a block is missing."""
        stats = self.owner.call(pool_actions.stats, "pool")
        found: list[object] = [pid for pid in stats.holders if pid != self.survivor.pid]
        if stats.free + stats.live + stats.waiting != BLOCKS or stats.waiting:
            found.append(stats)
        return found


@pytest.fixture
def scene(start_peer: "StartPeer") -> Scene:
    return Scene(start_peer)


def nothing(_peer: Peer, _blobs: dict[str, bytes]) -> None:
    """There is nothing to be done before."""


def attach(name: str) -> Step:
    return lambda peer, blobs: peer.call(actions.attach, name, blobs[name])


def unmap(name: str) -> Step:
    return lambda peer, _: peer.call(actions.unmap, name)


def both(first: Step, second: Step) -> Step:
    def do(peer: Peer, blobs: dict[str, bytes]) -> None:
        first(peer, blobs)
        second(peer, blobs)

    return do


# Importers ----------------------------------------------------------------------------------------

HOLD = ["load", "store", "observe"]
"""Whether anybody here holds it, that somebody does, and only then what control says."""
STEP = ["load", "store", "load"]
"""The same, where all of it is one step of the interpreter."""
LEAVE = ["load", "store", "load"]
"""Whether anybody here holds it, that nobody does, and only then whether the owner waits."""

IMPORTS: dict[str, tuple[Step, Step, list[str]]] = {
    "the first attach from a pool": (
        nothing,
        attach("b"),
        # The mode of the row, the arena, the distance between blocks before and after the driver's
        # call, whether the block is held.
        ["load", "store", *HOLD, "load", "load", "load", *HOLD],
    ),
    "a later attach": (attach("b"), attach("c"), STEP),
    "a repeated attach": (
        attach("b"),
        lambda peer, blobs: peer.call(actions.attach, "again", blobs["b"]),
        ["load", "observe"],
    ),
    "attach_many": (
        attach("b"),
        lambda peer, blobs: peer.call(actions.attach_many, ["b2", "c"], [blobs["b"], blobs["c"]]),
        ["load", "observe", *HOLD],
    ),
    "an import": (
        attach("b"),
        lambda peer, blobs: peer.call(actions.import_, "c", blobs["c"]),
        HOLD,
    ),
    "a map of an import, and its unmap": (
        both(attach("b"), lambda peer, blobs: peer.call(actions.import_, "c", blobs["c"])),
        lambda peer, _: peer.call(pool_actions.map_imported, "c"),
        # The import still holds the block after the unmap.
        ["load", "observe"],
    ),
    "a close": (
        both(attach("b"), lambda peer, blobs: peer.call(actions.import_, "c", blobs["c"])),
        lambda peer, _: peer.call(actions.close, "c"),
        LEAVE,
    ),
    "an unmap": (both(attach("b"), attach("c")), unmap("c"), LEAVE),
    "a look at the open pools": (
        both(attach("b"), unmap("b")),
        lambda peer, _: peer.call(pool_actions.tend),
        ["load", "load"],
    ),
}
"""By operation: what comes before, the operation, and which accesses it makes, in order."""

IMPORT_POINTS = [(name, at + 1) for name, case in IMPORTS.items() for at in range(len(case[2]))]


# Under a tracer, the hot path is not taken.
@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", IMPORTS)
def test_which_accesses_an_importer_makes(scene: Scene, name: str) -> None:
    before, operation, accesses = IMPORTS[name]
    before(scene.importer, scene.blobs)
    scene.importer.call(pool_actions.count)

    operation(scene.importer, scene.blobs)

    assert scene.importer.call(pool_actions.made) == accesses


def account(scene: Scene) -> None:
    """Check that no block is lost, and that the survivor's holds its data all the time."""
    assert settle(scene.unexpected, within=1 + SLOWNESS) == []
    for name in "bc":
        scene.owner.call(actions.free, name, busy="wait", timeout=SLOWNESS)
    assert scene.owner.call(pool_actions.fill, "pool", b"z") == BLOCKS - 1
    scene.owner.call(actions.free, "a")
    assert scene.owner.call(pool_actions.fill, "pool", b"z") == BLOCKS - 1
    assert scene.survivor.call(pool_actions.shown, "a") == b"a"
    scene.survivor.call(actions.unmap, "a")
    assert scene.owner.call(pool_actions.fill, "pool", b"z") == BLOCKS
    again = scene.owner.call(pool_actions.give, "again", "pool", b"n")
    scene.survivor.call(actions.attach, "again", again)
    assert scene.survivor.call(pool_actions.shown, "again") == b"n"
    for blob in scene.blobs.values():
        assert scene.survivor.call(pool_actions.attach_unless, "StaleHandleError", blob)


@pytest.mark.parametrize(("name", "at"), IMPORT_POINTS)
def test_an_importer_killed_there(scene: Scene, name: str, at: int) -> None:
    before, operation, _ = IMPORTS[name]
    before(scene.importer, scene.blobs)
    scene.importer.call(pool_actions.count, at)

    with pytest.raises(PeerDiedError):
        operation(scene.importer, scene.blobs)

    account(scene)


STALE = [*STEP, *LEAVE, *HOLD, *LEAVE]


# Under a tracer, the hot path is not taken.
@pytest.mark.usefixtures("unmeasured")
def test_a_stale_handle(scene: Scene) -> None:
    attach("b")(scene.importer, scene.blobs)
    scene.owner.call(actions.free, "c")
    scene.importer.call(pool_actions.count)

    assert scene.importer.call(pool_actions.attach_unless, "StaleHandleError", scene.blobs["c"])

    assert scene.importer.call(pool_actions.made) == STALE


@pytest.mark.parametrize("at", range(1, len(STALE) + 1))
def test_an_importer_killed_with_a_stale_handle(scene: Scene, at: int) -> None:
    attach("b")(scene.importer, scene.blobs)
    scene.owner.call(actions.free, "c")
    scene.importer.call(pool_actions.count, at)

    with pytest.raises(PeerDiedError):
        scene.importer.call(pool_actions.attach_unless, "StaleHandleError", scene.blobs["c"])

    account(scene)


# Owners -------------------------------------------------------------------------------------------

LOOK = ["barrier", "busy"]
"""The barrier, and only then the rows."""
WAIT = ["load", "store", "barrier", "busy", "busy"]
"""That it waits for a block, the barrier, and the rows before and after it has waited."""

OPERATIONS: dict[str, tuple[Step, list[str]]] = {
    "an allocation, and its export": (
        lambda peer, _: peer.call(pool_actions.give, "d", "pool"),
        ["load", "store"],
    ),
    "a free": (lambda peer, _: peer.call(actions.free, "b"), ["store"]),
    "a free of what is held": (lambda peer, _: peer.call(actions.free, "a"), ["store"]),
    "frees of a batch": (
        lambda peer, _: peer.call(pool_actions.free_all, "abc"),
        ["store"] * 3 + LOOK,
    ),
    "a free that is refused": (
        lambda peer, _: peer.call(pool_actions.call_unless, "BusyError", "a", "free", busy="raise"),
        ["any_of", "load"],
    ),
    "a free that waits": (
        lambda peer, _: peer.call(actions.free, "b", busy="wait"),
        ["any_of", "store", "barrier", "any_of", "store"],
    ),
    "a free that waits in vain": (
        lambda peer, _: peer.call(pool_actions.free_in_a_race, "a"),
        ["any_of", "store", "barrier", "any_of", "store", "load"],
    ),
    "a withdrawal, and an export": (
        lambda peer, _: peer.call(pool_actions.withdraw, "b"),
        # The withdrawal begins the generation of the next handle.
        ["load", "store"],
    ),
    "a report": (lambda peer, _: peer.call(pool_actions.stats, "pool"), []),
    "an allocation that looks at the rows": (
        lambda peer, _: peer.call(pool_actions.use_up, "pool", "abc"),
        ["store", "store", "store", *LOOK, *LOOK, "load"],
    ),
    "an allocation that waits": (
        lambda peer, _: peer.call(pool_actions.wait_in_vain, "pool", "a"),
        ["store", *LOOK, "load", *LOOK, *WAIT, *LOOK, "load"],
    ),
    "a close": (
        lambda peer, _: peer.call(pool_actions.close_pool, "pool", "abc"),
        ["store", "store", "store", *LOOK, "load", "store", "barrier", "any_of"],
    ),
}
"""By operation of an owner: its accesses."""

OWNER_POINTS = [(name, at + 1) for name, case in OPERATIONS.items() for at in range(len(case[1]))]


@pytest.mark.parametrize("name", OPERATIONS)
def test_which_accesses_an_owner_makes(scene: Scene, name: str) -> None:
    scene.owner.call(pool_actions.count)
    operation, accesses = OPERATIONS[name]

    operation(scene.owner, scene.blobs)

    assert scene.owner.call(pool_actions.made) == accesses


@pytest.mark.parametrize(("name", "at"), OWNER_POINTS)
def test_an_owner_killed_there(scene: Scene, name: str, at: int) -> None:
    scene.owner.call(pool_actions.count, at)

    with pytest.raises(PeerDiedError):
        OPERATIONS[name][0](scene.owner, scene.blobs)

    def is_alive() -> list[str]:
        return ["alive"] * scene.survivor.call(actions.attribute, "a", "owner_alive")

    assert settle(is_alive, within=1) == []
    assert scene.survivor.call(pool_actions.shown, "a") == b"a"
    assert settle(lambda: took_over(scene), within=1) == []
    scene.survivor.call(actions.unmap, "a")
    # It shares blocks of others, and of its own.
    scene.survivor.call(pool_actions.make, "own", NBYTES, 2)
    blob = scene.survivor.call(pool_actions.give, "other", "own", b"o")
    scene.importer.call(actions.attach, "other", blob)
    assert scene.importer.call(pool_actions.shown, "other") == b"o"


def took_over(scene: Scene) -> list[str]:
    """Return what an importer can still attach of a dead owner's pool."""
    return [
        name
        for name in "bc"
        if not scene.survivor.call(pool_actions.attach_unless, "OwnerGoneError", scene.blobs[name])
    ]


# The end of a pool --------------------------------------------------------------------------------

END = ["load", "load", "load", "store", "load"]
"""Whether the pool is wanted, and the end of the hold of its memory."""


def close_emulated(start_peer: "StartPeer") -> tuple[Peer, Peer, int]:
    """Let an owner close a pool that an importer has open; return both, and what was in use."""
    owner, importer = start_peer(tracing=False), start_peer(tracing=False)
    in_use: int = owner.call(word_actions.live)
    owner.call(pool_actions.make, "pool", NBYTES, BLOCKS, "emulated:0")
    importer.call(pool_actions.stay_untidy)
    importer.call(actions.attach, "a", owner.call(pool_actions.give, "a", "pool", b"a"))
    owner.call(pool_actions.close_pool, "pool", "a")
    importer.call(actions.unmap, "a")
    assert owner.call(word_actions.live) > in_use
    return owner, importer, in_use


def test_which_accesses_the_end_of_a_closed_pool_makes(start_peer: "StartPeer") -> None:
    owner, importer, in_use = close_emulated(start_peer)
    importer.call(pool_actions.count)

    importer.call(pool_actions.tend)

    assert importer.call(pool_actions.made) == END
    assert settle(lambda: [1] * (owner.call(word_actions.live) != in_use), within=1) == []


@pytest.mark.parametrize("at", range(1, len(END) + 1))
def test_an_importer_killed_as_it_ends_a_closed_pool(start_peer: "StartPeer", at: int) -> None:
    owner, importer, in_use = close_emulated(start_peer)
    importer.call(pool_actions.count, at)

    with pytest.raises(PeerDiedError):
        importer.call(pool_actions.tend)

    assert settle(lambda: [1] * (owner.call(word_actions.live) != in_use), within=1) == []
