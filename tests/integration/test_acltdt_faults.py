# SPDX-License-Identifier: Apache-2.0
"""Queues of Ascend's own under faults: each failure of each call, and deaths of processes."""

import time
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.pool import SOON_S

if TYPE_CHECKING:
    from tests.integration import acltdt_fault_actions
    from tests.integration.conftest import StartNpuPeer
else:
    import acltdt_fault_actions

pytestmark = pytest.mark.ci


@pytest.fixture
def start(start_npu_peer: "StartNpuPeer") -> "StartNpuPeer":
    def start(mechanism: str = "acltdt", **environment: str) -> Peer:
        return start_npu_peer(
            mechanism,
            CROSSMEM_EMULATED_ACL_PROFILE="310b-rc",
            CROSSMEM_EMULATED_ACL_GROUP="group",
            SHAREGROUP_PRECONFIG="1",
            **environment,
        )

    return start


@pytest.mark.parametrize("name", sorted(acltdt_fault_actions.OPERATIONS))
def test_each_failure_of_each_call(start: "StartNpuPeer", name: str) -> None:
    partner, subject = start("acltdt"), start("acltdt")
    blob = partner.call(queues.make, "queue")["consume"]
    partner.call(queues.put, "queue", [1])

    count, wrong = subject.call(acltdt_fault_actions.fail_everywhere, name, blob, within=50)

    assert not wrong, "\n".join(wrong)
    assert count


@pytest.mark.parametrize("code", [107000, 200006, 207006, 507899])
def test_a_grant_that_fails(start: "StartNpuPeer", code: int) -> None:
    owner, peer = start("acltdt"), start("acltdt")
    blob = owner.call(queues.make, "queue")["consume"]
    owner.call(queues.put, "queue", [1])
    before = peer.call(acltdt_fault_actions.held)
    owner.call(acltdt_fault_actions.fail, "tdt.grant_queue", code)
    with pytest.raises(crossmem.CrossmemError, match=str(code)):
        peer.call(queues.open_, "queue", blob)

    assert peer.call(acltdt_fault_actions.held) == before
    peer.call(queues.open_, "queue", blob)
    assert peer.call(queues.get, "queue", timeout=5).number == 1


@pytest.mark.parametrize("call", ["tdt.enqueue", "tdt.dequeue"])
def test_a_death_inside_of_a_call_is_an_error_of_the_others(
    start: "StartNpuPeer", call: str
) -> None:
    owner, victim, peer = start("acltdt"), start("acltdt"), start("acltdt")
    role = "produce" if call == "tdt.enqueue" else "consume"
    blob = owner.call(queues.make, "queue", producers=3)[role]
    owner.call(queues.put, "queue", [1])
    for one in (victim, peer):
        one.call(queues.open_, "queue", blob)
    answer = victim.start(acltdt_fault_actions.die_inside, call, "queue")
    with pytest.raises(PeerDiedError):
        answer.result(SOON_S)
    start_s = time.monotonic()
    with pytest.raises(crossmem.DriverError, match="507899") as caught:
        peer.call(acltdt_fault_actions.use, call, "queue")

    assert time.monotonic() - start_s < SOON_S
    assert "another process died" in str(caught.value.hint)


def test_the_buffers_of_a_killed_owner(start: "StartNpuPeer") -> None:
    owner, peer = start("acltdt"), start("acltdt")
    blob = owner.call(queues.make, "queue")["consume"]
    peer.call(queues.open_, "queue", blob)
    owner.call(queues.put, "queue", [1])
    owner.kill()
    # What the owner had allocated has ended with it.
    with pytest.raises(crossmem.OwnerGoneError):
        peer.call(queues.get, "queue", timeout=None)


def test_the_buffer_of_a_killed_consumer_is_lost(start: "StartNpuPeer") -> None:
    owner, victim, peer = start("acltdt"), start("acltdt"), start("acltdt")
    blob = owner.call(queues.make, "queue")["consume"]
    owner.call(queues.put, "queue", [1, 2])
    for one in (victim, peer):
        one.call(queues.open_, "queue", blob)
    assert victim.call(queues.take, "queue", "buffer").number == 1
    victim.kill()

    assert peer.call(queues.get, "queue", timeout=5).number == 2
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0.1)
    peer.call(actions.call, "queue", "close")
    owner.call(actions.call, "queue", "close")
    owner.call(crossmem.collect)
