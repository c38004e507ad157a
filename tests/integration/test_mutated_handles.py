# SPDX-License-Identifier: Apache-2.0
"""Mutated handles, also those of blocks, map nothing but the memory that they name (C14).

No driver is called for a refused handle. The exception is a stale handle of a block: the words of
the open pool say that it is stale.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crossmem.conformance.speed import SLOWNESS

FOLDER = Path(__file__).parent
WORKERS = ["mutated_handles.py", "mutated_blocks.py"]
KINDS = {
    "cut_out", "extend", "flip", "overwrite_bytes", "overwrite_number", "rename", "splice_fields",
    "splice_tail", "truncate",
    "forge_block", "forge_geometry",
}  # fmt: skip
REFUSALS = {
    "BackendNotFoundError",
    "DeviceNotFoundError",
    "InvalidHandleError",
    "OwnerGoneError",
    "StaleHandleError",
    "UnsupportedError",
    "WrongHostError",
}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(run_dir: Path) -> Iterator[Start]:
    """Start a worker; none survives the test."""
    environ = {**os.environ, "CROSSMEM_RUN_DIR": str(run_dir)}
    environ["CROSSMEM_EMULATED_GRANULARITY"] = "page"

    with ExitStack() as stack:

        def do(worker_name: str, *arguments: object) -> subprocess.Popen[str]:
            worker = subprocess.Popen(
                [sys.executable, str(FOLDER / worker_name), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
            )
            stack.enter_context(worker)
            stack.callback(worker.kill)
            return worker

        yield do


def line_of(worker: subprocess.Popen[str]) -> Any:
    assert worker.stdout is not None
    return json.loads(worker.stdout.readline() or "null")


def tell(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line + "\n")
    worker.stdin.flush()


def attempt(start: Start, program: str, count: int, seed: int, timeout_s: float) -> dict[str, Any]:
    """Let one process try wrong handles of two others, and check that those noticed nothing."""
    exporters = [start(program, "export") for _ in range(2)]
    blobs = [blob for exporter in exporters for blob in line_of(exporter)]
    importer = start(program, "import", count, seed)
    report, _ = importer.communicate(json.dumps(blobs) + "\n", timeout=timeout_s)

    assert importer.returncode == 0
    for exporter in exporters:
        tell(exporter, "")
        assert line_of(exporter) == {"damaged": 0, "leased": 0}
        assert exporter.wait(20 * SLOWNESS) == 0
    found: dict[str, Any] = json.loads(report)
    return found


def check(report: dict[str, Any], count: int) -> None:
    accepted, outcomes = report["accepted"], report["outcomes"]

    assert report["problems"] == []
    assert sum(accepted.values()) + sum(outcomes.values()) == count
    # A test in which all is refused by one check proves little.
    assert set(accepted) <= KINDS
    assert len(accepted) >= 5, accepted
    assert set(outcomes) >= REFUSALS, outcomes


@pytest.mark.parametrize("program", WORKERS)
def test_2_000_mutated_handles_map_nothing_else(start: Start, program: str) -> None:
    report = attempt(start, program, 2_000, 1, 60 * SLOWNESS)

    check(report, 2_000)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("program", WORKERS)
def test_10_000_mutated_handles_map_nothing_else(start: Start, program: str) -> None:
    report = attempt(start, program, 10_000, 1, 350 * SLOWNESS)

    check(report, 10_000)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("program", WORKERS)
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_million_mutated_handles_map_nothing_else(start: Start, program: str, seed: int) -> None:
    report = attempt(start, program, 100_000, seed, 1800 * SLOWNESS)

    check(report, 100_000)
