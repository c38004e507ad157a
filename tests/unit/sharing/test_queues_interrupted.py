# SPDX-License-Identifier: Apache-2.0
"""Exceptions of signal handlers inside the calls of a queue's consumer lose no buffer."""

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crossmem
from crossmem.control import words
from crossmem.sharing.queues.consumer import Consumer
from crossmem.sharing.queues.layout import ROUND
from crossmem.sharing.queues.producer import Producer

NBYTES = 64


class Alarm(Exception):  # noqa: N818 - no failure
    """A signal handler raised it."""


def raise_alarm(*_: object) -> None:
    raise Alarm


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Return a function that sends this process a signal whose handler raises."""
    before = signal.signal(signal.SIGALRM, raise_alarm)
    yield lambda: os.kill(os.getpid(), signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def queue() -> Iterator[crossmem.Queue]:
    with crossmem.device("host").queue(8, NBYTES, consumers=1, redeliver=True) as found:
        yield found


def put(queue: crossmem.Queue, numbers: range) -> None:
    for number in numbers:
        queue.put(b"%d" % number, copy="allow", timeout=None)


def taken(buffer: Any) -> int:
    number = int(buffer.read(buffer.data_length))
    buffer.release()
    return number


@pytest.fixture
def at_the_third_look(
    monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None]
) -> Callable[[], None]:
    """Return a function that lets the third look from now on be interrupted at its end."""

    def begin() -> None:
        look, numbers = Consumer.look, itertools.count(1)

        def interrupted(self: Consumer) -> Any:
            found = look(self)
            if next(numbers) == 3:
                # As look() does if it is interrupted itself.
                self.keep(found)
                interrupt()
            return found

        monkeypatch.setattr(Consumer, "look", interrupted)

    return begin


def test_get_many_keeps_what_it_has(
    queue: crossmem.Queue, at_the_third_look: Callable[[], None]
) -> None:
    put(queue, range(6))
    at_the_third_look()

    with pytest.raises(Alarm):
        queue.get_many(5)

    assert [taken(one) for one in queue.get_many(6)] == list(range(6))


def test_a_queue_with_kept_buffers_can_be_closed(
    queue: crossmem.Queue, at_the_third_look: Callable[[], None], recwarn: pytest.WarningsRecorder
) -> None:
    put(queue, range(6))
    at_the_third_look()
    with pytest.raises(Alarm):
        queue.get_many(5)

    queue.close()

    assert [str(one.message) for one in recwarn] == []


def test_a_waiting_task_keeps_its_buffer(
    queue: crossmem.Queue, interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def receive() -> Any:
        close, fileno = os.close, queue.fileno()

        def interrupted(number: int) -> None:
            close(number)
            if number != fileno:
                interrupt()

        with monkeypatch.context() as patch:
            patch.setattr("crossmem.sharing.queues.waiting.os.close", interrupted)
            # Only a task that waits has a descriptor of its own.
            asyncio.get_running_loop().call_later(0.05, put, queue, range(1))
            await queue.get_async()

    with pytest.raises(Alarm):
        asyncio.run(receive())

    assert taken(queue.get(timeout=0)) == 0


def test_an_interrupted_round_of_the_owner_ends(
    queue: crossmem.Queue, interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that joins waits until no round runs."""
    store, control = words.store, queue._usable().opened.control

    def interrupted(segment: Any, index: int, value: int) -> None:
        store(segment, index, value)
        if segment is control and index == ROUND and value:
            interrupt()

    monkeypatch.setattr(words, "store", interrupted)
    with pytest.raises(Alarm):
        queue.stats()

    assert words.load(control, ROUND) == 0


def test_a_round_that_is_interrupted_at_its_fence_ends(
    queue: crossmem.Queue, interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, on a processor that may reorder stores."""
    control = queue._usable().opened.control
    with monkeypatch.context() as patch:
        patch.setattr("crossmem.sharing.queues.owner.IS_ORDERED", False)
        patch.setattr(words, "release", interrupt)
        with pytest.raises(Alarm):
            queue.stats()

    assert words.load(control, ROUND) == 0
    queue.stats()
    assert words.load(control, ROUND) == 0


@pytest.mark.parametrize("role", [Producer, Consumer])
def test_a_handler_cannot_join_while_its_thread_joins(
    role: type[Producer | Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with crossmem.device("host").queue(8, NBYTES, consumers=2, producers=2) as queue:

        def use() -> Any:
            return queue.allocate() if role is Producer else queue.get(timeout=5)

        if role is Consumer:
            put(queue, range(1))
        join = role.join

        def join_and_handle(self: Any, timeout_s: float) -> None:
            join(self, timeout_s)
            with pytest.raises(crossmem.BusyError, match="signal handler"):
                use()

        monkeypatch.setattr(role, "join", join_and_handle)
        use().release()
        stats = queue.stats()
        assert (stats.producers, stats.consumers) == (1, int(role is Consumer))
