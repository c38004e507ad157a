# SPDX-License-Identifier: Apache-2.0
"""Peers that ask, send or leave unread without end cost the others little time and memory."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.peers import Peer
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import flood_actions, rogue_actions, stranger_actions
    from tests.integration.conftest import StartPeer
else:
    import flood_actions
    import rogue_actions
    import stranger_actions

NOBODY = 65534
GUEST = 4000
SOON_S = 2 * SLOWNESS
FEW = 40
ATTACK_S = 6.0

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")


def attach_soon(importer: Peer, blob: bytes) -> None:
    """Attach three times, each over a connection that was made anew."""
    for _ in range(3):
        importer.call(actions.attach, "mapped", blob, timeout=SOON_S)
        importer.call(actions.unmap, "mapped")


def test_a_child_of_a_dead_importer_stops_nobody(start_peer: "StartPeer") -> None:
    exporter, importer, doomed = (start_peer(tracing=False) for _ in range(3))
    blob = exporter.call(actions.offer, "memory", 4096)
    before = len(exporter.call(resources.descriptors))
    child = doomed.call(flood_actions.let_a_child_ask, blob, 4)
    doomed.kill()
    try:
        for _ in range(5):
            attach_soon(importer, blob)
            assert len(exporter.call(resources.descriptors)) < before + FEW
    finally:
        os.kill(child, 9)


def test_many_connections_of_one_process_are_served_as_one(start_peer: "StartPeer") -> None:
    exporter, importer, greedy = (start_peer(tracing=False) for _ in range(3))
    blob = exporter.call(actions.offer, "memory", 4096)
    greedy.call(flood_actions.ask_on_many, blob, 100, within=60)

    attach_soon(importer, blob)


@needs_root
def test_who_leaves_replies_unread_delays_no_other_user(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    exporter, importer, guest = (start_peer(tracing=False) for _ in range(3))
    # Root may have any number of descriptors under way.
    exporter.call(flood_actions.become, NOBODY, run_dir)
    exporter.call(resources.limit_descriptors, 900)
    blob = exporter.call(flood_actions.offer_to, "memory", [0, GUEST])
    guest.call(flood_actions.become, GUEST)
    guest.call(flood_actions.ask_and_leave_unread, blob, 6)

    attach_soon(importer, blob)

    # What it was sent is under way until it ends, also after its connections were dropped.
    open_now = len(exporter.call(resources.descriptors))
    guest.kill()
    attach_soon(importer, blob)
    assert len(exporter.call(resources.descriptors)) <= open_now


@pytest.mark.parametrize(
    "user", [pytest.param(None, id="same-user"), pytest.param(NOBODY, marks=needs_root, id="other")]
)
def test_a_squatter_with_a_full_backlog_is_no_living_owner(
    start_peer: "StartPeer", user: int | None
) -> None:
    exporter, importer, squatter = (start_peer(tracing=False) for _ in range(3))
    blob = exporter.call(actions.offer, "memory", 4096)
    exporter.kill()
    owner = crossmem.ShareableHandle.from_bytes(blob).owner
    squatter.call(flood_actions.squat_with_a_full_backlog, owner, user)

    start = time.monotonic()
    with pytest.raises(crossmem.OwnerGoneError):
        importer.call(actions.attach, "never", blob, timeout=20)

    assert time.monotonic() - start < SOON_S


@pytest.mark.parametrize("is_old", [False, True], ids=["", "before-linux-6.16"])
def test_an_exporter_that_closes_again_and_again_fills_no_descriptor_table(
    start_peer: "StartPeer", *, is_old: bool
) -> None:
    rogue, importer = start_peer(tracing=False), start_peer(tracing=False)
    if is_old:
        importer.call(stranger_actions.forget_passrights)
    importer.call(actions.allocate, "own", 1)
    importer.call(resources.limit_descriptors, 300)
    blob = rogue.call(rogue_actions.pretend, "page_and_the_end")

    with pytest.raises(crossmem.OwnerUnresponsiveError):
        importer.call(actions.attach, "never", blob, timeout=3)

    importer.call(actions.allocate, "more", 1)
    assert len(importer.call(resources.descriptors)) < 100


@needs_root
@pytest.mark.ci
def test_strangers_fill_no_descriptor_table_of_an_exporter(start_peer: "StartPeer") -> None:
    exporter, importer, stranger = (start_peer(tracing=False) for _ in range(3))
    exporter.call(stranger_actions.forget_passrights)
    exporter.call(resources.limit_descriptors, 200)
    blob = exporter.call(actions.offer, "memory", 4096)
    stranger.start(flood_actions.send_lingering_on_many, blob, NOBODY)
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        attach_soon(importer, blob)
        assert len(exporter.call(resources.descriptors)) < 150
        exporter.call(actions.offer, "more", 4096)
