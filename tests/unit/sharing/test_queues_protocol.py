# SPDX-License-Identifier: Apache-2.0
"""The protocol of queues at its seams: moments between two steps, brought about on purpose.

Several producers and consumers are objects of this process, each with a ring or place of its own.
"""

import gc
import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from crowds import NBYTES, Crowd, is_empty, put, take

import crossmem
from crossmem import QueueFullError
from crossmem.sharing.queues.consumer import Consumer
from crossmem.sharing.queues.layout import DROPPING, READY, SIZES, TAIL, WANTED, WISH
from crossmem.sharing.queues.opened import Opened
from crossmem.sharing.queues.producer import Producer

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def crowds() -> Iterator[list[Crowd]]:
    made: list[Crowd] = []
    yield made
    while made:
        made.pop().close()


# Order ------------------------------------------------------------------------------------


def test_what_a_producer_gave_comes_before_what_the_owner_gives_later(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(8, prefetch=2))
    consumer = crowd.open("consume")
    put(crowd.queue, *(b"%d" % number for number in range(8)))
    found = [take(consumer)]
    # Now there is room for an entry of the owner.
    crowd.tend()

    assert found + [take(consumer) for _ in range(7)] == [b"%d" % number for number in range(8)]


def test_an_entry_in_hand_that_is_not_ready_delays_no_other_producer(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(8, prefetch=2))
    first, second = crowd.open("produce"), crowd.open("produce")
    put(first, b"1a", b"1b", b"1c")
    put(second, b"2a", b"2b", b"2c")
    consumer = crowd.open("consume")
    assert take(consumer) == b"1a"
    # The owner hands 1b out, before 2b. A hostile producer may make it unready afterwards.
    crowd.tend()
    late = first._producer().words
    at = crowd.opened.terms.entry(1) + WANTED
    late[at] = 1

    assert [take(consumer) for _ in range(3)] == [b"2a", b"2b", b"2c"]
    assert is_empty(consumer)
    late[at] = 0
    assert [take(consumer) for _ in range(2)] == [b"1b", b"1c"]


def test_an_entry_that_is_taken_makes_room_for_one_of_another_producer(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(8, prefetch=1))
    for item in (b"1", b"2"):
        put(crowd.open("produce"), item)
    consumer = crowd.open("consume")
    with consumer.get(timeout=5) as first, consumer.get(timeout=5) as second:
        # Nobody has released anything meanwhile, and nobody but the consumer has told the owner.
        assert [first.user_data, second.user_data] == [b"1", b"2"]


def test_an_entry_in_hand_is_no_further_one_of_its_producer(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(8, prefetch=1))
    producer = crowd.open("produce")
    put(producer, b"1")
    slow = crowd.open("consume")
    with slow.get(timeout=5):
        fast = crowd.open("consume")
        put(producer, b"2", b"3", b"4")

        assert [take(fast) for _ in range(3)] == [b"2", b"3", b"4"]


