# SPDX-License-Identifier: Apache-2.0
"""Laws Q7 to Q9: the deaths of consumers, producers and owners, and the end of a queue."""

import time
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.queues_of_tests import Item, MakeQueue, numbers_of

_ENDS: Final = ("dies", "closes")


def _free(queue: crossmem.Queue, count: int) -> list[str]:
    found = queues.count_free(queue)
    return [] if found == count else [f"{found} buffers are free, not {count}"]


def _end(peer: Peer, end: str) -> None:
    """Kill a peer, or let it release its buffers and close its queue."""
    if end == "dies":
        peer.kill()
    else:
        peer.call(actions.reset)


# Q7: the death of a consumer --------------------------------------------------------------


@pytest.mark.parametrize("mode", ["lost", "redelivered"])
@pytest.mark.crossmem_core
def test_q07_a_dead_consumers_items_are_lost_or_redelivered_as_declared(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, mode: str
) -> None:
    redeliver, victim = mode == "redelivered", fresh_peer()
    queue = make_queue(depth=3, prefetch=3, redeliver=redeliver)
    victim.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(3))
    victim.call(queues.take, "queue", "a")
    victim.call(queues.take, "queue", "b")
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    answer = peer.start(queues.get_rest, "queue")
    victim.kill()
    start = time.monotonic()
    # No buffer is free until this process, the owner, notices the death. This process waits in
    # allocate(), so it must notice the death there.
    queue.allocate(timeout=SOON_S).release()
    assert time.monotonic() - start < SOON_S
    assert settle(lambda: _free(queue, 3)) == []
    stats = queue.stats()
    queue.finish()

    assert (stats.consumers, stats.waiting) == (1, 0)
    assert (stats.lost, stats.redelivered) == ((0, 2) if redeliver else (2, 0))
    again = [Item(0, 0, 2), Item(0, 1, 2)] if redeliver else []
    assert sorted(answer.result()) == [*again, Item(0, 2, 1)]


def test_q07_the_owner_notices_in_its_sleep(fresh_peer: FreshPeer, peer: Peer, peer2: Peer) -> None:
    owner, victim = fresh_peer(), fresh_peer()
    handles = owner.call(queues.make, "queue", depth=2, redeliver=True)
    victim.call(queues.open_, "queue", handles["consume"])
    peer.call(queues.open_, "queue", handles["produce"])
    peer2.call(queues.open_, "queue", handles["consume"])
    peer.call(queues.put, "queue", range(2))
    taken = victim.call(queues.take, "queue", "buffer")
    rest = peer2.call(queues.take, "queue", "buffer")
    answer = peer2.start(queues.get, "queue", timeout=SOON_S)
    victim.kill()

    assert answer.result() == Item(0, taken.number, 2)
    assert {taken.number, rest.number} == {0, 1}
    peer2.call(actions.call, "buffer", "release")
    assert peer.call(queues.count_free, "queue") == 2
    for one in (peer, peer2):
        one.call(actions.reset)


def test_q07_what_was_to_be_dropped_is_redelivered(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, victim = make_queue(depth=2, overflow="drop", redeliver=True), fresh_peer()
    victim.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, [0])
    victim.call(queues.take, "queue", "buffer")
    queues.put(queue, range(1, 5))
    victim.kill()
    assert settle(lambda: [] if queue.stats().redelivered else ["nothing is redelivered"]) == []
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queue.finish()

    assert peer.call(queues.get_rest, "queue") == [Item(0, 0, 2), Item(0, 4, 1)]
    assert queue.stats().dropped == 3


def test_q07_a_stopped_consumer_is_not_dead(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, stopped = make_queue(depth=3, redeliver=True), fresh_peer()
    for one in (stopped, peer):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(2))
    taken = stopped.call(queues.take, "queue", "buffer").number
    stopped.stop()
    assert peer.call(queues.get, "queue").number == 1 - taken
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0.3)
    assert (queue.stats().consumers, queue.stats().redelivered) == (2, 0)
    stopped.cont()

    assert stopped.call(_read_again, "buffer") == taken
    stopped.kill()
    assert peer.call(queues.get, "queue", timeout=SOON_S) == Item(0, taken, 2)


def _read_again(name: str) -> int:
    return queues.read_item(actions.objects[name]).number


@pytest.mark.parametrize("end", _ENDS)
def test_q07_a_place_is_taken_again(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, end: str
) -> None:
    queue = make_queue(consumers=1)
    for number in range(4):
        consumer = fresh_peer()
        assert settle(lambda one=consumer: _try_to_open(queue, one)) == []
        queues.put(queue, [number], timeout=SOON_S)
        assert consumer.call(queues.get, "queue", timeout=SOON_S) == Item(0, number, 1)
        if number == 2:
            queues.put(queue, [9])
            consumer.call(queues.take, "queue", "buffer")
        _end(consumer, end)
    assert settle(lambda: _free(queue, queue.depth)) == []

    # With "closes", the consumer released its item before it closed the queue.
    assert queue.stats().lost == (1 if end == "dies" else 0)


