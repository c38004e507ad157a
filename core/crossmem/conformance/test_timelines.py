# SPDX-License-Identifier: Apache-2.0
"""Laws L1 and L2: waits end after the signalled work, and no level is weaker than requested."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import streams_of_tests as streams
from crossmem.conformance.harness import Allocate
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.streams_of_tests import NBYTES, MakeStream, MakeTimeline
from crossmem.models import TIMELINE_LEVELS, TimelineLevel

# L1: no wait ends before the work ---------------------------------------------------------


@pytest.mark.crossmem_core
def test_l01_a_reader_sees_what_was_written_before_a_signal(
    make_timeline: MakeTimeline, allocate: Allocate, peer: Peer, level: TimelineLevel
) -> None:
    timeline, memory = make_timeline(level), allocate(8)
    peer.call(streams.open_, "timeline", timeline.export().to_bytes())
    peer.call(actions.attach, "memory", memory.export().to_bytes())
    answer = peer.start(_read_after_each, "timeline", "memory", 50)
    for value in range(1, 51):
        memory.write(value.to_bytes(8, "little"))
        timeline.signal(value)

    assert answer.result() == []


def _read_after_each(timeline: str, memory: str, count: int) -> list[str]:
    """Wait for each value and read the memory. Return a line for each wait that ended too early."""
    wrong = []
    for value in range(1, count + 1):
        reached = actions.objects[timeline].wait(value)
        data = int.from_bytes(actions.read(memory, 8), "little")
        if not value <= reached <= data:
            wrong.append(f"value {value}: {reached} was reached, and the memory contains {data}")
    return wrong


@pytest.mark.parametrize("first", ["waits", "signals"])
@pytest.mark.crossmem_core
def test_l01_a_stream_that_waits_sees_the_work_before_the_signal(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    named: None,
    peer: Peer,
    level: TimelineLevel,
    first: str,
) -> None:
    timeline = _share_work(make_timeline(level), make_stream(), peer)
    streams.issue_work("work", "stream")
    if first == "signals":
        timeline.signal(1, stream=actions.objects["stream"])
    answer = peer.start(streams.wait_and_copy, "timeline", 1, "stream", "work", "copy")
    if first == "waits":
        if level == "word":
            # At level 'word' only the stream waits, so the peer's call returns before the signal.
            settle(lambda: [] if answer.is_done() else ["the peer waits"])
        timeline.signal(1, stream=actions.objects["stream"])
    answer.result()
    peer.call(streams.synchronize, "stream")

    assert peer.call(streams.is_written, "copy")
    assert not peer.call(actions.attribute, "timeline", "void")


@pytest.mark.crossmem_core
def test_l01_a_host_that_waits_sees_the_work_before_the_signal(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    named: None,
    peer: Peer,
    level: TimelineLevel,
) -> None:
    timeline = _share_work(make_timeline(level), make_stream(), peer)
    answer = peer.start(streams.wait_and_read, "timeline", 1, "work")
    streams.issue_work("work", "stream")
    timeline.signal(1, stream=actions.objects["stream"])

    assert answer.result()
    assert peer.call(actions.attribute, "timeline", "value") == timeline.value == 1


def test_l01_a_value_that_is_read_is_a_value_that_was_reached(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    named: None,
    peer: Peer,
    level: TimelineLevel,
) -> None:
    timeline = _share_work(make_timeline(level), make_stream(), peer)
    answer = peer.start(_look_and_read, "timeline", "work")
    streams.issue_work("work", "stream")
    timeline.signal(1, stream=actions.objects["stream"])

    assert answer.result()


def _look_and_read(timeline: str, memory: str) -> bool:
    """Wait until the timeline's value is 1; return whether the memory contains the work's data."""
    while actions.objects[timeline].value < 1:
        time.sleep(1e-4)
    return streams.is_written(memory)


@pytest.mark.crossmem_core
def test_l01_streams_that_signal_in_turn_keep_the_order(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    named: None,
    peer: Peer,
    level: TimelineLevel,
) -> None:
    timeline = _share_work(make_timeline(level), make_stream(), peer)
    other, busy = make_stream(), actions.objects["stream"]
    sampled = peer.start(_sample, "timeline", 20)
    for value in range(1, 21, 2):
        actions.write("work", bytes(NBYTES))
        streams.issue_work("work", "stream")
        timeline.signal(value, stream=busy)
        # The second stream has no work, so only the order of the values delays its signal.
        timeline.signal(value + 1, stream=other)
        other.synchronize()
        assert streams.is_written("work")
    busy.synchronize()
    samples = sampled.result()

    assert samples == sorted(samples)
    assert timeline.wait(20) == 20


def _sample(timeline: str, last: int) -> list[int]:
    """Read the timeline's value until it is ``last``. Return all values that were read."""
    found: list[int] = []
    while not found or found[-1] < last:
        found.append(actions.objects[timeline].value)
        time.sleep(1e-4)
    return found


