# SPDX-License-Identifier: Apache-2.0
"""Queues in one process: ends, handles, roles, numbers, threads, select and asyncio."""

import asyncio
import os
import pickle
import select
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from small_queues import DEPTH, is_right, make, put, take

import crossmem
from crossmem import (
    AccessDeniedError,
    BusyError,
    ClosedError,
    ConfigurationError,
    CrossmemError,
    InvalidHandleError,
    Queue,
    QueueEmptyError,
    QueueHandle,
    SharedBuffer,
    StaleHandleError,
    UnsupportedError,
    WaitTimeoutError,
)
from crossmem.conformance.pool import settle
from crossmem.models.queue_handle import QueueRole

pytestmark = pytest.mark.usefixtures("no_queue_left")


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


def test_a_session_that_ends_during_the_wait_of_a_release(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(queue, b"x")
    buffer = queue.get(timeout=5)
    session: Any = queue._record
    consumer, record, waits = session.consumer, buffer._record, []
    assert record is not None
    at = consumer.opened.terms.released(record.producer, record.buffer)

    def wait(_stream: int | None) -> None:
        waits.append(1)
        queue.revoke(os.getpid())

    monkeypatch.setattr(consumer, "finish_work", wait)
    consumer.take_back(record, None)

    # Another session may have the entry by now.
    assert waits == [1]
    assert consumer.words[at] != record.stamp
    assert record not in consumer.held
    buffer.release()


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


def test_a_later_process_with_the_pid_of_a_revoked_one_may_join(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("crossmem.sharing.queues.owner.process_start_time", lambda _pid: 1)
        queue.revoke(os.getpid())
    put(queue, b"x")
    take(queue)


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

    def left() -> list[int]:
        with pytest.raises(QueueEmptyError):
            queue.get(timeout=0)
        return select.select([number], [], [], 0)[0]

    # The owner's thread may still wake this process because of the new session.
    assert settle(left) == []


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
