# SPDX-License-Identifier: Apache-2.0
"""Law Q11: data, length and user data arrive as they were put.

This holds even if another process writes rubbish into its own segments of the queue.
"""

import os
import pickle
import random
from typing import Any

import pytest
from typing_extensions import override

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.queues_of_tests import NBYTES, MakeQueue


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_with_vendor_queues
@pytest.mark.crossmem_core
def test_q11_data_user_data_and_length_arrive_as_they_were_put(
    make_queue: MakeQueue, peer: Peer, delivery: str
) -> None:
    queue = make_queue(delivery=delivery)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    chosen = random.Random(11)
    lengths = [(0, 0), (NBYTES, 96), (1, 1), (NBYTES - 1, 95), (8, 8), (3, 0), (0, 96)]
    lengths += [(chosen.randrange(NBYTES), chosen.randrange(97)) for _ in range(8)]
    for data_nbytes, user_nbytes in lengths:
        data, user_data = chosen.randbytes(data_nbytes), chosen.randbytes(user_nbytes)
        buffer = queue.allocate(timeout=SOON_S)
        assert (buffer.data_length, buffer.user_data) == (NBYTES, b"")
        buffer.write(data)
        buffer.data_length, buffer.user_data = data_nbytes, user_data
        queue.put(buffer)

        found = peer.call(_get_all, "queue", user_nbytes)
        assert found == (data, user_data, data_nbytes)


def _get_all(name: str, user_nbytes: int) -> tuple[bytes, bytes, int]:
    with actions.objects[name].get(timeout=SOON_S) as buffer:
        user_data = queues.user_data_of(buffer, user_nbytes)
        return buffer.read(buffer.data_length), user_data, buffer.data_length


@pytest.mark.crossmem_with_vendor_queues
def test_q11_what_does_not_fit_is_refused(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    buffer = queue.allocate()
    buffer.user_data, buffer.data_length = b"before", 6
    for length in (-1, NBYTES + 1, 2**64, 1.0, True, "1", None):
        with pytest.raises(crossmem.InvalidSizeError):
            buffer.data_length = length  # type: ignore[assignment]
    with pytest.raises(crossmem.InvalidSizeError):
        buffer.user_data = bytes(97)
    for wrong in ("text", 5, None, [1]):
        with pytest.raises(crossmem.ConfigurationError):
            buffer.user_data = wrong  # type: ignore[assignment]
    with pytest.raises(crossmem.InvalidSizeError):
        buffer.write(bytes(NBYTES + 1))
    buffer.write(b"after ")
    queue.put(buffer)
    with pytest.raises(crossmem.InvalidSizeError):
        queue.put(bytes(NBYTES + 1), copy="allow")
    queue.put(b"copied", copy="allow")

    assert peer.call(_get_all, "queue", 6) == (b"after ", b"before", 6)
    assert peer.call(_get_all, "queue", 0) == (b"copied", b"", 6)
    queues.check_free(queue, queue.depth)


class Bomb:
    """An object whose unpickling ends the process."""

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


@pytest.mark.crossmem_with_vendor_queues
def test_q11_nothing_is_unpickled(make_queue: MakeQueue, peer: Peer) -> None:
    queue, bomb = make_queue(), pickle.dumps(Bomb())
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    with queue.allocate() as buffer:
        buffer.user_data = bomb[:96]
        buffer.write(bomb)
        buffer.data_length = len(bomb)
        queue.put(buffer)

    assert peer.call(_get_all, "queue", len(bomb[:96])) == (bomb, bomb[:96], len(bomb))


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_core
def test_q11_rubbish_of_a_producer_disturbs_nobody(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, delivery: str
) -> None:
    queue, rogue = make_queue(delivery=delivery, producers=2), fresh_peer()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    rogue.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    for seed in range(12):
        rogue.call(queues.scribble, "queue", seed)
        queues.put(queue, range(3 * seed, 3 * seed + 3), timeout=SOON_S)
        assert peer.call(_get_mine, "queue", 3) == [3 * seed, 3 * seed + 1, 3 * seed + 2]
        queue.stats()
    rogue.kill()
    queues.put(queue, [99], timeout=SOON_S)

    assert peer.call(_get_mine, "queue", 1) == [99]
    assert settle(lambda: _free(queue, queue.depth)) == []


def _free(queue: crossmem.Queue, count: int) -> list[str]:
    found = queues.count_free(queue)
    return [] if found == count else [f"{found} buffers are free, not {count}"]


def _get_mine(name: str, count: int) -> list[int]:
    """Return the numbers of the next ``count`` items that the test's own process has put.

    Skip all other items, because the rogue has put them and they may be rubbish.
    """
    found: list[int] = []
    while len(found) < count:
        with actions.objects[name].get(timeout=SOON_S) as buffer:
            assert buffer.data_length <= NBYTES
            assert len(buffer.user_data) <= 96
            buffer.read(buffer.data_length)
            if len(buffer.user_data) == 8 and buffer.user_data[:4] == bytes(4):
                found.append(queues.read_item(buffer).number)
    return found


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_core
def test_q11_rubbish_of_a_consumer_keeps_buffers_at_worst_until_it_dies(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, delivery: str
) -> None:
    queue, rogue = make_queue(depth=8, delivery=delivery, overflow="raise"), fresh_peer()
    for one in (peer, rogue):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    put: list[int] = []
    received: list[int] = []
    for seed in range(12):
        rogue.call(queues.scribble, "queue", seed)
        for number in range(8 * seed, 8 * seed + 8):
            try:
                queues.put(queue, [number])
            except crossmem.QueueFullError:
                break
            put.append(number)
        queue.stats()
        received += peer.call(_get_some, "queue")
    rogue.kill()

    def check() -> list[str]:
        received.extend(peer.call(_get_some, "queue"))
        return _free(queue, queue.depth)

    assert settle(check) == []
    assert set(received) <= set(put)
    if delivery == "each":
        assert received == put
    queues.put(queue, [1000])
    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 1000


def _get_some(name: str) -> list[int]:
    found = []
    try:
        while True:
            found.append(queues.get(name, timeout=0).number)
    except crossmem.QueueEmptyError:
        return found
