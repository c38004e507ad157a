# SPDX-License-Identifier: Apache-2.0
"""The vendor's model of a primary and secondaries, whose processes die at random."""

import itertools
import random
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.peers import Peer, Pending
from crossmem.conformance.pool import SOON_S

if TYPE_CHECKING:
    from tests.integration import acltdt_fault_actions, acltdt_kill_actions
    from tests.integration.conftest import StartNpuPeer
else:
    import acltdt_fault_actions
    import acltdt_kill_actions

CONSUMERS = 3
DEPTH = 4
FOR_EVER_S = 3600.0


class Model:
    """A primary that puts, a secondary that puts, and three secondaries that get."""

    def __init__(self, start: "StartNpuPeer", folder: Path, slow_streams: str) -> None:
        self.start = start
        self.slow_streams = slow_streams
        self.folder = folder
        self.chance = random.Random(20)
        self.numbers = itertools.count(1)
        self.primary: Peer | None = None
        self.handles: dict[str, bytes] = {}
        self.working: dict[Peer, Pending] = {}
        self.roles: dict[Peer, str] = {}
        self.endings = Counter[str]()

    def new_peer(self) -> Peer:
        """Start a process of the memory group."""
        return self.start(
            "acltdt",
            CROSSMEM_EMULATED_ACL_PROFILE="310b-rc",
            CROSSMEM_EMULATED_ACL_GROUP="group",
            CROSSMEM_EMULATED_SLOW_STREAMS=self.slow_streams,
            SHAREGROUP_PRECONFIG="1",
        )

    def fill(self) -> None:
        """Start who is missing."""
        if self.primary is None:
            self.primary = self.new_peer()
            self.handles = self.primary.call(queues.make, "queue", DEPTH, producers=3)
            self.working[self.primary] = self.primary.start(
                acltdt_kill_actions.primary, "queue", next(self.numbers), within=FOR_EVER_S
            )
        roles = list(self.roles.values())
        for role, count in (("produce", 1), ("consume", CONSUMERS)):
            for _ in range(count - roles.count(role)):
                self.join(self.new_peer(), role)

    def join(self, peer: Peer, role: str) -> None:
        """Let a process take part."""
        number = next(self.numbers)
        self.roles[peer] = role
        use: Any = acltdt_kill_actions.secondary_that_puts
        argument: object = number
        if role == "consume":
            use, argument = acltdt_kill_actions.secondary_that_gets, str(self.folder / str(number))
        self.working[peer] = peer.start(use, self.handles[role], argument, within=FOR_EVER_S)

    def kill_one(self) -> None:
        """Kill a process, whatever it is doing."""
        time.sleep(self.chance.uniform(0.0, 0.03))
        assert self.primary is not None
        # The death of the primary is the end of the queue for all, so it is rarer.
        if self.chance.random() < 0.07:
            victim, self.primary = self.primary, None
        else:
            victim = self.chance.choice(list(self.roles))
        self.check_works(victim)
        victim.kill()
        victim.destroy()
        self.roles.pop(victim, None)
        if self.primary is None:
            self.end_all("OwnerGoneError")

    def check_works(self, peer: Peer) -> None:
        """Check that a process still does its work."""
        working = self.working.pop(peer)
        if working.is_done():
            raise AssertionError(f"{self.roles.get(peer)}: {working.result()}")

    def end_all(self, *expected: str) -> None:
        """Check that all secondaries get a typed error soon, and let them join the next queue."""
        for peer in list(self.roles):
            ended = self.working.pop(peer).result(SOON_S)
            assert ended in expected
            self.endings[ended] += 1
        peers, self.roles = self.roles, {}
        if self.primary is None:
            for peer in peers:
                peer.destroy()


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    "slow_streams",
    [pytest.param("0", marks=pytest.mark.ci), pytest.param("1", marks=pytest.mark.long)],
)
def test_random_deaths(start_npu_peer: "StartNpuPeer", tmp_path: Path, slow_streams: str) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    model = Model(start_npu_peer, folder, slow_streams)
    model.fill()
    for _ in range(100):
        model.kill_one()
        model.fill()
    owner, peers = model.primary, list(model.roles)
    assert owner is not None
    model.check_works(owner)
    time.sleep(0.3)
    owner.kill()
    model.primary = owner
    model.end_all("OwnerGoneError")

    found = [one for log in folder.iterdir() for one in acltdt_kill_actions.received(str(log))]
    assert len(found) > 100
    # At most once, and in each producer's order for each consumer.
    assert len(found) == len(set(found))
    for log in folder.iterdir():
        by_producer: dict[int, list[int]] = {}
        for who, number in acltdt_kill_actions.received(str(log)):
            by_producer.setdefault(who, []).append(number)
        assert all(one == sorted(one) for one in by_producer.values())
    # Who has survived has nothing in hand, and can begin anew.
    assert [one.call(acltdt_fault_actions.held)["buffers"] for one in peers] == [0] * len(peers)
    peers[0].call(queues.make, "again")
    peers[1].call(queues.open_, "again", peers[0].call(handle_again))
    peers[0].call(queues.put, "again", [7])
    assert peers[1].call(queues.get, "again", timeout=SOON_S).number == 7


def handle_again() -> bytes:
    """Return the handle for consumers of the last queue."""
    return queues.handle_of(actions.objects["again"], "consume")
