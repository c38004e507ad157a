# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random points of random activity leaves nothing behind (C11, C12, C20)."""

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.servers import preload
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import storm_worker
else:
    import storm_worker

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("unmeasured")]
preload("storm_worker")

WITHIN_S = 600 * SLOWNESS
WORKERS = 6
SURVIVORS = 2
# What other processes of this machine may take meanwhile; a storm shares a multiple of it.
NOISE_NBYTES = 64 << 20

EXPORT_ONCE = """
import os, sys, crossmem
with crossmem.device("emulated:0").allocate(1) as allocation:
    allocation.export()
    print(*sorted(os.listdir(sys.argv[1])))
"""

KILLED_AT_EVERY_LINE = """
import os, signal, sys, crossmem
from crossmem.control import endpoint

functions = {one.__code__ for one in vars(endpoint).values() if hasattr(one, "__code__")}

def in_child(function):
    child = os.fork()
    if not child:
        function()
        os._exit(0)
    return os.waitpid(child, 0)[1]

def use():
    with crossmem.device("emulated:0").allocate(1) as allocation:
        allocation.export()
        assert len(os.listdir(sys.argv[1])) == 1, os.listdir(sys.argv[1])

def be_killed():
    def trace_line(frame, event, value):
        global left
        left -= event == "line"
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace_line

    sys.settrace(lambda frame, event, value: trace_line if frame.f_code in functions else None)
    use()

lines = 0
while True:
    lines += 1
    left = lines
    if in_child(be_killed) != signal.SIGKILL:
        break
    assert in_child(use) == 0, lines
print(lines)
"""


class Worker:
    """One process of the storm."""

    def __init__(self, storm: "Storm", lines: int) -> None:
        self.peer = Peer("emulated:0", environment=storm.changes, tracing=False, fresh=storm.fresh)
        number = next(storm.numbers)
        self.pipes = [storm.folder / f"{name}-{number}" for name in ("commands", "answers")]
        for one in self.pipes:
            os.mkfifo(one)
        # Both ends, so that neither process waits for the other to open its own.
        self.commands, self.answers = (os.open(one, os.O_RDWR) for one in self.pipes)
        self.ended = self.peer.start(
            storm_worker.main, storm.board, number, lines, *self.pipes, within=WITHIN_S
        )
        self.dies_at: float | None = None

    @property
    def errors(self) -> str:
        """What it wrote to its standard error."""
        return self.peer.output()

    def kill(self) -> None:
        self.peer.kill()
        self.close()

    def end(self) -> int:
        """Wait for the end of one that was told to exit, or that killed itself."""
        with contextlib.suppress(PeerDiedError):
            self.ended.result(60 * SLOWNESS)
        self.peer.request_exit()
        return self.peer.wait_exit(within=60 * SLOWNESS)

    def close(self) -> None:
        self.peer.destroy()
        os.close(self.commands)
        os.close(self.answers)
        for one in self.pipes:
            one.unlink()

    def is_ready(self) -> bool:
        """Whether it has said something that was not read."""
        return bool(select.select([self.answers], [], [], 0)[0])

    def tell(self, command: str) -> None:
        os.write(self.commands, command.encode() + b"\n")

    def ask(self, command: str) -> str:
        self.tell(command)
        answers: list[str] = []
        while answers in ([], ["ready"]):
            assert select.select([self.answers], [], [], 60 * SLOWNESS)[0], (
                f"no answer to {command}: {self.errors}"
            )
            # One write is one answer, of less than a pipe takes at once.
            answers += os.read(self.answers, 1 << 16).decode().splitlines()
        return answers[-1]


