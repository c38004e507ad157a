# SPDX-License-Identifier: Apache-2.0
"""Versions of trees within one process: their memory, and threads that close them."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import crossmem
from crossmem import ClosedError, ConfigurationError, Shared, UnsupportedError, WaitTimeoutError
from crossmem.conformance.speed import SLOWNESS
from crossmem.sharing.base.process import drain

ONLY = crossmem.Allow(pids=(os.getpid(),))


def exported() -> set[Any]:
    crossmem.collect()
    return {one.handle for one in crossmem.exports()}


@pytest.fixture(autouse=True)
def page() -> Iterator[None]:
    """Have the page that stays, so that a test that leaves another one fails."""
    with crossmem.share(None):
        before = len(exported())
    yield

    # A full page for all is replaced by another one.
    assert len(exported()) == before


def test_versions_of_trees_for_few_leave_no_memory() -> None:
    before = exported()
    for pid in range(2, 12):
        crossmem.share(None, allow=crossmem.Allow(pids=(pid,))).close()
    first, second = crossmem.share(None, allow=ONLY), crossmem.share(None, allow=ONLY)
    first.close()
    assert len(exported()) == len(before) + 1

    assert second.publish() == 1
    second.close()

    assert exported() == before


def test_a_dropped_tree_for_few_leaves_no_memory() -> None:
    before = exported()
    shared = crossmem.share(None, allow=ONLY)
    assert exported() != before

    del shared

    assert exported() == before


def test_a_tree_for_few_that_was_closed_says_so() -> None:
    with crossmem.share(None, allow=ONLY) as shared:
        reader, late = (Shared.from_bytes(shared.to_bytes()) for _ in range(2))
        assert reader.version == 0
    for one in (reader, late):
        with pytest.raises(ClosedError, match="closed it"):
            assert one.version
    reader.close()
    del reader, one


def test_a_version_grows_and_readers_acknowledge_it() -> None:
    with crossmem.share([1]) as mine, Shared.from_bytes(mine.to_bytes()) as other:
        other.done(0)
        assert mine.publish() == other.wait(0, timeout=0) == 1
        with pytest.raises(crossmem.WaitTimeoutError, match="0 of 1 readers"):
            mine.wait_for_readers(1, timeout=0)

        other.done(1)

        assert mine.wait_for_readers(1, timeout=0) == 1
        with pytest.raises(UnsupportedError, match="only the process that shares"):
            other.publish()
        with pytest.raises(UnsupportedError, match="only the process that shares"):
            other.wait_for_readers(1)
        with pytest.raises(UnsupportedError, match="shares this tree cannot acknowledge"):
            mine.done(1)


@pytest.mark.parametrize("after", [-1, True, "1", 1.0, None, 2**63 - 2])
def test_only_versions_are_waited_for(after: Any) -> None:
    with (
        crossmem.share(None) as mine,
        pytest.raises(crossmem.ConfigurationError, match="after must be a version"),
    ):
        mine.wait(after, timeout=0)


def test_a_tree_in_host_memory_has_no_streams() -> None:
    with crossmem.share(None) as mine:
        with pytest.raises(UnsupportedError, match="no streams"):
            mine.publish(stream=0)

        assert mine.version == 0
        mine.publish()
        # The version is there already, but a device without streams refuses all the same.
        with pytest.raises(UnsupportedError, match="no streams"):
            mine.wait(0, stream=0)


def test_closing_waits_for_no_thread_that_waits_for_what_this_one_has() -> None:
    shared, process, closed = crossmem.share(None), drain(), threading.Event()
    assert process.server is not None

    def close() -> None:
        # As a finaliser does, which the garbage collector runs in any thread.
        with process.server.leases.lock:  # type: ignore[union-attr]
            shared.close()
        closed.set()

    closing = threading.Thread(target=close)
    # As a fork does, before it waits for the server's.
    with process.lock:
        closing.start()
        has_closed = closed.wait(5)
    closing.join()

    assert has_closed
    with pytest.raises(ClosedError):
        assert shared.version


def test_closing_ends_what_waits_for_a_version() -> None:
    mine, errors = crossmem.share(None), []
    other = crossmem.Shared.from_bytes(mine.to_bytes())
    assert other.version == 0

    def wait() -> None:
        try:
            other.wait(0, timeout=60 * SLOWNESS)
        except crossmem.CrossmemError as error:
            errors.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    other.close()
    waiting.join(10)

    assert errors == [ClosedError]
    mine.close()


def test_closing_ends_a_wait_for_readers_and_names_the_tree() -> None:
    mine, errors = crossmem.share(None), []

    def wait() -> None:
        try:
            mine.wait_for_readers(0, readers=1, timeout=60 * SLOWNESS)
        except crossmem.CrossmemError as error:
            errors.append((type(error), "Shared tree" in str(error)))

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    mine.close()
    waiting.join(10)

    assert errors == [(ClosedError, True)]


def test_closing_waits_for_no_thread_that_asks_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, errors = crossmem.share(None), []
    other = crossmem.Shared.from_bytes(mine.to_bytes())
    asking, answered = threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> crossmem.Timeline:
        asking.set()
        assert answered.wait(10)
        return crossmem.open_timeline(*arguments, **options)

    def look() -> None:
        try:
            other.wait(0, timeout=10 * SLOWNESS)
        except crossmem.CrossmemError as error:
            errors.append(type(error))

    monkeypatch.setattr("crossmem.trees.publishing.open_timeline", slow)
    looking = threading.Thread(target=look)
    looking.start()
    assert asking.wait(10)
    other.close()
    answered.set()
    looking.join()

    assert errors == [ClosedError]
    mine.close()


def test_a_version_of_an_earlier_tree_is_not_acknowledged() -> None:
    """It would acknowledge all versions of the new tree in advance."""
    with crossmem.share(crossmem.empty(4, "uint8", device="host")) as shared:
        reader = Shared.from_bytes(shared.to_bytes())
        reader.done(0)
        with pytest.raises(ConfigurationError, match=r"version 57 .*: the newest version is 0"):
            reader.done(57)
        with pytest.raises(WaitTimeoutError, match=r"after 57 .*; the newest version is 0"):
            reader.wait(57, timeout=0)
        version = shared.publish()

        with pytest.raises(
            WaitTimeoutError, match=rf"0 of 1 .*; the pids of the late readers are {os.getpid()}"
        ):
            shared.wait_for_readers(version, timeout=0)
        reader.done(reader.wait(0))
        assert shared.wait_for_readers(version, timeout=0) == 1
        with pytest.raises(WaitTimeoutError, match=r"1 of 2 .*; the number of readers is 1"):
            shared.wait_for_readers(version, readers=2, timeout=0)
