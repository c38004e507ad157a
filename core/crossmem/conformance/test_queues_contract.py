# SPDX-License-Identifier: Apache-2.0
"""Laws C3, C6, C12 to C14, C16 to C18, C20 and C26 for queues; law Q12: what a role allows."""

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.forks import in_child
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.queues_of_tests import Item, MakeQueue
from crossmem.models.queue_handle import ROLES

# Handles ----------------------------------------------------------------------------------


@pytest.mark.crossmem_with_vendor_queues
def test_c03_a_queue_keeps_its_handles(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    handles = {role: queue.export(role=role) for role in ROLES}
    queues.put(queue, [1])
    for role, handle in handles.items():
        assert handle == queue.export(role=role)
        assert handle == crossmem.QueueHandle.from_bytes(handle.to_bytes())
        assert (handle.role, len(handle.to_bytes()) <= 1024) == (role, True)

    assert len({*handles.values(), *(other.export(role=role) for role in ROLES)}) == 4


@pytest.mark.crossmem_with_vendor_queues
def test_c06_a_closed_queue_is_stale(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    blobs = {role: queues.handle_of(queue, role) for role in ROLES}
    queue.close()
    later = make_queue()
    for blob in blobs.values():
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(queues.open_, "never", blob)
    for role in ROLES:
        assert queues.handle_of(later, role) not in blobs.values()


@pytest.mark.crossmem_with_vendor_queues
def test_c12_a_dead_processs_queue_is_not_opened(fresh_peer: FreshPeer, peer: Peer) -> None:
    owner = fresh_peer()
    blob = owner.call(queues.make, "queue")["consume"]
    owner.kill()
    start = time.monotonic()
    with pytest.raises(crossmem.OwnerGoneError):
        peer.call(queues.open_, "never", blob)

    assert time.monotonic() - start < SOON_S


@pytest.mark.crossmem_with_vendor_queues
@pytest.mark.crossmem_core
def test_c13_only_admitted_processes_open_a_queue(
    make_queue: MakeQueue, peer: Peer, peer2: Peer
) -> None:
    queue = make_queue(allow=crossmem.Allow(pids=[peer.pid]))
    for role in ROLES:
        peer.call(queues.open_, role, queues.handle_of(queue, role))
        with pytest.raises(crossmem.AccessDeniedError):
            peer2.call(queues.open_, "never", queues.handle_of(queue, role))
    peer.call(queues.put, "produce", [1])

    assert peer.call(queues.get, "consume").number == 1
    queues.check_stats(queue, producers=1, consumers=1)


@pytest.mark.parametrize(
    "bad",
    [b"", b"XMQU", bytes(200), b"\xff" * 100, b"XMQU" * 1000, bytearray(64), "text", 17, None],
    ids=lambda bad: f"{type(bad).__name__}-{len(bad) if hasattr(bad, '__len__') else bad}",
)
@pytest.mark.crossmem_with_vendor_queues
def test_c14_what_is_no_handle_of_a_queue_is_refused(device: crossmem.Device, bad: Any) -> None:
    with pytest.raises(crossmem.InvalidHandleError):
        crossmem.open_queue(bad, device=device)


@pytest.mark.crossmem_core
def test_c14_damaged_handles_of_queues_are_refused(
    make_queue: MakeQueue, allocate: Allocate, peer: Peer
) -> None:
    queue = make_queue()
    blob = queues.handle_of(queue, "consume")
    chosen = random.Random(14)
    damaged = [blob[:end] for end in range(0, len(blob), 11)] + [blob + b"\0"]
    for _ in range(100):
        changed = bytearray(blob)
        changed[chosen.randrange(len(blob))] ^= 1 << chosen.randrange(8)
        damaged.append(bytes(changed))
    for one in damaged:
        with pytest.raises(crossmem.InvalidHandleError):
            crossmem.open_queue(one)
    # A handle of memory is refused, even if a ``QueueHandle`` contains it.
    memory = allocate(4096).export()
    for wrong in (memory.to_bytes(), crossmem.QueueHandle("consume", memory).to_bytes()):
        with pytest.raises(crossmem.CrossmemError):
            peer.call(queues.open_, "never", wrong)
    with pytest.raises(crossmem.InvalidHandleError):
        crossmem.attach(blob)

    peer.call(queues.open_, "queue", blob)
    queues.put(queue, [1])
    assert peer.call(queues.get, "queue").number == 1


@pytest.mark.crossmem_with_vendor_queues
@pytest.mark.crossmem_core
def test_c16_a_queue_out_of_bounds_is_refused(
    device: crossmem.Device, state: Callable[[], dict[str, Any]]
) -> None:
    before = state()
    for numbers in ((0, 64), (-1, 64), (2**40, 64), (True, 64), (1.0, 64), ("1", 64)):
        with pytest.raises(crossmem.InvalidSizeError):
            device.queue(*numbers)
    for nbytes in (0, -1, 2**62, True, 1.5, "1", None):
        with pytest.raises(crossmem.InvalidSizeError):
            device.queue(1, nbytes)  # type: ignore[arg-type]
    for name in ("producers", "consumers", "prefetch"):
        for number in (0, -1, 2**40, 1.0, "1"):
            with pytest.raises(crossmem.InvalidSizeError):
                device.queue(1, 64, **{name: number})  # type: ignore[arg-type]
    for name in ("delivery", "overflow", "redeliver"):
        with pytest.raises(crossmem.ConfigurationError):
            device.queue(1, 64, **{name: "neither"})  # type: ignore[arg-type]
    with pytest.raises((crossmem.OutOfMemoryError, crossmem.InvalidSizeError)):
        device.queue(2**16, device.capabilities.max_allocation_nbytes)

    assert settle(lambda: [] if state() == before else ["something is left"]) == []


# Ends -------------------------------------------------------------------------------------

USES: dict[str, Callable[[crossmem.Queue], object]] = {
    "export": lambda queue: queue.export(role="consume"),
    "allocate": lambda queue: queue.allocate(),
    "put": lambda queue: queue.put(b"x", copy="allow"),
    "get": lambda queue: queue.get(timeout=0),
    "get_many": lambda queue: queue.get_many(2, timeout=0),
    "iteration": lambda queue: next(iter(queue)),
    "fileno": lambda queue: queue.fileno(),
    "wait_for": lambda queue: queue.wait_for(timeout=0.1),
    "finish": lambda queue: queue.finish(),
    "stats": lambda queue: queue.stats(),
    "with": lambda queue: queue.__enter__(),
}


@pytest.mark.crossmem_with_vendor_queues
@pytest.mark.crossmem_core
def test_c17_a_closed_queue_refuses_every_use(make_queue: MakeQueue, peer: Peer) -> None:
    mine = make_queue()
    handles = peer.call(queues.make, "queue")
    theirs = crossmem.open_queue(handles["consume"], device=mine.device)
    for one in (mine, theirs):
        one.close()
        one.close()
        for use in USES.values():
            with pytest.raises(crossmem.ClosedError):
                use(one)
        assert one.closed
        assert "closed" in repr(one)


@pytest.mark.crossmem_with_vendor_queues
def test_c17_a_queue_with_buffers_in_hand_is_not_closed(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, [1])
    peer.call(queues.take, "queue", "buffer")
    with pytest.raises(crossmem.BusyError):
        peer.call(actions.call, "queue", "close")
    peer.call(actions.call, "buffer", "release")
    queues.put(queue, [2])

    assert peer.call(queues.get, "queue").number == 2


@pytest.mark.parametrize("use", USES)
@pytest.mark.crossmem_with_vendor_queues
def test_c18_an_inherited_queue_refuses_every_use(
    make_queue: MakeQueue, peer: Peer, use: str
) -> None:
    queue = make_queue()
    peer.call(queues.make, "own")
    peer.call(queues.open_, "opened", queues.handle_of(queue, "consume"))
    for name in ("own", "opened"):
        with pytest.raises(crossmem.ForkedProcessError):
            peer.call(in_child, _use, name, use)
    # The parent's objects still work.
    queues.put(queue, [1])
    assert peer.call(queues.get, "opened").number == 1


def _use(name: str, use: str) -> None:
    USES[use](actions.objects[name])


def test_c20_an_exit_leaves_its_places(
    make_queue: MakeQueue, fresh_peer: FreshPeer, peer: Peer
) -> None:
    queue, leaving = make_queue(), fresh_peer()
    leaving.call(queues.open_, "consume", queues.handle_of(queue, "consume"))
    leaving.call(queues.open_, "produce", queues.handle_of(queue, "produce"))
    leaving.call(queues.put, "produce", range(3))
    leaving.call(queues.take, "consume", "buffer")
    leaving.exit()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))

    assert queues.numbers_of(peer.call(queues.get_rest, "queue", within=SOON_S)) == [1, 2]
    assert leaving.exitcode == os.EX_OK


