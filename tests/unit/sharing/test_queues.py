# SPDX-License-Identifier: Apache-2.0
"""Queues in one process: every call, every bad argument, and what is left afterwards."""

import asyncio
import gc
import math
import os
import pickle
import queue as queues
import select
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from in_use import assert_in_use, in_use

import crossmem
from crossmem import (
    AccessDeniedError,
    BusyError,
    ClosedError,
    ConfigurationError,
    CrossmemError,
    InvalidHandleError,
    InvalidSizeError,
    OutOfMemoryError,
    Queue,
    QueueEmptyError,
    QueueFullError,
    QueueHandle,
    SharedBuffer,
    StaleHandleError,
    UnsupportedError,
    WaitTimeoutError,
)
from crossmem.models.queue_handle import QueueRole

DEPTH = 4
NBYTES = 256


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    # The words of leases come with the first export, and stay.
    before = in_use()
    yield
    gc.collect()
    crossmem.collect()
    assert_in_use(before)


@pytest.fixture
def queue() -> Iterator[Queue]:
    with crossmem.device("host").queue(DEPTH, NBYTES) as made:
        yield made


def make(**options: Any) -> Queue:
    return crossmem.device("host").queue(DEPTH, NBYTES, **options)


def is_right(error: CrossmemError) -> bool:
    """Whether an error is one line with a hint, neither too long."""
    lines = error.message.splitlines()
    return len(lines) == 1 and len(lines[0]) <= 200 and 0 < len(error.hint or "") <= 200


def put(queue: Queue, data: bytes) -> None:
    buffer = queue.allocate()
    buffer.write(data)
    buffer.data_length = len(data)
    queue.put(buffer)


def take(queue: Queue, timeout: float = 5.0) -> bytes:
    with queue.get(timeout=timeout) as buffer:
        return buffer.read(buffer.data_length)


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


def test_what_is_no_buffer_is_refused(queue: Queue) -> None:
    for item, copy in ((b"text", None), (b"text", "deny"), (None, None)):
        with pytest.raises(UnsupportedError) as caught:
            queue.put(item, copy=copy)
        assert is_right(caught.value)
    with pytest.raises(TypeError):
        queue.put(None, copy="allow")
    with pytest.raises(InvalidSizeError):
        queue.put(bytes(NBYTES + 1), copy="allow")

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


# Ends -------------------------------------------------------------------------------------


def test_the_end(queue: Queue) -> None:
    put(queue, b"1")
    put(queue, b"2")
    spare = queue.allocate()
    queue.finish()

    for use in (queue.allocate, lambda: queue.put(spare), lambda: queue.put(b"x", copy="allow")):
        with pytest.raises(ClosedError) as caught:
            use()
        assert is_right(caught.value)
    spare.release()
    assert [one.read(1) for one in release_each(queue)] == [b"1", b"2"]
    for _ in range(2):
        with pytest.raises(ClosedError):
            queue.get(timeout=5)
    queue.finish()


