# SPDX-License-Identifier: Apache-2.0
"""Interpreters that shut down while others are connected, wait, or are served."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import lease_actions
    from tests.integration.conftest import StartPeer
else:
    import lease_actions

NBYTES = 4096
DEADLINE_S = 60 * SLOWNESS
EXEC_EXPORTER = """
import os, sys
import crossmem
code, data, *rest = sys.argv[1:]
allocation = crossmem.device("emulated:0").allocate(4096)
allocation.write(data.encode())
print(allocation.export().to_bytes().hex(), flush=True)
sys.stdin.readline()
if rest:
    os.execv(sys.executable, [sys.executable, "-c", code, code, *rest])
"""
COMPLAINTS = ("Traceback", "Fatal Python error", "Exception ignored", "ResourceWarning")


def exits_quietly(peer: Peer) -> str:
    output = peer.exit()
    for complaint in COMPLAINTS:
        assert complaint not in output, output
    return output


def test_an_exporter_with_clients_of_all_kinds(start_peer: "StartPeer", run_dir: Path) -> None:
    exporter = start_peer(fresh=True, CROSSMEM_EXIT_WAIT="0.3")
    importers = [start_peer() for _ in range(3)]
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    for importer in importers:
        importer.call(actions.attach, "mapped", blob)
    importers[0].stop()
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(lease_actions.connect(blob))
        asking = stack.enter_context(lease_actions.connect(blob))
        asking.sendall(lease_actions.request(blob, asking.recv(1000)))

        output = exits_quietly(exporter)

    for importer in importers:
        assert str(importer.pid) in output
    importers[0].cont()
    for importer in importers:
        assert importer.call(actions.read, "mapped", 4) == b"data"
        assert not importer.call(actions.attribute, "mapped", "owner_alive")
        importer.call(actions.unmap, "mapped")
    assert list(run_dir.iterdir()) == []


def test_an_exporter_whose_threads_still_work(start_peer: "StartPeer", run_dir: Path) -> None:
    exporter, other = start_peer(fresh=True), start_peer()
    blob = other.call(actions.offer, "memory", NBYTES, b"data")
    exporter.call(lease_actions.churn_in_threads, blob)

    exits_quietly(exporter)

    other.call(actions.free, "memory", busy="wait", timeout=SLOWNESS)
    assert len(list(run_dir.iterdir())) == 1


def test_an_exporter_that_is_asked_all_the_time(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(fresh=True), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    # It may not have asked again before the exporter is gone.
    importer.call(actions.attach, "mapped", blob)
    importer.call(actions.unmap, "mapped")
    asking = importer.start(lease_actions.attach_until_it_is_gone, blob)

    exits_quietly(exporter)

    assert asking.result() == "OwnerGoneError"


def test_an_importer_that_waits_for_a_stopped_exporter(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer(fresh=True)
    met, unmet = (exporter.call(actions.offer, name, NBYTES) for name in "ab")
    importer.call(actions.attach, "mapped", met)
    exporter.stop()
    importer.call(lease_actions.attach_in_background, unmet, 90.0)

    # It waits for the exporter longer than this waits for its exit.
    exits_quietly(importer)

    exporter.cont()
    for name in "ab":
        exporter.call(actions.free, name, busy="wait", timeout=SLOWNESS)


def test_an_importer_whose_exporter_is_dead(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer(fresh=True)
    importer.call(actions.attach, "mapped", exporter.call(actions.offer, "memory", NBYTES))
    exporter.kill()

    exits_quietly(importer)


def test_nothing_is_left_when_everybody_exits_at_once(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    # More than is waited for an exit: nobody waits for the others.
    peers = [start_peer(fresh=True, CROSSMEM_EXIT_WAIT="90") for _ in range(4)]
    blobs = [one.call(actions.offer, "memory", NBYTES, b"data") for one in peers]
    for one in peers:
        one.call(actions.attach_many, [f"mapped{n}" for n in range(4)], blobs)

    for one in peers:
        one.request_exit()
    for one in peers:
        exits_quietly(one)

    assert list(run_dir.iterdir()) == []


def test_who_knew_an_exporter_hears_that_it_is_gone_however_long_its_exit_takes(
    start_peer: "StartPeer",
) -> None:
    exporter, importer = start_peer(), start_peer()
    met, unmet = (exporter.call(actions.offer, name, NBYTES) for name in "ab")
    importer.call(actions.attach, "mapped", met)
    exporter.call(lease_actions.stop_serving)

    with pytest.raises(crossmem.OwnerGoneError, match="closed its lease server"):
        importer.call(actions.attach, "never", unmet)


@pytest.mark.parametrize("has_same_run_dir", [True, False])
def test_who_never_knew_an_exporter_hears_that_it_is_gone_while_it_exits(
    start_peer: "StartPeer", tmp_path: Path, *, has_same_run_dir: bool
) -> None:
    exporter = start_peer()
    importer = start_peer() if has_same_run_dir else start_peer(CROSSMEM_RUN_DIR=str(tmp_path))
    blob = exporter.call(actions.offer, "memory", NBYTES)
    exporter.call(lease_actions.stop_serving)

    with pytest.raises(crossmem.OwnerGoneError, match="closed its lease server"):
        importer.call(actions.attach, "never", blob)


def test_an_exporter_that_listens_elsewhere_is_not_taken_for_one_that_exits(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    exporter, squatter = start_peer(), start_peer()
    importer = start_peer(CROSSMEM_RUN_DIR=str(tmp_path))
    # It gets no abstract address, and the one that has it goes away.
    squatter.call(lease_actions.squat, exporter.call(lease_actions.identity), None)
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    squatter.kill()

    with pytest.raises(crossmem.WrongHostError, match="it is exiting, or") as caught:
        importer.call(actions.attach, "never", blob)

    assert "if it is exiting, export" in str(caught.value.hint)
    start_peer().call(actions.attach, "mapped", blob)


def test_who_knew_an_exporter_that_was_killed_hears_that_it_died(start_peer: "StartPeer") -> None:
    importer = start_peer()
    for _ in range(10):
        exporter = start_peer()
        met, unmet = (exporter.call(actions.offer, name, NBYTES) for name in "ab")
        importer.call(actions.attach, f"mapped{exporter.pid}", met)
        # Not waited for: importers see its sockets close before they see its death.
        os.kill(exporter.pid, signal.SIGKILL)

        with pytest.raises(crossmem.OwnerGoneError, match="died"):
            importer.call(actions.attach, "never", unmet)


def test_whoever_comes_after_the_exit_hears_that_the_exporter_is_gone(
    start_peer: "StartPeer",
) -> None:
    exporter, importer = start_peer(fresh=True), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)
    exits_quietly(exporter)

    with pytest.raises(crossmem.OwnerGoneError, match=str(exporter.pid)):
        importer.call(actions.attach, "never", blob)


def test_an_exporter_that_becomes_another_program_by_exec(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    # Pid and start time stay; what each program allocated first is not the same memory.
    importer = start_peer()
    with subprocess.Popen(
        [sys.executable, "-c", EXEC_EXPORTER, EXEC_EXPORTER, "first", "other"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "CROSSMEM_RUN_DIR": str(run_dir)},
        text=True,
    ) as exporter:
        assert exporter.stdin is not None
        assert exporter.stdout is not None
        killer = threading.Timer(DEADLINE_S, exporter.kill)
        killer.start()
        first = bytes.fromhex(exporter.stdout.readline())
        importer.call(actions.attach, "first", first)
        exporter.stdin.write("\n")
        exporter.stdin.flush()
        second = bytes.fromhex(exporter.stdout.readline())

        importer.call(actions.attach, "second", second)

        assert importer.call(actions.read, "first", 5) == b"first"
        assert importer.call(actions.read, "second", 5) == b"other"
        importer.call(actions.unmap, "first", "second")
        with pytest.raises(crossmem.StaleHandleError):
            importer.call(actions.attach, "stale", first)
        exporter.communicate("\n")
        killer.cancel()
