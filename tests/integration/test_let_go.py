# SPDX-License-Identifier: Apache-2.0
"""Imports that end with their owners, where something is missing or fails (law C29)."""

from typing import TYPE_CHECKING

import pytest

from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle

if TYPE_CHECKING:
    from tests.integration import end_actions
    from tests.integration.conftest import StartPeer
else:
    import end_actions

NBYTES = 4096


def mapped(peer: Peer) -> list[str]:
    """Return what the driver of a peer has mapped; no call of crossmem there."""
    live: dict[str, int] = peer.call(actions.attribute, "driver", "live")
    return ["a mapping"] * live["mappings"]


def attach(importer: Peer, exporter: Peer, name: str) -> None:
    blob = exporter.call(actions.offer, name, NBYTES)
    importer.call(actions.attach, name, blob, on_owner_death="release")


def test_without_pidfds_the_end_of_the_connection_tells(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer()
    importer.call(end_actions.use_no_pidfds)
    importer.call(actions.keep_tracer, "driver")
    attach(importer, exporter, "memory")
    assert settle(lambda: mapped(importer), within=0.6) != []
    exporter.kill()

    assert settle(lambda: mapped(importer)) == []
    assert importer.call(end_actions.is_closed, "memory")


@pytest.mark.parametrize("error", [OSError("broken"), ValueError("a driver's fault")])
def test_what_a_driver_refuses_is_tried_again(start_peer: "StartPeer", error: Exception) -> None:
    doomed, living, importer = start_peer(tracing=False), start_peer(tracing=False), start_peer()
    importer.call(actions.keep_tracer, "driver")
    attach(importer, doomed, "doomed")
    attach(importer, living, "living")
    importer.call(end_actions.break_unmap, error)
    doomed.kill()

    assert settle(lambda: mapped(importer)[1:]) == []
    # The watcher survives that.
    living.kill()
    assert settle(lambda: mapped(importer)) == []


def test_without_a_thread_nothing_is_imported(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)

    assert "crossmem-watcher" in importer.call(end_actions.attach_without_threads, blob)

    assert not any(importer.call(actions.live).values())
    attach(importer, exporter, "later")
    importer.call(actions.unmap, "later")
