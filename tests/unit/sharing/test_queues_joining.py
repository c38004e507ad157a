# SPDX-License-Identifier: Apache-2.0
"""A process joins a queue while its owner is busy with other rounds."""

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from typing_extensions import override

import crossmem
from crossmem import AccessDeniedError, ClosedError, QueueEmptyError
from crossmem.conformance.speed import SLOWNESS
from crossmem.control import words
from crossmem.sharing.queues import joining, place, record
from crossmem.sharing.queues.consumer import QueueEndedError
from crossmem.sharing.queues.layout import ROUND
from crossmem.sharing.queues.owner import QueueOwner
from crossmem.sharing.queues.record import QueueRecord

NBYTES = 64


def test_a_round_that_hides_an_open_session_is_not_slept_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner wakes a process that joins, and begins a round before that process looks."""
    wake_all = QueueOwner._wake_all

    def wake_in_next_round(owner: QueueOwner) -> None:
        words.store(owner._control, ROUND, 1)
        wake_all(owner)
        time.sleep(0.1)
        words.store(owner._control, ROUND, 0)

    monkeypatch.setattr(QueueOwner, "_wake_all", wake_in_next_round)
    monkeypatch.setattr(place, "LOOK_S", 1e5)
    monkeypatch.setattr(place, "_SPIN_S", 0.0)
    with crossmem.device("host").queue(2, NBYTES) as queue:
        start = time.monotonic()
        with pytest.raises(QueueEmptyError):
            queue.get(timeout=0)

        # Without a second look, the whole timeout of the join passes.
        assert time.monotonic() - start < 10


def test_a_role_that_is_revoked_during_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has ended before the process that asked for it has seen it."""
    with crossmem.device("host").queue(2, NBYTES) as queue:

        def revoke_and_look(control: memoryview, at: int, wish: int, *rest: Any) -> bool | None:
            if words.load(control, at) == wish:
                queue.revoke(os.getpid())
            return joining.is_open(control, at, wish, *rest)

        monkeypatch.setattr(place, "is_open", revoke_and_look)
        start = time.monotonic()
        with pytest.raises(AccessDeniedError):
            queue.get(timeout=0)

        assert time.monotonic() - start < 10


def test_a_join_that_is_interrupted_is_no_producer_that_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner has opened the session, and the process never allocates."""
    with crossmem.device("host").queue(2, NBYTES, producers=1) as queue:

        def interrupted(control: memoryview, at: int, wish: int, *rest: Any) -> bool | None:
            if joining.is_open(control, at, wish, *rest):
                raise KeyboardInterrupt
            return None

        monkeypatch.setattr(place, "is_open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.allocate()
        monkeypatch.undo()

        # Without the difference, the queue would have ended, because its one producer has left.
        queue.allocate().release()
        queue.finish()
        with pytest.raises(QueueEndedError):
            queue.get(timeout=5)


class Interrupting(dict[Any, Any]):
    """Stores a default, and is interrupted at the end of the first call."""

    is_interrupted = False

    @override
    def setdefault(self, key: Any, default: Any = None, /) -> Any:
        found = super().setdefault(key, default)
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return found


def test_an_interrupted_join_blocks_no_other_thread(threads: ThreadPoolExecutor) -> None:
    with crossmem.device("host").queue(2, NBYTES) as queue:
        of_queue = queue._record
        assert of_queue is not None
        of_queue._joining = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            queue.allocate()

        threads.submit(queue.allocate).result(20 * SLOWNESS).release()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_an_interrupted_close_is_completed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler raises before all steps of the release are known."""
    queue = crossmem.device("host").queue(2, NBYTES)
    queue.allocate().release()
    of_queue = queue._record
    assert of_queue is not None
    consume = QueueRecord(of_queue.opened, {"consume": of_queue.mine["consume"]})
    opened = crossmem.Queue(consume)
    with pytest.raises(QueueEmptyError):
        opened.get(timeout=0)
    calls = itertools.count(1)

    class Steps(ExitStack):
        @override
        def callback(self, call: Any, /, *arguments: Any, **options: Any) -> Any:
            if next(calls) == number:
                raise KeyboardInterrupt
            return super().callback(call, *arguments, **options)

    monkeypatch.setattr(record, "ExitStack", Steps)
    with pytest.raises(KeyboardInterrupt):
        queue.close()
    crossmem.collect()

    assert queue.closed
    with opened, pytest.raises(ClosedError):
        opened.get(timeout=20 * SLOWNESS)
