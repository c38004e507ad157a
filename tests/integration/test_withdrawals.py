# SPDX-License-Identifier: Apache-2.0
"""Exports that are withdrawn while importers are on the way (law C28)."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.pool import settle

if TYPE_CHECKING:
    from tests.integration import end_actions, word_actions
    from tests.integration.conftest import StartPeer
else:
    import end_actions
    import word_actions

NBYTES = 4096
TURNS = 300


def lessees(exporter: Peer) -> list[int]:
    infos = exporter.call(actions.exports)
    return [lease.pid for info in infos for lease in info.leases]


@pytest.fixture
def pair(start_peer: "StartPeer") -> tuple[Peer, Peer, bytes]:
    """Return an exporter and an importer that know each other, and the handle of ``memory``."""
    exporter, importer = start_peer(tracing=False), start_peer()
    importer.call(actions.attach, "known", exporter.call(actions.offer, "known", NBYTES))
    importer.call(actions.unmap, "known")
    exporter.call(actions.free, "known")
    return exporter, importer, exporter.call(actions.offer, "memory", NBYTES, b"data")


@pytest.mark.parametrize("at", [1, 2], ids=["before its row", "before control"])
def test_a_grant_that_is_under_way_is_stale(pair: tuple[Peer, Peer, bytes], at: int) -> None:
    exporter, importer, blob = pair
    before = importer.call(actions.calls)
    # It has the answer of the lease server, and is about to hold.
    importer.call(word_actions.count, at, signal.SIGSTOP)
    attached = importer.start(actions.attach, "late", blob)
    assert settle(lambda: [] if importer._state() == b"T" else ["runs"]) == []
    exporter.call(end_actions.withdraw, "memory", blob)
    importer.cont()

    with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
        attached.result()
    assert importer.call(actions.calls) == before
    assert settle(lambda: lessees(exporter)) == []
    # What nobody has is forgotten: its slot is free.
    assert exporter.call(end_actions.kept_of_exports)[1:] == (0, 1)
    importer.call(actions.attach, "new", exporter.call(actions.export, "memory"))
    assert importer.call(actions.read, "new", 4) == b"data"


def test_an_importer_killed_while_it_begins_to_hold(pair: tuple[Peer, Peer, bytes]) -> None:
    exporter, importer, blob = pair
    importer.call(word_actions.count, 2)
    with pytest.raises(PeerDiedError):
        importer.call(actions.attach, "never", blob)
    exporter.call(end_actions.withdraw, "memory", blob)

    assert settle(lambda: lessees(exporter)) == []
    assert exporter.call(end_actions.kept_of_exports)[1:] == (0, 1)


def test_the_end_of_a_withdrawn_export_is_seen_without_its_message(
    pair: tuple[Peer, Peer, bytes],
) -> None:
    exporter, importer, blob = pair
    importer.call(actions.attach, "mapped", blob)
    exporter.call(end_actions.withdraw, "memory", blob)
    assert exporter.call(end_actions.kept_of_exports) == (1, 1, 0)
    importer.call(word_actions.mute_hints)
    importer.call(actions.unmap, "mapped")

    assert exporter.call(actions.exports) == []
    assert exporter.call(end_actions.kept_of_exports)[1:] == (0, 1)
    # The next withdrawal takes away what is left, and so does the end of the memory.
    again = exporter.call(actions.export, "memory")
    exporter.call(end_actions.withdraw, "memory", again)
    assert exporter.call(end_actions.kept_of_exports)[0] == 0
    last = exporter.call(actions.export, "memory")
    importer.call(actions.attach, "mapped", last)
    exporter.call(end_actions.withdraw, "memory", last)
    importer.call(actions.unmap, "mapped")
    exporter.call(actions.free, "memory")
    assert exporter.call(end_actions.kept_of_exports) == (0, 0, 1)


def test_the_message_that_it_ended_is_enough(pair: tuple[Peer, Peer, bytes]) -> None:
    exporter, importer, blob = pair
    importer.call(actions.attach, "mapped", blob)
    exporter.call(end_actions.withdraw, "memory", blob)
    importer.call(actions.unmap, "mapped")

    # No report is asked for, and no call of the exporter looks at the row.
    left = settle(lambda: ["a slot"] * exporter.call(end_actions.kept_of_exports)[1])
    assert left == []


def test_who_holds_it_may_open_it_in_another_way_by_a_message_alone(
    pair: tuple[Peer, Peer, bytes],
) -> None:
    exporter, importer, blob = pair
    message = exporter.call(actions.send, "memory")
    importer.call(actions.attach, "mapped", blob)
    exporter.call(end_actions.withdraw, "memory", blob)
    # That is another vendor open, for which the exporter is asked.
    with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
        importer.call(actions.attach, "reading", blob, readonly=True)
    importer.call(actions.attach_reserved, ["reading"], message, readonly=True)

    assert importer.call(actions.read, "reading", 4) == b"data"
    importer.call(actions.unmap, "mapped")
    assert lessees(exporter) == [importer.pid]
    importer.call(actions.unmap, "reading")
    assert settle(lambda: lessees(exporter)) == []
    assert exporter.call(end_actions.kept_of_exports)[1:] == (0, 1)


def test_no_import_succeeds_after_a_withdrawal(start_peer: "StartPeer", tmp_path: Path) -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    flag, blobs = tmp_path / "flag", tmp_path / "blobs"
    flag.write_bytes(bytes(64))
    exporting = exporter.start(end_actions.withdraw_each, flag, blobs, TURNS)

    worked, late = importer.call(end_actions.attach_withdrawn, flag, blobs, TURNS)

    exporting.result()
    assert late == 0
    assert worked > 0
