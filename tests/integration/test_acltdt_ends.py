# SPDX-License-Identifier: Apache-2.0
"""Ends of Ascend's own queues: what the others may still do, and what an exit gives back."""

import os
import threading
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S
from crossmem.sharing.base.process import current

if TYPE_CHECKING:
    from tests.integration import acltdt_fault_actions
    from tests.integration.conftest import StartNpuPeer
else:
    import acltdt_fault_actions

pytestmark = pytest.mark.ci
PROFILES = ["310b-rc", "310b-rc-driver"]


def start(start_npu_peer: "StartNpuPeer", profile: str = "310b-rc", **environment: str) -> Peer:
    return start_npu_peer(
        "acltdt",
        CROSSMEM_EMULATED_ACL_PROFILE=profile,
        CROSSMEM_EMULATED_ACL_GROUP="group",
        SHAREGROUP_PRECONFIG="1",
        **environment,
    )


def test_a_dead_owners_queue_with_room_takes_nothing(start_npu_peer: "StartNpuPeer") -> None:
    owner, peer = start(start_npu_peer), start(start_npu_peer)
    handles = owner.call(queues.make, "queue")
    peer.call(queues.open_, "queue", handles["produce"])
    peer.call(queues.allocate, "queue", "buffer")
    owner.kill()
    for use in (_put_kept, _allocate):
        with pytest.raises(crossmem.OwnerGoneError):
            peer.call(use)

    # The buffer is still the application's.
    peer.call(actions.call, "buffer", "release")


def _put_kept() -> None:
    actions.objects["queue"].put(actions.objects["buffer"], timeout=0)


def _allocate() -> None:
    actions.objects["queue"].allocate()


@pytest.mark.parametrize("end", ["dies", "closes"])
def test_what_was_read_before_an_end_is_not_lost(start_npu_peer: "StartNpuPeer", end: str) -> None:
    owner, producer, consumer = (start(start_npu_peer) for _ in range(3))
    handles = owner.call(queues.make, "queue")
    producer.call(queues.open_, "queue", handles["produce"])
    consumer.call(queues.open_, "queue", handles["consume"])
    producer.call(queues.put, "queue", range(2))
    if end == "dies":
        owner.kill()
        assert consumer.call(_get_many, "queue", "") == 2
    else:
        # The others are told while the second buffer is awaited.
        assert consumer.call(_get_many, "queue", "get") == 1
    with pytest.raises(crossmem.OwnerGoneError if end == "dies" else crossmem.ClosedError):
        consumer.call(_get_many, "queue", "")


def _get_many(name: str, closed_after: str) -> int:
    queue = actions.objects[name]
    if closed_after:
        record, inner = queue._record, queue._record.get

        def get_and_close(timeout_s: float) -> object:
            found = inner(timeout_s)
            record.marks = (b"\1",)
            return found

        type(record).get = lambda _self, timeout_s: get_and_close(timeout_s)
    found = queue.get_many(5, timeout=SOON_S)
    for one in found:
        one.release()
    return len(found)


def test_what_was_read_before_a_failure_is_not_lost(start_npu_peer: "StartNpuPeer") -> None:
    owner, peer = start(start_npu_peer), start(start_npu_peer)
    peer.call(queues.open_, "queue", owner.call(queues.make, "queue")["consume"])
    owner.call(queues.put, "queue", range(3))

    assert peer.call(_get_many_and_fail, "queue") == 1
    with pytest.raises(crossmem.DriverError) as caught:
        peer.call(queues.get, "queue", timeout=0)
    assert caught.value.code == 207005
    assert [peer.call(queues.get, "queue", timeout=0).number for _ in range(2)] == [1, 2]


def _get_many_and_fail(name: str) -> int:
    queue = actions.objects[name]
    inner = type(queue).get

    def get_and_fail(self: object, **options: float) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(queue), "get", inner)
            found = queue.get(**options)
        acltdt_fault_actions.fail("tdt.dequeue", 207005)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(queue), "get", get_and_fail)
        found = queue.get_many(5, timeout=SOON_S)
    for one in found:
        one.release()
    return len(found)


def test_two_threads_free_a_buffer_once(start_npu_peer: "StartNpuPeer") -> None:
    peer = start(start_npu_peer)
    peer.call(queues.make, "queue")
    assert peer.call(_release_beside_deferred_work, "queue") == [1, 0]


