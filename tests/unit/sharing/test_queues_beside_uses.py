# SPDX-License-Identifier: Apache-2.0
"""A queue is closed or finished in one thread while another thread is inside a call."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from halts import DEADLINE_S, Halt, inside

import crossmem
from crossmem import BusyError, ClosedError, Queue
from crossmem.models.queue_handle import QueueRole
from crossmem.sharing.queues import waiting
from crossmem.sharing.queues.place import Place
from crossmem.sharing.queues.producer import Producer
from crossmem.sharing.queues.record import QueueRecord

NBYTES = 64


pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(params=["host:0", "emulated:0"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    with crossmem.device(request.param).queue(4, NBYTES, producers=2, consumers=2) as made:
        yield made


def record_of(queue: Queue) -> QueueRecord:
    assert queue._record is not None
    return queue._record


def opened(queue: Queue, role: QueueRole) -> Queue:
    """Return another object of the queue, as another process opens it."""
    record = record_of(queue)
    return Queue(QueueRecord(record.opened, {role: record.mine[role]}))


def put(queue: Queue, data: bytes) -> None:
    queue.put(data, copy=True)


def take(queue: Queue) -> bytes:
    with queue.get(timeout=DEADLINE_S) as buffer:
        return buffer.read(buffer.data_length)


# close() ----------------------------------------------------------------------------------


def test_a_get_that_waits_during_the_close_receives_nothing(
    queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, halt = opened(queue, "consume"), Halt()
    consumer = one._consumer()
    # A first use would continue with deferred work, and so with the close.
    queue._producer()
    waiter = threads.submit(one.get, timeout=10 * DEADLINE_S)
    while not consumer.sleepers:
        pass
    monkeypatch.setattr(QueueRecord, "give_back", halt.before(QueueRecord.give_back))
    with inside(threads, halt, one.close) as closer:
        # The place still has a session, so the entry is given to it.
        put(queue, b"entry")

        with pytest.raises(ClosedError):
            waiter.result(DEADLINE_S)
    closer.result(DEADLINE_S)
    assert take(queue) == b"entry"


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_buffer_that_arrives_after_the_check_prevents_the_close(
    queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    consumer, found = queue._consumer(), []
    put(queue, b"entry")
    if is_kept:
        # As after a get that a signal handler has interrupted.
        consumer.keep(consumer.look())
    check = Queue._refuse_if_used

    def receive_then(self: Queue, operation: str) -> None:
        check(self, operation)
        found.append(threads.submit(consumer.look).result(DEADLINE_S))

    monkeypatch.setattr(Queue, "_refuse_if_used", receive_then)
    with pytest.raises(BusyError):
        queue.close()
    monkeypatch.undo()

    assert found[0] is not None
    assert found[0].read(5) == b"entry"
    found[0].release()
    put(queue, b"more")
    assert take(queue) == b"more"


def test_a_kept_buffer_does_not_prevent_the_close(queue: Queue) -> None:
    one = opened(queue, "consume")
    consumer = one._consumer()
    put(queue, b"entry")
    found = consumer.look()
    assert found is not None
    consumer.keep(found)
    del found

    one.close()

    assert consumer.look() is None


def test_the_check_alone_leaves_the_queue_open(queue: Queue) -> None:
    queue._consumer()

    assert not queue._is_used()

    put(queue, b"entry")
    assert take(queue) == b"entry"


@pytest.mark.parametrize("when", ["check", "join"])
@pytest.mark.parametrize("call", ["put", "get", "allocate"])
def test_a_first_use_beside_the_close_takes_no_place(
    call: str,
    when: str,
    queue: Queue,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, halt = opened(queue, "consume" if call == "get" else "produce"), Halt()
    if when == "check":
        monkeypatch.setattr(Queue, "_usable", halt.after(Queue._usable))
    else:
        monkeypatch.setattr(Place, "join", halt.before(Place.join))
    calls: dict[str, Any] = {
        "put": lambda: put(one, b"entry"),
        "get": lambda: one.get(timeout=0),
        "allocate": one.allocate,
    }
    with inside(threads, halt, calls[call]) as caller:
        one.close()

    with pytest.raises(ClosedError):
        caller.result(DEADLINE_S)
    stats = queue.stats()
    assert (stats.producers, stats.consumers) == (0, 0)
    # Both places are free.
    others = [opened(queue, "consume" if call == "get" else "produce") for _ in range(2)]
    for other in others:
        if call == "get":
            other._consumer()
        else:
            other._producer()
    for other in others:
        other.close()


def test_a_first_get_after_the_check_of_the_close(
    queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer joins when the queue object has ended, and its places were not read yet."""
    one, joins, closes = opened(queue, "consume"), Halt(), Halt()
    queue._producer()
    monkeypatch.setattr(Place, "join", joins.after(Place.join))
    with inside(threads, joins, one.get, timeout=0) as caller:
        monkeypatch.setattr(QueueRecord, "give_back", closes.before(QueueRecord.give_back))
        with inside(threads, closes, one.close) as closer:
            put(queue, b"entry")
            joins.left.set()

            with pytest.raises(ClosedError):
                caller.result(DEADLINE_S)
        closer.result(DEADLINE_S)
    assert take(queue) == b"entry"


