# SPDX-License-Identifier: Apache-2.0
"""A process killed at any access to the words of a queue harms nobody else, and nothing is lost.

Each operation is repeated with a death before its first access, its second one and so on, until it
survives.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.pool import SOON_S, settle

if TYPE_CHECKING:
    from tests.integration import hand_over_actions
    from tests.integration.conftest import StartPeer
else:
    import hand_over_actions

DEPTH: Final = 4
NBYTES: Final = 64
MOST: Final = 400
"""More accesses than any operation makes."""

Step = Callable[["Scene"], object]


class Scene:
    """An owner, a survivor that puts and gets, and a victim."""

    def __init__(self, start_peer: "StartPeer", **terms: Any) -> None:
        self.owner, self.survivor, self.victim = (start_peer(tracing=False) for _ in range(3))
        self.handles = self.owner.call(
            hand_over_actions.make, "queue", DEPTH, NBYTES, producers=3, consumers=2, **terms
        )
        self.survivor.call(hand_over_actions.open_, "produce", self.handles["produce"])

    def open(self, peer: Peer, role: str) -> None:
        """Let a process open the queue."""
        peer.call(hand_over_actions.open_, role, self.handles[role])

    def put(self, *items: bytes) -> None:
        """Let the survivor put items."""
        self.survivor.call(hand_over_actions.put, "produce", *items)

    def end(self) -> None:
        """End all processes."""
        for peer in (self.victim, self.survivor, self.owner):
            peer.destroy()

    def stats(self) -> crossmem.QueueStats:
        """Return the owner's numbers."""
        found: crossmem.QueueStats = self.owner.call(hand_over_actions.stats, "queue")
        return found

    def account(self, *, joins: bool) -> list[bytes]:
        """Return what the survivor gets. Each buffer is free again afterwards."""
        if joins:
            self.open(self.survivor, "consume")
        while self.stats().consumers > 1 or self.stats().producers > 1:
            pass
        self.put(b"last")
        found: list[bytes] = self.survivor.call(hand_over_actions.get_until, "consume", b"last")
        while (stats := self.stats()).waiting or any(stats.lag.values()):
            found += self.survivor.call(hand_over_actions.get_all, "consume")
        free = self.survivor.call(
            hand_over_actions.count_free, self.handles["produce"], 2, DEPTH, 2 * SOON_S
        )
        assert free == 2 * DEPTH
        return found


def open_(role: str) -> Step:
    return lambda scene: scene.open(scene.victim, role)


def victim(action: Callable[..., object], *args: object) -> Step:
    return lambda scene: scene.victim.call(action, *args)


def steps(*several: Step) -> Step:
    def do(scene: Scene) -> None:
        for one in several:
            one(scene)

    return do


def put(*items: bytes) -> Step:
    return lambda scene: scene.put(*items)


def watch(scene: Scene) -> None:
    scene.open(scene.survivor, "consume")


def run_points(
    start_peer: "StartPeer", terms: dict[str, Any], before: Step, operation: Step, points: range
) -> Iterator[Scene]:
    """Kill the victim at accesses of an operation; yield the scenes."""
    for at in points:
        scene = Scene(start_peer, **terms)
        before(scene)
        scene.victim.call(hand_over_actions.count, at)
        try:
            operation(scene)
        except PeerDiedError:
            yield scene
        else:
            assert at > 1
            return
        finally:
            scene.end()
    raise AssertionError("the operation never ends")


POINTS = pytest.mark.parametrize(
    "points",
    [
        pytest.param(range(5, MOST, 19), id="few"),
        pytest.param(range(1, MOST, 7), marks=pytest.mark.ci, id="many"),
        pytest.param(range(1, MOST), marks=pytest.mark.long, id="all"),
    ],
)


# Producers --------------------------------------------------------------------------------

PRODUCES: dict[str, tuple[dict[str, Any], Step, Step]] = {
    "the opening": ({}, watch, open_("produce")),
    "a put to a consumer": (
        {},
        steps(watch, open_("produce")),
        victim(hand_over_actions.put, "produce", b"0"),
    ),
    "a put to a consumer that sleeps": (
        {},
        steps(watch, open_("produce")),
        victim(hand_over_actions.put, "produce", b"0", b"1"),
    ),
    "a put that is left to the owner": (
        {},
        steps(watch, open_("produce"), victim(hand_over_actions.put, "produce", b"0", b"1")),
        victim(hand_over_actions.put, "produce", b"2"),
    ),
    "a put that drops the oldest": (
        {"overflow": "drop"},
        steps(
            watch,
            open_("produce"),
            victim(hand_over_actions.put, "produce", b"0", b"1", b"2", b"3"),
        ),
        victim(hand_over_actions.put, "produce", b"4"),
    ),
    "a put to each": (
        {"delivery": "each"},
        steps(watch, open_("produce")),
        victim(hand_over_actions.put, "produce", b"0", b"1"),
    ),
    "the end": (
        {},
        steps(watch, open_("produce"), victim(hand_over_actions.put, "produce", b"0")),
        victim(actions.call, "produce", "finish"),
    ),
    "the close": (
        {},
        steps(watch, open_("produce"), victim(hand_over_actions.put, "produce", b"0")),
        victim(hand_over_actions.close, "produce"),
    ),
}
"""By operation: the terms of the queue, what comes before, and the operation."""