def _release_beside_deferred_work(name: str) -> list[int]:
    """Return the number of the vendor's frees, and of live buffers afterwards."""
    buffer = actions.objects[name].allocate()
    side = buffer._record.holder
    inner, freed = side.driver, []
    is_freeing, may_go_on = threading.Event(), threading.Event()

    def free_slowly(vendors: object) -> None:
        freed.append(vendors)
        is_freeing.set()
        may_go_on.wait(SOON_S)
        inner.free_buffer(vendors)

    side.driver = SimpleNamespace(free_buffer=free_slowly)
    # Until the first thread's release is complete, the record is in the queue of deferred work.
    deferred = partial(current().drain, patient=True)
    threads = [threading.Thread(target=call) for call in (buffer.release, deferred)]
    threads[0].start()
    assert is_freeing.wait(SOON_S)
    threads[1].start()
    threads[1].join(0.2)
    may_go_on.set()
    for thread in threads:
        thread.join(SOON_S)
    return [len(freed), len(side.held)]


def test_an_exit_closes_the_other_queues_if_one_fails(start_npu_peer: "StartNpuPeer") -> None:
    owner, peer = start(start_npu_peer, CROSSMEM_EXIT_WAIT="0.1"), start(start_npu_peer)
    for name in ("first", "second"):
        peer.call(queues.open_, name, owner.call(queues.make, name)["consume"])
    owner.call(acltdt_fault_actions.fail, "tdt.destroy_queue", 500001)
    owner.exit()

    for name in ("first", "second"):
        with pytest.raises(crossmem.ClosedError):
            peer.call(queues.get, name, timeout=SOON_S)
    # One of them may be the vendor's still, but no buffer is.
    assert peer.call(acltdt_fault_actions.held)["buffers"] == 0


@pytest.mark.parametrize("profile", PROFILES)
def test_a_place_is_free_after_a_death(start_npu_peer: "StartNpuPeer", profile: str) -> None:
    owner, victim, peer = (start(start_npu_peer, profile) for _ in range(3))
    blob = owner.call(queues.make, "queue", consumers=1)["consume"]
    victim.call(queues.open_, "queue", blob)
    with pytest.raises(crossmem.BusyError):
        peer.call(queues.open_, "queue", blob)
    victim.kill()
    peer.call(queues.open_, "queue", blob)
    owner.call(queues.put, "queue", [1])

    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_a_process_in_another_group_opens_nothing(
    start_npu_peer: "StartNpuPeer", profile: str
) -> None:
    owner, peer = start(start_npu_peer, profile), start(start_npu_peer, profile)
    stranger = start_npu_peer(
        "acltdt",
        CROSSMEM_EMULATED_ACL_PROFILE=profile,
        CROSSMEM_EMULATED_ACL_GROUP="other",
        SHAREGROUP_PRECONFIG="1",
    )
    blob = owner.call(queues.make, "queue", consumers=1)["consume"]
    with pytest.raises(crossmem.DriverError, match="507899") as caught:
        stranger.call(queues.open_, "queue", blob)

    assert "memory group" in str(caught.value.hint)
    # It keeps no place.
    peer.call(queues.open_, "queue", blob)


def test_handles_and_devices_that_do_not_fit(start_npu_peer: "StartNpuPeer") -> None:
    owner, peer = start(start_npu_peer), start(start_npu_peer)
    vendors = owner.call(queues.make, "queue")["consume"]
    of_host = owner.call(_make_on_host)
    with pytest.raises(crossmem.UnsupportedError, match="host"):
        peer.call(queues.open_, "queue", of_host)
    for device in ("host", "ascend:1"):
        with pytest.raises(crossmem.UnsupportedError, match="ascend:0"):
            peer.call(_open_on, vendors, device)

    assert peer.call(_open_on, vendors, "ascend:0") == os.EX_OK


def _make_on_host() -> bytes:
    queue = actions.objects["host"] = crossmem.device("host").queue(2, 64)
    return queue.export(role="consume").to_bytes()


def _open_on(handle: bytes, device: str) -> int:
    crossmem.open_queue(handle, device=device).close()
    return os.EX_OK
