# SPDX-License-Identifier: Apache-2.0
"""Timelines between processes: order, waking, deaths, stopped processes, forks and readers."""

import os
import signal
import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import timeline_actions, word_actions
    from tests.integration.conftest import StartPeer
else:
    import timeline_actions
    import word_actions

LONG_S = 60.0
SIDES = pytest.mark.parametrize(
    ("signaller_fences", "waiter_fences"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["barrier", "fence-signals", "fence-waits", "fences"],
)


def start(start_peer: "StartPeer", *, fences: bool = False) -> Peer:
    return start_peer(tracing=False, CROSSMEM_BARRIER="fence" if fences else None)


def opened(start_peer: "StartPeer", owner: Peer, blob: bytes, count: int) -> list[Peer]:
    peers = [start(start_peer) for _ in range(count)]
    for one in peers:
        one.call(timeline_actions.open_, "t", blob)
    return peers


# Order ------------------------------------------------------------------------------------


@SIDES
def test_ping_pong_loses_nothing(
    start_peer: "StartPeer", signaller_fences: bool, waiter_fences: bool
) -> None:
    count = 300 if signaller_fences or waiter_fences else 10_000
    one = start(start_peer, fences=signaller_fences)
    two = start(start_peer, fences=waiter_fences)
    there, back = (
        one.call(timeline_actions.make, "there"),
        two.call(timeline_actions.make, "back"),
    )
    one.call(timeline_actions.open_, "back", back)
    two.call(timeline_actions.open_, "there", there)
    echoing = two.start(timeline_actions.echo, "there", "back", count, within=100 * SLOWNESS)

    wrong = one.call(timeline_actions.serve, "there", "back", count, within=100 * SLOWNESS)

    assert (wrong, echoing.result()) == ([], [])
    for peer, name in ((one, "back"), (two, "there")):
        assert peer.call(actions.attribute, name, "value") == count
        assert not peer.call(actions.attribute, name, "void")


@SIDES
def test_who_follows_sees_values_grow(
    start_peer: "StartPeer", signaller_fences: bool, waiter_fences: bool
) -> None:
    owner = start(start_peer, fences=signaller_fences)
    blob = owner.call(timeline_actions.make, "t")
    readers = [start(start_peer, fences=waiter_fences) for _ in range(2)]
    for one in readers:
        one.call(timeline_actions.open_, "t", blob)
    following = [
        one.start(timeline_actions.follow, "t", 20_000, within=LONG_S * SLOWNESS) for one in readers
    ]

    owner.call(timeline_actions.race, "t", 1, 20_000, within=LONG_S * SLOWNESS)

    for pending in following:
        seen = pending.result()
        assert seen == sorted(set(seen))
        assert seen[-1] == 20_000


# Waking -----------------------------------------------------------------------------------


def test_one_signal_wakes_all_waiters(start_peer: "StartPeer") -> None:
    owner = start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    readers = opened(start_peer, owner, blob, 8)
    late: list[float] = []
    for value in range(1, 6):
        waiting = [
            one.start(timeline_actions.seconds_of_wait, "t", 2 * value, 30.0) for one in readers
        ]
        time.sleep(0.2)
        owner.call(actions.call, "t", "signal", 2 * value - 1)
        time.sleep(0.1)
        assert not any(one.is_done() for one in waiting)
        began = time.monotonic()
        owner.call(actions.call, "t", "signal", 2 * value)
        ends = [one.result() for one in waiting]
        assert [end for end, _ in ends] == ["reached"] * 8
        late += [at - began for _, at in ends]

    # Without a wake-up, each looks again after a quarter of a second: half of that on average.
    assert statistics.mean(late) < 0.06
    assert all(one.call(actions.attribute, "t", "value") == 10 for one in readers)


def test_no_wake_up_is_lost(start_peer: "StartPeer") -> None:
    owner, reader = start(start_peer), start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    reader.call(timeline_actions.open_, "t", blob)
    count = 2000
    late: list[float] = []
    # Around the moment at which a waiter stops to look and falls asleep, and well after it.
    for number, longest_s in enumerate((60e-6, 200e-6, 2e-3)):
        base = number * count
        waking = reader.start(timeline_actions.wakes, "t", base, base + count, within=LONG_S)
        times = owner.call(
            timeline_actions.signal_at_random, "t", base, count, number, longest_s, within=LONG_S
        )
        for value, at in waking.result():
            late.append(at - times[value - base])

    assert len(late) > 1000
    # A lost wake-up costs up to a quarter of a second. Even one in fifty would be seen.
    assert statistics.mean(late) < 2e-3 * SLOWNESS
    # The processors are shared with other programs, so single values say little.
    assert sum(one > 0.2 for one in late) <= 2 * SLOWNESS


def test_a_signal_without_sleepers_makes_no_system_call(start_peer: "StartPeer") -> None:
    owner = start(start_peer)
    owner.call(timeline_actions.make, "t")

    owner.call(timeline_actions.race, "t", 1, 100)

    assert owner.call(timeline_actions.words, "t") == {"value": 100, "waiting": 0, "moved": 0}


# Ends and deaths --------------------------------------------------------------------------


def test_a_close_ends_waits_of_other_processes(start_peer: "StartPeer") -> None:
    owner = start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    readers = opened(start_peer, owner, blob, 3)
    waiting = [one.start(timeline_actions.seconds_of_wait, "t", 1, LONG_S) for one in readers]
    time.sleep(0.2)
    began = time.monotonic()

    owner.call(timeline_actions.close, "t")

    for one in waiting:
        end, at = one.result()
        assert end == "ClosedError"
        assert at - began < 0.2 * SLOWNESS
    assert all(one.call(actions.attribute, "t", "void") for one in readers)
    with pytest.raises(crossmem.StaleHandleError):
        readers[0].call(timeline_actions.open_, "late", blob)
    with pytest.raises(crossmem.StaleHandleError):
        start(start_peer).call(timeline_actions.open_, "late", blob)


@pytest.mark.parametrize("fences", [False, True], ids=["barrier", "fences"])
def test_the_death_of_the_signaller_ends_waits(start_peer: "StartPeer", fences: bool) -> None:
    owner, reader = start(start_peer, fences=fences), start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    reader.call(timeline_actions.open_, "t", blob)
    owner.call(actions.call, "t", "signal", 3)
    waiting = reader.start(timeline_actions.waits_in_threads, "t", 4, LONG_S, 3)
    time.sleep(0.2)
    began = time.monotonic()

    owner.kill()

    assert waiting.result() == ["OwnerGoneError"] * 3
    assert time.monotonic() - began < SOON_S
    assert not reader.call(actions.attribute, "t", "owner_alive")
    # What was reached stays reached.
    assert reader.call(actions.call, "t", "wait", 3) == 3
    with pytest.raises(crossmem.OwnerGoneError, match="is dead"):
        reader.call(actions.call, "t", "wait", 4, timeout=0)
    with pytest.raises(crossmem.OwnerGoneError):
        start(start_peer).call(timeline_actions.open_, "t", blob)
    reader.call(timeline_actions.close, "t")


def test_an_exit_of_the_signaller_ends_waits(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(tracing=False, CROSSMEM_EXIT_WAIT="10"), start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    reader.call(timeline_actions.open_, "t", blob)
    waiting = reader.start(timeline_actions.seconds_of_wait, "t", 1, LONG_S)
    time.sleep(0.2)
    began = time.monotonic()

    owner.request_exit()

    end, at = waiting.result()
    assert end in {"ClosedError", "OwnerGoneError"}
    # Before the exit has waited for this process's lease.
    assert at - began < SOON_S
    assert reader.call(actions.attribute, "t", "void")
    reader.call(timeline_actions.close, "t")
    owner.wait_exit()


def test_a_stopped_signaller_delays_and_harms_nothing(start_peer: "StartPeer") -> None:
    owner, reader = start(start_peer), start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    reader.call(timeline_actions.open_, "t", blob)
    owner.stop()
    with pytest.raises(crossmem.WaitTimeoutError):
        reader.call(actions.call, "t", "wait", 1, timeout=0.5)
    assert reader.call(actions.attribute, "t", "owner_alive")
    reader.call(actions.call, "t", "done", 1)
    waiting = reader.start(timeline_actions.seconds_of_wait, "t", 1, LONG_S)

    owner.cont()
    owner.call(actions.call, "t", "signal", 1)

    assert waiting.result()[0] == "reached"
    assert owner.call(actions.call, "t", "wait_for_readers", 1, timeout=0) == 1


def test_a_stopped_waiter_delays_nobody(start_peer: "StartPeer") -> None:
    owner = start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    stopped, other = opened(start_peer, owner, blob, 2)
    waiting = [
        one.start(timeline_actions.seconds_of_wait, "t", 100, 30.0) for one in (stopped, other)
    ]
    assert owner.call(timeline_actions.await_sleeper, "t")
    time.sleep(0.1)
    stopped.stop()
    began = time.monotonic()
    owner.call(timeline_actions.race, "t", 1, 100)
    assert time.monotonic() - began < 1 + SLOWNESS

    assert waiting[1].result()[0] == "reached"
    assert not waiting[0].is_done()
    stopped.cont()
    assert waiting[0].result()[0] == "reached"


def test_a_waiter_that_was_killed_in_its_sleep_delays_nobody(start_peer: "StartPeer") -> None:
    owner = start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    killed, other = opened(start_peer, owner, blob, 2)
    killed.start(timeline_actions.seconds_of_wait, "t", 1, LONG_S)
    assert owner.call(timeline_actions.await_sleeper, "t")
    killed.kill()
    assert owner.call(timeline_actions.words, "t")["waiting"] == 1

    owner.call(actions.call, "t", "signal", 1)
    assert owner.call(timeline_actions.words, "t") == {"value": 1, "waiting": 0, "moved": 1}
    waiting = other.start(timeline_actions.seconds_of_wait, "t", 2, LONG_S)
    assert owner.call(timeline_actions.await_sleeper, "t")
    owner.call(actions.call, "t", "signal", 2)
    assert waiting.result()[0] == "reached"
    owner.call(timeline_actions.close, "t")

    def left() -> list[Any]:
        return [info for info in owner.call(actions.exports) if info.leases]

    other.call(timeline_actions.close, "t")
    assert settle(left) == []


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_waiter_that_is_cut_off_after_it_set_the_flag(
    start_peer: "StartPeer", death: int
) -> None:
    owner, waiter, other = (start(start_peer) for _ in range(3))
    blob = owner.call(timeline_actions.make, "t")
    for one in (waiter, other):
        one.call(timeline_actions.open_, "t", blob)
    # One look, the sequence, two accesses to CARE, the flag, and then the barrier at which it dies.
    waiter.call(timeline_actions.look_once)
    waiter.call(word_actions.count, 6, death)
    waiter.start(timeline_actions.seconds_of_wait, "t", 1, LONG_S)
    assert owner.call(timeline_actions.await_sleeper, "t")
    sleeping = other.start(timeline_actions.seconds_of_wait, "t", 1, LONG_S)
    time.sleep(0.2)

    owner.call(actions.call, "t", "signal", 1)

    assert sleeping.result()[0] == "reached"
    assert owner.call(actions.attribute, "t", "value") == 1


# Forks ------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_everything(start_peer: "StartPeer") -> None:
    owner, reader = start(start_peer), start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    reader.call(timeline_actions.open_, "t", blob)
    owner.call(actions.call, "t", "signal", 2)
    reader.call(actions.call, "t", "done", 1)
    for peer in (owner, reader):
        found = peer.call(timeline_actions.wait_in_a_forked_child, "t")

        assert found.pop("repr").endswith("closed>")
        assert set(found.values()) == {"ForkedProcessError"}, found
        assert len(found) == 10
    # The child's end has ended nothing of the parent's.
    owner.call(actions.call, "t", "signal", 3)
    assert reader.call(actions.call, "t", "wait", 3) == 3
    assert owner.call(actions.call, "t", "wait_for_readers", 1, timeout=0) == 1


# Admission --------------------------------------------------------------------------------


def test_only_those_who_are_allowed_open_it(start_peer: "StartPeer") -> None:
    owner, friend, other = (start(start_peer) for _ in range(3))
    allow = crossmem.Allow(pids=(friend.pid,))
    blob = owner.call(timeline_actions.make, "t", allow=allow)
    open_to_all = owner.call(timeline_actions.make, "all")
    friend.call(timeline_actions.open_, "t", blob)
    with pytest.raises(crossmem.AccessDeniedError):
        other.call(timeline_actions.open_, "t", blob)
    # Nor does the page of a timeline for all give access.
    other.call(timeline_actions.open_, "all", open_to_all)
    with pytest.raises(crossmem.AccessDeniedError):
        other.call(timeline_actions.open_, "t", blob)
    owner.call(actions.call, "t", "signal", 1)

    assert friend.call(actions.call, "t", "wait", 1) == 1


def test_a_forged_timeline_does_not_overwrite_holds(start_peer: "StartPeer") -> None:
    owner, reader = start(start_peer), start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    forged = owner.call(timeline_actions.forge, "page", blob)
    kept = owner.call(actions.offer, "kept", 4096, b"kept")
    reader.call(timeline_actions.open_, "forged", forged)
    # Its slot comes right behind that of the forged page.
    reader.call(actions.attach, "kept", kept)

    with pytest.raises(crossmem.InvalidHandleError, match="belongs to no timeline"):
        reader.call(actions.call, "forged", "done", 4)

    with pytest.raises(crossmem.BusyError):
        owner.call(actions.free, "kept", busy="raise")
    assert reader.call(actions.read, "kept", 4) == b"kept"


# Readers ----------------------------------------------------------------------------------


@SIDES
def test_the_signaller_waits_for_all_readers(
    start_peer: "StartPeer", signaller_fences: bool, waiter_fences: bool
) -> None:
    owner = start(start_peer, fences=signaller_fences)
    readers = [start(start_peer, fences=waiter_fences) for _ in range(4)]
    blob = owner.call(timeline_actions.make, "t")
    for one in readers:
        one.call(timeline_actions.open_, "t", blob)
    # Readers come later than the wait for them.
    waiting = owner.start(actions.call, "t", "wait_for_readers", 0, readers=4, timeout=30.0)
    for one in readers:
        assert not waiting.is_done()
        one.call(actions.call, "t", "done", 0)
    assert waiting.result() == 4

    owner.call(actions.call, "t", "signal", 1)
    for one in readers[1:]:
        one.call(actions.call, "t", "done", 1)
    with pytest.raises(crossmem.WaitTimeoutError, match="3 of 4 readers have acknowledged value 1"):
        owner.call(actions.call, "t", "wait_for_readers", 1, timeout=0.1)
    waiting = owner.start(actions.call, "t", "wait_for_readers", 1, timeout=30.0)
    readers[0].call(actions.call, "t", "done", 1)
    assert waiting.result() == 4

    # One that closes is no reader any more, nor is one that dies.
    readers[0].call(timeline_actions.close, "t")
    assert owner.call(actions.call, "t", "wait_for_readers", 1, timeout=0) == 3
    waiting = owner.start(actions.call, "t", "wait_for_readers", 2, timeout=30.0)
    for one in readers[1:3]:
        one.call(actions.call, "t", "done", 2)
    began = time.monotonic()
    readers[3].kill()
    assert waiting.result() == 2
    assert time.monotonic() - began < SOON_S


def test_a_stopped_reader_is_late_and_a_dead_one_is_not(start_peer: "StartPeer") -> None:
    owner, reader = start(start_peer), start(start_peer)
    blob = owner.call(timeline_actions.make, "t")
    reader.call(timeline_actions.open_, "t", blob)
    reader.call(actions.call, "t", "done", 3)
    reader.stop()
    with pytest.raises(crossmem.WaitTimeoutError, match="0 of 1"):
        owner.call(actions.call, "t", "wait_for_readers", 4, timeout=0.3)

    os.kill(reader.pid, signal.SIGKILL)
    began = time.monotonic()

    assert owner.call(actions.call, "t", "wait_for_readers", 4, timeout=20.0) == 0
    assert time.monotonic() - began < SOON_S


def test_the_word_of_a_reader_is_not_inherited_by_a_later_page(start_peer: "StartPeer") -> None:
    owner, reader = start(start_peer), start(start_peer)
    allow = crossmem.Allow(pids=(reader.pid,))
    for number in range(5):
        blob = owner.call(timeline_actions.make, "t", allow=allow)
        reader.call(timeline_actions.open_, "t", blob)
        assert owner.call(actions.call, "t", "wait_for_readers", 9, timeout=0) == 0
        reader.call(actions.call, "t", "done", 5)
        assert owner.call(actions.call, "t", "wait_for_readers", 5, timeout=0) == 1
        # Either side may close first.
        first, second = (owner, reader) if number % 2 else (reader, owner)
        first.call(timeline_actions.close, "t")
        second.call(timeline_actions.close, "t")

        def left() -> list[Any]:
            owner.call(actions.collect)
            return list(owner.call(actions.exports))

        assert settle(left) == []
