# SPDX-License-Identifier: Apache-2.0
"""Share, receive, update and wait, between processes that are started in each usual way."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import DEADLINE_S, script

pytest.importorskip("numpy", reason="NumPy is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "quick-start.md"

MAKE = {
    "numpy": "import numpy\nmake = lambda value: numpy.full((300, 20), float(value))\n",
    "torch": "import torch\nmake = lambda value: torch.full((300, 20), float(value))\n",
}
START = f"""
import multiprocessing, sys
import crossmem

DEADLINE_S = {DEADLINE_S / 2}
"""
"""Every program is a file, which processes that are started by spawn import."""

WORKER = """
def work(blob, answers):
    shared, version = crossmem.Shared.from_bytes(blob), 0
    weights = crossmem.receive(shared)
    answers.put((version, float(weights["w"].max())))
    while version < 4:
        version = shared.wait(version, timeout=DEADLINE_S)
        assert float(weights["w"].min()) == float(weights["w"].max())
        answers.put((version, float(weights["w"].max())))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    answers = context.Queue()
    with crossmem.share({"w": make(0), "name": "weights"}, copy="allow") as shared:
        worker = context.Process(target=work, args=(shared.to_bytes(), answers), daemon=True)
        worker.start()
        assert answers.get(timeout=DEADLINE_S) == (0, 0.0)
        for step in (1, 2):
            # Ordinary arrays, which a training has computed anew.
            shared.update({"w": make(step), "name": "weights"})
            assert answers.get(timeout=DEADLINE_S) == (step, step)
        weights = shared.value["w"]
        for step in (3, 4):
            weights += 1
            shared.publish()
            assert answers.get(timeout=DEADLINE_S) == (step, step)
        worker.join(DEADLINE_S)
        assert worker.exitcode == 0
"""

QUEUE = """
def work(batches, answers):
    while (batch := batches.get(timeout=DEADLINE_S)) is not None:
        if isinstance(batch, crossmem.Shared):
            shared, weights = batch, crossmem.receive(batch)
            answers.put(float(weights["w"].max()))
            assert shared.wait(0, timeout=DEADLINE_S) == 1
            answers.put(float(weights["w"].max()))
        else:
            batch += 1
            answers.put(None)

if __name__ == "__main__":
    crossmem.install()
    context = multiprocessing.get_context(sys.argv[1])
    batches, answers = context.Queue(), context.Queue()
    worker = context.Process(target=work, args=(batches, answers), daemon=True)
    worker.start()
    batch = crossmem.empty_like(make(1))
    batch[:] = make(1)
    batches.put(batch)
    assert answers.get(timeout=DEADLINE_S) is None
    # The worker has written to the same memory.
    assert float(batch.min()) == 2
    shared = crossmem.share({"w": make(5)}, copy="allow")
    batches.put(shared)
    assert answers.get(timeout=DEADLINE_S) == 5
    shared.update({"w": make(6)})
    assert answers.get(timeout=DEADLINE_S) == 6
    batches.put(None)
    worker.join(DEADLINE_S)
    assert worker.exitcode == 0
"""

LOADER = """
import warnings
# PyTorch warns of what is new in it, or old, and newer Pythons of forks among threads.
warnings.simplefilter("ignore")
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, blob):
        self.blob, self.rows, self.version = blob, None, 0

    def __len__(self):
        return 300

    def __getitem__(self, index):
        if self.rows is None:
            # In the worker, and once.
            self.shared = crossmem.Shared.from_bytes(self.blob)
            self.rows = crossmem.receive(self.shared)["w"]
        return self.rows[index], self.shared.version

if __name__ == "__main__":
    crossmem.install()
    with crossmem.share({"w": make(0)}, copy="allow") as shared:
        loader = DataLoader(
            Rows(shared.to_bytes()), batch_size=50, num_workers=2, persistent_workers=True,
            multiprocessing_context=sys.argv[1], timeout=DEADLINE_S,
        )
        for epoch in range(3):
            rows, versions = zip(*loader)
            assert torch.cat(rows).unique().tolist() == [float(epoch)]
            assert torch.cat(versions).unique().tolist() == [epoch]
            shared.update({"w": make(epoch + 1)})
"""


def run(tmp_path: Path, library: str, text: str, method: str) -> None:
    if library == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    program = tmp_path / "program.py"
    program.write_text(MAKE[library] + START + text)
    done = script(program, method)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("library", MAKE)
def test_a_worker_receives_waits_and_sees_updates(
    library: str, method: str, tmp_path: Path
) -> None:
    run(tmp_path, library, WORKER, method)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("library", MAKE)
def test_a_queue_carries_new_arrays_and_trees(library: str, method: str, tmp_path: Path) -> None:
    run(tmp_path, library, QUEUE, method)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_a_loader_see_updates(method: str, tmp_path: Path) -> None:
    run(tmp_path, "torch", LOADER, method)


def program_of(title: str) -> str:
    """Return the one program under a heading of the quick start."""
    text = PAGE.read_text("utf-8")
    section = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section is not None, title
    (program,) = re.findall(r"^```py(?:thon)?\n(.*?)^```$", section[1], re.DOTALL | re.MULTILINE)
    assert "__main__" in program
    return str(program)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize(
    "title", ["Share and receive", "Publish new contents", "Send arrays through a queue"]
)
def test_the_page_s_own_lines_work(title: str, method: str, tmp_path: Path) -> None:
    program = program_of(title)
    assert program.count('get_context("spawn")') == 1
    (tmp_path / "program.py").write_text(program.replace('"spawn"', f'"{method}"'))
    done = script(tmp_path / "program.py")

    assert (done.returncode, done.stderr) == (0, "")
    if title == "Publish new contents":
        assert done.stdout.splitlines() == ["1 1.0", "2 2.0", "3 3.0"]


def run_alone(program: str, tmp_path: Path) -> None:
    """Run a program in an interpreter of its own, whose libraries may warn."""
    (tmp_path / "program.py").write_text(program)
    environment = {"RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, **environment},
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_page_s_loader_works(method: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = program_of("Read a data set in a DataLoader")
    assert 'multiprocessing_context="spawn"' in program

    run_alone(program.replace('"spawn"', f'"{method}"'), tmp_path)


def test_the_page_s_actor_works(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")

    run_alone(program_of("Load weights in a Ray actor"), tmp_path)
