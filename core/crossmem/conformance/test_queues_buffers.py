# SPDX-License-Identifier: Apache-2.0
"""Laws Q4 and Q6: the processes to which a buffer belongs, and the moment when it is free."""

import pickle
from collections.abc import Callable
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.queues_of_tests import MakeQueue, numbers_of

USES: Final[dict[str, Callable[[crossmem.SharedBuffer], object]]] = {
    "ptr": lambda buffer: buffer.ptr,
    "read": lambda buffer: buffer.read(1),
    "write": lambda buffer: buffer.write(b"x"),
    "data_length": lambda buffer: buffer.data_length,
    "set data_length": lambda buffer: setattr(buffer, "data_length", 1),
    "user_data": lambda buffer: buffer.user_data,
    "set user_data": lambda buffer: setattr(buffer, "user_data", b"x"),
    "delivery_count": lambda buffer: buffer.delivery_count,
    "with": lambda buffer: buffer.__enter__(),
}

# Q4: a buffer belongs to its producer or to consumers -------------------------------------


@pytest.mark.crossmem_with_vendor_queues
@pytest.mark.crossmem_core
def test_q04_a_buffer_that_was_handed_over_or_released_refuses_every_use(
    make_queue: MakeQueue, peer: Peer
) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    put, returned = queue.allocate(), queue.allocate()
    queues.put_buffer(queue, put, 5)
    returned.release()
    for buffer in (put, returned):
        assert buffer.closed
        for use in (*USES.values(), queue.put):
            with pytest.raises(crossmem.ClosedError):
                use(buffer)
        buffer.release()
    assert peer.call(queues.take, "queue", "buffer").number == 5
    peer.call(actions.call, "buffer", "release")
    peer.call(actions.call, "buffer", "release")
    for name in USES:
        with pytest.raises(crossmem.ClosedError):
            peer.call(_use, "buffer", name)

    # The repeated puts and releases had no effect.
    queues.check_free(queue, queue.depth)
    queues.check_stats(queue, put=1)


def _use(name: str, use: str) -> None:
    USES[use](actions.objects[name])


@pytest.mark.crossmem_requires("host_visible")
@pytest.mark.crossmem_core
def test_q04_a_buffer_with_a_live_view_is_not_handed_over(
    make_queue: MakeQueue, peer: Peer
) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    buffer = queue.allocate()
    buffer.write(b"data")
    buffer.data_length, buffer.user_data = 4, b"user"
    with buffer.view() as view:
        for end in (queue.put, crossmem.SharedBuffer.release):
            with pytest.raises(crossmem.BusyError):
                end(buffer)
        view[:4] = b"more"
    assert (buffer.data_length, buffer.user_data, queue.stats().put) == (4, b"user", 0)
    queue.put(buffer)
    peer.call(actions.call, "queue", "get", keep="buffer")
    peer.call(actions.call, "buffer", "view", keep="view")
    with pytest.raises(crossmem.BusyError):
        peer.call(actions.call, "buffer", "release")

    assert peer.call(actions.read, "buffer", 4) == b"more"
    peer.call(actions.call, "view", "release")
    peer.call(actions.call, "buffer", "release")
    assert queues.count_free(queue) == queue.depth


@pytest.mark.crossmem_core
def test_q04_each_consumer_only_reads(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, capabilities: crossmem.Capabilities
) -> None:
    queue, writer = make_queue(delivery="each"), fresh_peer()
    for one in (peer, writer):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, [9])
    for one in (peer, writer):
        one.call(queues.take, "queue", "buffer")
        with pytest.raises(crossmem.AccessDeniedError):
            one.call(actions.write, "buffer", b"mine")
    if capabilities.readonly_exports:
        with pytest.raises(PeerDiedError):
            writer.call(_poke, "buffer")

    assert peer.call(_read_again, "buffer") == 9


def _poke(name: str) -> None:
    actions.poke(actions.objects[name].ptr, 0xFF)


def _read_again(name: str) -> int:
    return queues.read_item(actions.objects[name]).number


@pytest.mark.crossmem_with_vendor_queues
def test_q04_the_only_consumer_may_write(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=1)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, [1])
    peer.call(queues.take, "queue", "buffer")
    peer.call(actions.write, "buffer", b"mine")

    assert peer.call(actions.read, "buffer", 4) == b"mine"
    for name, value in (("data_length", 1), ("user_data", b"")):
        with pytest.raises(crossmem.UnsupportedError):
            peer.call(setattr_of, "buffer", name, value)


def setattr_of(name: str, attribute: str, value: Any) -> None:
    """Set an attribute of a named object."""
    setattr(actions.objects[name], attribute, value)


