# SPDX-License-Identifier: Apache-2.0
"""Locks have one order, and the locks of test runs assert it."""

import ast
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem import forks, locks
from crossmem.locks import DebugLock, LockOrderError, Rank, forbidden_ranks
from crossmem.models import Event, EventKind
from crossmem.plugin import Registry
from crossmem.settings import Settings
from crossmem.sharing.base import process
from crossmem.sharing.base.process import current

CORE = Path(crossmem.__file__).parent
MAKERS = re.compile(r"ordered_lock|(threading\.|_thread\.)?(R?Lock|Event|Semaphore|allocate_lock)")
PRIVATE = re.compile(r"\._is_owned\b")


def calls_in(path: Path) -> Iterator[str]:
    """Yield the name of each function that a module calls."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_few_places_create_locks() -> None:
    # A Condition around a lock asks who holds it. Event is crossmem's own, and no lock. The fence
    # of shared words takes a lock that no other thread ever sees.
    made = [
        f"{path.relative_to(CORE)}: {name}"
        for package in ("control", "sharing")
        for path in sorted((CORE / package).rglob("*.py"))
        for name in calls_in(path)
        if MAKERS.fullmatch(name) and name != "Event" and path.name != "words.py"
    ]

    assert 0 < len(made) <= 19, made


def test_nothing_asks_a_lock_for_its_owner_in_private() -> None:
    found = [str(path) for path in CORE.rglob("*.py") if PRIVATE.search(path.read_text("utf-8"))]

    assert found == []


def test_test_runs_assert_the_order() -> None:
    assert locks.CHECKED
    assert isinstance(locks.ordered_lock(Rank.STATE), DebugLock)


def test_locks_are_taken_in_order() -> None:
    first, second = DebugLock(Rank.IMPORT), DebugLock(Rank.STATE)
    with first, second, second:
        pass
    with second, pytest.raises(LockOrderError, match="holds STATE takes IMPORT"):
        first.acquire()

    # The attempt left nothing behind.
    with first, second:
        pass


def test_several_of_one_rank_are_no_disorder() -> None:
    # A timeline's lock is taken before the lock of its memory.
    with DebugLock(Rank.ALLOCATION), DebugLock(Rank.ALLOCATION):
        pass


def test_a_lock_that_is_not_waited_for_may_be_taken_in_any_order() -> None:
    first, second = DebugLock(Rank.IMPORT), DebugLock(Rank.STATE)
    with second:
        assert first.acquire(blocking=False)
        first.release()


def test_a_thread_knows_its_own_locks_alone() -> None:
    lock, lower = DebugLock(Rank.STATE), DebugLock(Rank.PROCESS)
    taken: list[bool] = []

    def take() -> None:
        with lower:
            taken.append(lock.acquire(timeout=0.01))

    with lock:
        other = threading.Thread(target=take)
        other.start()
        other.join()
    assert taken == [False]


def test_drivers_run_under_locks_of_one_resource_alone() -> None:
    with DebugLock(Rank.IMPORT), DebugLock(Rank.ALLOCATION), DebugLock(Rank.FOREIGN):
        assert forbidden_ranks() == ()
        with DebugLock(Rank.LEASES):
            assert forbidden_ranks() == ("LEASES",)
    assert forbidden_ranks() == ()


def test_whether_this_thread_is_inside() -> None:
    process = current()
    assert not process.is_inside
    with process.state:
        assert process.is_inside
        answers: list[bool] = []
        other = threading.Thread(target=lambda: answers.append(process.is_inside))
        other.start()
        other.join()
        assert answers == [False]
    assert not process.is_inside
    server = process.start_server()
    with server.leases.lock:
        assert process.is_inside
    assert not process.is_inside


def test_observers_are_told_without_a_lock() -> None:
    registry = Registry(Settings())
    event = Event(EventKind.RELEASED)
    with DebugLock(Rank.STATE), pytest.raises(LockOrderError, match="STATE"):
        registry.emit(event)


@pytest.mark.parametrize("held", range(6))
def test_a_fork_that_a_signal_handler_interrupts_leaves_no_lock_held(held: int) -> None:
    locks = locks_of_a_fork()
    # What the hook that runs before a fork had taken when a handler raised.
    for lock in locks[:held]:
        lock.acquire()
    if held:
        forks._held[threading.get_ident()] = locks[:held]

    next(forks._releases)

    assert all(in_another_thread(partial(takes, locks)))


def test_two_threads_that_fork_at_once_leave_no_lock_held() -> None:
    locks = locks_of_a_fork()
    turns = [threading.Event(), threading.Event()]

    def fork() -> None:
        turns[0].set()
        forks._before_fork()
        turns[1].set()
        next(forks._releases)

    forks._before_fork()
    other = threading.Thread(target=fork)
    other.start()
    assert turns[0].wait(5)
    assert not turns[1].wait(0.1)
    next(forks._releases)
    other.join(5)

    assert turns[1].is_set()
    assert all(in_another_thread(partial(takes, locks)))


def locks_of_a_fork() -> list[Any]:
    state = current()
    state.start_server()
    return [forks.PLUGINS, forks.MODULES, process._lock, *state.held_for_fork]


def takes(locks: list[Any]) -> list[bool]:
    answers = []
    for lock in locks:
        answers.append(lock.acquire(timeout=1))
        if answers[-1]:
            lock.release()
    return answers


def in_another_thread(function: Callable[[], list[bool]]) -> list[bool]:
    answers: list[bool] = []
    other = threading.Thread(target=lambda: answers.extend(function()))
    other.start()
    other.join()
    return answers
