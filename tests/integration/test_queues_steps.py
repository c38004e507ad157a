# SPDX-License-Identifier: Apache-2.0
"""An item that passes between two processes that are awake makes no system call."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration import hand_over_actions
    from tests.integration.conftest import StartPeer
else:
    import hand_over_actions

DEPTH = 64
ROUNDS = 4
LOOK = ["poll", "poll.register", "poll.poll"]
"""A look at the owner, which is due four times in a second. A round takes less time."""


@pytest.mark.parametrize("delivery", ["one", "each"])
def test_an_item_makes_no_call(start_peer: "StartPeer", delivery: str) -> None:
    owner, producer, consumer = (start_peer(tracing=False) for _ in range(3))
    handles = owner.call(
        hand_over_actions.make, "queue", DEPTH, 4096, delivery=delivery, prefetch=DEPTH, consumers=1
    )
    producer.call(hand_over_actions.open_, "p", handles["produce"])
    consumer.call(hand_over_actions.open_, "c", handles["consume"])
    # Nobody needs the owner.
    owner.stop()
    for _ in range(ROUNDS):
        for steps in (
            producer.call(hand_over_actions.steps_of_puts, "p", DEPTH),
            consumer.call(hand_over_actions.steps_of_gets, "c", DEPTH),
        ):
            kernel, barriers, calls = steps

            assert kernel in ([], LOOK, 2 * LOOK)
            assert barriers == 0
            assert calls > DEPTH
    owner.cont()


def test_only_a_sleeper_is_woken(start_peer: "StartPeer") -> None:
    owner, consumer = start_peer(tracing=False), start_peer(tracing=False)
    handles = owner.call(hand_over_actions.make, "queue", DEPTH, 4096, prefetch=DEPTH)
    consumer.call(hand_over_actions.open_, "c", handles["consume"])
    owner.call(hand_over_actions.put, "queue", b"item")
    consumer.call(hand_over_actions.get, "c")
    waiting = consumer.start(hand_over_actions.get, "c")
    while not owner.call(hand_over_actions.sleepers, "queue"):
        pass

    kernel, _barriers, _calls = owner.call(hand_over_actions.steps_of_puts, "queue", 1)

    assert waiting.result() == b"item"
    assert kernel == ["eventfd_write"]
