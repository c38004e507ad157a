# SPDX-License-Identifier: Apache-2.0
"""Each way of sharing memory that is installed keeps the interface of a peer."""

from collections.abc import Iterator

import pytest

from crossmem.bench import PEERS
from crossmem.bench.jobs_busy import IDLE, ONE_THREAD, STOPPED
from crossmem.bench.machine import choose_cpus
from crossmem.bench.pair import Pair, child_environment
from crossmem.bench.peer import peer_class

pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("unmeasured"),
]

_DEADLINE_S = 60.0


@pytest.fixture(scope="module", params=list(PEERS))
def peer(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := peer_class(name).missing():
        pytest.skip(f"{name}: {reason}")
    return name


@pytest.fixture(scope="module")
def pair(peer: str) -> Iterator[Pair]:
    with Pair(peer, device="host", cpus=choose_cpus(), environment=child_environment()) as made:
        yield made


# A peer may keep blocks of a size apart from those of another.
@pytest.mark.parametrize("nbytes", [4 << 10, 2 << 20])
def test_both_sides_see_the_memory(pair: Pair, nbytes: int) -> None:
    found = pair.run("check", deadline_s=_DEADLINE_S, nbytes=nbytes)
    assert found == {"seen": True, "answered": True}


def test_blocks_go_turn_by_turn(pair: Pair) -> None:
    found = pair.run("life", deadline_s=_DEADLINE_S, nbytes=4096, count=3, budget_s=9)
    for step in ("create", "export", "attach", "detach", "free"):
        assert len(found[step]) == 3
        assert min(found[step]) > 0


# As many as a full run has.
def test_a_thousand_blocks_go_at_once(pair: Pair) -> None:
    found = pair.run("held", deadline_s=_DEADLINE_S, nbytes=4096, count=1000)
    assert set(found) == {"create", "export", "attach", "detach", "free"}
    assert min(found.values()) > 0


@pytest.mark.parametrize("load", [IDLE, ONE_THREAD, STOPPED])
def test_blocks_are_attached_beside_a_load(pair: Pair, peer: str, load: str) -> None:
    if load == STOPPED and peer_class(peer).asks_exporter:
        pytest.skip(f"{peer} waits for its exporter to go on")
    arguments = {"nbytes": 4096, "count": 2, "load": load, "hold_s": 0.1}
    found = pair.run("beside", deadline_s=_DEADLINE_S, **arguments)
    assert len(found["attach"]) == 2
