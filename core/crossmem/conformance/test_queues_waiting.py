# SPDX-License-Identifier: Apache-2.0
"""Laws Q10 and Q13 to Q15: wake-ups, slow consumers, timeouts, and event loops and threads."""

import asyncio
import queue as standard
import random
import select
import threading
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

_WITHIN_S: Final = 0.3

# Q10: no wake-up is lost ------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_core
def test_q10_no_wake_up_is_lost(
    make_queue: MakeQueue, fresh_peer: FreshPeer, delivery: str
) -> None:
    there, back = (make_queue(depth=1, delivery=delivery) for _ in range(2))
    first, second = fresh_peer(), fresh_peer()
    for one in (first, second):
        one.call(queues.disable_polling)
    for one, role in ((first, "produce"), (second, "consume")):
        one.call(queues.open_, "there", there.export(role=role).to_bytes())
    for one, role in ((second, "produce"), (first, "consume")):
        one.call(queues.open_, "back", back.export(role=role).to_bytes())
    there.wait_for(producers=1, consumers=1)
    back.wait_for(producers=1, consumers=1)
    answer = second.start(_answer, "there", "back", 300)
    first.call(_ask, "there", "back", 300)
    answer.result()


def _ask(there: str, back: str, count: int) -> None:
    """Put items and await each answer, sometimes after both sides have fallen asleep."""
    chosen = random.Random(10)
    for number in range(count):
        queues.put(there, [number])
        assert queues.get(back).number == number
        time.sleep(chosen.choice((0, 0, 0, 20e-6, 40e-6, 100e-6, 1e-3)))


def _answer(there: str, back: str, count: int) -> None:
    chosen = random.Random(11)
    for _ in range(count):
        item = queues.get(there)
        time.sleep(chosen.choice((0, 0, 0, 20e-6, 40e-6, 100e-6, 1e-3)))
        queues.put(back, [item.number])


@pytest.mark.parametrize("delivery", ["one", "each"])
@pytest.mark.crossmem_core
def test_q10_a_producer_in_its_sleep_is_woken(
    make_queue: MakeQueue, peer: Peer, fresh_peer: FreshPeer, delivery: str
) -> None:
    queue, producer, victim = make_queue(depth=1, delivery=delivery), fresh_peer(), fresh_peer()
    producer.call(queues.disable_polling)
    producer.call(queues.open_, "queue", queue.export(role="produce").to_bytes())
    wakers: tuple[Callable[[Peer], object], ...] = (
        lambda one: one.call(actions.call, "buffer", "release"),
        lambda one: one.call(actions.reset),
        lambda one: one.kill(),
    )
    producer.call(queues.put, "queue", [0]) if delivery == "one" else None
    for wake in wakers:
        victim.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
        if delivery == "each":
            producer.call(queues.put, "queue", [0])
        victim.call(queues.take, "queue", "buffer", timeout=SOON_S)
        answer = producer.start(queues.put, "queue", [1])
        time.sleep(0.05)
        assert not answer.is_done()
        wake(victim)
        answer.result(SOON_S)
        if victim.exitcode is None:
            victim.call(actions.reset)
        if delivery == "each":
            # Nobody has it.
            assert producer.call(queues.count_free, "queue") == 1


@pytest.mark.parametrize("event", ["end", "close", "hand out", "death"])
@pytest.mark.crossmem_core
def test_q10_a_consumer_in_its_sleep_is_woken(
    make_queue: MakeQueue, fresh_peer: FreshPeer, event: str
) -> None:
    queue, sleeper = make_queue(depth=16, prefetch=1, redeliver=True), fresh_peer()
    victim = fresh_peer()
    sleeper.call(queues.disable_polling)
    if event == "death":
        queues.put(queue, [0])
        victim.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
        victim.call(queues.take, "queue", "buffer")
    sleeper.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    if event == "hand out":
        # The first item finds room; the owner hands out each of the others after a release.
        queues.put(queue, range(16))
        answer = sleeper.start(queues.get_each, "queue", 16)
        assert numbers_of(answer.result(SOON_S)) == list(range(16))
        return
    answer = sleeper.start(queues.get, "queue", timeout=None)
    time.sleep(0.05)
    if event == "death":
        victim.kill()
        assert answer.result(SOON_S) == Item(0, 0, 2)
        return
    if event == "end":
        queue.finish()
    else:
        queue.close()
    with pytest.raises(crossmem.ClosedError):
        answer.result(SOON_S)


def test_q10_a_selector_is_woken(make_queue: MakeQueue, fresh_peer: FreshPeer) -> None:
    queue, sleeper = make_queue(), fresh_peer()
    sleeper.call(queues.disable_polling)
    sleeper.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    answer = sleeper.start(_select_each, "queue", 50)
    chosen = random.Random(10)
    for number in range(50):
        queues.put(queue, [number], timeout=SOON_S)
        time.sleep(chosen.choice((0, 0, 50e-6, 1e-3)))

    assert answer.result(2 * SOON_S) == list(range(50))


def _select_each(name: str, count: int) -> list[int]:
    """Receive by ``select``, as its documentation says."""
    found: list[int] = []
    number = actions.objects[name].fileno()
    while len(found) < count:
        try:
            while True:
                found.append(queues.get(name, timeout=0).number)
        except crossmem.QueueEmptyError:
            if len(found) < count:
                assert select.select([number], [], [], SOON_S)[0], f"nothing after {found[-1:]}"
    return found


