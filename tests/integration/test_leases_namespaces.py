# SPDX-License-Identifier: Apache-2.0
"""Exporters and importers in different namespaces, as containers have them."""

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, forks
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.control import wire

if TYPE_CHECKING:
    from tests.integration import lease_actions, namespace_actions, place_actions
    from tests.integration.conftest import StartPeer
else:
    import lease_actions
    import namespace_actions
    import place_actions

NBYTES = 4096
NOBODY, STRANGER = 65534, 1234567

_NO_CONTAINERS = namespace_actions.why_not("net", "pid", "mount")
_NO_USERS = namespace_actions.why_not("user", "map-root-user")

needs_containers = pytest.mark.skipif(
    _NO_CONTAINERS is not None, reason=f"no network and pid namespaces here: {_NO_CONTAINERS}"
)
needs_users = pytest.mark.skipif(
    _NO_USERS is not None, reason=f"no user namespaces here: {_NO_USERS}"
)


def leave(peer: Peer, *namespaces: str) -> Peer:
    """Let a peer, which has not used crossmem yet, move to new namespaces."""
    peer.call(namespace_actions.leave_namespaces, *namespaces)
    return peer


def leases_of(exporter: Peer) -> list[crossmem.LeaseInfo]:
    return [lease for info in exporter.call(actions.exports) for lease in info.leases]


def check_deaths(exporter: Peer, importer: Peer, blobs: list[bytes]) -> None:
    """Kill the importer, then the exporter, and check what the other one notices."""
    importer.call(actions.attach, "mapped", blobs[0], timeout=5 * SLOWNESS)
    assert importer.call(actions.read, "mapped", 4) == b"data"
    assert importer.call(actions.attribute, "mapped", "owner_alive")
    assert len(leases_of(exporter)) == 1
    exporter.kill()
    alive = settle(lambda: ["alive"] * importer.call(actions.attribute, "mapped", "owner_alive"))
    assert alive == []
    assert importer.call(actions.read, "mapped", 4) == b"data"
    with pytest.raises(crossmem.OwnerGoneError):
        importer.call(actions.attach, "never", blobs[1], timeout=5 * SLOWNESS)


def check_release_and_death_of(importer: Peer, exporter: Peer, blob: bytes) -> None:
    """Check that the exporter notices what becomes of an importer in other namespaces."""
    importer.call(actions.attach, "mapped", blob, timeout=5 * SLOWNESS)
    with pytest.raises(crossmem.BusyError):
        exporter.call(actions.free, "b", busy="raise")
    importer.call(actions.unmap, "mapped")
    exporter.call(actions.export, "b")
    assert settle(lambda: ["leased"] * len(leases_of(exporter))) == []
    importer.call(actions.attach, "mapped", blob, timeout=5 * SLOWNESS)
    importer.kill()
    exporter.call(actions.free, "b", busy="wait", timeout=SLOWNESS)


# Network ----------------------------------------------------------------------------------------


@needs_containers
@pytest.mark.parametrize("side", ["exporter", "importer", "both"])
def test_other_network_namespaces_meet_at_the_path(start_peer: "StartPeer", side: str) -> None:
    exporter, importer, other = (start_peer(tracing=False) for _ in range(3))
    if side != "importer":
        leave(exporter, "net")
    if side != "exporter":
        leave(importer, "net")
        leave(other, "net")
    blobs = [exporter.call(actions.offer, name, NBYTES, b"data") for name in "abc"]

    check_release_and_death_of(other, exporter, blobs[1])
    check_deaths(exporter, importer, [blobs[0], blobs[2]])


