# SPDX-License-Identifier: Apache-2.0
"""All laws about lifetimes: random sequences of calls have the results that a model predicts."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from crossmem.conformance.machine import SharingMachine
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import PeerPool

# Every run executes the same sequences, which take some seconds. Hypothesis does not shrink a
# failing sequence, because shrinking would take minutes.
SETTINGS = settings(
    max_examples=20,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def machine(pool: PeerPool, guarded: None) -> Iterator[type[SharingMachine]]:
    """Return a class of state machines whose peers live only during this test."""
    peers: dict[int, Peer] = {}
    start: Callable[[], Peer] = pool.new
    yield type("Bound", (SharingMachine,), {"start": staticmethod(start), "peers": peers})
    for peer in peers.values():
        peer.destroy()


def test_c10_any_sequence_of_calls_and_deaths_gives_what_the_model_says(
    machine: type[SharingMachine],
) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)
