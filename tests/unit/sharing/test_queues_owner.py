# SPDX-License-Identifier: Apache-2.0
"""The owner of a queue: interrupted calls, entries that change during a read, and hostile peers."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from crowds import Crowd, is_empty, put, take

from crossmem import AccessDeniedError
from crossmem.control import words
from crossmem.sharing.queues.layout import ENTRY_WORDS, TAIL, WANTED, WISH
from crossmem.sharing.queues.published import Published


class Alarm(Exception):  # noqa: N818 - no failure
    """A signal handler raised it."""


@pytest.fixture
def crowds() -> Iterator[list[Crowd]]:
    made: list[Crowd] = []
    yield made
    for one in made:
        one.close()


def owner_of(crowd: Crowd) -> Any:
    owner = crowd.record_of(crowd.queue).owner
    assert owner is not None
    return owner


def test_an_interrupted_change_of_sessions_is_continued(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds.append(crowd := Crowd(8, prefetch=4, redeliver=True, producers=1))
    one = crowd.open("consume")
    put(crowd.queue, b"1", b"2", b"3")
    other = crowd.open("consume")
    crowd.tend()
    held = one.get(timeout=0)
    owner = owner_of(crowd)

    def interrupted() -> None:
        monkeypatch.undo()
        raise Alarm

    with owner._lock:
        # The consumer leaves with one buffer in hand and two unread.
        words.store(one._consumer().words, WISH, 0)
        monkeypatch.setattr(words, "barrier", interrupted)
        with pytest.raises(Alarm):
            owner.tend()

    crowd.tend()

    assert [take(other) for _ in range(3)] == [b"1", b"2", b"3"]
    assert is_empty(other)
    held.release()


@pytest.mark.parametrize("name", ["_is_there", "is_ready", "is_released", "forget_old", "taken"])
@pytest.mark.parametrize("at", range(1, 7))
def test_an_interrupted_read_is_repeated(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    crowds.append(crowd := Crowd(8, prefetch=2, producers=1))
    consumer = crowd.open("consume")
    put(crowd.queue, b"1", b"2", b"3", b"4")
    crowd.tend()
    owner, numbers, inner = owner_of(crowd), itertools.count(1), getattr(Published, name)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        found = inner(*arguments, **options)
        if next(numbers) == at:
            raise Alarm
        return found

    with owner._lock:
        putting = threading.Thread(target=put, args=(crowd.queue, b"5", b"6"))
        putting.start()
        putting.join()
        with monkeypatch.context() as patch, suppress(Alarm):
            patch.setattr(Published, name, interrupted)
            owner.tend()

    crowd.tend()
    assert [take(consumer) for _ in range(6)] == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_an_entry_that_changes_while_it_is_read_counts_as_neither(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds.append(crowd := Crowd(3, prefetch=2, producers=1, consumers=2))
    one, other = crowd.open("consume"), crowd.open("consume")
    put(crowd.queue, b"0", b"1", b"2")
    crowd.tend()
    taken = [take(one), take(other), take(one)]
    owner, read = owner_of(crowd), Published._entry

    def entry(self: Published, *arguments: int) -> Any:
        monkeypatch.undo()
        # All entries were released, so the producer puts their buffers again in the meantime.
        putting = threading.Thread(target=put, args=(crowd.queue, b"3", b"4", b"5"))
        putting.start()
        putting.join()
        return read(self, *arguments)

    with owner._lock:
        words.store(one._consumer().words, WISH, 0)
        monkeypatch.setattr(Published, "_entry", entry)
        owner.tend()

    assert crowd.tend().lost == 0
    taken += [take(other) for _ in range(3)]
    assert sorted(taken) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_hostile_producer_lets_no_entries_pile_up(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(4, prefetch=1))
    hostile = crowd.open("produce")
    put(hostile, b"1")
    ring, terms = hostile._producer().words, crowd.opened.terms
    # The oldest entry is never ready, and another buffer gets one stamp after the other.
    ring[terms.entry(0) + WANTED] = 1
    second = terms.entry(0) + ENTRY_WORDS
    for stamp in range(2, 200):
        ring[terms.order(stamp)] = 1
        ring[second] = ring[TAIL] = stamp
        crowd.tend()

    assert crowd.tend().waiting <= terms.depth


def test_a_revoked_consumer_gets_no_buffer_that_it_kept(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(2, prefetch=2))
    consumer = crowd.open("consume")
    put(crowd.queue, b"1")
    crowd.tend()
    place = consumer._consumer()
    place.keep(consumer.get(timeout=0))

    with owner_of(crowd)._lock:
        words.store(place.words, WISH, 0)
        owner_of(crowd).tend()

    with pytest.raises(AccessDeniedError):
        consumer.get(timeout=0)
    assert crowd.tend().lost == 1


def test_a_signal_handler_inside_tend_leaves_its_work_to_the_server(
    crowds: list[Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds.append(crowd := Crowd(4, prefetch=2))
    consumer = crowd.open("consume")
    owner, calls = owner_of(crowd), []

    def hand_out(*, is_changed: bool) -> bool:
        del is_changed
        calls.append(1)
        # As a handler does that calls stats().
        owner.tend()
        return False

    with owner._lock, monkeypatch.context() as patch:
        patch.setattr(owner, "_hand_out", hand_out)
        owner.tend()

    assert calls == [1]
    put(crowd.queue, b"1")
    assert take(consumer) == b"1"
