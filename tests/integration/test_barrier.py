# SPDX-License-Identifier: Apache-2.0
"""How exporters and importers order their accesses to shared words, and what tells of that."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.cli.neighbours import look_at_barriers
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.control import barrier

if TYPE_CHECKING:
    from tests.integration import word_actions
    from tests.integration.conftest import StartPeer
else:
    import word_actions

NBYTES = 4096
REGISTERED, FENCED = 1, 2

KERNEL_SAYS = pytest.mark.skipif(
    barrier.is_registered() is None, reason="the kernel does not say who is registered (6.3)"
)
ALLOWED = pytest.mark.skipif(
    not barrier.IS_REGISTERED, reason=f"no membarrier here: {barrier.WHY_NOT}"
)
ASKING = """
import crossmem
from crossmem.control import barrier
print(barrier.is_registered(), barrier.IS_REGISTERED, barrier.WHY_NOT)
"""
FORKING = """
import os, subprocess, sys
import crossmem
from crossmem.control import barrier
if os.fork() == 0:
    print("child", barrier.is_registered(), flush=True)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os.wait()
"""
# What the same interpreter says before it imports crossmem: exec clears the registration.
BARE = """
import ctypes
syscall = ctypes.CDLL(None).syscall
import os
print("exec", bool(syscall({"x86_64": 324, "aarch64": 283}[os.uname().machine], 1 << 9, 0, 0) & 4))
"""


def said(program: str, *arguments: str, **environment: str) -> list[str]:
    """Return the lines that a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.splitlines()


@ALLOWED
@KERNEL_SAYS
def test_importing_crossmem_registers_the_process() -> None:
    assert said(ASKING) == ["True True "]


@KERNEL_SAYS
def test_fences_need_no_registration() -> None:
    assert said(ASKING, CROSSMEM_BARRIER="fence") == ["False False CROSSMEM_BARRIER=fence"]


@ALLOWED
@KERNEL_SAYS
def test_a_fork_inherits_it_and_exec_clears_it() -> None:
    assert said(FORKING, BARE) == ["child True", "exec False"]


@pytest.mark.parametrize("who", ["nobody", "the exporter", "the importer", "both"])
def test_where_one_side_uses_fences_both_do(start_peer: "StartPeer", who: str) -> None:
    def start(role: str) -> Peer:
        uses = who in {role, "both"}
        return start_peer(fresh=True, CROSSMEM_BARRIER="fence" if uses else None)

    exporter, importer = start("the exporter"), start("the importer")
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    importer.call(word_actions.count)
    exporter.call(word_actions.count)
    importer.call(actions.attach, "mapped", blob)

    is_fenced = who != "nobody" or not barrier.IS_REGISTERED
    mode = FENCED if is_fenced else REGISTERED
    assert importer.call(word_actions.rows_of, blob) == (mode, is_fenced)
    assert ("fence" in importer.call(word_actions.made)) is is_fenced
    exporter.call(actions.free, "memory")
    assert "barrier" in exporter.call(word_actions.made)
    assert importer.call(actions.read, "mapped", 4) == b"data"
    importer.call(actions.unmap, "mapped")
    exporter.call(actions.collect)
    assert exporter.call(actions.exports) == []


def wait_until_stopped(pid: int) -> None:
    """Wait until no thread of a process runs any more."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        stats = [one.read_text() for one in Path(f"/proc/{pid}/task").glob("*/stat")]
        if all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats):
            return
        time.sleep(0.01)
    pytest.fail("the process did not stop")


def test_devices_says_which_barrier_is_in_use_with_whom(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    ordinary, fenced = start_peer(), start_peer(fresh=True, CROSSMEM_BARRIER="fence")
    for one in (ordinary, fenced):
        one.call(actions.offer, "memory", NBYTES)
    (run_dir / "dead.sock").touch()

    def devices(*options: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "crossmem", "devices", *options],
            env={
                "PATH": "",
                "PYTHONPATH": ":".join(sys.path),
                "CROSSMEM_RUN_DIR": str(run_dir),
                **environment,
            },
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    mine = "membarrier" if barrier.IS_REGISTERED else "fence"
    found = json.loads(devices("-v", "--json"))["barrier"]
    assert found["mode"] == mine
    assert {one["pid"]: one["mode"] for one in found["exporters"]} == {
        ordinary.pid: mine,
        fenced.pid: "fence",
    }
    assert json.loads(devices("--json"))["barrier"] is None
    shown = devices("-v", CROSSMEM_BARRIER="fence")
    assert "fence: CROSSMEM_BARRIER=fence" in shown
    assert f"with process {ordinary.pid}" in shown

    # All silent exporters together take a second.
    for one in (ordinary, fenced):
        os.kill(one.pid, signal.SIGSTOP)
    try:
        for one in (ordinary, fenced):
            wait_until_stopped(one.pid)
        start = time.monotonic()
        silent = look_at_barriers(run_dir).exporters
        took_s = time.monotonic() - start
        shown = devices("-v")
    finally:
        for one in (ordinary, fenced):
            os.kill(one.pid, signal.SIGCONT)
    assert {one.pid: one.mode for one in silent} == {ordinary.pid: None, fenced.pid: None}
    assert 1 <= took_s < 1.9
    assert f"with process {ordinary.pid} does not answer" in " ".join(shown.split())
