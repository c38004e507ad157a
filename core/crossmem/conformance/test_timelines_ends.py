# SPDX-License-Identifier: Apache-2.0
"""Laws L3 and L4: waits end at their timeouts, and after the end of the process that signals."""

import os
import time
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import streams_of_tests as streams
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.streams_of_tests import MakeStream, MakeTimeline
from crossmem.models import TimelineLevel
from crossmem.sharing.timelines.cell import VALUE

_WITHIN_S: Final = 0.3

# L3: a wait of the host ends --------------------------------------------------------------


@pytest.mark.crossmem_core
def test_l03_a_wait_of_the_host_ends_in_time(
    make_timeline: MakeTimeline, peer: Peer, level: TimelineLevel
) -> None:
    timeline = make_timeline(level)
    peer.call(streams.open_, "timeline", timeline.export().to_bytes())
    timeline.signal(1)
    for place in (lambda: timeline.wait(2, timeout=_WITHIN_S), lambda: _timed_out(peer, 2)):
        start = time.monotonic()
        with pytest.raises(crossmem.WaitTimeoutError, match=r"value 2 .* the value is 1"):
            place()
        assert _WITHIN_S <= time.monotonic() - start < _WITHIN_S + SOON_S


def _timed_out(peer: Peer, value: int) -> None:
    peer.call(streams.wait, "timeline", value, timeout=_WITHIN_S)


def test_l03_a_timeout_of_nothing_looks_once(
    make_timeline: MakeTimeline, peer: Peer, level: TimelineLevel
) -> None:
    timeline = make_timeline(level)
    peer.call(streams.open_, "timeline", timeline.export().to_bytes())
    start = time.monotonic()
    with pytest.raises(crossmem.WaitTimeoutError):
        timeline.wait(1, timeout=0)
    with pytest.raises(crossmem.WaitTimeoutError):
        peer.call(streams.wait, "timeline", 1, timeout=0)
    assert time.monotonic() - start < SOON_S
    timeline.signal(3)

    assert timeline.wait(1, timeout=0) == 3
    assert peer.call(streams.wait, "timeline", 3, timeout=0)[0] == 3
    for wrong in (-1, "1", float("nan"), True):
        with pytest.raises(crossmem.ConfigurationError):
            timeline.wait(4, timeout=wrong)  # type: ignore[arg-type]


