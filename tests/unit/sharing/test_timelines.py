# SPDX-License-Identifier: Apache-2.0
"""Timelines on host memory within one process: values, arguments, ends, readers and errors."""

import gc
import itertools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from in_use import in_use

import crossmem
from crossmem import (
    Allow,
    ClosedError,
    ConfigurationError,
    StaleHandleError,
    Timeline,
    UnsupportedError,
    WaitTimeoutError,
)
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.sharing.base.process import current
from crossmem.sharing.timelines.cell import IDENTITY, VOID
from crossmem.sharing.timelines.memory import Pages

ONLY = Allow(pids=(os.getpid(),))
LARGEST = 2**63 - 2
NO_VALUES = [0, -1, 2**63 - 1, 2**63, 2**64, True, False, "1", 1.0, None, b"1"]


CALLS: list[Callable[[Timeline], object]] = [
    lambda one: one.value,
    lambda one: one.void,
    lambda one: one.owner_alive,
    lambda one: one.export(),
    lambda one: one.signal(3),
    lambda one: one.signal(3, stream=0),
    lambda one: one.wait(1),
    lambda one: one.wait(1, stream=0),
    lambda one: one.done(1),
    lambda one: one.wait_for_readers(0),
    lambda one: one.__enter__(),
    pickle.dumps,
]


def timelines_in_use() -> list[str]:
    """Return the timelines that this process signals, and its other memory."""
    crossmem.collect()
    return [repr(one) for one in list(current().part(Pages).signalled)] + in_use()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = timelines_in_use()
    yield
    gc.collect()
    assert (
        settle(lambda: [] if len(timelines_in_use()) <= len(before) else timelines_in_use()) == []
    )


@pytest.fixture
def made() -> Iterator[Timeline]:
    with crossmem.device("host").timeline() as timeline:
        yield timeline


@pytest.fixture
def opened(made: Timeline) -> Iterator[Timeline]:
    with crossmem.open_timeline(made.export()) as timeline:
        yield timeline


# Values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["host", "emulated:0"])
@pytest.mark.parametrize("level", [None, "word", "host"])
def test_a_timeline_begins_at_0_and_only_grows(name: str, level: Any) -> None:
    with crossmem.device(name).timeline(level) as timeline:
        assert (timeline.value, timeline.void, timeline.owner_alive) == (0, False, True)
        assert timeline.level == level or level is None
        for value in (1, 2, 10, 2**32 - 1, 2**32, 2**32 + 1, LARGEST):
            timeline.signal(value)

            assert timeline.value == value
            assert timeline.wait(1) == timeline.wait(value, timeout=0) == value
            for smaller in {1, value - 1, value} - {0}:
                with pytest.raises(ConfigurationError, match="it must be from"):
                    timeline.signal(smaller)
            assert timeline.value == value
        assert not timeline.void


def test_a_value_is_void_as_soon_as_its_waits_end(opened: Timeline) -> None:
    record = opened._record
    assert record is not None
    identity = record.cell.read(IDENTITY)
    # The first step of a close; the value follows.
    record.cell.write(IDENTITY, 0)
    try:
        with pytest.raises(ClosedError):
            opened.wait(1, timeout=0)
        assert opened.void
    finally:
        record.cell.write(IDENTITY, identity)
    assert not opened.void


def test_the_strongest_level_is_the_default() -> None:
    for name in ("host", "emulated:0"):
        device = crossmem.device(name)
        with device.timeline() as timeline:
            assert timeline.level == device.capabilities.timeline_levels[0] == "word"
            assert timeline.device is device


def test_a_level_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="does not offer timelines of level 'event'") as one:
        crossmem.device("host").timeline("event")

    assert one.value.hint == "choose one of word, host, or leave out level="


@pytest.mark.parametrize("level", ["words", "", 1, b"word"], ids=repr)
def test_other_levels_are_no_levels(level: Any) -> None:
    with pytest.raises(ConfigurationError, match="level"):
        crossmem.device("host").timeline(level)


@pytest.mark.parametrize("value", NO_VALUES, ids=repr)
def test_values_that_cannot_be_signalled(made: Timeline, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="value is"):
        made.signal(value)

    assert made.value == 0
    made.signal(1)


@pytest.mark.parametrize("value", NO_VALUES, ids=repr)
def test_values_that_cannot_be_awaited(made: Timeline, opened: Timeline, value: Any) -> None:
    made.signal(LARGEST)
    for one in (made, opened):
        with pytest.raises(ConfigurationError, match="value is"):
            one.wait(value, timeout=0)