def test_l01_many_values_are_under_way_at_once(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    named: None,
    peer: Peer,
    level: TimelineLevel,
) -> None:
    timeline = _share_work(make_timeline(level), make_stream(), peer)
    busy = actions.objects["stream"]
    sampled = peer.start(_sample, "timeline", 40)
    streams.issue_work("work", "stream")
    # At level 'event', a timeline has only sixteen events for these forty values.
    for value in range(1, 41):
        timeline.signal(value, stream=busy)
    samples = sampled.result()

    assert samples == sorted(samples)
    assert streams.is_written("work")
    for value in (1, 20, 40):
        peer.call(streams.wait, "timeline", value, "stream")
    peer.call(streams.synchronize, "stream")


def test_l01_a_signal_of_the_host_comes_after_those_of_streams(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    named: None,
    peer: Peer,
    level: TimelineLevel,
) -> None:
    timeline = _share_work(make_timeline(level), make_stream(), peer)
    streams.issue_work("work", "stream")
    timeline.signal(1, stream=actions.objects["stream"])
    timeline.signal(2)

    assert timeline.value == 2
    assert streams.is_written("work")
    assert peer.call(streams.wait_and_read, "timeline", 2, "work")


def test_l01_values_only_grow(make_timeline: MakeTimeline, level: TimelineLevel) -> None:
    timeline = make_timeline(level)
    timeline.signal(7)
    for value in (7, 6, 0, -1, 2**63 - 1, 2**64, True, 8.0, "8"):
        with pytest.raises(crossmem.ConfigurationError):
            timeline.signal(value)  # type: ignore[arg-type]
        assert timeline.value == 7
    timeline.signal(2**63 - 2)

    assert timeline.wait(2**63 - 2) == timeline.value == 2**63 - 2
    assert not timeline.void


def test_l01_a_value_that_was_issued_is_not_issued_again(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    named: None,
    peer: Peer,
    level: TimelineLevel,
) -> None:
    timeline = _share_work(make_timeline(level), make_stream(), peer)
    busy = actions.objects["stream"]
    streams.issue_work("work", "stream")
    timeline.signal(5, stream=busy)
    for value in (5, 4):
        for stream in (busy, None):
            with pytest.raises(crossmem.ConfigurationError):
                timeline.signal(value, stream=stream)
    timeline.signal(6, stream=busy)

    assert timeline.wait(6) == 6


def _share_work(timeline: crossmem.Timeline, stream: Any, peer: Peer) -> crossmem.Timeline:
    """Let a peer open a timeline, and attach memory for the work of a stream. Return the timeline.

    The work writes this memory. The peer also gets a stream, and memory for a copy. The peer's
    objects have the names ``"timeline"``, ``"work"``, ``"stream"`` and ``"copy"``.
    """
    actions.objects["stream"] = stream
    peer.call(streams.open_, "timeline", timeline.export().to_bytes())
    peer.call(actions.attach, "work", streams.make_work("work"))
    peer.call(actions.allocate, "copy", NBYTES)
    peer.call(streams.new_stream, "stream")
    return timeline


