# SPDX-License-Identifier: Apache-2.0
"""Laws Q1 to Q3: the order of items, the number of deliveries, and full queues."""

import itertools
import time
from collections import Counter
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.queues_of_tests import Item, MakeQueue, numbers_of

DELIVERIES: Final = ("one", "each")
_COUNT: Final = 60

# Q1: order --------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.crossmem_core
def test_q01_consumers_get_the_items_of_each_producer_in_order(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, fresh_peer: FreshPeer, delivery: str
) -> None:
    queue, producer = make_queue(delivery=delivery, producers=2), fresh_peer()
    for one in (peer, peer2):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    producer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    answers = [one.start(queues.get_rest, "queue") for one in (peer, peer2)]
    putting = producer.start(queues.put, "queue", range(_COUNT), who=1)
    queues.put(queue, range(_COUNT))
    putting.result()
    producer.exit()
    queue.finish()
    received = [one.result() for one in answers]

    for items, who in itertools.product(received, (0, 1)):
        numbers = numbers_of(items, who)
        assert numbers == sorted(numbers)
        assert delivery == "one" or numbers == list(range(_COUNT))
    if delivery == "one":
        assert sorted(received[0] + received[1]) == [
            Item(who, number, 1) for who in (0, 1) for number in range(_COUNT)
        ]


@pytest.mark.crossmem_core
def test_q01_items_from_before_the_first_consumer_come_first(
    make_queue: MakeQueue, peer: Peer
) -> None:
    queue = make_queue(depth=8)
    queues.put(queue, range(5))
    assert queue.stats().waiting == 5
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    answer = peer.start(queues.get_rest, "queue")
    queues.put(queue, range(5, 30))
    queue.finish()

    assert numbers_of(answer.result()) == list(range(30))


def test_q01_items_that_found_no_room_keep_their_order(
    make_queue: MakeQueue, peer: Peer, peer2: Peer
) -> None:
    queue = make_queue(depth=8, prefetch=1)
    for one in (peer, peer2):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    # The prefetch gives each consumer room for one item. The producer leaves the other items to
    # the owner.
    queues.put(queue, range(8))
    answers = [one.start(queues.get_rest, "queue") for one in (peer, peer2)]
    queues.put(queue, range(8, 80))
    queue.finish()
    received = [numbers_of(answer.result()) for answer in answers]

    assert all(numbers == sorted(numbers) for numbers in received)
    assert sorted(received[0] + received[1]) == list(range(80))


def test_q01_an_item_of_the_owner_waits_for_earlier_ones(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=8, prefetch=3)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(8))
    received = []
    for _ in range(8):
        received.append(peer.call(queues.get, "queue").number)
        # The consumer has room again, so the owner hands out the next item. The test waits up to
        # 20 ms for the owner.
        settle(lambda: [] if queue.stats().waiting == 0 else ["items wait"], within=0.02)

    assert received == list(range(8))


def test_q01_many_items_keep_their_order(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=8, prefetch=8)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    answer = peer.start(_get_many, "queue", 24)
    for first in range(0, 24, 8):
        buffers = [queue.allocate(timeout=SOON_S) for _ in range(8)]
        for number, buffer in enumerate(buffers, start=first):
            buffer.user_data = bytes([number])
        queue.put_many(buffers)

    assert answer.result() == [bytes([number]) for number in range(24)]


def _get_many(name: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        buffers = actions.objects[name].get_many(5, timeout=SOON_S)
        assert 1 <= len(buffers) <= 5
        found += [one.user_data for one in buffers]
        for one in buffers:
            one.release()
    return found


# Q2: the number of deliveries -------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q02_one_consumer_gets_each_item(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, fresh_peer: FreshPeer
) -> None:
    queue, consumers = make_queue(), (peer, peer2, fresh_peer())
    queues.put(queue, range(3))
    for one in consumers:
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    answers = [one.start(queues.get_rest, "queue") for one in consumers]
    queues.put(queue, range(3, 90))
    queue.finish()
    received = [answer.result() for answer in answers]

    assert sorted(itertools.chain(*received)) == [Item(0, number, 1) for number in range(90)]


