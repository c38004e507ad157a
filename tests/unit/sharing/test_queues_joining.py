# SPDX-License-Identifier: Apache-2.0
"""A process joins a queue while its owner is busy with other rounds."""

import os
import time
from typing import Any

import pytest

import crossmem
from crossmem import AccessDeniedError, QueueEmptyError
from crossmem.control import words
from crossmem.sharing.queues import joining, place
from crossmem.sharing.queues.consumer import QueueEndedError
from crossmem.sharing.queues.layout import ROUND
from crossmem.sharing.queues.owner import QueueOwner

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
