# SPDX-License-Identifier: Apache-2.0
"""A process killed at any access to the words of a timeline harms nobody else.

Every access is numbered. Which ones each operation makes, and in which order, is a promise of its
own: a change of the protocol shows here.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.pool import SOON_S, settle
from crossmem.sharing.timelines.cell import VOID

if TYPE_CHECKING:
    from tests.integration import timeline_actions, word_actions
    from tests.integration.conftest import StartPeer
else:
    import timeline_actions
    import word_actions

Step = Callable[[Peer, dict[str, bytes]], object]


class Scene:
    """A process that signals ``a`` and ``b``, a reader, and a reader of ``a`` that survives."""

    def __init__(self, start_peer: "StartPeer") -> None:
        self.owner, self.reader, self.survivor = (start_peer(tracing=False) for _ in range(3))
        for one in (self.owner, self.reader):
            one.call(timeline_actions.look_once)
        self.blobs = {name: self.owner.call(timeline_actions.make, name) for name in "ab"}
        self.owner.call(actions.call, "a", "signal", 3)
        self.survivor.call(timeline_actions.open_, "a", self.blobs["a"])
        self.survivor.call(actions.call, "a", "done", 3)

    def lessees(self) -> list[int]:
        """Return who holds the owner's memory."""
        infos = self.owner.call(actions.exports)
        return sorted({lease.pid for info in infos for lease in info.leases})


@pytest.fixture
def scene(start_peer: "StartPeer") -> Scene:
    return Scene(start_peer)


def nothing(_peer: Peer, _blobs: dict[str, bytes]) -> None:
    """There is nothing to be done before."""


def open_(name: str) -> Step:
    return lambda peer, blobs: peer.call(timeline_actions.open_, name, blobs[name])


def close(name: str) -> Step:
    return lambda peer, _: peer.call(timeline_actions.close, name)


def close_all(peer: Peer, _blobs: dict[str, bytes]) -> None:
    """Close ``a``, and have the end of its page before this returns."""
    peer.call(timeline_actions.close_and_release, "a")


def wait_in_vain(peer: Peer, _blobs: dict[str, bytes]) -> None:
    peer.call(timeline_actions.wait_in_vain, "a", 9)


def call(name: str, method: str, *args: object) -> Step:
    return lambda peer, _: peer.call(actions.call, name, method, *args)


def both(first: Step, second: Step) -> Step:
    def do(peer: Peer, blobs: dict[str, bytes]) -> None:
        first(peer, blobs)
        second(peer, blobs)

    return do


# Readers ----------------------------------------------------------------------------------

HOLD = ["load", "store", "observe"]
"""Whether anybody here holds it, that somebody does, and only then what control says."""
LEAVE = ["load", "store", "load"]
"""Whether anybody here holds it, that nobody does, and only then whether the owner waits."""
IDENTITY = "observe"
"""Whether the timeline was closed."""
FIRST_SLEEP = ["observe", "load", "store", "store", "barrier", "store", "load"]
"""The sequence, whether anybody slept before, that somebody will, the flag, the barrier, that it
was taken, and only then the second look at the value."""
SLEEP = ["observe", "load", "store", "fence", "load"]
"""The sequence, whether anybody slept before, the flag, and only then the second look."""
ACKNOWLEDGE = ["load", "load", "store"]
"""Whether the word is that of another export, what was acknowledged before, and the value."""
WRITE = ["store", "load"]
"""A word, and only then whether anybody slept before."""
WAKE = ["fence", "load", "store", "load", "store"]
"""Whether anybody sleeps, that nobody does any more, and only then the next sequence."""
CALM = ["fence", "load"]
"""Whether anybody sleeps: nobody does."""
LOOK = [IDENTITY, "observe", "observe"]
"""Whether it was closed, and whether a stream has work left."""

READS: dict[str, tuple[Step, Step, list[str]]] = {
    "the first open": (nothing, open_("a"), ["load", "store", *HOLD, IDENTITY]),
    "an open in a known page": (open_("b"), open_("a"), [IDENTITY]),
    "a wait for a value that was reached": (open_("a"), call("a", "wait", 3), ["load"]),
    "the first wait in vain": (open_("a"), wait_in_vain, ["load", *FIRST_SLEEP, IDENTITY, "load"]),
    "a later wait in vain": (
        both(open_("a"), wait_in_vain),
        wait_in_vain,
        ["load", *SLEEP, IDENTITY, "load"],
    ),
    "the first acknowledgement": (open_("a"), call("a", "done", 3), ACKNOWLEDGE),
    "a later one": (both(open_("a"), call("a", "done", 3)), call("a", "done", 4), ACKNOWLEDGE),
    "one again": (both(open_("a"), call("a", "done", 3)), call("a", "done", 3), ACKNOWLEDGE[:2]),
    "the close of a reader that acknowledged": (
        both(open_("a"), call("a", "done", 3)),
        close_all,
        ["store", *LEAVE],
    ),
    "the close of one in a page that stays": (both(open_("b"), open_("a")), close("a"), []),
}