def test_q02_items_in_the_hands_of_the_dead_are_not_delivered_again(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, victim = make_queue(depth=8), fresh_peer()
    victim.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(8))
    assert victim.call(queues.get, "queue").number == 0
    held = [victim.call(queues.take, "queue", name).number for name in "ab"]
    victim.kill()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queue.finish()
    received = peer.call(queues.get_rest, "queue")

    assert held == [1, 2]
    assert received == [Item(0, number, 1) for number in range(3, 8)]
    assert (queue.stats().lost, queue.stats().redelivered) == (2, 0)


@pytest.mark.crossmem_core
def test_q02_redelivered_items_say_so(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue = make_queue(depth=8, redeliver=True)
    queues.put(queue, range(5))
    for delivery in (1, 2, 3):
        victim = fresh_peer()
        victim.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
        for name in "ab":
            item = victim.call(queues.take, "queue", name, timeout=SOON_S)
            assert item.deliveries <= delivery
        victim.kill()
        assert settle(lambda: _has_consumers(queue, 0)) == []
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queue.finish()
    received = peer.call(queues.get_rest, "queue")

    assert sorted(numbers_of(received)) == list(range(5))
    # Each of the three victims died with two items in hand.
    assert sum(item.deliveries - 1 for item in received) == queue.stats().redelivered == 6
    assert queue.stats().lost == 0


def _has_consumers(queue: crossmem.Queue, count: int) -> list[str]:
    found = queue.stats().consumers
    return [] if found == count else [f"{found} consumers, not {count}"]


@pytest.mark.parametrize("mode", ["once", "redelivered"])
def test_q02_items_that_were_not_read_go_to_others_as_new(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, mode: str
) -> None:
    queue, first = make_queue(redeliver=mode == "redelivered", prefetch=4), fresh_peer()
    first.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(4))
    assert first.call(queues.get, "queue") == Item(0, 0, 1)
    first.call(actions.call, "queue", "close")
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))

    assert peer.call(queues.get_each, "queue", 3, timeout=SOON_S) == [
        Item(0, number, 1) for number in (1, 2, 3)
    ]
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0.1)
    assert (queue.stats().lost, queue.stats().redelivered) == (0, 0)


def test_q02_redelivery_is_of_items_for_one(device: crossmem.Device) -> None:
    with pytest.raises(crossmem.ConfigurationError):
        device.queue(4, 64, delivery="each", redeliver=True)


# Q3: a full queue -------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q03_a_full_queue_waits(make_queue: MakeQueue, peer: Peer, peer2: Peer) -> None:
    queue = make_queue(depth=2)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    peer2.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    peer.call(queues.put, "queue", range(2))
    with pytest.raises(crossmem.QueueFullError):
        peer.call(queues.allocate, "queue", "buffer", timeout=0.1)
    answer = peer.start(queues.put, "queue", [2])
    time.sleep(0.05)
    assert not answer.is_done()
    assert peer2.call(queues.get, "queue").number == 0
    answer.result()

    assert numbers_of(peer2.call(queues.get_each, "queue", 2)) == [1, 2]
    assert queue.stats().dropped == 0


@pytest.mark.crossmem_core
def test_q03_a_full_queue_raises(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=2, overflow="raise")
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(2))
    start = time.monotonic()
    for call in (queue.allocate, lambda **options: queue.put(b"x", copy="allow", **options)):
        with pytest.raises(crossmem.QueueFullError):
            call(timeout=60)
    assert time.monotonic() - start < SOON_S

    assert numbers_of(peer.call(queues.get_each, "queue", 2)) == [0, 1]
    assert queue.stats().dropped == 0
    queues.put(queue, [2])
    assert numbers_of(peer.call(queues.get_each, "queue", 1)) == [2]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.crossmem_core
