# SPDX-License-Identifier: Apache-2.0
"""Hot paths take few steps, of a number that does not grow, and wait for nobody else."""

from typing import TYPE_CHECKING

from crossmem.conformance import actions
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import step_actions
    from tests.integration.conftest import StartPeer
else:
    import step_actions

NBYTES = 4096
MOST_CALLS = 70
MOST_UNMAP_CALLS = 27
MOST_FREE_CALLS = 24
MANY = 3000


def test_a_first_attach_from_a_known_exporter(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    blobs = [exporter.call(actions.offer, name, NBYTES) for name in "abcdefghij"]

    calls = importer.call(step_actions.first_attach_calls, blobs)

    assert 0 < calls.total() <= MOST_CALLS, calls


def test_the_last_unmap(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    blobs = [exporter.call(actions.offer, name, NBYTES) for name in "abc"]

    calls, kernel = importer.call(step_actions.last_unmap_steps, blobs)

    assert 0 < calls.total() <= MOST_UNMAP_CALLS, calls
    # The driver's munmap is all that there is: no message, and nothing is closed.
    assert kernel == []


def test_a_free_of_what_was_leased(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    blobs = [exporter.call(actions.offer, name, NBYTES) for name in "ab"]
    importer.call(step_actions.last_unmap_steps, blobs)
    exporter.call(actions.free, "a")

    calls = exporter.call(step_actions.free_steps, "b")

    assert 0 < calls.total() <= MOST_FREE_CALLS, calls


def test_a_first_import_is_one_message_each_way(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    first, second = (exporter.call(actions.offer, name, NBYTES) for name in "ab")
    # The connection is made, and the exporter greets; the row comes with the descriptor.
    assert importer.call(step_actions.messages_of_an_attach, first) == ["take", "send", "take"]

    assert importer.call(step_actions.messages_of_an_attach, second) == ["send", "take"]


def test_nobody_waits_for_a_stopped_owner_but_who_asked_it(start_peer: "StartPeer") -> None:
    stopped, other, importer = (start_peer(tracing=False) for _ in range(3))
    blobs = [one.call(actions.offer, "memory", NBYTES) for one in (stopped, other)]
    stopped.stop()

    waited = importer.call(step_actions.work_beside_a_stopped_owner, *blobs, 2 * SLOWNESS)

    stopped.cont()
    assert waited == []


def test_memory_is_found_by_an_index(start_peer: "StartPeer") -> None:
    peer = start_peer(tracing=False)
    few = peer.call(step_actions.steps_to_find_memory, 10)
    many = peer.call(step_actions.steps_to_find_memory, MANY)

    assert all(one > 0 for one in few)
    assert all(now <= 2 * before for before, now in zip(few, many, strict=True)), (few, many)
