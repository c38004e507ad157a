# SPDX-License-Identifier: Apache-2.0
"""Leases of processes that stand still, are busy, or die in the middle of a request."""

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, forks, resources
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.control.endpoint import new_socket

if TYPE_CHECKING:
    from tests.integration import lease_actions
    from tests.integration.conftest import StartPeer
else:
    import lease_actions

NBYTES = 4096


def leases_of(exporter: Peer) -> int:
    return sum(len(info.leases) for info in exporter.call(actions.exports))


def settles_at(exporter: Peer, count: int) -> bool:
    def others() -> list[str]:
        found = leases_of(exporter)
        return [] if found == count else [f"{found} leases"]

    return settle(others) == []


def left_of(peer: Peer) -> list[str]:
    """Return what still runs of a peer and of the children that it forked."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == peer.pid and state not in "ZX":
                found.append(path.parent.name)
    return found


# Killed in the middle ---------------------------------------------------------------------------


def test_an_importer_killed_between_request_and_reply(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)
    importer.call(lease_actions.connect_and_ask_later, blob)
    exporter.stop()
    importer.call(lease_actions.ask_now, blob)
    importer.kill()
    exporter.cont()

    exporter.call(actions.free, "memory", busy="wait", timeout=SLOWNESS)
    assert exporter.call(actions.live)["blocks"] == 0


def test_an_importer_killed_before_it_reads_the_reply(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)
    importer.call(lease_actions.request_and_wait, blob)
    importer.kill()

    exporter.call(actions.free, "memory", busy="wait", timeout=SLOWNESS)


def test_an_importer_killed_while_it_waits_for_a_stopped_exporter(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    met, unmet = (exporter.call(actions.offer, name, NBYTES) for name in "ab")
    importer.call(actions.attach, "mapped", met)
    exporter.stop()
    waiting = importer.start(actions.attach, "never", unmet, timeout=20)
    settle(lambda: [] if waiting.is_done() else ["waiting"], within=0.2)
    importer.kill()
    exporter.cont()

    for name in "ab":
        exporter.call(actions.free, name, busy="wait", timeout=SLOWNESS)


def test_exporters_and_importers_with_sleeping_children_leave_nothing(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    for with_handlers in (True, False):
        exporter, importer, witness = (start_peer(fresh=True) for _ in range(3))
        blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
        mine = witness.call(actions.offer, "witness", NBYTES, b"mine")
        for one in (importer, witness):
            one.call(actions.attach, "mapped", blob)
        for one in (importer, exporter):
            one.call(actions.attach, "mine", mine)
            one.call(forks.sleeping_child, with_handlers=with_handlers)
        importer.kill()
        assert settles_at(exporter, 1)
        exporter.kill()
        assert settles_at(witness, 0)

        assert not witness.call(actions.attribute, "mapped", "owner_alive")
        assert witness.call(actions.read, "mapped", 4) == b"data"
        witness.call(actions.unmap, "mapped")
        witness.call(actions.free, "witness", busy="raise")
        for one in (exporter, importer):
            one.destroy()
            # Its children end after it. Until then they may have open what they inherited.
            assert settle(lambda peer=one: left_of(peer)) == []
        witness.call(actions.offer, "again", NBYTES)
        # The next user of the run directory removes what the dead exporter left in it.
        start_peer().call(actions.offer, "other", NBYTES)
        assert len(list(run_dir.iterdir())) == 2
        witness.exit()
        for path in run_dir.iterdir():
            path.unlink()


# Connections that end ---------------------------------------------------------------------------


def test_the_end_of_a_connection_is_not_the_end_of_its_leases(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blobs = [exporter.call(actions.offer, name, NBYTES, b"data") for name in "abc"]
    importer.call(actions.attach, "one", blobs[0])
    importer.call(actions.attach, "two", blobs[1])
    assert importer.call(lease_actions.break_connections) == 1

    with pytest.raises(crossmem.BusyError):
        exporter.call(actions.free, "a", busy="wait", timeout=0.3)
    assert importer.call(actions.attribute, "one", "owner_alive")
    # It connects again to release, and to import more.
    importer.call(actions.unmap, "one")
    importer.call(actions.collect)
    exporter.call(actions.free, "a", busy="wait", timeout=SLOWNESS)
    importer.call(actions.attach, "three", blobs[2])
    assert importer.call(actions.read, "three", 4) == b"data"
    assert importer.call(actions.read, "two", 4) == b"data"
    importer.call(actions.unmap, "two", "three")
    importer.call(actions.collect)
    for name in "bc":
        exporter.call(actions.free, name, busy="wait", timeout=SLOWNESS)


def test_a_closed_connection_has_ended_although_a_child_has_a_copy(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    exporter, importer = start_peer(), start_peer()
    blobs = [exporter.call(actions.offer, name, NBYTES) for name in "ab"]
    importer.call(actions.attach, "one", blobs[0])
    exporter.call(forks.sleeping_child, with_handlers=False)
    exporter.call(resources.limit_descriptors, 10)
    (path,) = run_dir.iterdir()
    with contextlib.ExitStack() as others:
        for _ in range(20):
            other = others.enter_context(new_socket())
            other.connect(str(path))
        # The exporter has accepted all of them, and has closed its oldest connections.
        other.settimeout(10 * SLOWNESS)
        assert other.recv(100)

    importer.call(actions.attach, "two", blobs[1], timeout=5 * SLOWNESS)
    importer.call(actions.unmap, "one", "two")


def test_releases_that_wait_go_out_with_the_next_import(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blobs = [exporter.call(actions.offer, name, NBYTES) for name in "ab"]
    importer.call(actions.attach, "one", blobs[0])
    importer.call(lease_actions.break_connections)
    importer.call(actions.unmap, "one")

    importer.call(actions.attach, "two", blobs[1])

    exporter.call(actions.free, "a", busy="wait", timeout=SLOWNESS)
    assert leases_of(exporter) == 1


# Stopped exporters ------------------------------------------------------------------------------


def test_what_a_stopped_exporter_cannot_read_yet_is_not_lost(start_peer: "StartPeer") -> None:
    count = 700  # more releases than its socket holds
    exporter, importer = start_peer(), start_peer()
    blobs = [exporter.call(actions.offer, f"memory{n}", NBYTES, b"data") for n in range(count)]
    names = [f"mapped{n}" for n in range(count)]
    importer.call(actions.attach_many, names, blobs)
    exporter.stop()

    # Neither waits for the exporter, which stands still for as long as they do not return.
    importer.call(actions.unmap, *names[1:])
    importer.call(actions.collect)
    assert importer.call(actions.attribute, names[0], "owner_alive")
    assert importer.call(actions.read, names[0], 4) == b"data"
    exporter.cont()

    def collected() -> list[str]:
        importer.call(actions.collect)
        found = leases_of(exporter)
        return [] if found == 1 else [f"{found} leases"]

    assert settle(collected) == []
    assert importer.call(actions.attribute, names[0], "owner_alive")


@pytest.mark.parametrize("impatience", [150, 400])
def test_requests_that_nobody_waits_for_any_more_hold_nothing(
    start_peer: "StartPeer", impatience: int
) -> None:
    exporter, importer = start_peer(), start_peer()
    met, unmet = (exporter.call(actions.offer, name, NBYTES, b"data") for name in "ab")
    importer.call(actions.attach, "mapped", met)
    before = importer.call(resources.descriptors)
    exporter.stop()
    found = importer.call(lease_actions.attach_impatiently, unmet, impatience, 0.001)
    assert found == impatience
    waiting = importer.start(actions.attach, "late", unmet, timeout=30 * SLOWNESS)
    exporter.cont()
    waiting.result()

    assert importer.call(actions.read, "late", 4) == b"data"
    importer.call(actions.collect)
    assert settles_at(exporter, 2)
    importer.call(actions.unmap, "late", "mapped")
    for name in "ab":
        exporter.call(actions.free, name, busy="wait", timeout=2 * SLOWNESS)
    importer.call(actions.collect)
    # Descriptors that came with late answers are closed.
    after = importer.call(resources.descriptors)
    assert len(after) <= len(before), after


def test_a_late_reply_is_dropped_without_another_call(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    met, unmet = (exporter.call(actions.offer, name, NBYTES) for name in "ab")
    importer.call(actions.attach, "mapped", met)
    exporter.stop()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        importer.call(actions.attach, "late", unmet, timeout=0.2)

    exporter.cont()
    # An unread reply would keep the memory that the exporter frees.
    assert importer.call(lease_actions.settles_without_late_replies)

    importer.call(actions.unmap, "mapped")
    for name in "ab":
        exporter.call(actions.free, name, busy="wait", timeout=SLOWNESS)


def test_memory_is_used_while_another_thread_asks_for_more_of_it(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    more = exporter.call(actions.export, "memory", allow=crossmem.Allow(pids=[importer.pid]))
    assert crossmem.ShareableHandle.from_bytes(more) != crossmem.ShareableHandle.from_bytes(blob)
    importer.call(actions.import_, "imported", blob)
    exporter.stop()

    timeout_s = 2 * SLOWNESS
    took_s = importer.call(
        lease_actions.use_what_another_thread_asks_for, "imported", more, timeout_s
    )

    assert took_s < timeout_s / 4
    exporter.cont()
    assert settles_at(exporter, 0)


def test_an_exporter_stopped_for_good_is_killed_and_gone(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)
    exporter.stop()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        importer.call(actions.attach, "never", blob, timeout=0.2)

    os.kill(exporter.pid, signal.SIGKILL)

    def gone() -> list[str]:
        try:
            importer.call(actions.attach, "never", blob, timeout=0.2)
        except crossmem.OwnerGoneError:
            return []
        except crossmem.OwnerUnresponsiveError:
            return ["unresponsive"]
        return ["attached"]

    assert settle(gone) == []


def test_a_stopped_importer_keeps_its_lease_and_goes_on(start_peer: "StartPeer") -> None:
    exporter, importer, other = start_peer(), start_peer(), start_peer()
    blob, more = (exporter.call(actions.offer, name, NBYTES, b"data") for name in "ab")
    importer.call(actions.attach, "mapped", blob)
    importer.stop()

    other.call(actions.attach, "mapped", blob)
    other.call(actions.unmap, "mapped")
    exporter.call(actions.free, "a")
    assert [info.waiting for info in exporter.call(actions.exports)] == [True, False]
    importer.cont()

    assert importer.call(actions.read, "mapped", 4) == b"data"
    importer.call(actions.attach, "more", more)
    importer.call(actions.unmap, "mapped", "more")
    exporter.call(actions.free, "b", busy="wait", timeout=SLOWNESS)
    exporter.call(actions.collect)
    assert exporter.call(actions.live)["blocks"] == 0


# Busy exporters ---------------------------------------------------------------------------------


def test_an_exporter_that_never_pauses_answers(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blobs = [exporter.call(actions.offer, name, NBYTES, b"data") for name in "abc"]
    exporter.start(lease_actions.spin_for_ever)

    for blob in blobs:
        importer.call(actions.attach, "mapped", blob, timeout=15 * SLOWNESS)
        assert importer.call(actions.read, "mapped", 4) == b"data"
        importer.call(actions.unmap, "mapped")
    importer.call(actions.attach_many, ["a", "b", "c"], blobs, timeout=15 * SLOWNESS)


def test_an_exporter_that_keeps_the_gil_answers_when_it_lets_go(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    exporter, importer = start_peer(), start_peer()
    met, unmet = (exporter.call(actions.offer, name, NBYTES, b"data") for name in "ab")
    importer.call(actions.attach, "mapped", met)
    holding = exporter.start(lease_actions.hold_the_gil, fifo)

    # The first attempts can be answered: the call may not have begun yet.
    def unanswered() -> list[str]:
        try:
            importer.call(actions.attach, "late", unmet, timeout=0.2)
        except crossmem.OwnerUnresponsiveError:
            return []
        importer.call(actions.unmap, "late")
        return ["answered"]

    assert settle(unanswered) == []
    assert importer.call(actions.attribute, "mapped", "owner_alive")
    waiting = importer.start(actions.attach, "late", unmet, timeout=30 * SLOWNESS)
    assert not holding.is_done()
    fifo.write_bytes(b"x")
    waiting.result()
    holding.result()
    importer.call(actions.unmap, "mapped", "late")
    for name in "ab":
        exporter.call(actions.free, name, busy="wait", timeout=SLOWNESS)


# Both ways --------------------------------------------------------------------------------------


def test_two_processes_import_from_each_other(start_peer: "StartPeer") -> None:
    pair = [start_peer(), start_peer()]
    blobs = [one.call(actions.offer, "memory", NBYTES, b"data") for one in pair]

    churning = [
        one.start(actions.in_threads, 4, lease_actions.attach_over_and_over, blob, 50, within=90)
        for one, blob in zip(pair, reversed(blobs), strict=True)
    ]

    for done in churning:
        assert done.result() == [None] * 4
    for one in pair:
        one.call(actions.free, "memory", busy="wait", timeout=SLOWNESS)
        assert one.call(actions.violations) == []