def test_q03_a_full_queue_drops_the_oldest_and_counts_them(
    make_queue: MakeQueue, peer: Peer, delivery: str
) -> None:
    queue = make_queue(depth=4, overflow="drop", delivery=delivery)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(10))
    queue.finish()

    assert numbers_of(peer.call(queues.get_rest, "queue")) == [6, 7, 8, 9]
    assert (queue.stats().put, queue.stats().dropped) == (10, 6)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.crossmem_core
def test_q03_items_in_hand_are_never_dropped(
    make_queue: MakeQueue, peer: Peer, delivery: str
) -> None:
    queue = make_queue(depth=3, overflow="drop", delivery=delivery, prefetch=3)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(2))
    for number, name in enumerate("ab"):
        assert peer.call(queues.take, "queue", name).number == number
    queues.put(queue, range(2, 7))
    for number, name in enumerate("ab"):
        # No producer has overwritten the buffer.
        assert peer.call(_read_again, name) == number
    assert peer.call(queues.take, "queue", "c").number == 6
    with pytest.raises(crossmem.QueueFullError):
        queue.allocate()
    assert queue.stats().dropped == 4
    peer.call(actions.call, "a", "release")
    queues.put(queue, [7])

    assert queue.stats().dropped == 4
    assert peer.call(queues.get, "queue").number == 7


def _read_again(name: str) -> int:
    return queues.read_item(actions.objects[name]).number


def test_q03_who_has_only_looked_at_an_item_does_not_hold_it(
    make_queue: MakeQueue, peer: Peer, peer2: Peer
) -> None:
    queue = make_queue(depth=4, overflow="drop")
    for one in (peer, peer2):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(4))
    mine = numbers_of(peer.call(queues.get_each, "queue", 2))
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0)
    # The other two items are assigned to the second consumer, which has not called get() yet. So
    # the queue drops these two items.
    queues.put(queue, range(4, 8))
    queue.finish()
    received = [numbers_of(one.call(queues.get_rest, "queue")) for one in (peer, peer2)]

    assert queue.stats().dropped == len(mine) == 2
    assert sorted(received[0] + received[1]) == [4, 5, 6, 7]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_q03_what_was_dropped_under_a_reader_is_not_delivered(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, delivery: str
) -> None:
    queue = make_queue(depth=8, overflow="drop", delivery=delivery)
    for one in (peer, peer2):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    answers = [one.start(queues.get_rest, "queue") for one in (peer, peer2)]
    put = 0
    for put in range(1, 1001):
        queues.put(queue, [put - 1], timeout=0)
    queue.finish()
    received = [numbers_of(answer.result()) for answer in answers]
    stats = queue.stats()

    assert stats.put == put
    for numbers in received:
        assert numbers == sorted(set(numbers))
    if delivery == "one":
        assert not set(received[0]) & set(received[1])
        assert len(received[0]) + len(received[1]) + stats.dropped == put
    else:
        assert all(len(numbers) + stats.dropped >= put for numbers in received)


def test_q03_a_queue_has_as_many_buffers_as_declared(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=5, producers=2)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    buffers = queues.allocate_all(queue)
    found: list[Any] = [(one.ptr, one.nbytes) for one in buffers]

    assert (queue.depth, queue.nbytes) == (len(buffers), queues.NBYTES) == (5, queues.NBYTES)
    assert Counter(end - start >= queues.NBYTES for start, end in _gaps(found)) == {True: 4}
    for number, buffer in enumerate(buffers):
        buffer.write(bytes([number]) * buffer.nbytes)
    assert peer.call(queues.count_free, "queue") == 5
    for number, buffer in enumerate(buffers):
        assert buffer.read() == bytes([number]) * buffer.nbytes
        buffer.release()
    assert queues.count_free(queue) == 5


def _gaps(found: list[Any]) -> list[tuple[int, int]]:
    starts = sorted(pointer for pointer, _ in found)
    return list(itertools.pairwise(starts))