class _Read:
    """What a buffer had before it was released."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, _nbytes: int) -> bytes:
        return self.data


def release_each(queue: Queue) -> Iterator[_Read]:
    for buffer in queue:
        with buffer:
            yield _Read(buffer.read(buffer.data_length))


def test_an_unused_queue_ends() -> None:
    with make(redeliver=True) as queue:
        queue.finish()
        assert list(queue) == []


def test_a_consumer_that_keeps_all_sees_the_end() -> None:
    with make(redeliver=True, prefetch=DEPTH) as queue:
        for number in range(DEPTH):
            put(queue, b"%d" % number)
        queue.finish()
        kept = list(queue)

        assert [one.read(1) for one in kept] == [b"0", b"1", b"2", b"3"]
        for one in kept:
            one.release()


def test_a_closed_queue() -> None:
    queue = make()
    assert "4 buffers of 256 bytes" in repr(queue)
    put(queue, b"x")
    queue.close()
    queue.close()

    assert queue.closed
    assert "closed" in repr(queue)
    for use in (queue.allocate, queue.get, queue.stats, queue.finish, queue.fileno, queue.wait_for):
        with pytest.raises(ClosedError):
            use()
    with pytest.raises(ClosedError):
        queue.export(role="consume")


def test_a_queue_with_received_buffers_is_not_closed() -> None:
    queue = make()
    put(queue, b"x")
    buffer = queue.get(timeout=0)
    with pytest.raises(BusyError) as caught:
        queue.close()
    assert is_right(caught.value)
    buffer.release()
    queue.close()


def test_a_buffer_in_hand_outlives_its_queue() -> None:
    queue = make()
    buffer = queue.allocate()
    queue.close()
    buffer.write(b"text")

    assert buffer.read(4) == b"text"
    buffer.release()


def test_the_close_wakes_who_waits() -> None:
    queue = make()
    with pytest.raises(QueueEmptyError):
        queue.get(timeout=0)
    errors: list[BaseException] = []

    def get() -> None:
        try:
            queue.get(timeout=30)
        except CrossmemError as error:
            errors.append(error)

    thread = threading.Thread(target=get)
    thread.start()
    time.sleep(0.05)
    queue.close()
    thread.join(5)

    assert [type(one) for one in errors] == [ClosedError]


def test_a_queue_stays_in_its_process(queue: Queue) -> None:
    with pytest.raises(UnsupportedError) as caught:
        pickle.dumps(queue)

    assert is_right(caught.value)


# Handles and roles ------------------------------------------------------------------------


def test_handles(queue: Queue) -> None:
    roles: tuple[QueueRole, ...] = ("produce", "consume")
    for role in roles:
        handle = queue.export(role=role)
        assert handle.role == role
        assert QueueHandle.from_bytes(handle.to_bytes()) == handle
        assert pickle.loads(pickle.dumps(handle)) == handle  # noqa: S301 - made here
        assert len(handle.to_bytes()) <= 1024
        assert repr(role) in repr(handle)
        with pytest.raises(UnsupportedError) as caught:
            crossmem.open_queue(handle)
        assert is_right(caught.value)
    with pytest.raises(ConfigurationError):
        queue.export(role="watch")  # type: ignore[arg-type]


def test_mutated_handles(queue: Queue) -> None:
    blob = queue.export(role="consume").to_bytes()
    allocation = crossmem.device("host").allocate(64)
    others: list[Any] = [b"", b"x" * 100, blob[:-1], blob + b"x", allocation.export().to_bytes()]
    others += [blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :] for at in range(len(blob))]
    released = memoryview(blob)
    released.release()
    for other in [*others, released, None, "text", 1]:
        with pytest.raises(InvalidHandleError) as caught:
            crossmem.open_queue(other)
        assert is_right(caught.value)
    allocation.free()


def test_revocation(queue: Queue) -> None:
    put(queue, b"x")
    take(queue)
    queue.revoke(os.getpid())
    uses: list[Callable[[], object]] = [queue.allocate, partial(queue.get, timeout=5)]

    for use in uses:
        with pytest.raises(AccessDeniedError) as caught:
            use()
        assert is_right(caught.value)
    for pid in (0, -1, True, "1"):
        with pytest.raises(ConfigurationError):
            queue.revoke(pid)  # type: ignore[arg-type]


def test_waiting_for_others(queue: Queue) -> None:
    queue.wait_for()
    started = time.monotonic()
    for timeout in (0, 0.05):
        with pytest.raises(WaitTimeoutError) as caught:
            queue.wait_for(consumers=1, timeout=timeout)
        assert is_right(caught.value)
    assert 0.05 <= time.monotonic() - started < 5
    with pytest.raises(QueueEmptyError):
        queue.get(timeout=0)
    queue.allocate().release()

    queue.wait_for(consumers=1, producers=1, timeout=0)


def test_stats(queue: Queue) -> None:
    put(queue, b"1")
    stats = queue.stats()
    assert (stats.producers, stats.consumers, stats.put, stats.waiting) == (1, 0, 1, 1)
    take(queue)
    put(queue, b"2")
    stats = queue.stats()

    assert (stats.consumers, stats.put, stats.waiting, stats.lag) == (1, 2, 0, {0: 1})
    assert (stats.dropped, stats.lost, stats.redelivered) == (0, 0, 0)
    take(queue)


# Threads, select, asyncio -----------------------------------------------------------------


def test_many_threads_of_both_sides() -> None:
    with make(prefetch=8) as queue:
        with pytest.raises(QueueEmptyError):
            queue.get(timeout=0)
        found: list[bytes] = []

        def produce(name: int) -> None:
            for number in range(200):
                buffer = queue.allocate(timeout=30)
                buffer.user_data = b"%d:%d" % (name, number)
                queue.put(buffer)

        def consume() -> None:
            for buffer in queue:
                found.append(buffer.user_data)
                buffer.release()

        producers = [threading.Thread(target=produce, args=(one,)) for one in range(3)]
        consumers = [threading.Thread(target=consume) for _ in range(3)]
        for thread in [*producers, *consumers]:
            thread.start()
        for thread in producers:
            thread.join(30)
        queue.finish()
        for thread in consumers:
            thread.join(30)

        assert sorted(found) == sorted(b"%d:%d" % (a, b) for a in range(3) for b in range(200))


def test_sleepers_are_woken_and_not_by_their_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossmem.sharing.queues.place.LOOK_S", 60.0)
    with make() as queue:
        with pytest.raises(QueueEmptyError):
            queue.get(timeout=0)
        found: list[bytes] = []
        threads = [threading.Thread(target=lambda: found.append(take(queue, 30))) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        started = time.monotonic()
        for number in range(3):
            put(queue, b"%d" % number)
        for thread in threads:
            thread.join(10)

        assert sorted(found) == [b"0", b"1", b"2"]
        assert time.monotonic() - started < 10


def test_a_full_queue_wakes_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossmem.sharing.queues.place.LOOK_S", 60.0)
    with make() as queue:
        for _ in range(DEPTH):
            put(queue, b"x")
        timer = threading.Timer(0.05, take, (queue,))
        timer.start()
        started = time.monotonic()
        queue.allocate(timeout=30).release()
        timer.join()

        assert time.monotonic() - started < 10


def test_select(queue: Queue) -> None:
    number = queue.fileno()
    with pytest.raises(QueueEmptyError):
        queue.get(timeout=0)
    assert select.select([number], [], [], 0)[0] == []
    put(queue, b"x")
    assert select.select([number], [], [], 5)[0] == [number]
    assert take(queue) == b"x"
    with pytest.raises(QueueEmptyError):
        queue.get(timeout=0)

    assert select.select([number], [], [], 0)[0] == []


def test_asyncio() -> None:
    async def produce(queue: Queue) -> None:
        for number in range(50):
            await queue.put_async(b"%d" % number, copy="allow")
        queue.finish()

    async def consume(queue: Queue, found: list[bytes]) -> None:
        async for buffer in queue:
            found.append(buffer.read(buffer.data_length))
            buffer.release()
            await asyncio.sleep(0)

    async def both() -> list[bytes]:
        found: list[bytes] = []
        with make() as queue:
            await asyncio.wait_for(
                asyncio.gather(produce(queue), consume(queue, found), consume(queue, found)), 30
            )
        return found

    assert sorted(asyncio.run(both()), key=int) == [b"%d" % number for number in range(50)]


def test_an_async_get_can_be_cancelled(queue: Queue) -> None:
    async def get() -> SharedBuffer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get_async(), 0.05)
        put(queue, b"x")
        return await asyncio.wait_for(queue.get_async(), 5)

    buffer = asyncio.run(get())

    assert buffer.read(1) == b"x"
    buffer.release()


def test_a_handle_of_a_closed_queue_is_stale() -> None:
    queue = make()
    blob = queue.export(role="consume").to_bytes()
    queue.close()

    with pytest.raises((StaleHandleError, UnsupportedError)):
        crossmem.open_queue(blob)
