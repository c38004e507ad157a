# SPDX-License-Identifier: Apache-2.0
"""Readers of timelines within one process: they acknowledge values, and the signaller waits."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import crossmem
from crossmem import ClosedError, ConfigurationError, Timeline, WaitTimeoutError
from crossmem.conformance.speed import SLOWNESS

NO_VALUES = [-1, 2**63 - 2, 2**63 - 1, 2**64, True, False, "1", 1.0, None, b"1"]


@pytest.fixture
def made() -> Iterator[Timeline]:
    with crossmem.device("host").timeline() as timeline:
        yield timeline


@pytest.fixture
def opened(made: Timeline) -> Iterator[Timeline]:
    with crossmem.open_timeline(made.export()) as timeline:
        yield timeline


@pytest.mark.parametrize("value", NO_VALUES, ids=repr)
def test_values_that_cannot_be_acknowledged(made: Timeline, opened: Timeline, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="value is"):
        opened.done(value)
    with pytest.raises(ConfigurationError, match="value is"):
        made.wait_for_readers(value, timeout=0)


@pytest.mark.parametrize("readers", [-1, True, "1", 1.0, 2**31], ids=repr)
def test_numbers_of_readers_that_are_none(made: Timeline, readers: Any) -> None:
    with pytest.raises(ConfigurationError, match="readers is"):
        made.wait_for_readers(1, readers=readers, timeout=0)


def test_a_reader_is_late_until_it_has_acknowledged(made: Timeline, opened: Timeline) -> None:
    assert made.wait_for_readers(5, timeout=0) == 0
    with pytest.raises(WaitTimeoutError, match="0 of 1 readers have acknowledged value 0"):
        made.wait_for_readers(0, readers=1, timeout=0)

    opened.done(0)
    assert made.wait_for_readers(0, timeout=0) == made.wait_for_readers(0, readers=1) == 1
    with pytest.raises(WaitTimeoutError, match="0 of 1 readers have acknowledged value 1"):
        made.wait_for_readers(1, timeout=0)
    opened.done(3)
    opened.done(2)
    assert made.wait_for_readers(3, timeout=0) == 1
    with pytest.raises(WaitTimeoutError, match="1 of 2 readers have acknowledged value 3"):
        made.wait_for_readers(3, readers=2, timeout=0.01)
    opened.done(2**63 - 3)
    assert made.wait_for_readers(2**63 - 3, timeout=0) == 1

    opened.close()

    assert made.wait_for_readers(4, timeout=0) == 0


def test_objects_of_one_process_acknowledge_together(made: Timeline, opened: Timeline) -> None:
    with crossmem.open_timeline(made.export()) as other:
        opened.done(1)
        other.done(5)
        assert made.wait_for_readers(5, timeout=0) == 1

    # The process is a reader as long as one of them is open.
    assert made.wait_for_readers(5, timeout=0) == 1
    with pytest.raises(WaitTimeoutError, match="0 of 1"):
        made.wait_for_readers(6, timeout=0)
    opened.done(6)
    assert made.wait_for_readers(6, timeout=0) == 1


def page_of(timeline: Timeline) -> int:
    return timeline.export().memory.allocation


def test_timelines_of_one_page_have_readers_of_their_own() -> None:
    with ExitStack() as stack:
        made = [stack.enter_context(crossmem.device("host").timeline()) for _ in range(3)]
        # At most one of them is the first one of a new page.
        first, second = made[:2] if page_of(made[0]) == page_of(made[1]) else made[1:]
        assert page_of(first) == page_of(second)
        one, other = (
            stack.enter_context(crossmem.open_timeline(each.export())) for each in (first, second)
        )
        other.done(9)

        assert first.wait_for_readers(1, timeout=0) == 0
        one.done(1)
        assert second.wait_for_readers(9, timeout=0) == 1
        assert first.wait_for_readers(1, timeout=0) == 1


def test_a_late_reader_ends_the_wait(made: Timeline, opened: Timeline) -> None:
    opened.done(0)
    found: list[int] = []
    waiting = threading.Thread(
        target=lambda: found.append(made.wait_for_readers(2, timeout=20 * SLOWNESS))
    )
    waiting.start()
    time.sleep(0.05)
    opened.done(1)
    time.sleep(0.02)
    assert found == []
    opened.done(2)
    waiting.join(20 * SLOWNESS)

    assert found == [1]


def test_an_end_lets_go_of_a_thread_that_waits_for_readers(made: Timeline) -> None:
    errors: list[type] = []

    def wait() -> None:
        try:
            made.wait_for_readers(1, readers=1, timeout=60 * SLOWNESS)
        except crossmem.CrossmemError as error:
            errors.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    made.close()
    waiting.join(20 * SLOWNESS)

    assert errors == [ClosedError]