def test_c20_an_owner_can_exit(fresh_peer: FreshPeer, peer: Peer) -> None:
    owner = fresh_peer(CROSSMEM_EXIT_WAIT="0.1")
    peer.call(queues.open_, "queue", owner.call(queues.make, "queue")["consume"])
    owner.call(queues.put, "queue", [4])
    owner.exit()

    assert owner.exitcode == os.EX_OK
    # The owner's exit may have released the buffer's memory, so the test does not read the memory.
    peer.call(actions.call, "queue", "get", timeout=SOON_S, keep="buffer")
    with pytest.raises((crossmem.ClosedError, crossmem.OwnerGoneError)):
        peer.call(queues.get, "queue", timeout=SOON_S)
    peer.call(actions.call, "buffer", "release")


@pytest.mark.crossmem_with_vendor_queues
def test_c26_a_stopped_owner_is_asked_as_long_as_was_said(
    fresh_peer: FreshPeer, device: crossmem.Device
) -> None:
    owner = fresh_peer()
    blob = owner.call(queues.make, "queue")["produce"]
    owner.stop()
    start = time.monotonic()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        crossmem.open_queue(blob, device=device, timeout=0.3)

    assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S


# Q12: roles -------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q12_a_process_does_what_its_role_allows(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    for role in ROLES:
        peer.call(queues.open_, role, queues.handle_of(queue, role))
        assert peer.call(_role_of, role) == role
    for role, refused in (("consume", _PUTS), ("produce", _GETS)):
        for use in refused:
            with pytest.raises(crossmem.AccessDeniedError):
                peer.call(_use, role, use)
    for role in ROLES:
        with pytest.raises(crossmem.UnsupportedError):
            peer.call(_use, role, "export")
    peer.call(queues.put, "produce", [1])

    assert peer.call(queues.get, "consume") == Item(0, 1, 1)
    # An owner can put without a handle.
    queues.put(make_queue(), [2])
    assert (queue.stats().producers, queue.stats().consumers) == (1, 1)


