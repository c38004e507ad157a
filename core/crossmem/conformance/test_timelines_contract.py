# SPDX-License-Identifier: Apache-2.0
"""Laws C3 to C26, as far as they apply to timelines, and law L1 for acknowledgements."""

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import streams_of_tests as streams
from crossmem.conformance.forks import in_child
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.streams_of_tests import MakeStream, MakeTimeline
from crossmem.models import TimelineLevel

# Handles ----------------------------------------------------------------------------------


def test_c03_a_timeline_keeps_its_handle(make_timeline: MakeTimeline, level: TimelineLevel) -> None:
    timeline, other = make_timeline(level), make_timeline(level)
    handle = timeline.export()
    timeline.signal(3)

    assert handle == timeline.export() == crossmem.TimelineHandle.from_bytes(handle.to_bytes())
    assert len({handle, other.export(), timeline.export()}) == 2


def test_c06_a_closed_timeline_is_stale(
    make_timeline: MakeTimeline, peer: Peer, level: TimelineLevel
) -> None:
    timeline, other = make_timeline(level), make_timeline(level)
    blob = timeline.export().to_bytes()
    peer.call(streams.open_, "other", other.export().to_bytes())
    timeline.close()

    with pytest.raises(crossmem.StaleHandleError):
        peer.call(streams.open_, "never", blob)
    # No later timeline gets the handle of the closed timeline.
    for _ in range(3):
        assert make_timeline(level).export().to_bytes() != blob
    with pytest.raises(crossmem.StaleHandleError):
        peer.call(streams.open_, "never", blob)
    other.signal(1)
    assert peer.call(streams.wait, "other", 1)[0] == 1