# L2: no level is weaker than requested ----------------------------------------------------


@pytest.mark.crossmem_core
def test_l02_a_timeline_has_the_level_that_was_asked_for(
    make_timeline: MakeTimeline, peer: Peer, level: TimelineLevel
) -> None:
    timeline = make_timeline(level)

    assert timeline.level == level
    assert timeline.export().level == level
    assert peer.call(streams.open_, "timeline", timeline.export().to_bytes()) == level


def test_l02_without_a_level_it_has_the_strongest(
    make_timeline: MakeTimeline, capabilities: crossmem.Capabilities
) -> None:
    assert make_timeline().level == capabilities.timeline_levels[0]
    assert "host" in capabilities.timeline_levels


@pytest.mark.crossmem_core
def test_l02_other_levels_are_refused(
    device: crossmem.Device, capabilities: crossmem.Capabilities
) -> None:
    for level in set(TIMELINE_LEVELS) - set(capabilities.timeline_levels):
        with pytest.raises(crossmem.UnsupportedError, match=level) as caught:
            device.timeline(level)
        assert capabilities.timeline_levels[0] in str(caught.value.hint)
    for wrong in ("stream", "", "WORD", 1, b"word"):
        with pytest.raises(crossmem.ConfigurationError):
            device.timeline(wrong)  # type: ignore[arg-type]


@pytest.mark.crossmem_core
def test_l02_the_host_does_not_wait_at_levels_of_streams(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    capabilities: crossmem.Capabilities,
    level: TimelineLevel,
) -> None:
    if level == "host":
        pytest.skip("at level 'host' the host waits for the stream")
    if "word" not in capabilities.timeline_levels:
        pytest.skip("without level 'word' the test cannot keep a stream from running")
    gate, timeline, stream = make_timeline("word"), make_timeline(level), make_stream()
    opening = threading.Timer(2 * SOON_S, gate.signal, (1,))
    opening.start()
    try:
        start = time.monotonic()
        gate.wait(1, stream=stream)
        timeline.signal(1, stream=stream)
        timeline.wait(1, stream=stream)
        took_s = time.monotonic() - start

        assert took_s < SOON_S
        assert timeline.value == 0
    finally:
        opening.cancel()
        opening.join()
        if not gate.value:
            gate.signal(1)

    assert timeline.wait(1) == 1


@pytest.mark.parametrize("stream", ["a stream", 1.0, True, -1, 2**64, {}, b"", (0,)], ids=repr)
def test_l02_what_is_no_stream_is_refused(
    make_timeline: MakeTimeline, level: TimelineLevel, stream: Any
) -> None:
    timeline = make_timeline(level)
    for call in (timeline.signal, timeline.wait):
        with pytest.raises(crossmem.ConfigurationError, match="stream"):
            call(1, stream=stream)

    assert timeline.value == 0


@pytest.mark.crossmem_core
def test_l02_devices_without_streams_refuse_them(
    make_timeline: MakeTimeline, allocate: Allocate, peer: Peer, level: TimelineLevel
) -> None:
    if streams.has_streams():
        pytest.skip("the device has streams")
    timeline, memory = make_timeline(level), allocate(64)
    peer.call(streams.make, "theirs", level)
    opened = crossmem.open_timeline(
        peer.call(actions.call, "theirs", "export").to_bytes(), device=timeline.device
    )
    calls: dict[str, Callable[[], object]] = {
        "signal": lambda: timeline.signal(1, stream=0),
        "wait": lambda: opened.wait(1, stream=0),
        "done": lambda: opened.done(1, stream=0),
    }
    for call in calls.values():
        with pytest.raises(crossmem.UnsupportedError, match="streams") as caught:
            call()
        assert caught.value.hint
    opened.close()
    # The refused calls had no effect.
    assert timeline.value == 0
    timeline.signal(1)
    memory.write(b"x")

    assert settle(lambda: ["the watcher runs"] if streams.is_watching() else []) == []