@pytest.mark.parametrize("timeout", [-1, True, False, "1", float("nan")], ids=repr)
def test_timeouts_that_are_none(made: Timeline, opened: Timeline, timeout: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: opened.wait(1, timeout=timeout),
        lambda: made.wait(1, timeout=timeout),
        lambda: made.wait_for_readers(0, readers=1, timeout=timeout),
        lambda: crossmem.open_timeline(made.export(), timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="timeout"):
            call()


@pytest.mark.parametrize(
    "stream", [0, 5, pytest.param(object(), id="object"), "stream", True, -1], ids=str
)
def test_host_memory_has_no_streams(made: Timeline, opened: Timeline, stream: Any) -> None:
    errors = (ConfigurationError, UnsupportedError)
    is_stream = type(stream) is int and stream >= 0
    expected = UnsupportedError if is_stream else ConfigurationError
    calls: list[Callable[[], object]] = [
        lambda: made.signal(1, stream=stream),
        lambda: opened.wait(1, stream=stream, timeout=0),
        lambda: opened.done(1, stream=stream),
    ]
    for call in calls:
        with pytest.raises(errors) as caught:
            call()
        assert type(caught.value) is expected

    assert made.value == 0
    made.signal(1)
    assert opened.wait(1, timeout=0) == 1
    with pytest.raises(WaitTimeoutError, match="0 of 1 readers"):
        made.wait_for_readers(1, readers=1, timeout=0)


# Who signals ------------------------------------------------------------------------------


def test_an_opened_timeline_sees_values_and_signals_none(made: Timeline, opened: Timeline) -> None:
    made.signal(7)

    assert opened.value == opened.wait(7) == opened.wait(3, timeout=0) == 7
    with pytest.raises(UnsupportedError, match="can signal"):
        opened.signal(8)
    with pytest.raises(UnsupportedError, match="can wait for readers"):
        opened.wait_for_readers(1)
    with pytest.raises(UnsupportedError, match="cannot acknowledge its values"):
        made.done(1)
    assert made.value == 7


def test_a_wait_that_times_out_says_so(made: Timeline, opened: Timeline) -> None:
    made.signal(3)
    for one in (made, opened):
        for timeout in (0, 0.0, 0.05):
            began = time.monotonic()
            with pytest.raises(WaitTimeoutError, match="value 9 of the timeline") as caught:
                one.wait(9, timeout=timeout)

            assert "the value is 3" in str(caught.value)
            assert timeout <= time.monotonic() - began < timeout + SLOWNESS
            assert isinstance(caught.value, TimeoutError)


def test_a_thread_wakes_the_others_of_its_process(made: Timeline, opened: Timeline) -> None:
    found: list[int] = []

    def wait(one: Timeline) -> None:
        found.append(one.wait(5, timeout=20 * SLOWNESS))

    threads = [threading.Thread(target=wait, args=[one]) for one in (made, opened) * 3]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    made.signal(4)
    time.sleep(0.05)
    assert found == []
    made.signal(6)
    for thread in threads:
        thread.join(20 * SLOWNESS)

    assert found == [6] * 6


def test_threads_that_signal_at_once_never_shrink_the_value(made: Timeline) -> None:
    refused: list[int] = []

    def signal(first: int) -> None:
        for value in range(first, 4000, 4):
            try:
                made.signal(value)
            except ConfigurationError:
                refused.append(value)
            else:
                # Another thread may only have made it larger.
                assert made.value >= value

    threads = [threading.Thread(target=signal, args=[first]) for first in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    seen = [made.value for _ in range(10_000)]
    for thread in threads:
        thread.join()

    assert seen == sorted(seen)
    assert made.value == max(set(range(1, 4000)) - set(refused))


# The end ----------------------------------------------------------------------------------


def test_after_the_end_everything_raises(made: Timeline) -> None:
    opened = crossmem.open_timeline(made.export())
    made.signal(2)
    for one in (opened, made):
        one.close()
        one.close()
        assert one.closed
        assert "closed>" in repr(one)
        for call in CALLS:
            with pytest.raises(ClosedError, match="cannot be used any more"):
                call(one)


def test_who_opened_it_learns_that_it_was_closed(made: Timeline, opened: Timeline) -> None:
    made.signal(2)
    made.close()

    assert (opened.value, opened.void) == (VOID, True)
    assert opened.owner_alive
    for timeout in (0, None):
        with pytest.raises(ClosedError, match="which signals this timeline, closed it"):
            opened.wait(3, timeout=timeout)
    with pytest.raises(ClosedError, match="closed it"):
        opened.wait(1)
    handle = opened.export()
    for _ in range(2):
        with pytest.raises(StaleHandleError, match="closed this timeline"):
            crossmem.open_timeline(handle)


def test_an_end_lets_go_of_threads_that_wait(made: Timeline) -> None:
    opened, ends = crossmem.open_timeline(made.export()), []

    def wait(one: Timeline) -> None:
        began = time.monotonic()
        with pytest.raises(ClosedError):
            one.wait(1, timeout=60 * SLOWNESS)
        ends.append(time.monotonic() - began)

    for closes, waits in (
        (opened, (opened,)),
        (made, (made, crossmem.open_timeline(made.export()))),
    ):
        threads = [threading.Thread(target=wait, args=[one]) for one in waits]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        closes.close()
        for thread in threads:
            thread.join(20 * SLOWNESS)
        waits[-1].close()

    assert len(ends) == 3
    assert max(ends) < 1 + SLOWNESS


@pytest.mark.parametrize("allow", [None, ONLY])
def test_a_dropped_timeline_warns_and_is_closed(allow: Allow | None) -> None:
    made = crossmem.device("host").timeline(allow=allow)
    opened = crossmem.open_timeline(made.export())

    with pytest.warns(ResourceWarning, match=r"signalled here> was dropped without close\(\)"):
        del made
    crossmem.collect()

    assert opened.void
    with pytest.warns(ResourceWarning, match=r"signalled by pid \d+> was dropped without close"):
        del opened


def test_an_error_in_its_block_closes_it() -> None:
    with pytest.raises(KeyError), crossmem.device("host").timeline() as made:
        raise KeyError

    assert made.closed


# Pages ------------------------------------------------------------------------------------


def exported() -> int:
    crossmem.collect()
    gc.collect()
    return len(crossmem.exports())


def test_64_timelines_share_a_page_and_no_place_is_used_twice() -> None:
    device, before = crossmem.device("host"), exported()
    made = [device.timeline(allow=ONLY) for _ in range(64)]
    assert exported() == before + 1
    places = {(one.export().memory.allocation, one.export().memory.offset) for one in made}
    assert len(places) == 64
    assert {offset for _, offset in places} == set(range(0, 4096, 64))

    made[0].close()
    made[0] = device.timeline(allow=ONLY)

    assert exported() == before + 2
    again = made[0].export().memory
    assert (again.allocation, again.offset) not in places
    for number, one in enumerate(made):
        one.signal(number + 1)
    assert [one.value for one in made] == list(range(1, 65))
    for one in made:
        one.close()
    del made, one
    assert exported() == before


def test_many_timelines_leave_neither_pages_nor_slots() -> None:
    device = crossmem.device("host")
    with device.timeline() as first, crossmem.open_timeline(first.export()) as opened:
        opened.done(0)
    server = current().server
    assert server is not None
    slots = server.leases.slots

    def turn() -> None:
        for _ in range(130):
            with device.timeline() as one, crossmem.open_timeline(one.export()) as other:
                other.done(5)
                one.signal(6)
        for number in range(5):
            device.timeline(allow=Allow(pids=(os.getpid(), 2 + number))).close()

    turn()
    before, count = exported(), slots._count
    for _ in range(3):
        turn()

    assert exported() <= before + 1
    # One page is being filled when another one is freed.
    assert slots._count <= count + 2 * 65


def test_timelines_for_few_are_not_in_the_page_for_all() -> None:
    device = crossmem.device("host")
    with (
        device.timeline() as one,
        device.timeline(allow=ONLY) as two,
        device.timeline(allow=Allow(pids=(os.getppid(),))) as three,
    ):
        numbers = {each.export().memory.allocation for each in (one, two, three)}

        assert len(numbers) == 3
        with crossmem.open_timeline(two.export()) as opened:
            assert opened.value == 0


@pytest.mark.parametrize("allow", [5, "all", (1, 2), Allow])
def test_allow_is_an_allow(allow: Any) -> None:
    with pytest.raises(ConfigurationError, match="allow must be"):
        crossmem.device("host").timeline(allow=allow)


# Forms ------------------------------------------------------------------------------------


def test_what_it_looks_like(made: Timeline, opened: Timeline) -> None:
    assert repr(made) == "<Timeline of host:0, level 'word', signalled here>"
    assert repr(opened) == f"<Timeline of host:0, level 'word', signalled by pid {os.getpid()}>"


def test_pickling_opens_it(made: Timeline, opened: Timeline) -> None:
    made.signal(4)
    for one in (made, opened):
        with pickle.loads(pickle.dumps(one)) as copy:  # noqa: S301
            assert copy.value == 4
            assert "signalled by pid" in repr(copy)
            assert copy.export() == made.export()


def test_its_handle_is_always_the_same(made: Timeline, opened: Timeline) -> None:
    handle = made.export()

    assert handle is made.export()
    assert opened.export() == handle
    with crossmem.device("host").timeline() as other:
        assert other.export() != handle
        assert other.export().identity != handle.identity


def test_a_device_for_the_streams_can_be_named(made: Timeline) -> None:
    for device in ("emulated:0", crossmem.device("emulated:0")):
        with crossmem.open_timeline(made.export(), device=device) as opened:
            assert opened.device.name == "emulated:0"
            assert opened.value == 0
    with pytest.raises(crossmem.DeviceNotFoundError):
        crossmem.open_timeline(made.export(), device="emulated:99")


@pytest.mark.parametrize("line", range(1, 13))
def test_a_signal_under_a_trace_function_lowers_no_value(line: int) -> None:
    before, lines, inner = sys.gettrace(), itertools.count(1), []

    with crossmem.device("host").timeline() as timeline:

        def trace(frame: Any, event: str, _argument: object) -> Any:
            is_here = event == "line" and frame.f_code is crossmem.Timeline.signal.__code__
            if is_here and next(lines) == line:
                inner.append(line)
                timeline.signal(10)
            return trace

        sys.settrace(trace)
        try:
            with suppress(crossmem.ConfigurationError):
                timeline.signal(5)
        finally:
            sys.settrace(before)

        assert timeline.value == (10 if inner else 5)