READ_POINTS = [(name, at + 1) for name, case in READS.items() for at in range(len(case[2]))]


@pytest.mark.parametrize("name", READS)
def test_which_accesses_a_reader_makes(scene: Scene, name: str) -> None:
    before, operation, accesses = READS[name]
    before(scene.reader, scene.blobs)
    scene.reader.call(word_actions.count)

    operation(scene.reader, scene.blobs)

    assert scene.reader.call(word_actions.made) == accesses


@pytest.mark.parametrize(("name", "at"), READ_POINTS)
def test_a_reader_killed_there(scene: Scene, name: str, at: int) -> None:
    before, operation, _ = READS[name]
    before(scene.reader, scene.blobs)
    wait = timeline_actions.seconds_of_wait, "a", 10, 30.0
    # The survivor sleeps meanwhile, unless the dead one is to be the first who sleeps.
    waiting = None if name == "the first wait in vain" else scene.survivor.start(*wait)
    scene.reader.call(word_actions.count, at)

    with pytest.raises(PeerDiedError):
        operation(scene.reader, scene.blobs)

    waiting = waiting or scene.survivor.start(*wait)
    # The values, the other reader and its sleep are as if the dead one had never been.
    scene.owner.call(actions.call, "a", "signal", 10)
    assert waiting.result()[0] == "reached"
    scene.survivor.call(actions.call, "a", "done", 10)
    found = scene.owner.call(actions.call, "a", "wait_for_readers", 10, timeout=SOON_S)
    assert found == 1

    def lost() -> list[int]:
        return [pid for pid in scene.lessees() if pid != scene.survivor.pid]

    assert settle(lost) == []
    scene.owner.call(timeline_actions.close, "a", "b")
    assert scene.survivor.call(actions.attribute, "a", "void")
    scene.survivor.call(timeline_actions.close, "a")
    assert settle(scene.lessees) == []


# The owner --------------------------------------------------------------------------------


OWN: dict[str, tuple[Step, Step, list[str]]] = {
    "a new timeline": (nothing, lambda peer, _: peer.call(timeline_actions.make, "c"), WRITE),
    "a signal without sleepers": (nothing, call("a", "signal", 4), WRITE),
    "a signal with sleepers": (
        lambda peer, _: peer.call(timeline_actions.set_waiting, "a"),
        call("a", "signal", 4),
        [*WRITE, "load", *WAKE],
    ),
    "a signal that is refused": (
        nothing,
        lambda peer, _: peer.call(timeline_actions.signal_again, "a", 3),
        ["observe", "observe", "load", "load"],
    ),
    "a wait for readers": (nothing, call("a", "wait_for_readers", 3), [IDENTITY, "load"]),
    "a wait for late readers": (
        nothing,
        lambda peer, _: peer.call(timeline_actions.late_readers, "a", 4),
        [IDENTITY, "load"],
    ),
    "a close": (nothing, close("a"), [*LOOK, *WRITE * 3]),
    "a close with sleepers": (
        lambda peer, _: peer.call(timeline_actions.set_waiting, "a"),
        close("a"),
        [*LOOK, *WRITE, *WAKE, *(*WRITE, *CALM) * 2],
    ),
}


OWN_POINTS = [(name, at + 1) for name, case in OWN.items() for at in range(len(case[2]))]


@pytest.mark.parametrize("name", OWN)
def test_which_accesses_the_owner_makes(scene: Scene, name: str) -> None:
    before, operation, accesses = OWN[name]
    before(scene.owner, scene.blobs)
    scene.owner.call(word_actions.count)

    operation(scene.owner, scene.blobs)

    assert scene.owner.call(word_actions.made) == accesses


@pytest.mark.parametrize(("name", "at"), OWN_POINTS)
def test_an_owner_killed_there(scene: Scene, name: str, at: int) -> None:
    before, operation, _ = OWN[name]
    before(scene.owner, scene.blobs)
    waiting = scene.survivor.start(timeline_actions.seconds_of_wait, "a", 10, 30.0)
    began = time.monotonic()
    scene.owner.call(word_actions.count, at)

    with pytest.raises(PeerDiedError):
        operation(scene.owner, scene.blobs)

    end, ended = waiting.result()
    assert end in {"OwnerGoneError", "ClosedError"}
    assert ended - began < SOON_S
    value = scene.survivor.call(actions.attribute, "a", "value")
    assert value in {3, 4, VOID}
    if value < VOID:
        assert scene.survivor.call(actions.call, "a", "wait", value, timeout=0) == value
    with pytest.raises((crossmem.OwnerGoneError, crossmem.ClosedError)):
        scene.survivor.call(actions.call, "a", "wait", 5, timeout=0)
    with pytest.raises((crossmem.OwnerGoneError, crossmem.StaleHandleError)):
        scene.survivor.call(timeline_actions.open_and_wait, "b", scene.blobs["b"])
    scene.survivor.call(timeline_actions.close, "a")