@pytest.mark.crossmem_with_vendor_queues
@pytest.mark.crossmem_core
def test_q04_only_a_queues_own_buffers_are_put(make_queue: MakeQueue, peer: Peer) -> None:
    queue, other = make_queue(), make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    foreign = other.allocate()
    queues.put(queue, [1])
    received = queue.allocate()
    queues.put_buffer(queue, received, 2)
    for item in (foreign, b"bytes", bytearray(4), None, 7):
        with pytest.raises(crossmem.UnsupportedError):
            queue.put(item)
    # A process cannot put a buffer that it received from the same queue.
    own = make_queue()
    queues.put(own, [3])
    with own.get() as got, pytest.raises(crossmem.UnsupportedError):
        own.put(got)

    queues.put_buffer(other, foreign, 4)
    queues.check_stats(other, put=1)
    assert numbers_of(peer.call(queues.get_each, "queue", 2)) == [1, 2]
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0)


@pytest.mark.crossmem_with_vendor_queues
def test_q04_a_buffer_has_no_handle(make_queue: MakeQueue) -> None:
    queue = make_queue()
    with queue.allocate() as buffer:
        for use in (pickle.dumps, lambda one: one.export()):
            with pytest.raises(crossmem.UnsupportedError):
                use(buffer)


@pytest.mark.crossmem_with_vendor_queues
def test_q04_a_buffer_that_is_dropped_is_released(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=2)
    for role in ("produce", "consume"):
        peer.call(queues.open_, role, queues.handle_of(queue, role))
    for _ in range(3):
        peer.call(queues.allocate, "produce", "mine", timeout=SOON_S)
        peer.call(queues.put, "produce", [1], timeout=SOON_S)
        peer.call(queues.take, "consume", "theirs")
        peer.call(actions.drop, "mine", "theirs")

    peer.call(crossmem.collect)
    peer.call(queues.check_free, "produce", 2)


# Q6: free after the last consumer ---------------------------------------------------------


@pytest.mark.crossmem_core
def test_q06_a_buffer_is_free_after_its_last_consumer(
    make_queue: MakeQueue, peer: Peer, peer2: Peer
) -> None:
    queue = make_queue(depth=1, delivery="each")
    for one in (peer, peer2):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    for number in range(4):
        queues.put(queue, [number], timeout=0)
        # The order alternates, so that each consumer is sometimes the last to release the buffer.
        for one in (peer, peer2) if number % 2 else (peer2, peer):
            with pytest.raises(crossmem.QueueFullError):
                queue.allocate()
            one.call(queues.take, "queue", "buffer")
            with pytest.raises(crossmem.QueueFullError):
                queue.allocate(timeout=0.01)
            assert one.call(_read_again, "buffer") == number
            one.call(actions.call, "buffer", "release")
    assert queues.count_free(queue) == 1


@pytest.mark.parametrize("looks", ["has looked", "has not"])
@pytest.mark.parametrize("end", ["dies", "closes"])
@pytest.mark.crossmem_core
def test_q06_a_consumer_that_ends_keeps_no_buffer(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, end: str, looks: str
) -> None:
    queue, victim = make_queue(depth=2, delivery="each"), fresh_peer()
    for one in (peer, victim):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(2))
    if looks == "has looked":
        victim.call(queues.take, "queue", "buffer")
    # The queue has delivery="each", so ``peer`` gets both items, whatever the victim has taken.
    peer.call(queues.take, "queue", "a")
    peer.call(queues.take, "queue", "b")
    if end == "dies":
        victim.kill()
    else:
        victim.call(actions.reset)
    with pytest.raises(crossmem.QueueFullError):
        queue.allocate(timeout=0.05)
    peer.call(actions.call, "a", "release")
    queue.allocate(timeout=SOON_S).release()
    peer.call(actions.call, "b", "release")

    assert settle(lambda: _free(queue, 2)) == []


def _free(queue: crossmem.Queue, count: int) -> list[str]:
    found = queues.count_free(queue)
    return [] if found == count else [f"{found} buffers are free, not {count}"]


def test_q06_a_consumer_gets_what_is_put_after_it_came(
    make_queue: MakeQueue, peer: Peer, peer2: Peer
) -> None:
    queue = make_queue(delivery="each")
    queues.put(queue, range(2))
    # These items were put before a consumer opened the queue, so their buffers are free.
    assert queues.count_free(queue) == queue.depth
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(2, 4))
    peer2.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(4, 6))
    assert numbers_of(peer.call(queues.get_each, "queue", 4)) == [2, 3, 4, 5]
    # The second consumer has not read its two items, so only these two items occupy buffers.
    assert queues.count_free(queue) == 2
    queue.finish()

    assert numbers_of(peer2.call(queues.get_rest, "queue")) == [4, 5]
    assert peer.call(queues.get_rest, "queue") == []
