# SPDX-License-Identifier: Apache-2.0
"""Queues in one process: every call, every bad argument, and what is left afterwards."""

import gc
import math
import pickle
import queue as queues
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from small_queues import DEPTH, NBYTES, is_right, make, put, take

import crossmem
from crossmem import (
    BusyError,
    ClosedError,
    ConfigurationError,
    CrossmemError,
    InvalidSizeError,
    OutOfMemoryError,
    Queue,
    QueueEmptyError,
    QueueFullError,
    UnsupportedError,
)

pytestmark = pytest.mark.usefixtures("no_queue_left")


# Arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 0},
        {"depth": -1},
        {"depth": 2**16 + 1},
        {"depth": True},
        {"depth": 1.5},
        {"nbytes": 0},
        {"nbytes": 2**60},
        {"producers": 0},
        {"producers": 65},
        {"consumers": 0},
        {"consumers": 65},
        {"prefetch": 0},
    ],
)
def test_numbers_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSizeError) as caught:
        crossmem.device("host").queue(**{"depth": 1, "nbytes": 1, **options})

    assert len(caught.value.message) <= 200


@pytest.mark.parametrize(
    "options",
    [
        {"delivery": "all"},
        {"overflow": "block"},
        {"redeliver": 1},
        {"redeliver": True, "delivery": "each"},
        {"allow": "all"},
    ],
)
def test_other_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**options)

    assert len(caught.value.message) <= 200


