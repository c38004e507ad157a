# SPDX-License-Identifier: Apache-2.0
"""Timelines on the streams of an emulated GPU, within one process: threads, ends and faults."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crossmem
from crossmem import ClosedError, ConfigurationError, Timeline
from crossmem.models import TIMELINE_LEVELS, TimelineLevel

LEVELS = pytest.mark.parametrize("level", TIMELINE_LEVELS)
LONG_S = 20.0


class Streams:
    """Streams of the device, and work that lasts until the test ends it."""

    def __init__(self) -> None:
        self.device = crossmem.device("hip:0", runtime="emulated")
        self.rt: Any = getattr(self.device.driver, "_vendor").rt  # noqa: B009 - of the plugin
        self._ends: list[threading.Event] = []

    def new(self) -> int:
        return int(self.rt.streamCreateWithFlags(1))

    def busy(self) -> tuple[int, Callable[[], None]]:
        """Return a stream with work, and the function that ends the work."""
        stream, end = self.new(), threading.Event()
        self._ends.append(end)
        self.rt.launchHostFunc(stream, lambda _: end.wait(), 0)
        return stream, end.set

    def close(self) -> None:
        for end in self._ends:
            end.set()
        self.device.synchronize()


@pytest.fixture
def streams() -> Iterator[Streams]:
    found = Streams()
    yield found
    found.close()


def opened(timeline: Timeline) -> Timeline:
    return crossmem.open_timeline(timeline.export(), device=timeline.device)


# Threads ----------------------------------------------------------------------------------


@LEVELS
def test_a_thread_signals_while_another_waits_on_a_stream(
    streams: Streams, level: TimelineLevel
) -> None:
    with streams.device.timeline(level) as timeline:
        later = threading.Timer(0.1, timeline.signal, (1,))
        later.start()

        assert timeline.wait(1, stream=streams.new(), timeout=LONG_S) == 1
        later.join()


def test_a_thread_waits_on_a_stream_while_another_waits_to_signal(streams: Streams) -> None:
    with streams.device.timeline("word") as timeline:
        stream, end = streams.busy()
        timeline.signal(1, stream=stream)
        signalling = threading.Thread(target=timeline.signal, args=(2,))
        signalling.start()
        time.sleep(0.1)
        start = time.monotonic()

        timeline.wait(1, stream=streams.new())
        assert time.monotonic() - start < LONG_S / 2
        assert signalling.is_alive()
        end()
        signalling.join(LONG_S)
        assert timeline.value == 2


# Ends -------------------------------------------------------------------------------------


@LEVELS
def test_a_stream_does_not_wait_for_a_closed_timeline(
    streams: Streams, level: TimelineLevel
) -> None:
    timeline = streams.device.timeline(level)
    with opened(timeline) as other:
        timeline.signal(1)
        timeline.close()

        with pytest.raises(ClosedError):
            other.wait(2, stream=streams.new(), timeout=0)
        with pytest.raises(ClosedError):
            other.wait(1, stream=streams.new(), timeout=0)


# Faults -----------------------------------------------------------------------------------

SIGNALS: dict[TimelineLevel, str] = {
    "word": "streamWriteValue64",
    "event": "eventRecord",
    "host": "streamSynchronize",
}


@LEVELS
def test_a_refused_signal_takes_no_value_back(streams: Streams, level: TimelineLevel) -> None:
    with streams.device.timeline(level) as timeline, opened(timeline) as other:
        stream = streams.new()
        if level != "host":
            stream, end = streams.busy()
        for value in (1, 2, 3):
            timeline.signal(value, stream=stream)
        streams.rt.faults.add(SIGNALS[level], 1)
        with pytest.raises(crossmem.DriverError):
            timeline.signal(4, stream=stream)
        if level != "host":
            end()

        for value in (1, 3):
            with pytest.raises(ConfigurationError, match="the next value is 4"):
                timeline.signal(value)
        timeline.signal(4)
        assert other.wait(4, timeout=LONG_S) == 4