@needs_containers
def test_another_network_namespace_without_the_path_is_told_what_is_missing(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    exporter = start_peer()
    importer = leave(start_peer(tracing=False, CROSSMEM_RUN_DIR=str(tmp_path)), "net")
    blob = exporter.call(actions.offer, "memory", NBYTES)

    with pytest.raises(crossmem.WrongHostError) as caught:
        importer.call(actions.attach, "never", blob, timeout=5 * SLOWNESS)

    message = str(caught.value)
    for word in (
        str(exporter.pid),
        "lives",
        "network namespace",
        "CROSSMEM_RUN_DIR",
    ):
        assert word in message
    assert str(tmp_path) in caught.value.details


def test_another_run_directory_is_enough_in_one_network_namespace(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    exporter, importer = start_peer(), start_peer(CROSSMEM_RUN_DIR=str(tmp_path))
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")

    importer.call(actions.attach, "mapped", blob)

    assert importer.call(actions.read, "mapped", 4) == b"data"


# Pids -------------------------------------------------------------------------------------------


@needs_containers
@pytest.mark.parametrize("proc", [False, True], ids=["old-proc", "own-proc"])
def test_an_importer_in_another_pid_namespace(start_peer: "StartPeer", *, proc: bool) -> None:
    exporter = start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    importer = start_peer(tracing=False)

    found = importer.call(
        namespace_actions.in_pid_namespace, namespace_actions.attach_in_namespace, blob, proc=proc
    )

    assert found == (b"data", True)
    (lease,) = leases_of(exporter)
    assert lease.pid not in {0, 1, importer.pid}
    os.kill(lease.pid, signal.SIGKILL)
    exporter.call(actions.free, "memory", busy="wait", timeout=15 * SLOWNESS)


@needs_containers
@pytest.mark.parametrize("is_old", [False, True], ids=["pidfds", "before-6.5"])
def test_a_lease_of_a_sibling_container_says_how_its_end_is_noticed(
    start_peer: "StartPeer", tmp_path: Path, *, is_old: bool
) -> None:
    exporter, importer = start_peer(tracing=False), start_peer()
    # The exporter's pid namespace does not show the importer.
    blob = exporter.call(
        namespace_actions.in_pid_namespace,
        place_actions.offer_and_report,
        tmp_path / "report",
        is_old=is_old,
        proc=True,
    )

    importer.call(actions.attach, "mapped", blob, timeout=5 * SLOWNESS)

    assert settle(lambda: [] if (tmp_path / "report").exists() else ["silent"]) == []
    assert json.loads((tmp_path / "report").read_text("utf-8")) == (
        [[[0, "connection"]], "process-if-visible"] if is_old else [[[0, "process"]], "process"]
    )
    importer.kill()
    assert settle(lambda: [] if (tmp_path / "report.end").exists() else ["leased"]) == []


@pytest.mark.parametrize("is_old", [False, True], ids=["pidfds", "before-6.5"])
def test_leases_of_visible_processes_end_with_them(
    start_peer: "StartPeer", *, is_old: bool
) -> None:
    exporter, importer = start_peer(tracing=False), start_peer()
    if is_old:
        exporter.call(place_actions.be_old)
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    exporter.call(actions.attach, "own", blob)
    importer.call(actions.attach, "mapped", blob)

    assert {lease.pid: lease.ends_with for lease in leases_of(exporter)} == {
        exporter.pid: "process",
        importer.pid: "process",
    }


@needs_containers
@pytest.mark.parametrize("proc", [False, True], ids=["old-proc", "own-proc"])
def test_an_exporter_in_another_pid_namespace(start_peer: "StartPeer", *, proc: bool) -> None:
    exporter, importer = start_peer(tracing=False), start_peer()
    blobs, pid = exporter.call(
        namespace_actions.in_pid_namespace, namespace_actions.offer_in_namespace, proc=proc
    )

    importer.call(actions.attach, "mapped", blobs[0], timeout=5 * SLOWNESS)

    assert crossmem.ShareableHandle.from_bytes(blobs[0]).owner.pid == 1
    assert importer.call(actions.read, "mapped", 4) == b"data"
    assert importer.call(actions.attribute, "mapped", "owner_alive")
    os.kill(pid, signal.SIGKILL)
    alive = settle(lambda: ["alive"] * importer.call(actions.attribute, "mapped", "owner_alive"))
    assert alive == []
    with pytest.raises(crossmem.OwnerGoneError):
        importer.call(actions.attach, "never", blobs[1], timeout=5 * SLOWNESS)


@needs_containers
def test_importer_and_exporter_in_different_pid_namespaces(start_peer: "StartPeer") -> None:
    exporter, importer = (start_peer(tracing=False) for _ in range(2))
    blobs, _pid = exporter.call(
        namespace_actions.in_pid_namespace, namespace_actions.offer_in_namespace, proc=True
    )

    found = importer.call(
        namespace_actions.in_pid_namespace,
        namespace_actions.attach_in_namespace,
        blobs[0],
        proc=True,
    )

    assert found == (b"data", True)


@needs_containers
def test_what_cannot_be_reached_in_another_pid_namespace_is_named(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    exporter = start_peer(tracing=False)
    blobs, _pid = exporter.call(
        namespace_actions.in_pid_namespace,
        namespace_actions.offer_in_namespace,
        proc=False,
        also=("net",),
    )
    importer = start_peer(CROSSMEM_RUN_DIR=str(tmp_path))

    with pytest.raises(crossmem.WrongHostError) as caught:
        importer.call(actions.attach, "never", blobs[0], timeout=5 * SLOWNESS)

    for word in ("pid namespace", "CROSSMEM_RUN_DIR"):
        assert word in str(caught.value)
    assert str(tmp_path) in caught.value.details


@needs_containers
def test_pids_do_not_admit_who_is_not_visible(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(tracing=False), start_peer()
    blob = exporter.call(
        namespace_actions.in_pid_namespace, namespace_actions.offer_to_pids, [importer.pid]
    )

    with pytest.raises(crossmem.AccessDeniedError, match="not visible"):
        importer.call(actions.attach, "never", blob, timeout=5 * SLOWNESS)


# Users ------------------------------------------------------------------------------------------


@needs_users
@pytest.mark.parametrize("mapped", [False, True], ids=["unmapped", "mapped"])
def test_an_importer_in_another_user_namespace(start_peer: "StartPeer", *, mapped: bool) -> None:
    exporter, importer, other = start_peer(), start_peer(tracing=False), start_peer(tracing=False)
    blobs = [exporter.call(actions.offer, name, NBYTES, b"data") for name in "abc"]
    for one in (importer, other):
        leave(one, "user")
        if mapped:
            one.call(namespace_actions.map_own_user, os.geteuid(), os.getegid())

    check_release_and_death_of(other, exporter, blobs[1])
    check_deaths(exporter, importer, [blobs[0], blobs[2]])


@needs_users
def test_an_exporter_in_another_user_namespace_that_maps_its_user(start_peer: "StartPeer") -> None:
    exporter, importer, other = start_peer(tracing=False), start_peer(), start_peer()
    leave(exporter, "user")
    exporter.call(namespace_actions.map_own_user, os.geteuid(), os.getegid())
    blobs = [exporter.call(actions.offer, name, NBYTES, b"data") for name in "abc"]

    check_release_and_death_of(other, exporter, blobs[1])
    check_deaths(exporter, importer, [blobs[0], blobs[2]])


@needs_users
def test_an_exporter_that_cannot_tell_users_apart_says_so(start_peer: "StartPeer") -> None:
    exporter, importer = leave(start_peer(tracing=False), "user"), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)

    with pytest.raises(crossmem.AccessDeniedError, match="user namespace"):
        importer.call(actions.attach, "never", blob, timeout=5 * SLOWNESS)

    (info,) = exporter.call(actions.exports)
    assert (info.leases, info.denied) == ((), 1)


@needs_users
def test_an_exporter_that_others_look_like_admits_nobody(start_peer: "StartPeer") -> None:
    exporter, importer = leave(start_peer(tracing=False), "user"), start_peer()
    exporter.call(namespace_actions.map_own_user, os.geteuid(), os.getegid(), inside=NOBODY)
    blob = exporter.call(actions.offer, "memory", NBYTES)

    with pytest.raises(crossmem.AccessDeniedError, match="user namespace"):
        importer.call(actions.attach, "never", blob, timeout=5 * SLOWNESS)


@needs_users
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("uids", [None, frozenset({NOBODY})], ids=["same-user", "named"])
@pytest.mark.parametrize("inside", [None, 0, NOBODY], ids=["unmapped", "root", "nobody"])
def test_a_stranger_is_not_taken_for_anybody_of_the_exporters_namespace(
    start_peer: "StartPeer", inside: int | None, uids: frozenset[int] | None
) -> None:
    exporter, stranger = leave(start_peer(tracing=False), "user"), start_peer()
    if inside is not None:
        exporter.call(namespace_actions.map_own_user, os.geteuid(), os.getegid(), inside=inside)
    blob = exporter.call(actions.offer, "memory", NBYTES, allow=crossmem.Allow(uids=uids))
    stranger.call(actions.allocate, "warm", 1)

    # One who leaves out the checks that our own client makes.
    reply = stranger.call(forks.in_child, lease_actions.request_and_read, blob, uid=STRANGER)

    (answer,) = wire.unpack_replies(reply[wire.HEADER.size :])
    assert isinstance(answer, wire.Refusal)
    assert answer.status == wire.Status.DENIED
