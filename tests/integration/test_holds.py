# SPDX-License-Identifier: Apache-2.0
"""Leases that are words: what is lost on the way, comes late, or is asked for twice."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import word_actions
    from tests.integration.conftest import StartPeer
else:
    import word_actions

NBYTES = 4096


@pytest.mark.parametrize("obstacle", ["work", "another thread"])
def test_memory_that_cannot_be_freed_yet_is_freed_later(
    start_peer: "StartPeer", obstacle: str
) -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    importer.call(actions.attach, "mapped", exporter.call(actions.offer, "memory", NBYTES))
    if obstacle == "work":
        exporter.call(word_actions.refuse_to_free, 0.8)
    else:
        exporter.call(word_actions.lock_memory, "memory", 0.8)
    exporter.call(actions.free, "memory")
    # So the reaper alone sees that the lease has ended, while the memory cannot be freed.
    importer.call(word_actions.mute_hints)
    importer.call(actions.unmap, "mapped")

    assert settle(lambda: [1] * exporter.call(word_actions.live), within=3 * SLOWNESS) == []


def test_an_export_that_is_imported_again_is_leased_again(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    first = exporter.call(actions.offer, "memory", NBYTES, b"data")
    second = exporter.call(actions.export, "memory", allow=crossmem.Allow(uids=[12345]))

    assert importer.call(word_actions.import_two_and_one_again, first, second)

    leases = [info.leases for info in exporter.call(actions.exports)]
    assert [[one.pid for one in each] for each in leases] == [[importer.pid]] * 2
    importer.call(actions.close, "one")
    leases = [info.leases for info in exporter.call(actions.exports)]
    assert [len(each) for each in leases] == [0, 1]


def test_a_lease_whose_user_left_while_another_was_asked_for_ends(
    start_peer: "StartPeer",
) -> None:
    exporter, importer = start_peer(), start_peer()
    first = exporter.call(actions.offer, "memory", NBYTES, b"data")
    second = exporter.call(actions.export, "memory", allow=crossmem.Allow(uids=[12345]))

    importer.call(word_actions.close_while_another_is_leased, first, second)

    assert [len(info.leases) for info in exporter.call(actions.exports)] == [0, 1]


def test_own_memory_is_leased_once_though_that_was_interrupted(start_peer: "StartPeer") -> None:
    assert start_peer().call(word_actions.lease_own_memory_interrupted, NBYTES) == []


def test_an_interrupt_before_the_message_delays_nobody(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    importer.call(actions.attach, "mapped", exporter.call(actions.offer, "memory", NBYTES))
    importer.call(word_actions.interrupt_hints)
    waiting = exporter.start(word_actions.seconds_of_free, "memory", 20.0)
    time.sleep(0.05)

    assert importer.call(word_actions.is_interrupted_by_unmap, "mapped")

    assert waiting.result() < 1 + SLOWNESS


def test_an_exporter_that_always_moves_on_takes_no_longer_than_allowed(
    start_peer: "StartPeer",
) -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    blob = exporter.call(actions.offer, "memory", NBYTES)
    importer.call(word_actions.never_hold)
    start = time.monotonic()

    with pytest.raises(crossmem.OwnerUnresponsiveError):
        importer.call(actions.attach, "never", blob, timeout=0.3)

    assert time.monotonic() - start < 0.3 + 2 * SLOWNESS
    assert exporter.call(word_actions.free_if_idle, "memory") is False


def test_an_interrupt_before_a_second_attempt_leaves_no_hold(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    blob = exporter.call(actions.offer, "memory", NBYTES)

    assert importer.call(word_actions.attach_interrupted, blob)

    importer.call(actions.attach, "mapped", blob)
    importer.call(actions.unmap, "mapped")
    assert exporter.call(word_actions.free_if_idle, "memory") is False


def test_what_an_importer_has_closed_is_freed_at_once(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    flag, blobs = tmp_path / "flag", tmp_path / "blob"
    flag.write_bytes(bytes(4096))
    importing = importer.start(word_actions.attach_each, flag, blobs, 200)

    assert exporter.call(word_actions.free_each_at_once, flag, blobs, 200) == 0
    importing.result()
