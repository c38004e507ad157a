# SPDX-License-Identifier: Apache-2.0
"""Where a lease server listens, who else may sit there, and what is left in the run directory."""

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.speed import SLOWNESS
from crossmem.control.endpoint import socket_path
from crossmem.control.wire import PROTOCOL_VERSION

if TYPE_CHECKING:
    from tests.integration import lease_actions
    from tests.integration.conftest import StartPeer
else:
    import lease_actions

NBYTES = 4096
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def attaches(importer: Peer, blob: bytes) -> None:
    importer.call(actions.attach, "mapped", blob, timeout=5 * SLOWNESS)
    assert importer.call(actions.read, "mapped", 4) == b"data"
    importer.call(actions.unmap, "mapped")


# Squatters --------------------------------------------------------------------------------------


def test_a_squatter_on_the_abstract_address_is_passed_by_and_found_out(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    exporter, squatter = start_peer(), start_peer()
    # Before the exporter has a lease server at all.
    squatter.call(lease_actions.squat, exporter.call(lease_actions.identity), None)
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")

    attaches(start_peer(), blob)

    # Where the path cannot be reached, nobody is left but the squatter.
    elsewhere = start_peer(CROSSMEM_RUN_DIR=str(tmp_path))
    start = time.monotonic()
    with pytest.raises(crossmem.AccessDeniedError) as caught:
        elsewhere.call(actions.attach, "never", blob)
    assert time.monotonic() - start < 20
    assert str(squatter.pid) in str(caught.value)
    assert str(exporter.pid) in str(caught.value)
    assert squatter.call(lease_actions.heard) in ([], [b""])


def test_a_squatter_on_the_path_is_found_out(start_peer: "StartPeer", run_dir: Path) -> None:
    exporter, squatter, importer = start_peer(), start_peer(), start_peer()
    met, unmet = (exporter.call(actions.offer, name, NBYTES, b"data") for name in "ab")
    importer.call(actions.attach, "kept", met)
    squatter.call(lease_actions.squat, exporter.call(lease_actions.identity), run_dir)

    with pytest.raises(crossmem.AccessDeniedError, match=str(squatter.pid)):
        start_peer().call(actions.attach, "never", unmet)

    assert squatter.call(lease_actions.heard) in ([], [b""])
    # Who has a connection keeps it.
    attaches(importer, unmet)
    assert importer.call(actions.read, "kept", 4) == b"data"


def test_a_squatter_on_the_path_before_the_exporter_is_replaced(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    exporter, squatter = start_peer(), start_peer()
    run_dir.chmod(0o700)
    squatter.call(lease_actions.squat, exporter.call(lease_actions.identity), run_dir)

    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")

    attaches(start_peer(), blob)
    assert squatter.call(lease_actions.heard) in ([], [b""])


def test_a_squatter_does_not_outlive_the_exporters_death(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    exporter, squatter = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    owner = exporter.call(lease_actions.identity)
    exporter.kill()
    squatter.call(lease_actions.squat, owner, run_dir)

    with pytest.raises((crossmem.AccessDeniedError, crossmem.OwnerGoneError)):
        start_peer().call(actions.attach, "never", blob)
    assert squatter.call(lease_actions.heard) in ([], [b""])


# The run directory ------------------------------------------------------------------------------


def refusal(exporter: Peer) -> str:
    with pytest.raises(crossmem.ConfigurationError) as caught:
        exporter.call(actions.offer, "memory", NBYTES)
    assert "CROSSMEM_RUN_DIR" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o710, 0o701])
def test_a_run_directory_that_others_may_enter(
    start_peer: "StartPeer", run_dir: Path, mode: int
) -> None:
    run_dir.chmod(mode)
    exporter, importer = start_peer(), start_peer()

    message = refusal(exporter)

    assert str(run_dir) in message
    assert f"{mode:04o}" in message
    # It works as soon as the directory is safe.
    run_dir.chmod(0o700)
    attaches(importer, exporter.call(actions.offer, "memory", NBYTES, b"data"))


@needs_root
def test_a_run_directory_of_somebody_else(start_peer: "StartPeer", run_dir: Path) -> None:
    os.chown(run_dir, NOBODY, NOBODY)

    message = refusal(start_peer())

    assert f"owner {NOBODY}" in message
    assert "user 0" in message


def test_a_run_directory_that_is_a_file(start_peer: "StartPeer", run_dir: Path) -> None:
    path = run_dir / "file"
    path.touch()

    assert str(path) in refusal(start_peer(CROSSMEM_RUN_DIR=str(path)))


def test_a_run_directory_that_is_a_link(start_peer: "StartPeer", run_dir: Path) -> None:
    (run_dir / "real").mkdir(mode=0o700)
    link = run_dir / "link"
    link.symlink_to(run_dir / "real")

    assert str(link) in refusal(start_peer(CROSSMEM_RUN_DIR=str(link)))


def test_a_run_directory_whose_name_is_too_long(start_peer: "StartPeer", run_dir: Path) -> None:
    path = run_dir / ("long" * 25)
    exporter = start_peer(CROSSMEM_RUN_DIR=str(path))

    assert "short" in refusal(exporter)
    assert list(path.iterdir()) == []


def test_a_run_directory_is_made_with_its_parents(start_peer: "StartPeer", run_dir: Path) -> None:
    path = run_dir / "a" / "b"
    exporter, importer = (start_peer(CROSSMEM_RUN_DIR=str(path)) for _ in range(2))

    attaches(importer, exporter.call(actions.offer, "memory", NBYTES, b"data"))

    assert path.stat().st_mode & 0o777 == 0o700


def test_a_run_directory_that_vanishes_costs_only_the_path(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    path = run_dir / "mine"
    exporter, importer = (start_peer(CROSSMEM_RUN_DIR=str(path)) for _ in range(2))
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    for left in path.iterdir():
        left.unlink()
    path.rmdir()

    attaches(importer, blob)
    exporter.exit()


def test_what_the_dead_left_is_removed_at_the_next_use(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    living, dead = start_peer(), [start_peer() for _ in range(3)]
    blob = living.call(actions.offer, "memory", NBYTES, b"data")
    for one in dead:
        one.call(actions.offer, "memory", NBYTES)
    for one in dead:
        one.kill()
    notes = run_dir / "notes.txt"
    notes.touch()
    unfinished = run_dir / "0123456789abcdef01234567.new"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(unfinished))
    os.utime(unfinished, (1, 1))
    assert len(list(run_dir.iterdir())) == 6

    newcomer = start_peer()
    newcomer.call(actions.offer, "memory", NBYTES)

    expected = {
        notes,
        *(socket_path(run_dir, one.call(lease_actions.identity)) for one in (living, newcomer)),
    }
    assert set(run_dir.iterdir()) == expected
    attaches(newcomer, blob)


def test_many_exporters_that_start_at_once_do_not_remove_each_other(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    dead = start_peer()
    dead.call(actions.offer, "memory", NBYTES)
    dead.kill()
    exporters = [start_peer() for _ in range(6)]

    offers = [one.start(actions.offer, "memory", NBYTES, b"data") for one in exporters]
    blobs = [offer.result() for offer in offers]

    assert len(list(run_dir.iterdir())) == 6
    importer = start_peer()
    importer.call(actions.attach_many, [f"mapped{n}" for n in range(6)], blobs)
    for one in exporters:
        one.kill()
    importer.call(actions.offer, "memory", NBYTES)
    assert len(list(run_dir.iterdir())) == 1
    importer.exit()
    assert list(run_dir.iterdir()) == []


# Versions ---------------------------------------------------------------------------------------


def test_a_process_that_speaks_another_version_is_refused(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    exporter.call(lease_actions.speak, PROTOCOL_VERSION - 1)
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")

    with pytest.raises(crossmem.UnsupportedError) as caught:
        importer.call(actions.attach, "never", blob)

    for version in (PROTOCOL_VERSION, PROTOCOL_VERSION - 1):
        assert f"version {version}" in str(caught.value)
    assert exporter.call(actions.exports)[0].leases == ()
