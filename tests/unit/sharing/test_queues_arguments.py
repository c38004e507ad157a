# SPDX-License-Identifier: Apache-2.0
"""What callers of queues get wrong: the errors, their hints, and that nothing is lost."""

import asyncio
import errno
import os
from typing import Any

import pytest
from busy_streams import Streams
from small_queues import DEPTH, is_right, make, put, take

import crossmem
from crossmem import (
    ConfigurationError,
    DriverError,
    InvalidHandleError,
    InvalidSizeError,
    Queue,
    QueueEmptyError,
    QueueFullError,
    WaitTimeoutError,
)
from crossmem.sharing.queues.record import QueueRecord

pytestmark = pytest.mark.usefixtures("no_queue_left")
NO_STREAM = 12345


@pytest.mark.parametrize("is_put", [True, False])
def test_a_stream_that_does_not_exist_loses_no_buffer(streams: Streams, is_put: bool) -> None:
    with streams.device.queue(1, 64, consumers=1) as queue:
        for _ in range(2):
            buffer = queue.allocate()
            if is_put:
                queue.put(buffer)
                buffer = queue.get(timeout=5)
            with pytest.raises(DriverError) as caught:
                buffer.release(stream=NO_STREAM)
            assert "stream= is not a living stream of this device" in (caught.value.hint or "")
        queue.allocate().release()


@pytest.mark.parametrize("overflow", ["raise", "drop"])
def test_a_full_queue_that_does_not_wait_refuses_an_async_put(overflow: Any) -> None:
    async def fill(queue: Queue) -> None:
        for _ in range(DEPTH):
            await queue.put_async(b"x", copy="allow")
        held = [queue.get(timeout=5) for _ in range(DEPTH)]
        with pytest.raises(QueueFullError, match="all 4 buffers are in use") as caught:
            await asyncio.wait_for(queue.put_async(b"x", copy="allow"), 10)
        assert is_right(caught.value)
        assert "overflow='wait'" in (caught.value.hint or "")
        for buffer in held:
            buffer.release()

    with make(overflow=overflow, consumers=1) as queue:
        asyncio.run(fill(queue))


def test_an_async_put_has_no_timeout(queue: Queue) -> None:
    untyped: Any = queue
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        untyped.put_async(b"x", copy="allow", timeout=1)


@pytest.mark.parametrize("name", ["producers", "consumers"])
@pytest.mark.parametrize("number", ["1", None, -1, 1.0, True, 256])
def test_numbers_to_wait_for_are_checked(queue: Queue, name: str, number: Any) -> None:
    with pytest.raises(InvalidSizeError) as caught:
        queue.wait_for(**{name: number}, timeout=0)
    assert is_right(caught.value)


def test_a_producer_that_has_closed_does_not_count(queue: Queue) -> None:
    with pytest.raises(WaitTimeoutError, match="only 0 producers"):
        queue.wait_for(producers=1, timeout=0)


def test_a_consumer_that_holds_all_it_may_is_told() -> None:
    with make(prefetch=1) as queue:
        put(queue, b"1")
        put(queue, b"2")
        with queue.get(timeout=5), pytest.raises(QueueEmptyError) as caught:
            queue.get(timeout=0)
        assert "release one of the 1 buffers" in (caught.value.hint or "")
        assert take(queue) == b"2"


def test_numbers_of_numpy_are_accepted() -> None:
    numpy = pytest.importorskip("numpy")
    with crossmem.device("host").queue(numpy.int64(2), numpy.int64(64)) as queue:
        buffer = queue.allocate(timeout=numpy.float32(0.5))
        buffer.data_length = numpy.int64(3)
        queue.put(buffer)
        (found,) = queue.get_many(numpy.int64(2), timeout=numpy.int64(5))
        assert (found.data_length, type(found.data_length)) == (3, int)
        found.release()
        for wrong in (numpy.float64(1), numpy.array([1]), numpy.bool_(True)):
            with pytest.raises(InvalidSizeError):
                queue.get_many(wrong)
    with crossmem.device("host").timeline() as timeline:
        timeline.signal(numpy.int64(2))
        assert timeline.wait(numpy.int64(2), timeout=numpy.float64(5)) == 2


def test_a_time_limit_can_be_larger_than_any_float(queue: Queue) -> None:
    put(queue, b"1")
    with queue.get(timeout=10**400) as buffer:
        assert buffer.read(1) == b"1"


def test_the_lag_counts_what_a_consumer_will_get() -> None:
    with make(prefetch=1, consumers=2) as queue:
        record = queue._record
        assert record is not None
        other = Queue(QueueRecord(record.opened, {"consume": record.mine["consume"]}))
        for one in (queue, other):
            with pytest.raises(QueueEmptyError):
                one.get(timeout=0)
        for number in range(4):
            put(queue, b"%d" % number)

        stats = queue.stats()
        assert (stats.lag, stats.waiting) == ({0: 1, 1: 1}, 2)
        assert sorted(take(one) for one in (queue, other, queue, other)) == [b"0", b"1", b"2", b"3"]
        assert queue.stats().lag == {0: 0, 1: 0}
        other.close()


def test_handles_of_queues_and_timelines_are_no_handles_of_memory(queue: Queue) -> None:
    handle = queue.export(role="consume")
    with crossmem.device("host").timeline() as timeline:
        wrong: tuple[Any, ...] = (
            *(handle, handle.to_bytes()),
            *(timeline.export(), timeline.export().to_bytes()),
        )
        for one in wrong:
            with pytest.raises(InvalidHandleError) as caught:
                crossmem.attach(one)
            assert is_right(caught.value)
            assert "crossmem.open_queue()" in (caught.value.hint or "")


def test_a_wrong_word_for_copy_is_named(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="'Allow'"):
        queue.put(b"x", copy="Allow")


def test_a_process_without_descriptors_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    device = crossmem.device("host")
    with monkeypatch.context() as patch:
        patch.setattr(os, "eventfd", refuse)
        with pytest.raises(crossmem.DriverError, match="no descriptor left") as caught:
            device.queue(2, 64)
    assert (caught.value.call, caught.value.name) == ("eventfd", "EMFILE")

    with device.queue(2, 64) as queue, monkeypatch.context() as patch:
        queue.fileno()
        patch.setattr(os, "dup", refuse)
        with pytest.raises(crossmem.DriverError, match="no descriptor left"):
            asyncio.run(queue.get_async())
