# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers of a queue that write rubbish into their words: the others go on."""

from typing import TYPE_CHECKING, Any, Final

import pytest

from crossmem.conformance import actions
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import hand_over_actions
    from tests.integration.conftest import StartPeer
else:
    import hand_over_actions

DEPTH: Final = 8
ITEMS: Final = 40

TERMS: list[dict[str, Any]] = [
    {},
    {"overflow": "drop", "prefetch": DEPTH},
    {"redeliver": True},
    {"delivery": "each"},
    {"delivery": "each", "overflow": "drop"},
]
MUTATIONS = pytest.mark.parametrize(
    ("rounds", "each"),
    [
        pytest.param(3, 1000, id="few"),
        pytest.param(30, 2000, marks=pytest.mark.ci, id="many"),
        pytest.param(100, 10_000, marks=pytest.mark.long, id="a million"),
    ],
)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("role", ["produce", "consume"])
@MUTATIONS
def test_a_hostile_peer_harms_nobody_else(
    start_peer: "StartPeer", role: str, terms: dict[str, Any], rounds: int, each: int
) -> None:
    owner, producer, consumer, hostile = (start_peer(tracing=False) for _ in range(4))
    handles = owner.call(
        hand_over_actions.make, "queue", DEPTH, 64, producers=3, consumers=2, **terms
    )
    hostile.call(hand_over_actions.open_, "queue", handles[role])
    consumer.call(hand_over_actions.open_, "queue", handles["consume"])
    producer.call(hand_over_actions.open_, "queue", handles["produce"])
    for turn in range(rounds):
        scribbling = hostile.start(hand_over_actions.scribble, "queue", each, turn, within=600)
        if role == "produce":
            exchange(producer, consumer, turn, terms)
        scribbling.result()
    # What a hostile consumer was given, it may keep, and with "each" all wait for it.
    hostile.kill()

    def others() -> list[object]:
        # A hostile consumer may say that it has not come yet, so stats() does not count it.
        return [1] * (owner.call(hand_over_actions.sessions, "queue") != 2)

    assert settle(others, within=1 + SLOWNESS) == []
    exchange(producer, consumer, rounds, terms)
    # The next process in its place is not hurt by what it left there.
    producer.call(actions.call, "queue", "close")
    consumer.call(actions.call, "queue", "close")
    heirs = start_peer(tracing=False), start_peer(tracing=False)
    for heir, takes in zip(heirs, ("produce", "consume"), strict=True):
        heir.call(hand_over_actions.open_, "queue", handles[takes])
    for turn in range(3):
        exchange(*heirs, turn, terms)
    heirs[0].call(actions.call, "queue", "finish")

    assert "fault" not in owner.output()


def exchange(producer: Any, consumer: Any, turn: int, terms: dict[str, Any]) -> None:
    """Check that honest items arrive in order, each once."""
    first, last = turn * ITEMS, (turn + 1) * ITEMS - 1
    getting = consumer.start(hand_over_actions.get_honest, "queue", last, within=60 * SLOWNESS)
    producer.call(hand_over_actions.put_all, "queue", first, ITEMS, within=60 * SLOWNESS)
    found = getting.result()
    assert found == sorted(set(found))
    if terms.get("overflow") != "drop":
        assert found == list(range(first, last + 1))
