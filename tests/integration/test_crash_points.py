# SPDX-License-Identifier: Apache-2.0
"""A process killed at any access to the words of leases harms nobody else.

Every access is numbered. Which ones each operation makes, and in which order, is a promise of its
own: a change of the protocol shows here.
"""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import end_actions, word_actions
    from tests.integration.conftest import StartPeer
else:
    import end_actions
    import word_actions

NBYTES = 4096

Step = Callable[[Peer, dict[str, bytes]], object]


class Scene:
    """An exporter of memory ``a`` and ``b``, an importer, and one that survives."""

    def __init__(self, start_peer: "StartPeer") -> None:
        self.exporter, self.importer, self.survivor = (start_peer(tracing=False) for _ in range(3))
        self.blobs = {
            name: self.exporter.call(actions.offer, name, NBYTES, name.encode() * 4)
            for name in "ab"
        }
        self.survivor.call(actions.attach, "a", self.blobs["a"])

    def lessees(self) -> list[int]:
        """Return who holds the exporter's memory, as the exporter sees it."""
        infos = self.exporter.call(actions.exports)
        return sorted({lease.pid for info in infos for lease in info.leases})


@pytest.fixture
def scene(start_peer: "StartPeer") -> Scene:
    return Scene(start_peer)


def attach(name: str) -> Step:
    return lambda peer, blobs: peer.call(actions.attach, name, blobs[name])


def unmap(name: str) -> Step:
    return lambda peer, _: peer.call(actions.unmap, name)


def nothing(_peer: Peer, _blobs: dict[str, bytes]) -> None:
    """There is nothing to be done before."""


HOLD = ["load", "store", "observe"]
"""Whether anybody here holds it, that somebody does, and only then what control says."""
LOOK = ["load", "store", "barrier", "any_of"]
"""The next generation, the barrier, and only then the rows."""

IMPORTS: dict[str, tuple[Step, Step, list[str]]] = {
    "the first attach from an exporter": (nothing, attach("a"), ["load", "store", *HOLD]),
    "a later attach": (attach("a"), attach("b"), HOLD),
    "a repeated attach": (
        attach("a"),
        lambda peer, blobs: peer.call(actions.attach, "again", blobs["a"]),
        [],
    ),
    "the last unmap": (attach("a"), unmap("a"), ["load", "store", "load"]),
}
"""By operation: what comes before, the operation, and which accesses it makes, in order."""

IMPORT_POINTS = [(name, at + 1) for name, case in IMPORTS.items() for at in range(len(case[2]))]


@pytest.mark.parametrize("name", IMPORTS)
def test_which_accesses_an_importer_makes(scene: Scene, name: str) -> None:
    before, operation, accesses = IMPORTS[name]
    before(scene.importer, scene.blobs)
    scene.importer.call(word_actions.count)

    operation(scene.importer, scene.blobs)

    assert scene.importer.call(word_actions.made) == accesses


@pytest.mark.parametrize(("name", "at"), IMPORT_POINTS)
def test_an_importer_killed_there(scene: Scene, name: str, at: int) -> None:
    before, operation, _ = IMPORTS[name]
    before(scene.importer, scene.blobs)
    scene.importer.call(word_actions.count, at)

    with pytest.raises(PeerDiedError):
        operation(scene.importer, scene.blobs)

    def lost() -> list[int]:
        return [pid for pid in scene.lessees() if pid != scene.survivor.pid]

    assert settle(lost, within=1) == []
    assert scene.survivor.call(actions.read, "a", 4) == b"aaaa"
    scene.exporter.call(actions.free, "b", busy="wait", timeout=SLOWNESS)
    scene.exporter.call(actions.free, "a")
    assert scene.survivor.call(actions.read, "a", 4) == b"aaaa"
    scene.survivor.call(actions.unmap, "a")
    assert settle(scene.lessees) == []


FREES: dict[str, tuple[Step, list[str]]] = {
    "a free of what is leased": (lambda peer, _: peer.call(actions.free, "a"), LOOK),
    "a free of what was leased": (lambda peer, _: peer.call(actions.free, "b"), [*LOOK, "load"]),
    "a free that is refused": (
        lambda peer, _: peer.call(word_actions.free_if_idle, "a"),
        ["load", "any_of", "any_of", "load"],
    ),
    "a free that waits in vain": (
        lambda peer, _: peer.call(word_actions.free_soon, "a", 0.1),
        ["load", "any_of", *LOOK, "any_of", "load"],
    ),
    "a withdrawal of what is leased": (
        lambda peer, blobs: peer.call(end_actions.withdraw, "a", blobs["a"]),
        LOOK,
    ),
    "a withdrawal of what was leased": (
        lambda peer, blobs: peer.call(end_actions.withdraw, "b", blobs["b"]),
        [*LOOK, "load", "store", "load"],
    ),
    "a report": (lambda peer, _: peer.call(actions.exports), ["load"] * 4),
}
"""By operation of an exporter whose memory ``a`` is leased, and ``b`` was: its accesses."""

