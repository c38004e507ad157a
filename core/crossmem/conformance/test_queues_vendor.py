# SPDX-License-Identifier: Apache-2.0
"""A vendor's queues keep the laws of queues, and refuse calls that the vendor does not support."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S
from crossmem.conformance.queues_of_tests import Item, MakeQueue, numbers_of
from crossmem.models.queue_handle import ROLES

pytestmark = pytest.mark.crossmem_with_vendor_queues

_COUNT: Final = 40
_WITHIN_S: Final = 0.2


def _share(queue: crossmem.Queue, producer: Peer, *consumers: Peer) -> None:
    producer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    for one in consumers:
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))


def _get_until_empty(name: str, within_s: float) -> list[Item]:
    found = []
    try:
        while True:
            found.append(queues.get(name, timeout=within_s))
    except crossmem.QueueEmptyError:
        return found


# Order, number and bounds -----------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q01_two_consumers_get_items_in_their_order(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, fresh_peer: FreshPeer
) -> None:
    queue, producer = make_queue(), fresh_peer()
    _share(queue, producer, peer, peer2)
    answers = [one.start(_get_until_empty, "queue", 1.0) for one in (peer, peer2)]
    producer.call(queues.put, "queue", range(_COUNT))
    received = [numbers_of(answer.result()) for answer in answers]

    assert all(numbers == sorted(numbers) for numbers in received)
    # Law Q2 holds, too: each item arrives once.
    assert sorted(received[0] + received[1]) == list(range(_COUNT))


def test_q02_what_the_dead_had_is_not_delivered_again(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, victim = make_queue(), fresh_peer()
    queues.put(queue, range(3))
    victim.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    assert victim.call(queues.take, "queue", "buffer").number == 0
    victim.kill()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))

    assert numbers_of(peer.call(queues.get_each, "queue", 2, timeout=SOON_S)) == [1, 2]


@pytest.mark.crossmem_core
def test_q03_a_put_into_a_full_queue_waits(make_queue: MakeQueue, peer: Peer, peer2: Peer) -> None:
    queue = make_queue(depth=2)
    _share(queue, peer, peer2)
    for text in (b"0", b"1"):
        peer.call(_put_copy, "queue", text, timeout=SOON_S)
    with pytest.raises(crossmem.QueueFullError):
        peer.call(_put_copy, "queue", b"2", timeout=0.1)
    answer = peer.start(_put_copy, "queue", b"2", timeout=None)
    time.sleep(0.05)
    assert not answer.is_done()
    received = [peer2.call(_get_text, "queue")]
    answer.result()

    assert [*received, *(peer2.call(_get_text, "queue") for _ in range(2))] == [b"0", b"1", b"2"]


def _put_copy(name: str | crossmem.Queue, text: bytes, *, timeout: float | None) -> None:
    queue = actions.objects[name] if isinstance(name, str) else name
    queue.put(text, copy="allow", timeout=timeout)


def _get_text(name: str) -> bytes:
    with actions.objects[name].get(timeout=SOON_S) as buffer:
        text: bytes = buffer.read(buffer.data_length)
        return text


def test_q03_a_queue_that_raises_does_not_wait(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=1, overflow="raise")
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    _put_copy(queue, b"0", timeout=60)
    start = time.monotonic()
    with pytest.raises(crossmem.QueueFullError):
        _put_copy(queue, b"1", timeout=60)

    assert time.monotonic() - start < SOON_S
    assert peer.call(_get_text, "queue") == b"0"


# Ends -------------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q09_after_the_owners_death_nothing_waits(peer: Peer, fresh_peer: FreshPeer) -> None:
    # A vendor's queue outlives its owner, so calls that wait on the queue would wait for ever.
    # crossmem must end these calls.
    owner, producer = fresh_peer(), fresh_peer()
    handles = owner.call(queues.make, "queue", 1)
    producer.call(queues.open_, "queue", handles["produce"])
    peer.call(queues.open_, "queue", handles["consume"])
    getting = peer.start(queues.get, "queue", timeout=None)
    time.sleep(0.05)
    owner.kill()
    start = time.monotonic()
    with pytest.raises(crossmem.OwnerGoneError):
        getting.result(SOON_S)
    with pytest.raises(crossmem.OwnerGoneError):
        producer.call(_put_until_refused, "queue", within=SOON_S)

    assert time.monotonic() - start < SOON_S
    peer.call(actions.reset)


def _put_until_refused(name: str) -> None:
    while True:
        _put_copy(name, b"x", timeout=None)


def test_q09_a_closed_queue_takes_nothing(peer: Peer, peer2: Peer, fresh_peer: FreshPeer) -> None:
    owner = fresh_peer()
    handles = owner.call(queues.make, "queue", 1)
    peer.call(queues.open_, "queue", handles["produce"])
    peer2.call(queues.open_, "queue", handles["consume"])
    getting = peer2.start(queues.get, "queue", timeout=None)
    time.sleep(0.05)
    owner.call(actions.call, "queue", "close")
    with pytest.raises(crossmem.ClosedError):
        getting.result(SOON_S)
    with pytest.raises(crossmem.ClosedError):
        peer.call(_put_copy, "queue", b"x", timeout=None)

    for one in (peer, peer2):
        one.call(actions.reset)


def test_c20_a_process_exits_with_buffers_in_hand(
    make_queue: MakeQueue, fresh_peer: FreshPeer, peer: Peer
) -> None:
    queue, leaving = make_queue(producers=2), fresh_peer()
    owner = fresh_peer(CROSSMEM_EXIT_WAIT="0.1")
    for role in ROLES:
        leaving.call(queues.open_, role, queues.handle_of(queue, role))
    # The leaving process puts no item, because a vendor's queue loses a producer's unread items
    # when the producer ends.
    queues.put(queue, range(2))
    leaving.call(queues.allocate, "produce", "own")
    leaving.call(queues.take, "consume", "buffer")
    leaving.exit()
    owner.call(queues.make, "queue")
    owner.call(queues.put, "queue", [5])
    owner.exit()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))

    assert (leaving.exitcode, owner.exitcode) == (os.EX_OK, os.EX_OK)
    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 1


# Roles, timeouts and threads --------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q12_a_role_is_all_that_a_handle_gives(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    for role in ROLES:
        peer.call(queues.open_, role, queues.handle_of(queue, role))
        with pytest.raises(crossmem.UnsupportedError):
            peer.call(actions.call, role, "export", role=role)
    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(queues.get, "produce", timeout=0)
    for use in (_allocate, _put):
        with pytest.raises(crossmem.AccessDeniedError):
            peer.call(use, "consume")
    peer.call(queues.put, "produce", [1])

    assert peer.call(queues.get, "consume") == Item(0, 1, 1)


def _allocate(name: str) -> None:
    actions.objects[name].allocate()


def _put(name: str) -> None:
    _put_copy(name, b"x", timeout=0)


@pytest.mark.crossmem_core
def test_q14_a_wait_takes_the_time_that_was_asked(make_queue: MakeQueue, peer: Peer) -> None:
    full, empty = make_queue(depth=1), make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(empty, "consume"))
    _put_copy(full, b"x", timeout=0)
    waits: dict[type, Callable[[float], object]] = {
        crossmem.QueueFullError: lambda s: _put_copy(full, b"y", timeout=s),
        crossmem.QueueEmptyError: lambda s: peer.call(queues.get, "queue", timeout=s),
    }
    for kind, wait in waits.items():
        for timeout_s in (0, 0.0004, _WITHIN_S):
            start = time.monotonic()
            with pytest.raises(kind):
                wait(timeout_s)
            assert timeout_s <= time.monotonic() - start < timeout_s + SOON_S


def test_q15_threads_share_a_queue(make_queue: MakeQueue, peer: Peer, peer2: Peer) -> None:
    queue = make_queue()
    _share(queue, peer2, peer)
    answer = peer.start(actions.in_threads, 3, _get_in_thread, "queue")
    peer2.call(actions.in_threads, 3, _put_in_thread, "queue")
    received = answer.result()

    assert not [one for one in received if isinstance(one, Exception)], received
    assert sorted(item for items in received for item in items) == [
        Item(who, number, 1) for who in range(3) for number in range(_COUNT)
    ]


def _get_in_thread(_thread: int, name: str) -> list[Item]:
    return _get_until_empty(name, 1.0)


def _put_in_thread(thread: int, name: str) -> None:
    queues.put(name, range(_COUNT), who=thread, timeout=None)


# What a vendor's queue lacks --------------------------------------------------------------

_LACKS: Final[dict[str, Callable[[crossmem.Device, crossmem.Queue], object]]] = {
    'delivery="each"': lambda device, _: device.queue(1, 64, delivery="each"),
    'overflow="drop"': lambda device, _: device.queue(1, 64, overflow="drop"),
    "redeliver=True": lambda device, _: device.queue(1, 64, redeliver=True),
    "prefetch=": lambda device, _: device.queue(1, 64, prefetch=1),
    "put(stream=)": lambda _, queue: queue.put(b"x", copy="allow", stream=0),
    "get(stream=)": lambda _, queue: queue.get(stream=0),
    "end": lambda _, queue: next(iter(queue)),
    "fileno()": lambda _, queue: queue.fileno(),
    "get_async()": lambda _, queue: asyncio.run(queue.get_async()),
    "put_async()": lambda _, queue: asyncio.run(queue.put_async(b"x", copy="allow")),
    "wait_for()": lambda _, queue: queue.wait_for(timeout=0),
    "finish()": lambda _, queue: queue.finish(),
    "revoke()": lambda _, queue: queue.revoke(1),
    "stats()": lambda _, queue: queue.stats(),
    "release(stream=)": lambda _, queue: _release_on_a_stream(queue),
}


def _release_on_a_stream(queue: crossmem.Queue) -> None:
    with queue.allocate() as buffer:
        buffer.release(stream=0)


@pytest.mark.crossmem_requires("vendor_queues")
def test_c25_what_a_vendors_queue_lacks_is_refused(
    device: crossmem.Device, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    for name, use in _LACKS.items():
        with pytest.raises(crossmem.UnsupportedError) as caught:
            use(device, queue)
        assert name in str(caught.value)
        assert "vendor_queues" in str(caught.value)
        assert caught.value.hint

    # The refused calls have put no item.
    with pytest.raises(crossmem.QueueEmptyError):
        queues.get(queue, timeout=0)


@pytest.mark.crossmem_requires("vendor_queues")
def test_c25_a_mechanism_of_queues_has_no_memory(device: crossmem.Device) -> None:
    uses: list[Callable[[], Any]] = [
        lambda: device.allocate(64),
        lambda: device.pool(64, 2),
        lambda: device.reserve(1),
        lambda: device.adopt(4096, 64, owner=object()),
    ]
    for use in uses:
        with pytest.raises(crossmem.UnsupportedError):
            use()