def test_c12_a_dead_processs_timeline_is_not_opened(
    fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    owner = fresh_peer()
    blob = owner.call(streams.make, "timeline", level)
    owner.kill()
    start = time.monotonic()

    with pytest.raises(crossmem.OwnerGoneError):
        peer.call(streams.open_, "never", blob)
    assert time.monotonic() - start < SOON_S


@pytest.mark.crossmem_core
def test_c13_only_admitted_processes_open_a_timeline(
    make_timeline: MakeTimeline, peer: Peer, peer2: Peer, level: TimelineLevel
) -> None:
    timeline = make_timeline(level, allow=crossmem.Allow(pids=[peer.pid]))
    blob = timeline.export().to_bytes()
    peer.call(streams.open_, "timeline", blob)
    with pytest.raises(crossmem.AccessDeniedError):
        peer2.call(streams.open_, "never", blob)
    timeline.signal(1)

    assert peer.call(streams.wait, "timeline", 1)[0] == 1


@pytest.mark.parametrize(
    "bad",
    [b"", b"XMTL", bytes(200), b"\xff" * 100, b"XMEM" * 1000, bytearray(64), "text", 17, None],
    ids=lambda bad: f"{type(bad).__name__}-{len(bad) if hasattr(bad, '__len__') else bad}",
)
def test_c14_what_is_no_handle_of_a_timeline_is_refused(device: crossmem.Device, bad: Any) -> None:
    with pytest.raises(crossmem.InvalidHandleError):
        crossmem.open_timeline(bad, device=device)


@pytest.mark.crossmem_core
def test_c14_damaged_handles_of_timelines_are_refused(
    make_timeline: MakeTimeline, allocate: Allocate, peer: Peer
) -> None:
    timeline = make_timeline()
    blob = timeline.export().to_bytes()
    chosen = random.Random(14)
    damaged = [blob[:end] for end in range(0, len(blob), 7)] + [blob + b"\0"]
    for _ in range(100):
        changed = bytearray(blob)
        changed[chosen.randrange(len(blob))] ^= 1 << chosen.randrange(8)
        damaged.append(bytes(changed))
    for one in damaged:
        with pytest.raises(crossmem.InvalidHandleError):
            crossmem.open_timeline(one)
    # A handle of memory cannot open a timeline, and a handle of a timeline cannot attach memory.
    with pytest.raises(crossmem.InvalidHandleError):
        crossmem.open_timeline(allocate(64).export().to_bytes())
    with pytest.raises(crossmem.InvalidHandleError):
        crossmem.attach(blob)
    assert peer.call(streams.open_, "timeline", blob) == timeline.level


def test_c26_a_stopped_process_is_asked_as_long_as_was_said(
    fresh_peer: FreshPeer, level: TimelineLevel, device: crossmem.Device
) -> None:
    owner = fresh_peer()
    blob = owner.call(streams.make, "timeline", level)
    owner.stop()
    start = time.monotonic()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        crossmem.open_timeline(blob, device=device, timeout=0.3)

    assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S


def test_c26_a_wait_has_the_default_of_the_environment(
    make_timeline: MakeTimeline, fresh_peer: FreshPeer, level: TimelineLevel
) -> None:
    timeline, waiter = make_timeline(level), fresh_peer(CROSSMEM_TIMEOUT="0.3")
    waiter.call(streams.open_, "timeline", timeline.export().to_bytes())
    start = time.monotonic()
    with pytest.raises(crossmem.WaitTimeoutError):
        waiter.call(streams.wait, "timeline", 1)

    assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S


# Ends -------------------------------------------------------------------------------------

USES: dict[str, Callable[[crossmem.Timeline], object]] = {
    "value": lambda timeline: timeline.value,
    "void": lambda timeline: timeline.void,
    "owner_alive": lambda timeline: timeline.owner_alive,
    "export": lambda timeline: timeline.export(),
    "signal": lambda timeline: timeline.signal(9),
    "signal on a stream": lambda timeline: timeline.signal(9, stream=0),
    "wait": lambda timeline: timeline.wait(9),
    "wait on a stream": lambda timeline: timeline.wait(9, stream=0),
    "done": lambda timeline: timeline.done(0),
    "wait_for_readers": lambda timeline: timeline.wait_for_readers(0),
    "with": lambda timeline: timeline.__enter__(),
}


@pytest.mark.crossmem_core
def test_c17_a_closed_timeline_refuses_every_use(
    make_timeline: MakeTimeline, peer: Peer, level: TimelineLevel
) -> None:
    mine = make_timeline(level)
    theirs = crossmem.open_timeline(peer.call(streams.make, "timeline", level), device=mine.device)
    for one in (mine, theirs):
        one.close()
        one.close()
        for use in USES.values():
            with pytest.raises(crossmem.ClosedError):
                use(one)
        assert one.closed
        assert "closed" in repr(one)


@pytest.mark.parametrize("use", USES)
def test_c18_an_inherited_timeline_refuses_every_use(
    make_timeline: MakeTimeline, peer: Peer, use: str
) -> None:
    peer.call(streams.make, "own")
    peer.call(streams.open_, "opened", make_timeline().export().to_bytes())
    for name in ("own", "opened"):
        with pytest.raises(crossmem.ForkedProcessError):
            peer.call(in_child, _use, name, use)
    # The parent's objects still work.
    peer.call(streams.signal, "own", 1)
    assert peer.call(actions.attribute, "opened", "value") == 0


def _use(name: str, use: str) -> None:
    USES[use](actions.objects[name])


def test_c20_an_exit_ends_timelines_and_their_streams(
    fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    owner, waiter = fresh_peer(CROSSMEM_EXIT_WAIT="30"), fresh_peer()
    blob = owner.call(streams.make, "timeline", level)
    for one in (waiter, peer):
        one.call(streams.open_, "timeline", blob)
    owner.call(streams.signal, "timeline", 1)
    waiter.exit()
    peer.call(actions.reset)
    start = time.monotonic()
    owner.exit()

    assert time.monotonic() - start < 10 * SOON_S
    assert (waiter.exitcode, owner.exitcode) == (os.EX_OK, os.EX_OK)


# Acknowledgements -------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_l01_an_acknowledgement_comes_after_the_work_before_it(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    fresh_peer: FreshPeer,
    level: TimelineLevel,
) -> None:
    reader, timeline = fresh_peer(), make_timeline(level)
    reader.call(streams.open_, "timeline", timeline.export().to_bytes())
    reader.call(streams.new_stream, "stream")
    blob = reader.call(streams.make_work, "work")
    reader.call(actions.call, "timeline", "done", 0)
    timeline.signal(1)
    with crossmem.attach(blob, device=timeline.device) as mapping:
        with pytest.raises(crossmem.WaitTimeoutError, match="0 of 1"):
            timeline.wait_for_readers(1, timeout=0)
        reader.call(streams.issue_work, "work", "stream")
        reader.call(streams.acknowledge, "timeline", 1, "stream")

        assert timeline.wait_for_readers(1) == 1
        assert mapping.read() == streams.data_of()
    reader.kill()
    assert settle(lambda: _readers_of(timeline)) == []


@pytest.mark.parametrize("other", ["timeline", "second"])
def test_l01_acknowledgements_on_streams_in_turn_never_shrink(
    word: TimelineLevel,
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    fresh_peer: FreshPeer,
    other: str,
) -> None:
    gate, timeline, reader = make_timeline(word), make_timeline(word), fresh_peer()
    for name, one in (("gate", gate), ("timeline", timeline), ("second", timeline)):
        reader.call(streams.open_, name, one.export().to_bytes())
    for name in ("held", "free"):
        reader.call(streams.new_stream, name)
    reader.call(actions.call, "timeline", "done", 0)
    reader.call(streams.wait, "gate", 1, "held")
    for value, name in enumerate(("held", "free", "held"), start=1):
        by = other if name == "free" else "timeline"
        reader.call(streams.acknowledge, by, value, name)
    with pytest.raises(crossmem.WaitTimeoutError):
        timeline.wait_for_readers(1, timeout=0.2)
    gate.signal(1)
    for name in ("held", "free"):
        reader.call(streams.synchronize, name)

    assert timeline.wait_for_readers(3, timeout=SOON_S) == 1
    # An acknowledgement of a smaller value has no effect. The last acknowledgement is made on the
    # host, and takes effect after the acknowledgement on the stream.
    reader.call(actions.call, "timeline", "done", 2)
    reader.call(streams.acknowledge, "timeline", 4, "free")
    reader.call(actions.call, other, "done", 5)
    assert timeline.wait_for_readers(5, timeout=SOON_S) == 1
    reader.kill()


def _readers_of(timeline: crossmem.Timeline) -> list[str]:
    found = timeline.wait_for_readers(0, timeout=0)
    return [f"{found} readers"] if found else []