_PUTS = ("allocate", "put")
_GETS = ("get", "get_many", "iteration", "fileno")


def _role_of(name: str) -> str:
    return "produce" if "produce" in repr(actions.objects[name]) else "consume"


@pytest.mark.crossmem_with_vendor_queues
@pytest.mark.crossmem_core
def test_q12_a_handle_gives_no_other_role(make_queue: MakeQueue, peer: Peer, peer2: Peer) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    for role, other in (ROLES, ROLES[::-1]):
        forged = crossmem.QueueHandle(other, queue.export(role=role).directory)
        with pytest.raises((crossmem.AccessDeniedError, crossmem.InvalidHandleError)):
            peer2.call(queues.open_, "never", forged.to_bytes())
    queues.check_stats(queue, producers=0, consumers=1)
    queues.put(queue, [1])

    assert peer.call(queues.get, "queue") == Item(0, 1, 1)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.crossmem_with_vendor_queues
def test_q12_no_more_processes_than_declared_take_a_role(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, fresh_peer: FreshPeer, role: str
) -> None:
    queue, third = make_queue(producers=2, consumers=2), fresh_peer()
    blob = queues.handle_of(queue, role)
    for one in (peer, third):
        one.call(queues.open_, "queue", blob)
    with pytest.raises(crossmem.BusyError):
        peer2.call(queues.open_, "queue", blob)
    third.kill()

    assert settle(lambda: _try_to_open(peer2, blob)) == []


def _try_to_open(peer: Peer, blob: bytes) -> list[str]:
    try:
        peer.call(queues.open_, "queue", blob)
    except crossmem.BusyError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.crossmem_core
def test_q12_a_role_can_be_revoked(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, role: str
) -> None:
    queue, revoked = make_queue(producers=2, prefetch=4, redeliver=True), fresh_peer()
    revoked.call(queues.open_, "queue", queues.handle_of(queue, role))
    if role == "consume":
        queues.put(queue, range(2))
        assert revoked.call(queues.take, "queue", "buffer").number == 0
    else:
        revoked.call(queues.put, "queue", [0])
        revoked.call(queues.allocate, "queue", "buffer")
    queue.revoke(revoked.pid)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))

    for use in _GETS[:3] if role == "consume" else _PUTS:
        with pytest.raises(crossmem.AccessDeniedError):
            revoked.call(_use, "queue", use)
    # The owner treats the items of the revoked process like those of a dead process.
    wanted = [Item(0, 0, 2), Item(0, 1, 1)] if role == "consume" else [Item(0, 0, 1)]
    assert sorted(peer.call(queues.get_each, "queue", len(wanted), timeout=SOON_S)) == wanted
    queues.put(queue, [5])
    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 5
    assert (queue.stats().producers, queue.stats().consumers) == (1, 1)
    with pytest.raises(crossmem.UnsupportedError):
        peer.call(actions.call, "queue", "revoke", os.getpid())


def test_q12_who_waits_hears_of_the_revocation(
    make_queue: MakeQueue, fresh_peer: FreshPeer
) -> None:
    queue, consumer, producer = make_queue(depth=1, producers=2), fresh_peer(), fresh_peer()
    producer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    producer.call(queues.put, "queue", [1])
    answer = producer.start(queues.allocate, "queue", "buffer", timeout=None)
    consumer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    consumer.call(queues.take, "queue", "buffer")
    getting = consumer.start(queues.get, "queue", timeout=None)
    time.sleep(0.05)
    for one, waiting in ((producer, answer), (consumer, getting)):
        threading.Timer(0.0, queue.revoke, (one.pid,)).start()
        with pytest.raises(crossmem.AccessDeniedError):
            waiting.result(SOON_S)


def test_q12_what_a_process_puts_after_its_revocation_reaches_nobody(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, rogue = make_queue(producers=2), fresh_peer()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    rogue.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    rogue.call(queues.put, "queue", [1])
    rogue.call(queues.allocate, "queue", "buffer")
    queue.revoke(rogue.pid)
    rogue.call(_put_anyway, "queue", "buffer")

    assert peer.call(queues.get, "queue", timeout=SOON_S) == Item(0, 1, 1)
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0.05)
    assert queue.stats().put == 1


def _put_anyway(name: str, buffer: str) -> None:
    """Put a buffer without the check that raises ``AccessDeniedError`` after a revocation."""
    record = actions.objects[name]._record
    record.producer.check = lambda: None
    queues.put_buffer(name, actions.objects[buffer], 2)
