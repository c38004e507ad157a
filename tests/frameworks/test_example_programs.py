# SPDX-License-Identifier: Apache-2.0
"""The programs in ``examples/`` run, on host memory and on a GPU, and see what goes wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.abi.calls import VARIABLE, read_calls

pytest.importorskip("numpy")

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 110 * SLOWNESS
PROGRAMS = {
    "weights": r"shared 1000 tensors on .* ms\n(reader .* ms\n){2}(version .* began\n){3}",
    "kv_cache": r"moved 64 blocks of 262144 bytes on .* GB/s\n",
    "ranks": r"(version \d: copied by 8 ranks in .* ms(; calls of the trainer: .*)?\n){4}"
    r"(rank \d: found 4 versions(; calls of the rank for all: .*)?\n){8}",
    "loader": r"32 batches from 2 workers on .* ms to receive one, .* GB/s\n",
    "batches": r"64 batches from 4 producers on .*: consumers got [1-9]\d* \+ [1-9]\d*, .* us .*\n",
    "broadcast": r"(version \d: waited .* ms for a buffer, put to 8 ranks in \d+ us\n){4}"
    r"(rank \d: found 4 versions\n){8}",
}
QUEUES = ("batches", "broadcast")
# In this process alone, so that it expects something else than what the other one has written.
ANOTHER_DIGEST = """
import runpy, sys
import host
digest = host.digest
host.digest = lambda values: digest(values)[::-1]
sys.argv[0] = {!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SLOW_DIGEST = """
import runpy, sys, time
import host
digest = host.digest
host.digest = lambda values: [time.sleep(0.5), digest(values)][1]
sys.argv[0] = {!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        # Who exits waits for the others longer than they need, however slow the machine is.
        env={**os.environ, "PYTHONPATH": str(EXAMPLES), "CROSSMEM_EXIT_WAIT": "60"} | environment,
    )


def test_every_program_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PROGRAMS, "host"}


@pytest.mark.ci
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_host_memory(name: str) -> None:
    devices = ["emulated:0", "emulated:1"] if name == "weights" else ["emulated:0"]
    done = run(EXAMPLES / f"{name}.py", "--device", *devices)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(PROGRAMS[name], done.stdout), done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu(name: str, gpu: str) -> None:
    import cupy

    count = min(2, cupy.cuda.runtime.getDeviceCount()) if name == "weights" else 1
    done = run(EXAMPLES / f"{name}.py", "--device", *(f"{gpu}:{one}" for one in range(count)))

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PROGRAMS[name], done.stdout), done.stdout


@pytest.mark.ci
@pytest.mark.parametrize("name", QUEUES)
def test_queues_on_an_emulated_gpu(name: str, tmp_path: Path) -> None:
    # These programs need no CuPy.
    environment = {"CROSSMEM_RUNTIME": "hip=emulated", "CROSSMEM_EMULATED_STATE": str(tmp_path)}
    done = run(EXAMPLES / f"{name}.py", "--device", "hip:0", **environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(PROGRAMS[name], done.stdout), done.stdout


@pytest.mark.parametrize("slow_streams", ["0", "1"])
def test_no_rank_waits_for_a_device(gpu: str, tmp_path: Path, slow_streams: str) -> None:
    if "CROSSMEM_EMULATED_STATE" not in os.environ:
        pytest.skip("only an emulated library counts its calls")
    environment = {"CROSSMEM_EMULATED_SLOW_STREAMS": slow_streams}
    counts = []
    for steps in (1, 4):
        folder = tmp_path / str(steps)
        folder.mkdir()
        options = [f"--device={gpu}:0", "--ranks=2", f"--steps={steps}"]
        done = run(EXAMPLES / "ranks.py", *options, **environment, **{VARIABLE: str(folder)})
        assert done.returncode == 0, done.stderr
        # The calls that crossmem makes in the loops: one line for each version and each rank.
        waits = re.findall(r"deviceSynchronize (\d+), streamSynchronize (\d+),", done.stdout)
        assert waits == [("0", "0")] * (steps + 2)
        trainer = r"trainer: .*, streamWriteValue64 1, streamWaitValue64 0\n"
        assert len(re.findall(trainer, done.stdout)) == steps
        counts.append(read_calls(folder))
    few, many = counts

    # All calls of the library in whole processes, CuPy's included. A wait in each of three further
    # steps would be six waits of the two ranks. At the end of a process, a release by another
    # thread can add a wait or leave one out.
    for name in ("hipDeviceSynchronize", "hipStreamSynchronize"):
        assert abs(many[name] - few[name]) <= 2, name
    assert many["hipStreamWriteValue64"] == few["hipStreamWriteValue64"] + 3 * 3
    # A rank that is late finds the version without a call.
    assert many.get("hipStreamWaitValue64", 0) <= 2 * 4


@pytest.mark.ci
def test_the_time_of_a_batch_is_not_that_of_its_digest() -> None:
    done = run("-c", SLOW_DIGEST.format(str(EXAMPLES / "loader.py")), "--batches=8")

    assert (done.returncode, done.stderr) == (0, "")
    received = re.search(r"([0-9.]+) ms to receive one", done.stdout)
    assert received is not None
    assert float(received[1]) < 250


@pytest.mark.ci
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_difference_is_an_error(name: str) -> None:
    small = {
        "weights": "--tensors=2",
        "kv_cache": "--requests=1",
        "ranks": "--ranks=1",
        "loader": "--batches=1",
        "batches": "--batches=1",
        "broadcast": "--ranks=1",
    }
    done = run("-c", ANOTHER_DIGEST.format(str(EXAMPLES / f"{name}.py")), small[name])

    assert done.returncode == 1
    assert re.search(r"found .*, wanted ", done.stderr)
