# SPDX-License-Identifier: Apache-2.0
"""Storms: processes that share with each other while some of them are killed, and what they leave.

The tests say what happens to them; storm_worker.py is what runs in each.
"""

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import storm_worker
else:
    import storm_worker

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


class Worker:
    """One process of the storm."""

    def __init__(
        self,
        storm: "Storm",
        main: Callable[..., None],
        option: int,
        *,
        number: int,
        fresh: bool,
    ) -> None:
        self.peer = Peer("emulated:0", environment=storm.changes, tracing=False, fresh=fresh)
        self.pipes = [storm.folder / f"{name}-{number}" for name in ("commands", "answers")]
        for one in self.pipes:
            os.mkfifo(one)
        # Both ends, so that neither process waits for the other to open its own.
        self.commands, self.answers = (os.open(one, os.O_RDWR) for one in self.pipes)
        self.ended = self.peer.start(
            main, storm.board, number, option, *self.pipes, within=storm.within_s
        )
        self.dies_at: float | None = None

    @property
    def errors(self) -> str:
        """What it wrote to its standard error."""
        return self.peer.output()

    def stacks(self) -> str:
        """Return what it wrote, and the stacks of its threads if it can tell them."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.peer._pidfd, storm_worker.STACKS_SIGNAL)
        time.sleep(1.0)
        return self.errors

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

    def drain(self) -> None:
        """Read that it is ready."""
        os.read(self.answers, 1 << 16)

    def tell(self, command: str) -> None:
        os.write(self.commands, command.encode() + b"\n")

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.hear(command)

    def hear(self, command: str) -> str:
        """Return the answer to a command that it was told."""
        answers: list[str] = []
        while answers in ([], ["ready"]):
            is_answered = select.select([self.answers], [], [], 60 * SLOWNESS)[0]
            assert is_answered, f"no answer to {command}: {self.stacks()}"
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
        self.within_s = WITHIN_S
        self._nbytes_before, self._named_before = shared_nbytes(), named_shared_memory()

    def start(self, *, doomed: bool) -> None:
        # Points spread evenly over the magnitudes: some while it begins, most in full activity.
        lines = int(10 ** self.chance.uniform(1.0, 5.0)) if doomed else 0
        worker = Worker(self, storm_worker.main, lines, number=next(self.numbers), fresh=self.fresh)
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

    def release_and_free(self) -> tuple[list[dict[str, int]], list[dict[str, Any]]]:
        """Return what the workers counted, and what each holds after it has given all back."""
        answers = []
        # Nobody holds memory of another process any more, then nobody holds memory at all.
        for command in ("release", "free"):
            for one in self.workers:
                one.tell(command)
            answers.append([json.loads(one.hear(command)) for one in self.workers])
        counts, left = answers
        return counts, left

    def exit_workers(self) -> None:
        """Let all workers exit, and check that they do."""
        for worker in self.workers:
            worker.tell("exit")
        for worker in self.workers:
            assert worker.end() == 0, worker.errors
            worker.close()
        self.workers.clear()

    def check_nothing_is_left(self) -> None:
        """Check the run directory and shared memory, once every process has ended."""
        assert len(self.use_run_dir()) == 1
        assert self.left_in_run_dir() == []
        assert settle(lambda: shared_nbytes() < self._nbytes_before + NOISE_NBYTES)
        assert settle(lambda: named_shared_memory() <= self._named_before)

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
