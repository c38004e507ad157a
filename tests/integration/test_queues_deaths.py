# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers of queues die and stop at random: each item is accounted for."""

import itertools
import os
import random
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance import actions
from crossmem.conformance.peers import Peer, Pending
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import hand_over_actions
    from tests.integration.conftest import StartPeer
else:
    import hand_over_actions

NBYTES = 4096
DEPTH = 8
PRODUCERS = 3
CONSUMERS = 3
FOR_EVER_S = 3600.0


class Crowd:
    """An owner, and producers and consumers that record what they put and get."""

    def __init__(self, start_peer: "StartPeer", folder: Path, seed: int, **terms: Any) -> None:
        self.start_peer = start_peer
        self.folder = folder
        self.chance = random.Random(seed)
        self.numbers = itertools.count()
        self.owner = start_peer(tracing=False)
        # One ring more, so that the queue does not end before it is told to.
        self.handles = self.owner.call(
            hand_over_actions.make,
            "queue",
            DEPTH,
            NBYTES,
            producers=PRODUCERS + 1,
            consumers=CONSUMERS + 1,
            **terms,
        )
        self.auditor = start_peer(tracing=False)
        self.auditor.call(hand_over_actions.open_, "queue", self.handles["produce"])
        self.working: dict[str, dict[Peer, Pending]] = {"produce": {}, "consume": {}}

    def fill(self) -> None:
        """Start who is missing."""
        for role, most in (("consume", CONSUMERS), ("produce", PRODUCERS)):
            while len(self.working[role]) < most:
                peer, number = self.start_peer(tracing=False), next(self.numbers)
                path = str(self.folder / f"{role}{number}")
                blob = self.handles[role]
                call = (
                    (hand_over_actions.produce, blob, path, str(number), 10**9)
                    if role == "produce"
                    else (hand_over_actions.consume, blob, path, number)
                )
                self.working[role][peer] = peer.start(*call, within=FOR_EVER_S)

    def hurt_one(self) -> None:
        """Kill a producer or a consumer, whatever it is doing; sometimes only stop it."""
        time.sleep(self.chance.uniform(0.005, 0.06))
        role = self.chance.choice(("produce", "consume"))
        victim = self.chance.choice(list(self.working[role]))
        self.check(role, victim)
        if self.chance.random() < 0.1:
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(self.chance.uniform(0.05, 0.3))
            os.kill(victim.pid, signal.SIGCONT)
            return
        self.kill(role, victim)

    def kill(self, role: str, victim: Peer) -> None:
        """Kill a process that does its work."""
        self.working[role].pop(victim)
        victim.kill()
        victim.destroy()

    def check(self, role: str, peer: Peer) -> None:
        """Check that a process still does its work."""
        assert peer.exitcode is None, peer.output()
        if self.working[role][peer].is_done():
            self.working[role][peer].result()
            raise AssertionError(f"{peer!r} has ended its work")

    def put(self) -> tuple[set[bytes], set[bytes]]:
        """Return the items that somebody meant to put, and that somebody has put."""
        found: dict[bytes, set[bytes]] = {b"try": set(), b"put": set()}
        for path in self.folder.glob("produce*"):
            for line in path.read_bytes().splitlines():
                kind, _, item = line.partition(b" ")
                found[kind].add(item)
        return found[b"try"], found[b"put"]

    def has_begun(self) -> bool:
        """Whether the consumers have recorded some items."""
        return sum(one.read_bytes().count(b"\n") for one in self.folder.glob("consume*")) > 15

    def got(self) -> list[list[tuple[bytes, int]]]:
        """Return the items and delivery counts that each consumer has recorded, in order."""
        return [
            [(line.split()[0], int(line.split()[1])) for line in path.read_bytes().splitlines()]
            for path in sorted(self.folder.glob("consume*"))
        ]


MODES = [
    ("one", "wait", False),
    ("one", "wait", True),
    ("one", "drop", False),
    ("one", "drop", True),
    ("one", "raise", True),
    ("each", "wait", False),
    ("each", "drop", False),
]


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("delivery", "overflow", "redeliver"), MODES)
@pytest.mark.parametrize(
    "kills",
    [
        5,
        pytest.param(15, marks=pytest.mark.ci),
        pytest.param(1000, marks=pytest.mark.long),
    ],
)
def test_random_deaths_lose_nothing_else(
    start_peer: "StartPeer",
    tmp_path: Path,
    delivery: str,
    overflow: str,
    *,
    redeliver: bool,
    kills: int,
) -> None:
    crowd = Crowd(
        start_peer, tmp_path, kills, delivery=delivery, overflow=overflow, redeliver=redeliver
    )
    crowd.fill()
    assert settle(lambda: [] if crowd.has_begun() else [crowd], within=10 * SLOWNESS) == []
    for _ in range(kills):
        crowd.hurt_one()
        crowd.fill()
    for peer in list(crowd.working["produce"]):
        crowd.check("produce", peer)
        crowd.kill("produce", peer)

    def unread() -> list[object]:
        stats = crowd.owner.call(hand_over_actions.stats, "queue")
        return [stats] * (stats.producers > 1 or stats.waiting > 0 or any(stats.lag.values()))

    assert settle(unread, within=10 * SLOWNESS) == []
    # Each buffer of all dead producers is free again.
    free = crowd.auditor.call(
        hand_over_actions.count_free, crowd.handles["produce"], PRODUCERS, DEPTH, 5.0 * SLOWNESS
    )
    assert free == PRODUCERS * DEPTH
    crowd.auditor.call(actions.call, "queue", "close")
    crowd.owner.call(actions.call, "queue", "finish")
    assert [one.result(30 * SLOWNESS) for one in crowd.working["consume"].values()] == [0] * 3

    stats = crowd.owner.call(hand_over_actions.stats, "queue")
    meant, put = crowd.put()
    got = crowd.got()
    deliveries = Counter(item for each in got for item, _count in each)
    assert set(deliveries) <= meant
    assert len(put) <= stats.put <= len(meant)
    if delivery == "one":
        check_one(put - set(deliveries), deliveries, stats, redeliver=redeliver)
        assert (stats.dropped > 0) == (overflow == "drop") or not stats.dropped
    else:
        check_each(got, is_whole=overflow == "wait")
    assert sum(deliveries.values()) > kills


def check_one(
    missing: set[bytes], deliveries: Counter[bytes], stats: Any, *, redeliver: bool
) -> None:
    """Check that the items that nobody has recorded, and those that several have, are counted."""
    assert len(missing) <= stats.dropped + stats.lost
    assert sum(one - 1 for one in deliveries.values()) <= stats.redelivered
    if redeliver:
        assert stats.lost == 0
    else:
        assert stats.redelivered == 0


def check_each(got: list[list[tuple[bytes, int]]], *, is_whole: bool) -> None:
    """Check that items of one producer come in order, without holes if none is dropped."""
    for each in got:
        numbers = defaultdict(list)
        for item, count in each:
            producer, _, number = item.partition(b":")
            numbers[producer].append(int(number))
            assert count == 1
        for found in numbers.values():
            assert found == sorted(set(found))
            if is_whole:
                assert found == list(range(found[0], found[-1] + 1))