def _try_to_open(queue: crossmem.Queue, peer: Peer) -> list[str]:
    try:
        peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    except crossmem.BusyError as error:
        return [str(error)]
    return []


# Q8: the death of a producer, and the end -------------------------------------------------


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_core
def test_q08_what_a_dead_producer_has_put_stays_readable(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, delivery: str
) -> None:
    queue, victim = make_queue(depth=8, delivery=delivery), fresh_peer()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    victim.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    victim.call(queues.put, "queue", range(5))
    victim.call(queues.allocate, "queue", "never put")
    assert peer.call(queues.take, "queue", "buffer").number == 0
    victim.kill()
    # All declared producers have opened the queue and ended, so the queue ends.
    answer = peer.start(queues.get_rest, "queue", within=2 * SOON_S)

    assert numbers_of(answer.result()) == [1, 2, 3, 4]
    assert peer.call(_read_again, "buffer") == 0


@pytest.mark.parametrize("end", _ENDS)
def test_q08_a_producers_buffers_are_given_out_anew(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, end: str
) -> None:
    queue, first, second = make_queue(producers=2, prefetch=4), fresh_peer(), fresh_peer()
    queues.put(queue, [0])
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    assert peer.call(queues.get, "queue").number == 0
    first.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    first.call(queues.put, "queue", [1, 2], who=1)
    first.call(queues.allocate, "queue", "never put")
    taken = peer.call(queues.take, "queue", "buffer")
    _end(first, end)
    assert settle(lambda: _has_producers(queue, 1)) == []
    second.call(queues.open_, "queue", queues.handle_of(queue, "produce"))

    # The buffers of items 1 and 2 are in use until the consumer releases them. The buffer that the
    # first producer did not put is free.
    assert second.call(queues.count_free, "queue") == queue.depth - 2
    second.call(queues.put, "queue", [3, 4], who=2)
    with pytest.raises(crossmem.QueueFullError):
        second.call(queues.allocate, "queue", "buffer")
    assert peer.call(_read_again, "buffer") == taken.number == 1
    peer.call(actions.call, "buffer", "release")
    assert peer.call(queues.get_each, "queue", 3) == [Item(1, 2, 1), Item(2, 3, 1), Item(2, 4, 1)]
    assert second.call(queues.count_free, "queue") == queue.depth


def _has_producers(queue: crossmem.Queue, count: int) -> list[str]:
    found = queue.stats().producers
    return [] if found == count else [f"{found} producers, not {count}"]


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.crossmem_core
def test_q08_the_end_comes_after_all_producers_that_were_announced(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, end: str
) -> None:
    queue, first, second = make_queue(producers=2), fresh_peer(), fresh_peer()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    for number, producer in enumerate((first, second)):
        producer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
        producer.call(queues.put, "queue", [number])
        assert peer.call(queues.get, "queue").number == number
        with pytest.raises(crossmem.QueueEmptyError):
            peer.call(queues.get, "queue", timeout=0.05)
        if number == 0:
            _end(producer, end)
            assert settle(lambda: _has_producers(queue, 0)) == []
            with pytest.raises(crossmem.QueueEmptyError):
                peer.call(queues.get, "queue", timeout=0.05)
    answer = peer.start(queues.get_rest, "queue", within=SOON_S)
    _end(second, end)

    assert answer.result() == []


@pytest.mark.crossmem_core
def test_q08_finish_ends_a_queue_that_not_all_have_come_to(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, producer = make_queue(producers=8), fresh_peer()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    producer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    queues.put(queue, [0])
    queue.finish()
    # The queue has not ended, because the other producer has the queue open.
    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 0
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0.05)
    producer.call(queues.put, "queue", [1, 2])
    answer = peer.start(queues.get_rest, "queue", within=SOON_S)
    producer.call(actions.call, "queue", "finish")

    assert numbers_of(answer.result()) == [1, 2]


@pytest.mark.crossmem_core
def test_q08_the_end_is_final(make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer) -> None:
    queue, late = make_queue(producers=2), fresh_peer()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    buffer = queue.allocate()
    queue.finish()
    assert peer.call(queues.get_rest, "queue", within=SOON_S) == []
    for call in (queue.allocate, lambda: queue.put(buffer), lambda: queue.put(b"", copy="allow")):
        with pytest.raises(crossmem.ClosedError):
            call()
    with pytest.raises(crossmem.ClosedError):
        late.call(_open_and_put, queues.handle_of(queue, "produce"))
    buffer.release()

    for _ in range(2):
        with pytest.raises(crossmem.ClosedError):
            peer.call(queues.get, "queue", timeout=0)
        assert peer.call(queues.get_rest, "queue", within=SOON_S) == []
    assert queue.stats().put == 0


