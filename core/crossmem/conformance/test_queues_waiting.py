# SPDX-License-Identifier: Apache-2.0
"""Laws Q10 and Q14: wake-ups and timeouts."""

import queue as standard
import random
import select
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.queues_of_tests import Item, MakeQueue, numbers_of

_ROUNDS: Final = 120
_WITHIN_S: Final = 0.06

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
        one.call(queues.open_, "there", queues.handle_of(there, role))
    for one, role in ((second, "produce"), (first, "consume")):
        one.call(queues.open_, "back", queues.handle_of(back, role))
    there.wait_for(producers=1, consumers=1)
    back.wait_for(producers=1, consumers=1)
    answer = second.start(_answer, "there", "back", _ROUNDS)
    first.call(_ask, "there", "back", _ROUNDS)
    answer.result()


def _ask(there: str, back: str, count: int) -> None:
    """Put items and await each answer.

    After each answer, this process pauses for a random time, so the other process sometimes falls
    asleep before the next put.
    """
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
    producer.call(queues.open_, "queue", queues.handle_of(queue, "produce"))
    wakers: tuple[Callable[[Peer], object], ...] = (
        lambda one: one.call(actions.call, "buffer", "release"),
        lambda one: one.call(actions.reset),
        lambda one: one.kill(),
    )
    producer.call(queues.put, "queue", [0]) if delivery == "one" else None
    for wake in wakers:
        victim.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
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
            # The queue has no consumer now, so the buffer of item 1 is free.
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
        victim.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
        victim.call(queues.take, "queue", "buffer")
    sleeper.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    if event == "hand out":
        # With prefetch=1, the owner hands out an item only after the release of the previous item.
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


@pytest.mark.parametrize("reads", ["before", "after"])
def test_q10_a_drop_makes_room_for_items_that_wait(
    make_queue: MakeQueue, fresh_peer: FreshPeer, reads: str
) -> None:
    queue, sleeper = make_queue(depth=4, prefetch=1, overflow="drop"), fresh_peer()
    sleeper.call(queues.disable_polling)
    sleeper.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    queues.put(queue, range(4))
    if reads == "before":
        assert sleeper.call(queues.get, "queue").number == 0
        # The owner hands out item 1. An allocation below drops item 1 before the consumer reads.
        assert settle(lambda: [] if queue.stats().waiting == 2 else ["2 items should wait"]) == []
    left = [2, 3] if reads == "before" else [1, 2, 3]
    # The last of these allocations drops the oldest item. There is no later put to wake the owner.
    for buffer in [queue.allocate() for _ in range(4 - len(left))]:
        buffer.release()
    answer = sleeper.start(queues.get_each, "queue", len(left))

    assert numbers_of(answer.result(SOON_S)) == left


def test_q10_a_selector_is_woken(make_queue: MakeQueue, fresh_peer: FreshPeer) -> None:
    queue, sleeper = make_queue(), fresh_peer()
    sleeper.call(queues.disable_polling)
    sleeper.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    answer = sleeper.start(_select_each, "queue", 50)
    chosen = random.Random(10)
    for number in range(50):
        queues.put(queue, [number], timeout=SOON_S)
        time.sleep(chosen.choice((0, 0, 50e-6, 1e-3)))

    assert answer.result(2 * SOON_S) == list(range(50))


def _select_each(name: str, count: int) -> list[int]:
    """Get items as the docstring of ``Queue.fileno`` advises; return their numbers."""
    found: list[int] = []
    number = actions.objects[name].fileno()
    while len(found) < count:
        try:
            while True:
                found.append(queues.get(name, timeout=0).number)
        except crossmem.QueueEmptyError:
            if len(found) < count:
                assert select.select([number], [], [], SOON_S)[0], f"no wake-up after {found[-1:]}"
    return found


# Q14: timeouts ----------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_q14_every_wait_ends_in_time(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=1, producers=2)
    for role in ("produce", "consume"):
        peer.call(queues.open_, role, queues.handle_of(queue, role))
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
        for timeout_s in (0, _WITHIN_S):
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


@pytest.mark.crossmem_with_vendor_queues
def test_q14_a_timeout_of_nothing_takes_what_is_there(make_queue: MakeQueue, peer: Peer) -> None:
    queue = make_queue(depth=1)
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    for number in range(20):
        queues.put(queue, [number], timeout=0)
        assert peer.call(queues.get, "queue", timeout=0).number == number


@pytest.mark.parametrize("wrong", [-1, -1e-9, "1", float("nan"), True, [1]])
@pytest.mark.crossmem_with_vendor_queues
def test_q14_what_is_no_timeout_is_refused(make_queue: MakeQueue, wrong: Any) -> None:
    queue = make_queue()
    queues.put(queue, [1])
    for call in (queue.allocate, queue.get, lambda **one: queue.put(b"", copy="allow", **one)):
        with pytest.raises(crossmem.ConfigurationError):
            call(timeout=wrong)

    queues.check_stats(queue, put=1)
    assert queues.get(queue, timeout=0).number == 1