@pytest.mark.parametrize("overflow", ["wait", "drop"])
def test_what_is_put_and_handed_out_during_a_look_keeps_its_order(
    crowds: list[Crowd], overflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds.append(crowd := Crowd(3, prefetch=2, overflow=overflow, consumers=1))
    producer, consumer = crowd.open("produce"), crowd.open("consume")
    put(producer, b"1")
    held = consumer.get(timeout=0) if overflow == "wait" else None
    put(crowd.open("produce"), b"other")
    tail = Opened.tail

    def tail_before_more(self: Opened, number: int) -> int:
        found = tail(self, number)
        if threading.current_thread() is not threading.main_thread():
            # The owner's look.
            return found
        monkeypatch.undo()
        # The consumer has room for one of them. The other one is left to the owner.
        put(producer, b"2", b"3")
        if held is None:
            # This drops the first one.
            put(producer, b"4")
        else:
            held.release()
        crowd.tend()
        return found

    monkeypatch.setattr(Opened, "tail", tail_before_more)
    found = [take(consumer) for _ in range(4 if held is None else 3)]
    found.remove(b"other")

    assert found == ([b"2", b"3", b"4"] if held is None else [b"2", b"3"])


@pytest.mark.parametrize("is_handed", [False, True])
def test_what_a_signal_handler_gets_during_a_look_comes_once(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch, *, is_handed: bool
) -> None:
    crowds.append(crowd := Crowd(4, prefetch=4))
    producer = crowd.open("produce")
    if is_handed:
        put(producer, b"1", b"2", b"3")
    consumer = crowd.open("consume")
    if not is_handed:
        put(producer, b"1", b"2", b"3")
        # The usual entry is read without a call, in which no handler runs.
        consumer._consumer()._is_plain_reader = False
    read, found = Consumer._read, []

    def read_and_get(self: Consumer, *arguments: Any) -> Any:
        entry = read(self, *arguments)
        monkeypatch.undo()
        found.append(take(consumer, 0))
        return entry

    monkeypatch.setattr(Consumer, "_read", read_and_get)
    found += [take(consumer), take(consumer)]

    assert found == [b"1", b"2", b"3"]
    assert is_empty(consumer)


def test_entries_in_hand_do_not_pile_up(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(2, prefetch=1))
    hostile = crowd.open("produce")
    put(hostile, b"1", b"2")
    consumer = crowd.open("consume")
    words, terms = hostile._producer().words, crowd.opened.terms
    first = terms.entry(0)
    for stamp in range(3, 20):
        crowd.tend()
        words[first + WANTED] = 1
        is_empty(consumer)
        # The owner sees another entry in the same buffer.
        words[first + WANTED] = words[terms.order(stamp)] = 0
        words[first] = words[TAIL] = stamp

    assert len(consumer._consumer()._hand) <= 2
    assert crowd.opened.control[terms.handed(0)] > 10
    put(crowd.queue, b"honest")
    while take(consumer) != b"honest":
        pass


def test_an_entry_whose_place_in_the_order_is_overwritten(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(2, prefetch=2))
    slow, fast = crowd.open("consume"), crowd.open("consume")
    producer = crowd.open("produce")
    put(producer, b"1", b"2")
    assert take(fast) == b"2"
    put(producer, b"3")

    assert take(slow, 0) == b"1"
    assert take(slow, 0) == b"3"


# Ends of sessions -------------------------------------------------------------------------


def test_an_entry_for_a_consumer_that_left_meanwhile(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds.append(crowd := Crowd())
    leaving, other = crowd.open("consume"), crowd.open("consume")
    producer = crowd.open("produce")
    choose = Producer._choose

    def choose_and_lose(self: Producer) -> int:
        target = choose(self)
        if target and not leaving.closed:
            leaving.close()
            crowd.tend()
        return target

    monkeypatch.setattr(Producer, "_choose", choose_and_lose)
    put(producer, b"1")

    assert take(other) == b"1"


@pytest.mark.parametrize("redeliver", [False, True])
def test_a_place_is_taken_before_the_owner_sees_a_death(
    crowds: list[Crowd], *, redeliver: bool
) -> None:
    crowds.append(crowd := Crowd(consumers=1, redeliver=redeliver, prefetch=3))
    dead = crowd.open("consume")
    put(crowd.queue, b"1", b"2")
    buffer = dead.get(timeout=0)
    crowd.vanish(dead)
    buffer.release()
    del buffer
    gc.collect()
    heir = crowd.open("consume")

    stats = crowd.tend()
    assert (stats.lost, stats.redelivered) == ((0, 1) if redeliver else (1, 0))
    if redeliver:
        with heir.get(timeout=5) as buffer:
            assert (buffer.user_data, buffer.delivery_count) == (b"1", 2)
    with heir.get(timeout=5) as buffer:
        assert (buffer.user_data, buffer.delivery_count) == (b"2", 1)


def test_what_is_put_after_the_end_of_a_session_reaches_nobody(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd())
    producer, consumer = crowd.open("produce"), crowd.open("consume")
    put(producer, b"1")
    buffer = producer.allocate()
    place = producer._producer()
    place.words[WISH] = 0
    crowd.tend()
    with pytest.raises(crossmem.AccessDeniedError):
        producer.put(buffer)
    record = buffer._record
    assert record is not None
    buffer._record = None
    place.put(record, 1, b"late", None)

    assert take(consumer) == b"1"
    assert is_empty(consumer)
    assert crowd.tend().put == 1


def test_who_is_waited_for_gets_everything_from_then_on(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds.append(crowd := Crowd(delivery="each"))
    begin, counts = Consumer._begin_behind_tails, []

    def count(consumer: Consumer) -> None:
        counts.append(crowd.queue.stats().consumers)
        begin(consumer)

    monkeypatch.setattr(Consumer, "_begin_behind_tails", count)
    consumer = crowd.open("consume")

    # What is put before the last of these is not for the new consumer.
    assert counts == [0, 0]
    crowd.queue.wait_for(consumers=1, timeout=0)
    crowd.queue.put(b"first", copy="allow")
    with consumer.get(timeout=0) as buffer:
        assert buffer.read(5) == b"first"


def test_entries_before_the_session_of_a_consumer_of_each(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds.append(crowd := Crowd(delivery="each"))
    begin = Consumer.begin

    def begin_late(self: Consumer) -> None:
        begin(self)
        # No consumer has a session, so the buffer is free at once.
        put(crowd.queue, b"before")

    monkeypatch.setattr(Consumer, "begin", begin_late)
    consumer = crowd.open("consume")

    assert is_empty(consumer)
    put(crowd.queue, b"after")
    assert take(consumer) == b"after"


# Dropping ---------------------------------------------------------------------------------


def test_a_mark_of_a_producer_that_lives_and_of_one_that_has_gone(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(overflow="drop"))
    producer, consumer = crowd.open("produce"), crowd.open("consume")
    put(producer, b"1", b"2")
    place, terms = producer._producer(), crowd.opened.terms
    for buffer in range(2):
        place.words[terms.entry(buffer)] |= DROPPING
    assert is_empty(consumer)
    place.words[terms.entry(0)] &= ~DROPPING
    assert take(consumer, 0) == b"1"
    assert is_empty(consumer)
    producer.close()
    crowd.tend()

    assert take(consumer, 0) == b"2"


def test_marked_entries_that_wait_at_the_owner(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(overflow="drop"))
    producer = crowd.open("produce")
    put(producer, b"1", b"2")
    producer._producer().words[crowd.opened.terms.entry(0)] |= DROPPING
    consumer = crowd.open("consume")
    assert is_empty(consumer)
    producer.close()
    crowd.tend()

    assert [take(consumer), take(consumer)] == [b"1", b"2"]


# Rubbish ----------------------------------------------------------------------------------


def test_releases_that_a_predecessor_wrote_ahead(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(1, consumers=1))
    hostile = crowd.open("consume")
    place, terms = hostile._consumer(), crowd.opened.terms
    crowd.queue.allocate().release()
    ring = crowd.queue._producer().place
    place.words[terms.released(ring, 0)] = 1
    hostile.close()
    consumer = crowd.open("consume")
    put(crowd.queue, b"1")
    with consumer.get(timeout=5) as buffer:
        with pytest.raises(QueueFullError):
            crowd.queue.allocate()
        assert buffer.user_data == b"1"


def test_rubbish_in_a_ring_that_is_taken_over(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(2))
    hostile = crowd.open("produce")
    put(hostile, b"1")
    place, at = hostile._producer(), crowd.opened.terms.entry(1)
    place.words[at + READY] = place.words[at + WANTED] = 2**64 - 1
    hostile.close()
    crowd.tend()
    heir = crowd.open("produce")

    mine = heir._producer()
    assert mine.place == place.place
    assert (mine.words[at + READY], mine.words[at + WANTED]) == (0, 0)
    mine.words[TAIL] = 2**64 - 1
    heir.close()
    crowd.tend()
    # The ring cannot be used again, but the others can.
    other = crowd.open("produce")
    assert other._producer().place != place.place


def test_sizes_out_of_bounds(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd())
    producer, consumer = crowd.open("produce"), crowd.open("consume")
    put(producer, b"1")
    producer._producer().words[crowd.opened.terms.entry(0) + SIZES] = 2**64 - 1

    with consumer.get(timeout=0) as buffer:
        assert (buffer.data_length, len(buffer.user_data)) == (NBYTES, 96)


def test_an_order_out_of_bounds(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd())
    producer, consumer = crowd.open("produce"), crowd.open("consume")
    put(producer, b"1")
    producer._producer().words[crowd.opened.terms.order(1)] = 2**63

    assert take(consumer, 0) == b"1"


def test_rubbish_that_the_owner_hands_out(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd())
    consumer = crowd.open("consume")
    control, terms = crowd.opened.control, crowd.opened.terms
    for where in (2**64 - 1, 200, 2 | 2**20 << 8):
        position = control[terms.handed(0)]
        at = terms.hand(0, position)
        control[at], control[at + 1] = 1, where
        control[terms.handed(0)] = position + 1
        assert is_empty(consumer)


# Sleep ------------------------------------------------------------------------------------


def test_a_thread_passes_on_the_wake_up_that_it_may_have_read(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd())
    consumer = crowd.open("consume")._consumer()
    number = consumer._bell
    consumer.sleepers = 1
    os.eventfd_write(number, 1)
    looks = iter((None, None, "found"))
    assert consumer.wait(lambda: next(looks), lambda: None, 0, polls=lambda: False) is None
    assert not select.select([number], [], [], 0)[0]
    os.eventfd_write(number, 1)
    looks = iter((None, "found"))
    found = consumer.wait(lambda: next(looks), lambda: None, 0, polls=lambda: False)
    consumer.sleepers = 0

    assert found == "found"
    assert select.select([number], [], [], 0)[0]