@pytest.mark.parametrize("call", ["allocate", "get"])
def test_a_close_between_the_check_and_the_hot_path(
    call: str, queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, halt = opened(queue, "consume" if call == "get" else "produce"), Halt()
    with pytest.raises(crossmem.QueueEmptyError) if call == "get" else one.allocate():
        getattr(one, call)(timeout=0).release()
    monkeypatch.setattr(waiting, "may_look", halt.after(waiting.may_look))
    with inside(threads, halt, getattr(one, call), timeout=0.0) as caller:
        one.close()

    if call == "get":
        with pytest.raises(ClosedError):
            caller.result(DEADLINE_S)
    else:
        # A buffer of an ended session can be released, and not put.
        with suppress(ClosedError):
            caller.result(DEADLINE_S).release()


# finish() ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finish", "close"])
def test_a_put_beside_the_end_raises_or_arrives(
    end: str, queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, halt = opened(queue, "produce"), Halt()
    put(one, b"first")
    monkeypatch.setattr(Producer, "put", halt.before(Producer.put))
    with inside(threads, halt, put, one, b"second") as caller:
        getattr(one, end)()

    with pytest.raises(ClosedError):
        caller.result(DEADLINE_S)
    one.close()
    queue.finish()
    assert take(queue) == b"first"
    with pytest.raises(ClosedError):
        take(queue)


def test_a_first_put_beside_finish(
    queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, halt = opened(queue, "produce"), Halt()
    monkeypatch.setattr(Place, "join", halt.before(Place.join))
    with inside(threads, halt, put, one, b"entry") as caller:
        one.finish()

    with pytest.raises(ClosedError, match=r"finish\(\)"):
        caller.result(DEADLINE_S)
    assert queue.stats().producers == 0
    one.close()


# The release of the places ----------------------------------------------------------------


def test_two_threads_leave_a_place_once(
    queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, halt, leave = opened(queue, "consume"), Halt(), Place.leave
    consumer, record = one._consumer(), record_of(one)
    ended: list[Place] = []

    def note_and_leave(self: Place) -> None:
        ended.append(self)
        leave(self)

    monkeypatch.setattr(Place, "leave", note_and_leave)
    monkeypatch.setattr(Place, "leave_pages", halt.before(Place.leave_pages))
    with inside(threads, halt, one.close) as closer:
        crossmem.collect()

        assert not record.is_done
    closer.result(DEADLINE_S)
    assert ended == [consumer]


def test_a_close_waits_for_the_thread_that_leaves_the_places(
    queue: Queue, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, closes, leaves = opened(queue, "consume"), Halt(), Halt()
    one._consumer()
    record = record_of(one)
    monkeypatch.setattr(Queue, "_release", closes.before(Queue._release))
    monkeypatch.setattr(Place, "leave_pages", leaves.before(Place.leave_pages))
    with inside(threads, closes, one.close) as closer:
        with inside(threads, leaves, crossmem.collect) as collector:
            closes.left.set()
            with pytest.raises(TimeoutError):
                closer.result(0.05)
        collector.result(DEADLINE_S)
    closer.result(DEADLINE_S)
    assert record.is_done
    assert record not in one._process.deferred.ready
