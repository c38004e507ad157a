# SPDX-License-Identifier: Apache-2.0
"""Laws Q13 and Q15: slow consumers, event loops and threads."""

import asyncio
import select
import threading
import time
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S
from crossmem.conformance.queues_of_tests import Item, MakeQueue, numbers_of

# Q13: a slow consumer ---------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.crossmem_core
def test_q13_a_stopped_consumer_delays_its_prefetch_at_most(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, fresh_peer: FreshPeer, prefetch: int
) -> None:
    queue, stopped = make_queue(depth=8, prefetch=prefetch), fresh_peer()
    for one in (stopped, peer, peer2):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    stopped.stop()
    answers = [one.start(queues.get_rest, "queue") for one in (peer, peer2)]
    queues.put(queue, range(50), timeout=SOON_S)
    waiting = queue.stats().lag
    queue.finish()
    received = [item for answer in answers for item in answer.result(2 * SOON_S)]
    stopped.cont()
    late = stopped.call(queues.get_rest, "queue", within=SOON_S)

    assert len(late) <= prefetch
    assert sorted(received + late) == [Item(0, number, 1) for number in range(50)]
    assert len(waiting) == 3


@pytest.mark.crossmem_core
def test_q13_a_consumer_gets_no_more_than_its_prefetch(
    make_queue: MakeQueue, peer: Peer, peer2: Peer
) -> None:
    queue = make_queue(depth=8, prefetch=2)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(8))
    for name in "ab":
        peer.call(queues.take, "queue", name)
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.take, "queue", "c", timeout=0.1)
    peer2.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    rest = peer2.call(queues.get_each, "queue", 6, timeout=SOON_S)
    peer2.call(actions.reset)
    for name in "ab":
        peer.call(actions.call, name, "release")
    queues.put(queue, [8])

    assert sorted(numbers_of(rest)) == [2, 3, 4, 5, 6, 7]
    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 8


def test_q13_a_stopped_consumer_of_all_loses_its_own_items_only(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer
) -> None:
    queue, stopped = make_queue(depth=4, delivery="each", overflow="drop"), fresh_peer()
    for one in (stopped, peer):
        one.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    stopped.stop()
    for number in range(20):
        queues.put(queue, [number])
        assert peer.call(queues.get, "queue", timeout=SOON_S).number == number
    stopped.cont()

    assert numbers_of(stopped.call(queues.get_each, "queue", 4)) == [16, 17, 18, 19]
    assert queue.stats().dropped == 16


# Q15: asyncio, select and threads ---------------------------------------------------------


@pytest.mark.crossmem_core
def test_q15_a_queue_works_in_asyncio(make_queue: MakeQueue, peer: Peer, peer2: Peer) -> None:
    queue = make_queue(depth=2)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    peer2.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    answer = peer.start(_iterate, "queue")
    putting = peer2.start(_put_all, "queue", 40)

    assert putting.result() > 0
    peer2.call(actions.reset)
    numbers, ticks = answer.result(SOON_S)
    assert numbers == list(range(40))
    assert ticks > 0


def _iterate(name: str) -> tuple[list[int], int]:
    """Get all items in an event loop; return their numbers, and how often another task ran."""

    async def receive() -> list[int]:
        found = []
        async for buffer in actions.objects[name]:
            with buffer:
                found.append(buffer.user_data[0])
                await asyncio.sleep(1e-3)
        return found

    return asyncio.run(_with_ticks(receive()))


def _put_all(name: str, count: int) -> int:
    """Put items in an event loop; return how often another task ran."""

    async def put() -> None:
        for number in range(count):
            while True:
                try:
                    buffer = actions.objects[name].allocate()
                    break
                except crossmem.QueueFullError:
                    await asyncio.sleep(1e-3)
            buffer.user_data = bytes([number])
            await actions.objects[name].put_async(buffer)

    return asyncio.run(_with_ticks(put()))[1]


async def _with_ticks(work: Any) -> tuple[Any, int]:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(1e-3)
            ticks += 1

    other = asyncio.create_task(tick())
    try:
        return await work, ticks
    finally:
        other.cancel()


def test_q15_the_event_loop_runs_while_a_put_waits(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=1)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, [0])
    peer.call(queues.take, "queue", "buffer")
    timer = threading.Timer(0.05, lambda: peer.call(actions.call, "buffer", "release"))
    timer.start()
    _, ticks = asyncio.run(_with_ticks(queue.put_async(b"x", copy="allow")))
    timer.join()

    assert ticks > 0
    assert queue.stats().put == 2


def test_q15_a_cancelled_get_loses_nothing(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    peer.call(_cancel, "queue")
    queues.put(queue, [5])

    assert peer.call(queues.get, "queue", timeout=SOON_S).number == 5


def _cancel(name: str) -> None:
    async def wait() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(actions.objects[name].get_async(), 0.02)

    asyncio.run(wait())


@pytest.mark.crossmem_core
def test_q15_select_tells_when_to_get(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    assert not _is_readable_after_get(peer, 0.02)
    for number in range(3):
        answer = peer.start(_select, "queue", SOON_S)
        queues.put(queue, [number])
        assert answer.result()
        assert peer.call(queues.get, "queue", timeout=0).number == number
        assert not _is_readable_after_get(peer, 0.02)
    answer = peer.start(_select, "queue", SOON_S)
    queue.finish()

    # The end of the queue makes the descriptor readable, too.
    assert answer.result()
    with pytest.raises(crossmem.ClosedError):
        peer.call(queues.get, "queue", timeout=0)


def _is_readable_after_get(peer: Peer, within_s: float) -> bool:
    """Check that the peer's queue is empty. Return whether the queue's fileno becomes readable."""
    peer.call(actions.call, "queue", "fileno")
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.get, "queue", timeout=0)
    found: bool = peer.call(_select, "queue", within_s)
    return found


def _select(name: str, within_s: float) -> bool:
    return bool(select.select([actions.objects[name].fileno()], [], [], within_s)[0])


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_core
def test_q15_any_thread_may_put_and_get(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, delivery: str
) -> None:
    queue = make_queue(depth=4, delivery=delivery)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    peer2.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    answer = peer.start(actions.in_threads, 4, _get_in_thread, "queue")
    peer2.call(actions.in_threads, 4, _put_in_thread, "queue", 40)
    peer2.call(actions.reset)
    received = answer.result()

    assert not [one for one in received if isinstance(one, Exception)], received
    assert sorted(item for items in received for item in items) == [
        Item(who, number, 1) for who in range(4) for number in range(40)
    ]


def _get_in_thread(_thread: int, name: str) -> list[Item]:
    return queues.get_rest(name)


def _put_in_thread(thread: int, name: str, count: int) -> None:
    queues.put(name, range(count), who=thread)


@pytest.mark.crossmem_with_vendor_queues
def test_q15_a_close_ends_the_waits_of_other_threads(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    found = peer.call(_close_under_get, "queue", within=2 * SOON_S)

    assert found == "ClosedError"


def _close_under_get(name: str) -> str:
    found: list[str] = []

    def wait() -> None:
        try:
            queues.get(name)
        except crossmem.CrossmemError as error:
            found.append(type(error).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    actions.objects[name].close()
    thread.join(SOON_S)
    return found[0] if found else "get() still waits"
