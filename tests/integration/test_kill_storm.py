# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random points of random activity leaves nothing behind (C11, C12, C20)."""

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
from typing import Any

import pytest

WORKER = Path(__file__).with_name("storm_worker.py")
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
        self.storm = storm
        number = next(storm.numbers)
        self.errors = storm.folder / f"errors-{number}"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER), str(storm.board), str(number), str(lines)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=storm.environ,
            )
        self.dies_at: float | None = None

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        code = self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return code

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> str:
        self.tell(command)
        stdout = self.process.stdout
        assert stdout is not None
        assert select.select([stdout], [], [], 60)[0], f"no answer to {command}"
        answer = stdout.readline().decode().strip()
        if answer == "ready":
            answer = stdout.readline().decode().strip()
        assert answer, self.errors.read_text("utf-8")
        return answer


class Storm:
    """Workers that share with each other while some of them are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.board = folder / "board"
        self.board.mkdir()
        self.run_dir = folder / "run"
        self.chance = random.Random(seed)
        self.numbers: Iterator[int] = iter(range(seed * 10_000, (seed + 1) * 10_000))
        self.environ = {
            **os.environ,
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
        stdout = worker.process.stdout
        now = time.monotonic()
        if worker.dies_at is None and stdout is not None and select.select([stdout], [], [], 0)[0]:
            worker.dies_at = now + self.chance.expovariate(1 / 0.1)
        return worker.dies_at is not None and now > worker.dies_at

    def bury(self) -> None:
        """Replace those that killed themselves; nobody else may end."""
        for worker in list(self.workers):
            if worker.process.poll() is not None:
                code = worker.end()
                assert code == -signal.SIGKILL, worker.errors.read_text("utf-8")
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
            timeout=300,
            env=self.environ,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def storm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Storm]:
    storm = Storm(tmp_path, getattr(request, "param", 1))
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
    end = time.monotonic() + 60
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
        assert worker.end() == 0, worker.errors.read_text("utf-8")
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