CONSUMES: dict[str, tuple[dict[str, Any], Step, Step]] = {
    "the opening": ({}, put(b"0", b"1", b"2"), open_("consume")),
    "a get from the owner": (
        {},
        steps(put(b"0", b"1", b"2"), open_("consume")),
        victim(hand_over_actions.keep, "consume"),
    ),
    "a get": (
        {"prefetch": 3},
        steps(open_("consume"), put(b"0", b"1", b"2")),
        victim(hand_over_actions.keep, "consume"),
    ),
    "a get where entries are dropped": (
        {"overflow": "drop"},
        steps(open_("consume"), put(b"0", b"1", b"2")),
        victim(hand_over_actions.keep, "consume"),
    ),
    "a get and a release": (
        {},
        steps(open_("consume"), put(b"0", b"1", b"2")),
        victim(hand_over_actions.get, "consume"),
    ),
    "a get of each": (
        {"delivery": "each"},
        steps(watch, open_("consume"), put(b"0", b"1", b"2")),
        victim(hand_over_actions.get, "consume"),
    ),
    "the opening where each gets all": (
        {"delivery": "each"},
        steps(watch, put(b"0", b"1", b"2")),
        open_("consume"),
    ),
    "a sleep": (
        {},
        steps(open_("consume")),
        steps(victim(hand_over_actions.wait_in_vain, "consume"), put(b"0", b"1", b"2")),
    ),
    "the close": (
        {},
        steps(open_("consume"), put(b"0", b"1", b"2")),
        victim(hand_over_actions.close, "consume"),
    ),
}


@pytest.mark.usefixtures("unmeasured")
@POINTS
@pytest.mark.parametrize("name", PRODUCES)
def test_a_producer_killed_there(start_peer: "StartPeer", name: str, points: range) -> None:
    terms, before, operation = PRODUCES[name]
    for scene in run_points(start_peer, terms, before, operation, points):
        found = scene.account(joins=False)

        # Items of the dead producer may come after the last one of the survivor.
        mine = [item for item in found if item != b"last"]
        assert mine == sorted(set(mine))
        if "put" not in name and name != "the opening":
            assert mine in ([b"0"], [])
        if name == "a put that drops the oldest":
            lost = {b"0", b"1", b"2", b"3"} - set(mine)
            assert len(lost) <= scene.stats().dropped <= len(lost) + 1


@pytest.mark.usefixtures("unmeasured")
@POINTS
@pytest.mark.parametrize("redeliver", [False, True])
@pytest.mark.parametrize("name", CONSUMES)
def test_a_consumer_killed_there(
    start_peer: "StartPeer", name: str, points: range, *, redeliver: bool
) -> None:
    terms, before, operation = CONSUMES[name]
    is_each = terms.get("delivery") == "each"
    if is_each and redeliver:
        pytest.skip("each consumer has its own copy")
    terms = {**terms, "redeliver": redeliver}
    for scene in run_points(start_peer, terms, before, operation, points):
        if name == "a sleep":
            scene.put(b"0", b"1", b"2")
        found = scene.account(joins=not is_each)

        # What the dead one had taken may be lost, or have been released.
        assert len(found) == len(set(found))
        assert {b"1", b"2"} <= set(found) <= {b"0", b"1", b"2", b"last"}
        stats = scene.stats()
        if b"0" not in found and redeliver:
            assert name == "a get and a release"
        if b"0" not in found and not redeliver and name != "a get and a release":
            assert stats.lost == 1


# The owner --------------------------------------------------------------------------------


def kill_victim(scene: Scene) -> None:
    scene.victim.kill()


OWNERS: dict[str, tuple[Step, Step]] = {
    "an opening to produce": (watch, open_("produce")),
    "an opening to consume": (watch, open_("consume")),
    "an entry that is left to it": (watch, put(b"0", b"1", b"2")),
    "a release that it waits for": (
        steps(watch, put(b"0", b"1", b"2")),
        lambda scene: scene.survivor.call(hand_over_actions.get, "consume"),
    ),
    "the death of a consumer": (
        steps(watch, open_("consume"), put(b"0", b"1"), victim(hand_over_actions.keep, "consume")),
        kill_victim,
    ),
    "the death of a producer": (steps(watch, open_("produce")), kill_victim),
    "the end": (watch, lambda scene: scene.owner.call(actions.call, "queue", "finish")),
    "a revocation": (
        steps(watch, open_("consume")),
        lambda scene: scene.owner.call(actions.call, "queue", "revoke", scene.victim.pid),
    ),
    "the close": (watch, lambda scene: scene.owner.call(hand_over_actions.close, "queue")),
}


@pytest.mark.usefixtures("unmeasured")
@POINTS
@pytest.mark.parametrize("name", OWNERS)
def test_an_owner_killed_there(start_peer: "StartPeer", name: str, points: range) -> None:
    before, operation = OWNERS[name]
    for at in points:
        scene = Scene(start_peer, redeliver=True)
        before(scene)
        with contextlib.suppress(PeerDiedError, crossmem.OwnerGoneError, crossmem.BusyError):
            # Its thread may make the fatal access before this call returns.
            scene.owner.call(hand_over_actions.count, at)
            operation(scene)
        # Its thread works on its own.
        settle(lambda scene=scene: [1] * (scene.owner.exitcode is None), within=0.5)
        if scene.owner.exitcode is None:
            assert at > 1
            scene.end()
            return
        ends = {"OwnerGoneError", "ClosedError", "QueueEndedError"}
        for role, verb in (("consume", "get"), ("produce", "put")):
            end, took_s = scene.survivor.call(hand_over_actions.end_of, role, verb)
            assert end in ends
            assert took_s < SOON_S
        # Both can be closed, and used anew with other queues.
        scene.survivor.call(hand_over_actions.close, "consume")
        scene.survivor.call(hand_over_actions.close, "produce")
        scene.end()
    raise AssertionError("the operation never ends")