class Storm:
    """Workers that share with each other while some of them are killed."""

    def __init__(self, folder: Path, seed: int, *, fresh: bool) -> None:
        self.folder = folder
        self.fresh = fresh
        self.board = folder / "board"
        self.board.mkdir()
        self.run_dir = folder / "run"
        self.chance = random.Random(seed)
        self.numbers: Iterator[int] = iter(range(seed * 10_000, (seed + 1) * 10_000))
        self.changes = {
            "CROSSMEM_RUN_DIR": str(self.run_dir),
            "CROSSMEM_EMULATED_GRANULARITY": "page",
            "PYTHONWARNINGS": "error",
        }
        self.workers: list[Worker] = []
        self.killed = 0

    def start(self, *, doomed: bool) -> None:
        # Points spread evenly over the magnitudes: some while it begins, most in full activity.
        lines = int(10 ** self.chance.uniform(1.0, 5.0)) if doomed else 0
        worker = Worker(self, lines)
        if self.chance.random() < 0.1:
            # Perhaps before it has begun.
            worker.dies_at = time.monotonic() + self.chance.uniform(0.0, 0.5)
        self.workers.append(worker)

    def run(self, kills: int) -> None:
        while len(self.workers) < WORKERS:
            self.start(doomed=False)
        while self.killed < kills:
            time.sleep(0.005)
            self.bury()
            for worker in self.workers[SURVIVORS:]:
                if self.killed < kills and self.is_due(worker):
                    worker.kill()
                    self.replace(worker)
        for worker in self.workers[SURVIVORS:]:
            worker.kill()
        self.workers[SURVIVORS:] = []

    def is_due(self, worker: Worker) -> bool:
        """Whether a worker has lived long enough."""
        now = time.monotonic()
        if worker.dies_at is None and worker.is_ready():
            worker.dies_at = now + self.chance.expovariate(1 / 0.1)
        return worker.dies_at is not None and now > worker.dies_at

    def bury(self) -> None:
        """Replace those that killed themselves; nobody else may end."""
        for worker in list(self.workers):
            if worker.peer.exitcode is not None:
                assert worker.peer.exitcode == -signal.SIGKILL, worker.errors
                worker.close()
                self.replace(worker)

    def replace(self, worker: Worker) -> None:
        self.killed += 1
        self.workers.remove(worker)
        self.start(doomed=self.chance.random() < 0.5)

    def problems(self) -> list[str]:
        return [one.read_text("utf-8") for one in sorted(self.board.glob("problem-*"))]

    def left_in_run_dir(self) -> list[str]:
        return sorted(os.listdir(self.run_dir))  # noqa: PTH208 - names are what is compared

    def use_run_dir(self) -> list[str]:
        """Let one more process export and exit; return what it saw in the run directory."""
        return self.run_script(EXPORT_ONCE, str(self.run_dir)).split()

    def run_script(self, script: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=300 * SLOWNESS,
            env={**os.environ, **self.changes},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def storm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Storm]:
    # In the long run, interpreters of their own are also killed while they start.
    fresh = request.node.get_closest_marker("long") is not None
    storm = Storm(tmp_path, getattr(request, "param", 1), fresh=fresh)
    yield storm
    for worker in storm.workers:
        worker.kill()


def shared_nbytes() -> int:
    """Return how much shared memory this machine uses."""
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def named_shared_memory() -> set[str]:
    """Return the names of ours in there; emulated hosts are other programs'."""
    names = {one.name for one in Path("/dev/shm").iterdir()}
    others = ("crossmem-emulate", "crossmem-test-")
    return {one for one in names if "crossmem" in one and not one.startswith(others)}


def settle(check: Any) -> bool:
    """Wait for the kernel to clean up, and for other users of the machine."""
    end = time.monotonic() + 60 * SLOWNESS
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def survive(storm: Storm, kills: int) -> None:
    nbytes_before, named_before = shared_nbytes(), named_shared_memory()
    storm.run(kills)

    # Nobody holds memory of another process any more, then nobody holds memory at all.
    counts = [json.loads(one.ask("release")) for one in storm.workers]
    left = [json.loads(one.ask("free")) for one in storm.workers]
    assert storm.problems() == []
    assert left == [{}] * SURVIVORS
    # They met the dead and used what those had left, or nothing was proven.
    total = sum((Counter(one) for one in counts), Counter())
    assert all(total[one] >= 10 for one in ("steps", "alive", "gone", "orphaned")), total
    for worker in storm.workers:
        worker.tell("exit")
        assert worker.end() == 0, worker.errors
        worker.close()
    storm.workers.clear()
    assert len(storm.use_run_dir()) == 1
    assert storm.left_in_run_dir() == []
    assert settle(lambda: shared_nbytes() < nbytes_before + NOISE_NBYTES)
    assert settle(lambda: named_shared_memory() <= named_before)


@pytest.mark.timeout(400)
def test_a_hundred_kills_leave_nothing(storm: Storm) -> None:
    survive(storm, 100)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("storm", range(2, 12), indirect=True)
def test_a_thousand_kills_leave_nothing(storm: Storm) -> None:
    survive(storm, 100)


@pytest.mark.long
def test_what_is_left_is_found(storm: Storm) -> None:
    storm.start(doomed=False)
    (worker,) = storm.workers
    worker.ask("release")
    assert worker.ask("leak") == "leaked"
    left = json.loads(worker.ask("free"))

    assert left["held"][:3] == [1, ["/memfd:crossmem (deleted)"], ["anon_inode:[pidfd]"]]
    assert left["blocks"] == 1
    assert left["held"][3].count("leaked") == 1


@pytest.mark.timeout(400)
def test_a_kill_at_any_line_of_beginning_to_listen_leaves_no_file(storm: Storm) -> None:
    lines = int(storm.run_script(KILLED_AT_EVERY_LINE, str(storm.run_dir)))

    assert lines > 20
    assert len(storm.left_in_run_dir()) == 1
    storm.use_run_dir()
    assert storm.left_in_run_dir() == []