def test_a_queue_without_memory_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = crossmem.device("emulated:0")
    with pytest.raises(InvalidSizeError) as caught:
        device.queue(64, device.capabilities.max_allocation_nbytes // 2)
    assert is_right(caught.value)
    most = device.capabilities.max_allocation_nbytes // 2
    with device.allocate(most), device.allocate(most // 2), pytest.raises(OutOfMemoryError):
        device.queue(1, most)


# Putting and getting ----------------------------------------------------------------------


def test_data_user_data_and_length_arrive(queue: Queue) -> None:
    buffer = queue.allocate()
    assert (buffer.data_length, buffer.user_data, buffer.delivery_count) == (NBYTES, b"", 0)
    buffer.write(b"text")
    buffer.data_length, buffer.user_data = 4, b"u" * 96
    queue.put(buffer)

    found = queue.get(timeout=0)

    assert (found.read(found.data_length), found.user_data) == (b"text", b"u" * 96)
    assert (found.nbytes, found.data_length, found.delivery_count) == (NBYTES, 4, 1)
    found.release()


def test_views_and_arrays_of_a_buffer(queue: Queue) -> None:
    buffer = queue.allocate()
    buffer.as_array((4,), "int32")[:] = range(4)
    queue.put(buffer)
    found = queue.get(timeout=0)

    assert found.as_array((4,), "int32").tolist() == [0, 1, 2, 3]
    assert bytes(found.view()[:4]) == bytes(4)
    gc.collect()
    found.release()


def test_an_empty_and_a_full_length(queue: Queue) -> None:
    for length in (0, NBYTES):
        buffer = queue.allocate()
        buffer.data_length = length
        queue.put(buffer)
        with queue.get(timeout=0) as found:
            assert found.data_length == length


@pytest.mark.parametrize("value", [-1, NBYTES + 1, 1.0, True])
def test_a_length_out_of_bounds_is_refused(queue: Queue, value: Any) -> None:
    with queue.allocate() as buffer:
        with pytest.raises(InvalidSizeError) as caught:
            buffer.data_length = value
        assert buffer.data_length == NBYTES

    assert is_right(caught.value)


def test_user_data_that_is_too_long_is_refused(queue: Queue) -> None:
    with queue.allocate() as buffer:
        with pytest.raises(InvalidSizeError) as caught:
            buffer.user_data = bytes(97)
        with pytest.raises(ConfigurationError) as other:
            buffer.user_data = "text"  # type: ignore[assignment]
        assert buffer.user_data == b""

    assert is_right(caught.value)
    assert is_right(other.value)


def test_a_consumer_sets_neither(queue: Queue) -> None:
    put(queue, b"x")
    with queue.get(timeout=0) as found:
        for name, value in (("data_length", 0), ("user_data", b"")):
            with pytest.raises(UnsupportedError) as caught:
                setattr(found, name, value)
            assert is_right(caught.value)


def test_order_with_one_consumer(queue: Queue) -> None:
    for round_ in range(3):
        for number in range(DEPTH):
            put(queue, b"%d" % (DEPTH * round_ + number))
        assert [take(queue) for _ in range(DEPTH)] == [
            b"%d" % (DEPTH * round_ + number) for number in range(DEPTH)
        ]


def test_the_order_of_what_came_before_the_consumer_and_after(queue: Queue) -> None:
    for number in range(DEPTH):
        put(queue, b"%d" % number)
    assert queue.stats().waiting == DEPTH
    assert take(queue) == b"0"
    put(queue, b"4")

    assert [take(queue) for _ in range(4)] == [b"1", b"2", b"3", b"4"]


def test_a_full_queue_waits_or_raises(queue: Queue) -> None:
    for _ in range(DEPTH):
        put(queue, b"x")
    started = time.monotonic()
    for timeout in (0, 0.05):
        with pytest.raises(QueueFullError) as caught:
            queue.allocate(timeout=timeout)
        assert isinstance(caught.value, (queues.Full, TimeoutError))
        assert is_right(caught.value)
    assert time.monotonic() - started >= 0.05
    take(queue)

    queue.allocate(timeout=1).release()


def test_a_queue_that_raises_never_waits() -> None:
    with make(overflow="raise") as queue:
        for _ in range(DEPTH):
            put(queue, b"x")
        started = time.monotonic()
        with pytest.raises(QueueFullError):
            queue.allocate(timeout=20)
        assert time.monotonic() - started < 10


def test_the_oldest_is_dropped_and_counted() -> None:
    with make(overflow="drop") as queue:
        for number in range(3 * DEPTH):
            put(queue, b"%d" % number)
        assert queue.stats().dropped == 2 * DEPTH

        assert [take(queue) for _ in range(DEPTH)] == [b"8", b"9", b"10", b"11"]


def test_what_a_consumer_has_is_not_dropped() -> None:
    with make(overflow="drop", prefetch=DEPTH) as queue:
        with pytest.raises(QueueEmptyError):
            queue.get(timeout=0)
        for number in range(DEPTH):
            put(queue, b"%d" % number)
        held = [queue.get(timeout=0) for _ in range(DEPTH)]
        with pytest.raises(QueueFullError):
            queue.allocate()
        held[0].release()
        put(queue, b"4")
        put(queue, b"5")

        assert [one.read(1) for one in held[1:]] == [b"1", b"2", b"3"]
        assert queue.stats().dropped == 1
        for one in held:
            one.release()
        assert take(queue) == b"5"


def test_an_empty_queue_waits_and_raises(queue: Queue) -> None:
    started = time.monotonic()
    for timeout in (0, 0.05):
        with pytest.raises(QueueEmptyError) as caught:
            queue.get(timeout=timeout)
        assert isinstance(caught.value, (queues.Empty, TimeoutError))
        assert is_right(caught.value)
    assert time.monotonic() - started >= 0.05


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True])
def test_a_timeout_that_is_none(queue: Queue, timeout: Any) -> None:
    calls: list[Callable[..., object]] = [queue.get, queue.allocate]
    for call in calls:
        with pytest.raises(ConfigurationError) as caught:
            call(timeout=timeout)
        assert is_right(caught.value)


def test_several_at_once(queue: Queue) -> None:
    buffers = [queue.allocate() for _ in range(3)]
    for number, buffer in enumerate(buffers):
        buffer.user_data = b"%d" % number
    queue.put_many(buffers)

    found = queue.get_many(3, timeout=5)
    assert [one.user_data for one in found] == [b"0", b"1"]
    for one in found:
        one.release()
    found = queue.get_many(3, timeout=5)
    for one in found:
        one.release()


@pytest.mark.parametrize(("consumers", "expected"), [(1, DEPTH), (2, 2)])
def test_the_default_prefetch(consumers: int, expected: int) -> None:
    with crossmem.device("host").queue(DEPTH, NBYTES, consumers=consumers) as queue:
        assert queue._record is not None
        assert queue._record.opened.terms.prefetch == expected


@pytest.mark.parametrize("most", [0, -1, "2"])
def test_a_number_of_buffers_out_of_bounds(queue: Queue, most: Any) -> None:
    put(queue, b"x")
    with pytest.raises(InvalidSizeError):
        queue.get_many(most, timeout=0)

    assert take(queue) == b"x"