@pytest.mark.crossmem_core
def test_l03_a_wait_ends_with_the_death_of_the_one_who_signals(
    fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    victim = fresh_peer()
    blob = victim.call(streams.make, "timeline", level)
    peer.call(streams.open_, "timeline", blob)
    victim.call(streams.signal, "timeline", 4)
    answer = peer.start(streams.wait, "timeline", 5, timeout=10 * SOON_S)
    time.sleep(0.05)
    victim.kill()
    start = time.monotonic()

    with pytest.raises(crossmem.OwnerGoneError, match=str(victim.pid)):
        answer.result()
    assert time.monotonic() - start < SOON_S
    # A wait that begins after the death ends too.
    with pytest.raises(crossmem.OwnerGoneError):
        peer.call(streams.wait, "timeline", 5)
    # A wait for a value that was reached before the death succeeds.
    assert peer.call(streams.wait, "timeline", 4)[0] == 4
    assert not peer.call(actions.attribute, "timeline", "owner_alive")


@pytest.mark.crossmem_core
def test_l03_a_wait_ends_when_the_timeline_is_closed(
    fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    owner = fresh_peer()
    peer.call(streams.open_, "timeline", owner.call(streams.make, "timeline", level))
    answer = peer.start(streams.wait, "timeline", 1, timeout=10 * SOON_S)
    time.sleep(0.05)
    owner.call(actions.call, "timeline", "close")
    start = time.monotonic()

    with pytest.raises(crossmem.ClosedError, match=str(owner.pid)):
        answer.result()
    assert time.monotonic() - start < SOON_S
    with pytest.raises(crossmem.ClosedError):
        peer.call(streams.wait, "timeline", 1, timeout=0)
    assert peer.call(actions.attribute, "timeline", "void")


def test_l03_a_wait_ends_when_the_one_who_signals_exits(
    fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    owner = fresh_peer(CROSSMEM_EXIT_WAIT="30")
    peer.call(streams.open_, "timeline", owner.call(streams.make, "timeline", level))
    answer = peer.start(streams.wait, "timeline", 1, timeout=10 * SOON_S)
    time.sleep(0.05)
    owner.request_exit()
    start = time.monotonic()

    # The exit closes the timeline. The waiter may notice the exit before it notices the close.
    with pytest.raises((crossmem.ClosedError, crossmem.OwnerGoneError)):
        answer.result()
    assert time.monotonic() - start < SOON_S
    peer.call(actions.call, "timeline", "close")
    peer.call(actions.reset)
    owner.wait_exit()


@pytest.mark.crossmem_core
def test_l03_a_stopped_process_is_not_a_dead_one(
    fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    owner = fresh_peer()
    peer.call(streams.open_, "timeline", owner.call(streams.make, "timeline", level))
    owner.stop()
    with pytest.raises(crossmem.WaitTimeoutError):
        peer.call(streams.wait, "timeline", 1, timeout=1.5)
    assert not peer.call(actions.attribute, "timeline", "void")
    owner.cont()
    owner.call(streams.signal, "timeline", 1)

    assert peer.call(streams.wait, "timeline", 1)[0] == 1


def test_l03_the_host_part_of_a_streams_wait_ends_in_time(
    make_timeline: MakeTimeline, make_stream: MakeStream, peer: Peer, level: TimelineLevel
) -> None:
    if level == "word":
        pytest.skip("at level 'word' only the stream waits")
    timeline = make_timeline(level)
    peer.call(streams.open_, "timeline", timeline.export().to_bytes())
    peer.call(streams.new_stream, "stream")
    with pytest.raises(crossmem.WaitTimeoutError):
        peer.call(streams.wait, "timeline", 1, "stream", timeout=_WITHIN_S)

    assert peer.call(streams.synchronize, "stream") < SOON_S


@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, 2**64, True, 1.0, "1", None])
def test_l03_values_that_are_never_signalled_are_refused(
    make_timeline: MakeTimeline, value: Any
) -> None:
    timeline = make_timeline()
    start = time.monotonic()
    with pytest.raises(crossmem.ConfigurationError):
        timeline.wait(value)

    assert time.monotonic() - start < SOON_S


# L4: streams are released -----------------------------------------------------------------


def _let_wait(waiter: Peer, blob: bytes, value: int) -> None:
    """Let a stream of a process wait for a value that is not signalled yet."""
    waiter.call(streams.open_, "timeline", blob)
    waiter.call(streams.new_stream, "stream")
    waiter.call(streams.wait, "timeline", value, "stream")


@pytest.mark.crossmem_core
def test_l04_a_stream_that_waits_for_a_dead_process_is_released(
    make_stream: MakeStream, fresh_peer: FreshPeer, peer: Peer, word: TimelineLevel
) -> None:
    victim = fresh_peer()
    _let_wait(peer, victim.call(streams.make, "timeline", word), 1)
    assert not peer.call(actions.attribute, "timeline", "void")
    assert peer.call(streams.is_watching)
    victim.kill()

    assert peer.call(streams.synchronize, "stream", within=SOON_S) < SOON_S
    assert peer.call(actions.attribute, "timeline", "void")
    with pytest.raises(crossmem.OwnerGoneError):
        peer.call(streams.wait, "timeline", 1)
    # A further wait does not block the stream: the call is refused, or the stream is released.
    peer.call(streams.wait_for_the_dead, "timeline", 2, "stream")
    assert peer.call(streams.synchronize, "stream", within=SOON_S) < SOON_S


@pytest.mark.crossmem_core
def test_l04_the_value_is_void_after_a_death(
    make_stream: MakeStream, fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    victim = fresh_peer()
    peer.call(streams.open_, "timeline", victim.call(streams.make, "timeline", level))
    peer.call(streams.new_stream, "stream")
    victim.call(streams.new_stream, "stream")
    victim.call(streams.signal, "timeline", 1, "stream")
    # The stream must not wait for ever, even if a dead process's event is never complete.
    peer.call(streams.wait, "timeline", 1, "stream")
    victim.kill()

    assert peer.call(streams.synchronize, "stream", within=SOON_S) < SOON_S
    # If the signalled work may be incomplete, the timeline is void. Otherwise, its value is 1.
    peer.call(streams.await_void_or_reached, "timeline", 1, within=2 * SOON_S)


def test_l04_a_late_value_of_a_dying_process_changes_nothing(
    make_stream: MakeStream, fresh_peer: FreshPeer, peer: Peer, word: TimelineLevel
) -> None:
    victim = fresh_peer()
    _let_wait(peer, victim.call(streams.make, "timeline", word), 3)
    victim.kill()
    peer.call(streams.synchronize, "stream", within=SOON_S)
    # The timeline is void now. Device work of the dead process may still write an earlier value, as
    # this call does.
    peer.call(_write_late, "timeline", 2)

    assert settle(lambda: _not_void(peer), within=SOON_S) == []


def _write_late(name: str, value: int) -> None:
    actions.objects[name]._record.cell.write(VALUE, value)


def _not_void(peer: Peer) -> list[str]:
    return [] if peer.call(actions.attribute, "timeline", "void") else ["the value is not void"]


@pytest.mark.crossmem_core
def test_l04_the_thread_that_watches_ends(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    fresh_peer: FreshPeer,
    peer: Peer,
    word: TimelineLevel,
) -> None:
    victim, timeline = fresh_peer(), make_timeline(word)
    _let_wait(peer, timeline.export().to_bytes(), 1)
    assert peer.call(streams.is_watching)
    timeline.signal(1)

    assert settle(lambda: _watching(peer)) == []

    # A wait for a value that was reached needs no watcher.
    peer.call(streams.wait, "timeline", 1, "stream")
    peer.call(streams.synchronize, "stream")
    assert settle(lambda: _watching(peer)) == []

    peer.call(streams.open_, "theirs", victim.call(streams.make, "timeline", word))
    peer.call(streams.wait, "theirs", 1, "stream")
    assert peer.call(streams.is_watching)
    victim.kill()
    peer.call(streams.synchronize, "stream", within=SOON_S)
    assert settle(lambda: _watching(peer), within=2 * SOON_S) == []


def _watching(peer: Peer) -> list[str]:
    return ["the watcher runs"] if peer.call(streams.is_watching) else []


@pytest.mark.crossmem_core
def test_l04_a_stream_is_released_when_the_timeline_is_closed(
    make_stream: MakeStream, fresh_peer: FreshPeer, peer: Peer, word: TimelineLevel
) -> None:
    owner = fresh_peer()
    _let_wait(peer, owner.call(streams.make, "timeline", word), 1)
    owner.call(actions.call, "timeline", "close")

    assert peer.call(streams.synchronize, "stream", within=SOON_S) < SOON_S
    assert peer.call(actions.attribute, "timeline", "void")
    with pytest.raises(crossmem.ClosedError):
        peer.call(streams.wait, "timeline", 1)


def test_l04_the_words_outlive_an_opened_timeline_that_a_stream_waits_for(
    make_timeline: MakeTimeline, make_stream: MakeStream, peer: Peer, word: TimelineLevel
) -> None:
    timeline = make_timeline(word)
    _let_wait(peer, timeline.export().to_bytes(), 1)
    peer.call(actions.call, "timeline", "close")
    peer.call(actions.drop, "timeline")
    timeline.signal(1)

    assert peer.call(streams.synchronize, "stream", within=SOON_S) < SOON_S
    assert settle(lambda: _watching(peer)) == []


@pytest.mark.crossmem_core
def test_l04_the_death_of_a_waiter_disturbs_nobody(
    make_timeline: MakeTimeline,
    make_stream: MakeStream,
    fresh_peer: FreshPeer,
    peer: Peer,
    level: TimelineLevel,
) -> None:
    victim, timeline, stream = fresh_peer(), make_timeline(level), make_stream()
    blob = timeline.export().to_bytes()
    for one in (victim, peer):
        one.call(streams.open_, "timeline", blob)
        one.call(streams.new_stream, "stream")
    _, answer = [one.start(streams.wait, "timeline", 1, "stream") for one in (victim, peer)]
    time.sleep(0.05)
    victim.kill()
    timeline.signal(1, stream=stream)
    answer.result()
    peer.call(streams.synchronize, "stream", within=SOON_S)

    assert timeline.wait(1) == 1
    assert peer.call(streams.wait, "timeline", 1)[0] == 1
    assert not timeline.void
    assert not peer.call(actions.attribute, "timeline", "void")


@pytest.mark.crossmem_core
def test_l04_the_death_of_a_waiting_host_disturbs_nobody(
    make_timeline: MakeTimeline, fresh_peer: FreshPeer, peer: Peer, level: TimelineLevel
) -> None:
    victim, timeline = fresh_peer(), make_timeline(level)
    blob = timeline.export().to_bytes()
    for one in (victim, peer):
        one.call(streams.open_, "timeline", blob)
    _, answer = [one.start(streams.wait, "timeline", 1) for one in (victim, peer)]
    time.sleep(0.05)
    victim.kill()
    timeline.signal(1)

    assert answer.result()[0] == 1
    assert not timeline.void
    assert not peer.call(actions.attribute, "timeline", "void")


def test_l04_a_process_can_exit_while_a_stream_waits(
    make_stream: MakeStream, fresh_peer: FreshPeer, word: TimelineLevel
) -> None:
    owner, waiter = fresh_peer(), fresh_peer()
    _let_wait(waiter, owner.call(streams.make, "timeline", word), 1)
    owner.kill()
    waiter.exit(within=10 * SOON_S)

    assert waiter.exitcode == os.EX_OK
