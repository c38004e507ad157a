# SPDX-License-Identifier: Apache-2.0
"""Owners and importers of pools die at random: no holder sees other bytes, no block is lost."""

import itertools
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance.peers import Peer, Pending
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import pool_actions, pool_life_actions
    from tests.integration.conftest import StartPeer
else:
    import pool_actions
    import pool_life_actions

NBYTES = 4096
BLOCKS = 12
OWNERS = 2
IMPORTERS = 3
FOR_EVER_S = 3600.0


class Crowd:
    """Owners that give their blocks many lives, and importers that look at the stamps in them."""

    def __init__(self, start_peer: "StartPeer", folder: Path, seed: int) -> None:
        self.start_peer = start_peer
        self.folder = folder
        self.seeds = itertools.count(seed)
        self.chance = random.Random(seed)
        self.numbers = itertools.count()
        self.working: dict[Peer, Pending] = {}
        self.owners: list[tuple[Peer, Path]] = []
        self.importers: list[Peer] = []

    def fill(self) -> None:
        """Start who is missing."""
        while len(self.owners) < OWNERS:
            owner = self.start_peer(tracing=False)
            path = self.folder / f"owner{next(self.numbers)}"
            owner.call(pool_actions.make, "pool", NBYTES, BLOCKS)
            self.working[owner] = owner.start(
                pool_life_actions.serve_blocks,
                "pool",
                str(path),
                next(self.seeds),
                within=FOR_EVER_S,
            )
            self.owners.append((owner, path))
        while len(self.importers) < IMPORTERS:
            importer = self.start_peer(tracing=False)
            self.visit(importer, FOR_EVER_S)
            self.importers.append(importer)

    def visit(self, importer: Peer, seconds: float) -> None:
        """Let an importer attach blocks; it ends itself if one shows other bytes."""
        self.working[importer] = importer.start(
            pool_life_actions.visit_owners,
            str(self.folder),
            next(self.seeds),
            seconds,
            within=seconds + FOR_EVER_S,
        )

    def kill_one(self) -> None:
        """Kill an owner or an importer, whatever it is doing."""
        time.sleep(self.chance.uniform(0.005, 0.06))
        number = self.chance.randrange(OWNERS + IMPORTERS)
        if number < OWNERS:
            victim, path = self.owners.pop(number)
            path.unlink(missing_ok=True)
        else:
            victim = self.importers.pop(number - OWNERS)
        self.check(victim)
        victim.kill()
        victim.destroy()

    def check(self, peer: Peer) -> None:
        """Check that a process still does its work."""
        assert peer.exitcode is None, peer.output()
        working = self.working.pop(peer)
        if working.is_done():
            working.result()
            raise AssertionError(f"{peer!r} has ended its work")


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(20, marks=pytest.mark.ci),
        pytest.param(1000, marks=pytest.mark.long),
    ],
)
def test_random_deaths_lose_no_block(start_peer: "StartPeer", tmp_path: Path, kills: int) -> None:
    crowd = Crowd(start_peer, tmp_path, kills)
    crowd.fill()
    for _ in range(kills):
        crowd.kill_one()
        crowd.fill()
    for owner, path in crowd.owners:
        crowd.check(owner)
        path.unlink(missing_ok=True)
        owner.kill()
    # The last owner outlives all its importers, and finds each of its blocks again.
    last = start_peer(tracing=False)
    last.call(pool_actions.make, "pool", NBYTES, BLOCKS)
    serving = last.start(
        pool_life_actions.serve_blocks, "pool", str(tmp_path / "owner"), 0, 3.0, within=FOR_EVER_S
    )
    time.sleep(1)
    crowd.importers[0].kill()
    assert serving.result() > 0
    for importer in crowd.importers[1:]:
        crowd.check(importer)
        importer.kill()

    def missing() -> list[object]:
        stats = last.call(pool_actions.stats, "pool")
        return [stats] * (stats.free != BLOCKS or bool(stats.holders))

    assert settle(missing, within=1 + SLOWNESS) == []
    assert last.call(pool_actions.fill, "pool", b"z") == BLOCKS
    # One more, which does all its visits, says what it saw.
    again = last.start(
        pool_life_actions.serve_blocks, "pool", str(tmp_path / "owner again"), 1, 3.0, within=60
    )
    visitor = start_peer(tracing=False)
    found = visitor.call(pool_life_actions.visit_owners, str(tmp_path), 2, 2.0, within=60)
    again.result()
    assert found["looked at"] > 100
    assert "other bytes" not in found
    assert settle(missing, within=1 + SLOWNESS) == []