def test_copies_of_other_objects(queue: Queue) -> None:
    numpy = pytest.importorskip("numpy")
    for item in (b"text", bytearray(b"text"), memoryview(b"text"), numpy.frombuffer(b"text", "u1")):
        queue.put(item, copy="allow")
        assert take(queue) == b"text"
    every_second = numpy.frombuffer(b"t-e-x-t-", "u1")[::2]
    record = numpy.array([(116, 101, 120, 116)], "u1,u1,u1,u1")
    for array in (every_second, record, record[0:1].reshape(()), numpy.zeros((0, 3), "f4")):
        queue.put(array, copy=True)
        assert take(queue) == (b"text" if array.size else b"")


def test_what_is_no_buffer_is_refused(queue: Queue) -> None:
    for item, copy in ((b"text", None), (b"text", False), (None, None)):
        with pytest.raises(UnsupportedError) as caught:
            queue.put(item, copy=copy)
        assert is_right(caught.value)
    for word in ("deny", "Allow", 1):
        wrong: Any = word
        with pytest.raises(ConfigurationError, match="copy must be"):
            queue.put(b"text", copy=wrong)
    with pytest.raises(UnsupportedError) as other:
        queue.put(None, copy="allow")
    assert is_right(other.value)
    numpy = pytest.importorskip("numpy")
    for large in (bytes(NBYTES + 1), numpy.broadcast_to(numpy.uint8(7), (2**20, 2**22))):
        with pytest.raises(InvalidSizeError):
            queue.put(large, copy="allow")
    closed = memoryview(b"text")
    closed.release()
    with pytest.raises(UnsupportedError):
        queue.put(closed, copy="allow")

    # None of them has kept a buffer.
    for buffer in [queue.allocate() for _ in range(DEPTH)]:
        buffer.release()


# Ownership --------------------------------------------------------------------------------


def test_a_buffer_that_was_handed_over_or_released(queue: Queue) -> None:
    given, released = queue.allocate(), queue.allocate()
    queue.put(given)
    released.release()
    released.release()

    for one in (given, released):
        uses: list[Callable[[], object]] = [partial(queue.put, one), one.view, one.read]
        for use in uses:
            with pytest.raises(ClosedError):
                use()
    queue.get(timeout=5).release()


def test_a_buffer_with_a_view_is_not_handed_over(queue: Queue) -> None:
    buffer = queue.allocate()
    view = buffer.view()
    view[:4] = b"text"
    with pytest.raises(BusyError) as caught:
        queue.put(buffer)
    with pytest.raises(BusyError):
        buffer.release()
    assert is_right(caught.value)
    del view
    buffer.data_length = 4
    queue.put(buffer)

    assert take(queue) == b"text"


def test_a_buffer_of_another_queue(queue: Queue) -> None:
    with make() as other, other.allocate() as foreign:
        with pytest.raises(UnsupportedError) as caught:
            queue.put(foreign)
        assert is_right(caught.value)
        assert not foreign.closed


def test_a_received_buffer_cannot_be_put(queue: Queue) -> None:
    put(queue, b"x")
    with queue.get(timeout=0) as found:
        with pytest.raises(UnsupportedError):
            queue.put(found)
        assert found.read(1) == b"x"


def test_buffers_have_no_handles(queue: Queue) -> None:
    with queue.allocate() as buffer:
        uses: list[Callable[[], object]] = [buffer.export, partial(pickle.dumps, buffer)]
        for use in uses:
            with pytest.raises(UnsupportedError) as caught:
                use()
            assert is_right(caught.value)


def test_each_gets_them_read_only() -> None:
    with make(delivery="each") as queue:
        with pytest.raises(QueueEmptyError):
            queue.get(timeout=0)
        put(queue, b"x")
        with queue.get(timeout=0) as found:
            assert found.readonly
            with pytest.raises(CrossmemError):
                found.write(b"y")
            with pytest.raises(TypeError):
                found.view()[0] = 1


def test_dropped_objects_give_their_buffers_back(queue: Queue) -> None:
    for _ in range(DEPTH):
        with pytest.warns(ResourceWarning, match="without release"):
            queue.allocate()

    for buffer in [queue.allocate(timeout=5) for _ in range(DEPTH)]:
        buffer.release()


def test_streams_on_a_device_without(queue: Queue) -> None:
    buffer = queue.allocate()
    for use in (
        lambda: queue.put(buffer, stream=1),
        lambda: queue.get(stream=1),
        lambda: buffer.release(stream=1),
    ):
        with pytest.raises(UnsupportedError) as caught:
            use()
        assert is_right(caught.value)
    with pytest.raises(ConfigurationError):
        queue.put(buffer, stream="text")
    assert not buffer.closed
    buffer.release()