# Q13: a slow consumer ---------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.crossmem_core
def test_q13_a_stopped_consumer_delays_its_prefetch_at_most(
    make_queue: MakeQueue, peer: Peer, peer2: Peer, fresh_peer: FreshPeer, prefetch: int
) -> None:
    queue, stopped = make_queue(depth=8, prefetch=prefetch), fresh_peer()
    for one in (stopped, peer, peer2):
        one.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
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
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    queues.put(queue, range(8))
    for name in "ab":
        peer.call(queues.take, "queue", name)
    with pytest.raises(crossmem.QueueEmptyError):
        peer.call(queues.take, "queue", "c", timeout=0.1)
    peer2.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
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
        one.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    stopped.stop()
    for number in range(20):
        queues.put(queue, [number])
        assert peer.call(queues.get, "queue", timeout=SOON_S).number == number
    stopped.cont()

    assert numbers_of(stopped.call(queues.get_each, "queue", 4)) == [16, 17, 18, 19]
    assert queue.stats().dropped == 16


# Q14: timeouts ----------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q14_every_wait_ends_in_time(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=1, producers=2)
    for role in ("produce", "consume"):
        peer.call(queues.open_, role, queue.export(role=role).to_bytes())
    peer.call(queues.allocate, "produce", "buffer")
    buffer = queue.allocate()
    calls: dict[str, tuple[Callable[[float], object], tuple[type, ...]]] = {
        "allocate": (lambda s: queue.allocate(timeout=s), (standard.Full,)),
        "put": (lambda s: queue.put(b"x", copy="allow", timeout=s), (standard.Full,)),
        "get": (lambda s: peer.call(queues.get, "consume", timeout=s), (standard.Empty,)),
        "get_many": (lambda s: peer.call(_get_many, "consume", s), (standard.Empty,)),
        "their allocate": (
            lambda s: peer.call(queues.allocate, "produce", "x", timeout=s),
            (standard.Full,),
        ),
        "wait_for": (
            lambda s: queue.wait_for(consumers=2, timeout=s),
            (crossmem.WaitTimeoutError,),
        ),
    }
    for name, (call, kinds) in calls.items():
        for timeout_s in (0, _WITHIN_S / 3):
            start = time.monotonic()
            with pytest.raises(TimeoutError) as caught:
                call(timeout_s)
            took_s = time.monotonic() - start
            assert isinstance(caught.value, kinds), name
            assert isinstance(caught.value, crossmem.CrossmemError), name
            assert timeout_s <= took_s < timeout_s + SOON_S, name
    buffer.release()


def _get_many(name: str, timeout: float) -> None:
    actions.objects[name].get_many(3, timeout=timeout)


def test_q14_a_timeout_of_nothing_takes_what_is_there(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=1)
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    for number in range(20):
        queues.put(queue, [number], timeout=0)
        assert peer.call(queues.get, "queue", timeout=0).number == number


@pytest.mark.parametrize("wrong", [-1, -1e-9, "1", float("nan"), True, [1]])
def test_q14_what_is_no_timeout_is_refused(make_queue: MakeQueue, wrong: Any) -> None:
    queue = make_queue()
    queues.put(queue, [1])
    for call in (queue.allocate, queue.get, lambda **one: queue.put(b"", copy="allow", **one)):
        with pytest.raises(crossmem.ConfigurationError):
            call(timeout=wrong)

    assert queue.stats().put == 1
    assert queues.get(queue, timeout=0).number == 1


# Q15: asyncio, select and threads ---------------------------------------------------------


@pytest.mark.crossmem_core
def test_q15_a_queue_works_in_asyncio(make_queue: MakeQueue, peer: Peer, peer2: Peer) -> None:
    queue = make_queue(depth=2)
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    peer2.call(queues.open_, "queue", queue.export(role="produce").to_bytes())
    answer = peer.start(_iterate, "queue")
    putting = peer2.start(_put_all, "queue", 40)

    assert putting.result() > 0
    peer2.call(actions.reset)
    numbers, ticks = answer.result(SOON_S)
    assert numbers == list(range(40))
    assert ticks > 0


def _iterate(name: str) -> tuple[list[int], int]:
    """Receive in a loop of asyncio; return the numbers, and how often another task ran."""

    async def receive() -> list[int]:
        found = []
        async for buffer in actions.objects[name]:
            with buffer:
                found.append(buffer.user_data[0])
                await asyncio.sleep(1e-3)
        return found

    return asyncio.run(_with_ticks(receive()))


def _put_all(name: str, count: int) -> int:
    """Put items in a loop of asyncio; return how often another task ran."""

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
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
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
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
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
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    assert not _is_readable_after_get(peer, 0.02)
    for number in range(3):
        answer = peer.start(_select, "queue", SOON_S)
        queues.put(queue, [number])
        assert answer.result()
        assert peer.call(queues.get, "queue", timeout=0).number == number
        assert not _is_readable_after_get(peer, 0.02)
    answer = peer.start(_select, "queue", SOON_S)
    queue.finish()

    # The end makes it readable, too.
    assert answer.result()
    with pytest.raises(crossmem.ClosedError):
        peer.call(queues.get, "queue", timeout=0)


def _is_readable_after_get(peer: Peer, within_s: float) -> bool:
    """Whether the descriptor is readable after a ``get`` that found nothing."""
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
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
    peer2.call(queues.open_, "queue", queue.export(role="produce").to_bytes())
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


@pytest.mark.crossmem_core
def test_q15_a_close_ends_the_waits_of_other_threads(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue()
    peer.call(queues.open_, "queue", queue.export(role="consume").to_bytes())
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
    return found[0] if found else "it waits"