FREE_POINTS = [(name, at + 1) for name, case in FREES.items() for at in range(len(case[1]))]


def was_leased(scene: Scene) -> None:
    scene.importer.call(actions.attach, "b", scene.blobs["b"])
    scene.importer.call(actions.unmap, "b")


@pytest.mark.parametrize("name", FREES)
def test_which_accesses_an_exporter_makes(scene: Scene, name: str) -> None:
    was_leased(scene)
    scene.exporter.call(word_actions.count)
    operation, accesses = FREES[name]

    operation(scene.exporter, scene.blobs)

    assert scene.exporter.call(word_actions.made) == accesses


@pytest.mark.parametrize(("name", "at"), FREE_POINTS)
def test_an_exporter_killed_there(scene: Scene, name: str, at: int) -> None:
    was_leased(scene)
    scene.exporter.call(word_actions.count, at)

    with pytest.raises(PeerDiedError):
        FREES[name][0](scene.exporter, scene.blobs)

    assert scene.survivor.call(actions.read, "a", 4) == b"aaaa"
    assert (
        settle(
            lambda: (
                [] if not scene.survivor.call(actions.attribute, "a", "owner_alive") else ["alive"]
            ),
            within=1,
        )
        == []
    )
    with pytest.raises(crossmem.OwnerGoneError):
        scene.survivor.call(actions.attach, "never", scene.blobs["b"])
    scene.survivor.call(actions.unmap, "a")


ANSWERS = {"the first lease of all": (True, 3), "a later one to a known importer": (False, 3)}
"""By answer of an exporter's server: whether it is the first, and how many accesses it makes."""


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("at", range(1, 5))
def test_an_exporter_killed_while_it_answers(start_peer: "StartPeer", name: str, at: int) -> None:
    is_first, accesses = ANSWERS[name]
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    blobs = [exporter.call(actions.offer, one, NBYTES, b"data") for one in "ab"]
    if not is_first:
        importer.call(actions.attach, "mapped", blobs[0])
    exporter.call(word_actions.count, at)

    if at > accesses:
        importer.call(actions.attach, "new", blobs[1])
        assert exporter.call(word_actions.counted) == accesses
        return
    with pytest.raises(crossmem.OwnerGoneError):
        importer.call(actions.attach, "new", blobs[1])
    if not is_first:
        assert importer.call(actions.read, "mapped", 4) == b"data"


# Between the end of a hold and its message ------------------------------------------------------

LAST = 3
"""Number of the access with which an importer learns whether the exporter waits."""


@pytest.mark.parametrize("death", [signal.SIGSTOP, signal.SIGKILL])
def test_an_importer_cut_off_before_its_message_delays_nobody(scene: Scene, death: int) -> None:
    scene.importer.call(actions.attach, "b", scene.blobs["b"])
    scene.importer.call(word_actions.count, LAST, death)
    waiting = scene.exporter.start(word_actions.seconds_of_free, "b", 20.0)
    ended = scene.importer.start(actions.unmap, "b")

    assert waiting.result() < 1 + SLOWNESS
    if death == signal.SIGSTOP:
        scene.importer.cont()
        ended.result()
    scene.survivor.call(actions.unmap, "a")


def test_an_exporter_learns_of_freed_memory_without_the_message(scene: Scene) -> None:
    scene.importer.call(actions.attach, "b", scene.blobs["b"])
    scene.exporter.call(actions.free, "b")
    scene.importer.call(word_actions.count, LAST, signal.SIGSTOP)
    ended = scene.importer.start(actions.unmap, "b")

    # It makes no further call of crossmem.
    def left() -> list[int]:
        return [1] * (scene.exporter.call(word_actions.live) - 1)

    assert settle(left, within=1 + SLOWNESS) == []
    scene.importer.cont()
    ended.result()


# Hostile rows -------------------------------------------------------------------------------------


def test_rubbish_in_a_row_keeps_what_was_leased_to_it_at_worst(scene: Scene) -> None:
    scene.importer.call(actions.attach, "b", scene.blobs["b"])
    others = [scene.exporter.call(actions.offer, f"other{number}", NBYTES) for number in range(8)]
    for blob in others:
        scene.survivor.call(actions.attach, "other", blob)
        scene.survivor.call(actions.unmap, "other")
    scribbling = scene.importer.start(word_actions.scribble, "b", 1_000_000, 14, within=120)

    # None of this was leased to it.
    for number in range(8):
        scene.exporter.call(actions.free, f"other{number}", busy="raise")
    scene.survivor.call(actions.unmap, "a")
    scene.exporter.call(actions.free, "a", busy="wait", timeout=20)
    scribbling.result()

    assert "Traceback" not in scene.exporter.output()
    assert scene.importer.call(actions.read, "b", 4) == b"bbbb"
    scene.exporter.call(actions.free, "b")
    scene.importer.kill()
    assert settle(scene.lessees) == []
    again = scene.exporter.call(actions.offer, "again", NBYTES, b"anew")
    scene.survivor.call(actions.attach, "again", again)
    assert scene.survivor.call(actions.read, "again", 4) == b"anew"
