# SPDX-License-Identifier: Apache-2.0
"""Consumers that leave after the last put, and the end of the queue."""

import gc
from collections.abc import Iterator

import pytest
from crowds import Crowd, is_empty, put, take
from in_use import assert_in_use, in_use

import crossmem


@pytest.fixture
def crowds() -> Iterator[list[Crowd]]:
    before = in_use()
    made: list[Crowd] = []
    yield made
    while made:
        made.pop().close()
    gc.collect()
    assert_in_use(before)


@pytest.mark.parametrize("redeliver", [False, True])
def test_unread_items_of_a_consumer_that_leaves_reach_another_or_are_counted(
    crowds: list[Crowd], redeliver: bool
) -> None:
    crowds.append(crowd := Crowd(8, prefetch=2, redeliver=redeliver))
    producer, leaving, other = crowd.open("produce"), crowd.open("consume"), crowd.open("consume")
    put(producer, *(b"%d" % number for number in range(6)))
    crowd.queue.finish()
    producer.close()
    crowd.objects.remove(producer)
    found = [take(other) for _ in range(4)]
    if redeliver:
        # The rest was given to the other consumer, and may still come back.
        assert is_empty(other)
    else:
        with pytest.raises(crossmem.ClosedError):
            other.get(timeout=5)
    crowd.objects.remove(leaving)
    leaving.close()
    stats = crowd.tend()

    if redeliver:
        found += [take(other), take(other)]
        assert sorted(found) == [b"%d" % number for number in range(6)]
        with pytest.raises(crossmem.ClosedError):
            other.get(timeout=5)
    assert (stats.lost, crowd.tend().waiting) == (0 if redeliver else 2, 0)


def test_the_end_waits_for_no_buffer_that_was_read(crowds: list[Crowd]) -> None:
    crowds.append(crowd := Crowd(prefetch=1))
    first, second = crowd.open("consume"), crowd.open("consume")
    put(crowd.queue, b"1", b"2")
    kept = first.get(timeout=5)
    assert take(second) == b"2"
    crowd.queue.finish()

    with pytest.raises(crossmem.ClosedError):
        second.get(timeout=5)
    kept.release()