def _open_and_put(blob: bytes) -> None:
    with crossmem.open_queue(blob, device=actions.device()) as queue:
        queues.put(queue, [1])


def test_q08_a_stopped_producer_ends_nothing(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, stopped = make_queue(), fresh_peer()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    stopped.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    stopped.stop()
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0.3)
    stopped.cont()
    stopped.call(queues.put, "queue", [1])

    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 1


# Q9: the death of the owner ---------------------------------------------------------------


def _share(owner: Peer, producer: Peer, consumer: Peer, **options: Any) -> None:
    handles = owner.call(queues.make, "queue", **options)
    producer.call(queues.open_, "queue", handles["produce"])
    consumer.call(queues.open_, "queue", handles["consume"])


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_core
def test_q09_without_an_owner_the_rest_is_read_and_nothing_is_put(
    peer: Peer, peer2: Peer, fresh_peer: FreshPeer, capabilities: crossmem.Capabilities,
    delivery: str,
) -> None:  # fmt: skip
    owner = fresh_peer()
    _share(owner, peer, peer2, delivery=delivery, prefetch=4)
    peer.call(queues.put, "queue", range(2))
    peer.call(queues.allocate, "queue", "buffer")
    owner.kill()
    start = time.monotonic()
    with pytest.raises(crossmem.OwnerGoneError):
        peer.call(_put_until_refused, "queue")
    with pytest.raises(crossmem.OwnerGoneError):
        peer.call(_put_kept, "queue", "buffer")
    assert time.monotonic() - start < SOON_S
    if capabilities.survives_owner:
        assert numbers_of(peer2.call(queues.get_each, "queue", 2, timeout=SOON_S)) == [0, 1]
        with pytest.raises(crossmem.OwnerGoneError):
            peer2.call(queues.get_each, "queue", 100, within=SOON_S)
    for one in (peer, peer2):
        one.call(actions.reset)


def _put_until_refused(name: str) -> None:
    while True:
        for one in queues.allocate_all(name):
            one.release()
        time.sleep(0.01)


def _put_kept(queue: str, buffer: str) -> None:
    actions.objects[queue].put(actions.objects[buffer])


@pytest.mark.crossmem_core
def test_q09_who_waits_hears_of_the_owners_death(
    peer: Peer, peer2: Peer, fresh_peer: FreshPeer
) -> None:
    owner = fresh_peer()
    # The consumer has the only buffer in hand. So the producer waits for a buffer, and the consumer
    # waits for an item.
    _share(owner, peer, peer2, depth=1)
    peer.call(queues.put, "queue", [0])
    peer2.call(queues.take, "queue", "buffer")
    putting = peer.start(queues.allocate, "queue", "next", timeout=None)
    getting = peer2.start(queues.get, "queue", timeout=None)
    time.sleep(0.1)
    owner.kill()
    start = time.monotonic()
    for answer in (putting, getting):
        with pytest.raises(crossmem.OwnerGoneError):
            answer.result(SOON_S)

    assert time.monotonic() - start < SOON_S
    peer2.call(actions.call, "buffer", "release")
    for one in (peer, peer2):
        one.call(actions.reset)


def test_q09_a_stopped_owner_delays_nobody(peer: Peer, peer2: Peer, fresh_peer: FreshPeer) -> None:
    owner = fresh_peer()
    _share(owner, peer, peer2, prefetch=8)
    # The owner may have to hand out the first item, and a stopped owner hands out no items. So the
    # consumer must get the first item before the owner is stopped.
    peer.call(queues.put, "queue", [0])
    assert peer2.call(queues.get, "queue", timeout=SOON_S).number == 0
    owner.stop()
    answer = peer2.start(queues.get_each, "queue", 40, timeout=SOON_S)
    peer.call(queues.put, "queue", range(1, 41), timeout=SOON_S)

    assert numbers_of(answer.result()) == list(range(1, 41))
    owner.cont()
    for one in (peer, peer2):
        one.call(actions.reset)


@pytest.mark.crossmem_core
def test_q09_a_closed_queue_is_read_to_its_end(
    peer: Peer, peer2: Peer, fresh_peer: FreshPeer, capabilities: crossmem.Capabilities
) -> None:
    owner = fresh_peer()
    _share(owner, peer, peer2, prefetch=4)
    peer.call(queues.put, "queue", range(2))
    peer2.call(queues.take, "queue", "buffer")
    owner.call(actions.call, "queue", "close")
    with pytest.raises(crossmem.ClosedError):
        peer.call(queues.put, "queue", [5])
    assert peer2.call(queues.get, "queue", timeout=SOON_S).number == 1
    assert peer2.call(_read_again, "buffer") == 0
    with pytest.raises(crossmem.ClosedError):
        peer2.call(queues.get, "queue", within=SOON_S)

    peer2.call(actions.call, "buffer", "release")
    for one in (peer, peer2):
        one.call(actions.reset)
