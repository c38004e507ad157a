# SPDX-License-Identifier: Apache-2.0
"""Timelines on the streams of an emulated GPU, within one process: threads, ends and faults."""

import gc
import threading
import time
import warnings

import pytest
from busy_streams import LONG_S, Streams, is_prompt

import crossmem
from crossmem import ClosedError, ConfigurationError, Timeline
from crossmem.conformance.pool import settle
from crossmem.models import TIMELINE_LEVELS, TimelineLevel
from crossmem.sharing.base.process import current
from crossmem.sharing.timelines.cell import CARE, IDENTITY, SEQUENCE, WAITING
from crossmem.sharing.timelines.watcher import StreamWatcher

LEVELS = pytest.mark.parametrize("level", TIMELINE_LEVELS)


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


def test_a_second_watcher_of_a_race_is_not_asked(streams: Streams) -> None:
    kept = current().part(StreamWatcher)
    # Two threads that make the watcher at once keep one of two.
    StreamWatcher(current())
    driver = streams.device.driver
    with streams.device.timeline("word") as timeline:
        timeline.wait(1, stream=streams.new())
        assert kept.is_waiting(driver)
        assert current().deferred.streams_wait(driver)
        timeline.signal(1)


def test_a_thread_waits_on_a_stream_while_another_waits_to_signal(streams: Streams) -> None:
    with streams.device.timeline("word") as timeline:
        stream, end = streams.busy()
        timeline.signal(1, stream=stream)
        signalling = threading.Thread(target=timeline.signal, args=(2,))
        signalling.start()
        time.sleep(0.1)

        assert is_prompt(lambda: timeline.wait(1, stream=streams.new()))
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


def test_no_other_thread_waits_for_the_work_before_a_close(streams: Streams) -> None:
    timeline = streams.device.timeline("word")
    stream, end = streams.busy()
    timeline.signal(1, stream=stream)
    closing = threading.Thread(target=timeline.close)
    closing.start()
    time.sleep(0.1)

    assert is_prompt(crossmem.collect)
    assert closing.is_alive()
    end()
    closing.join(LONG_S)
    assert not closing.is_alive()


def test_no_thread_waits_for_the_work_of_a_dropped_timeline(streams: Streams) -> None:
    timeline = streams.device.timeline("word")
    stream, end = streams.busy()
    with opened(timeline) as other:
        timeline.signal(1, stream=stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del timeline
            gc.collect()

        # The first leaves the timeline to the reaper.
        assert is_prompt(crossmem.collect)
        assert is_prompt(crossmem.collect)
        end()
        assert settle(lambda: [] if other.void else ["open"]) == []


def test_a_close_does_not_believe_the_shared_words(streams: Streams) -> None:
    timeline = streams.device.timeline("word")
    stream, end = streams.busy()
    with opened(timeline) as other:
        timeline.signal(1, stream=stream)
        other._record.words[IDENTITY] = 0  # type: ignore[union-attr]
        threading.Timer(0.1, end).start()
        timeline.close()

        assert other.void


def test_any_sequence_can_be_incremented(streams: Streams) -> None:
    with streams.device.timeline("host") as timeline, opened(timeline) as other:
        words = other._record.words  # type: ignore[union-attr]
        words[SEQUENCE], words[WAITING], words[CARE] = 2**64 - 1, 1, 1
        timeline.signal(1)

        assert (words[SEQUENCE], words[WAITING], timeline.value) == (0, 0, 1)


def test_an_import_can_be_closed_after_its_mapping_was_ended_on_a_stream(streams: Streams) -> None:
    allocation = streams.device.allocate(64)
    stream, end = streams.busy()
    with crossmem.import_handle(allocation.export(synchronize=False)) as imported:
        mapping = imported.map()
        use = mapping._record
        with pytest.raises(crossmem.BusyError):
            imported.close()
        mapping.unmap(stream=stream)

    assert use is not None
    is_released = use.is_done
    end()
    assert (imported.closed, is_released) == (True, False)
    assert settle(lambda: [] if use.is_done else ["mapped"]) == []
    allocation.free()


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
            with pytest.raises(ConfigurationError, match="it must be from 4"):
                timeline.signal(value)
        timeline.signal(4)
        assert other.wait(4, timeout=LONG_S) == 4


def test_memory_stays_if_nobody_knows_whether_its_work_is_complete(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streams.device.allocate(64) as allocation:
        mapping = crossmem.attach(allocation.export(), device=streams.device)
        use = mapping._record
        stream, end = streams.busy()
        mapping.unmap(stream=stream)

        def refuse(_: Timeline) -> int:
            msg = "the vendor refuses"
            raise crossmem.DriverError(msg)

        monkeypatch.setattr(Timeline, "value", property(refuse))
        # The reaper looks, and then waits for all work of the device.
        time.sleep(0.7)
        assert use is not None
        is_released = use.is_done
        end()

        assert not is_released
        assert settle(lambda: [] if use.is_done else ["mapped"]) == []


def test_a_closed_timeline_opens_no_event(streams: Streams) -> None:
    with streams.device.timeline("event") as timeline:
        stream, end = streams.busy()
        timeline.signal(1, stream=stream)
        end()
        record = timeline._record
        assert record is not None
        record.level.close()

        with pytest.raises(ClosedError):
            _ = record.level.reached
