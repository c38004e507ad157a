# SPDX-License-Identifier: Apache-2.0
"""Queues where the kernel offers no barrier to some process: all take fences, or it is refused."""

from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions

if TYPE_CHECKING:
    from tests.integration import hand_over_actions
    from tests.integration.conftest import StartPeer
else:
    import hand_over_actions


@pytest.mark.parametrize("consumer_fences", [None, "fence"])
@pytest.mark.parametrize("terms", [{}, {"overflow": "drop"}, {"delivery": "each"}], ids=str)
def test_a_queue_of_an_owner_without_barriers(
    start_peer: "StartPeer", terms: dict[str, Any], consumer_fences: str | None
) -> None:
    owner = start_peer(tracing=False, fresh=True, CROSSMEM_BARRIER="fence")
    consumer = start_peer(tracing=False, fresh=True, CROSSMEM_BARRIER=consumer_fences)
    handles = owner.call(hand_over_actions.make, "queue", 4, 64, **terms)
    consumer.call(hand_over_actions.open_, "queue", handles["consume"])
    getting = consumer.start(hand_over_actions.get_until, "queue", b"9")
    for number in range(10):
        owner.call(hand_over_actions.put, "queue", b"%d" % number)

    assert getting.result()[-1] == b"9"
    owner.call(actions.call, "queue", "finish")


def test_a_process_without_barriers_is_refused_where_others_rely_on_them(
    start_peer: "StartPeer",
) -> None:
    owner = start_peer(tracing=False)
    other = start_peer(tracing=False, fresh=True, CROSSMEM_BARRIER="fence")
    handles = owner.call(hand_over_actions.make, "queue", 4, 64)

    for role in ("produce", "consume"):
        with pytest.raises(crossmem.UnsupportedError, match="barriers") as caught:
            other.call(hand_over_actions.open_, "queue", handles[role])
        assert caught.value.hint
    assert owner.call(hand_over_actions.stats, "queue").consumers == 0
