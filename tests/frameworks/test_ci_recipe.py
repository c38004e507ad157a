# SPDX-License-Identifier: Apache-2.0
"""The CI file of docs/how-to/test-without-gpu.md works as it is written, with CuPy's own wheel."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "test-without-gpu"
DEADLINE_S = 60 * SLOWNESS
WHEEL = "cupy-rocm-7-0"
OURS = ("COVERAGE_", "COV_CORE_", "CROSSMEM_", "HIP_", "LD_LIBRARY_PATH", "PYTEST_", "ROCR_")
"""Variables that this run of the tests sets, and a runner of CI does not."""
UNORDERED = "    cupy.cuda.get_current_stream().synchronize()\n"


@pytest.fixture(autouse=True)
def _wheel() -> None:
    try:
        metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        # .ci/run runs what was skipped for want of CuPy in an environment that has this wheel.
        pytest.skip(f"CuPy is not installed as {WHEEL}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the folder of a project that has the guide's test."""
    folder = tmp_path / "tests" / "sharing"
    folder.mkdir(parents=True)
    shutil.copy(GUIDE / "test_sharing.py", folder)
    return tmp_path


def steps() -> list[str]:
    """Return the commands of the job."""
    text = (GUIDE / "ci.yml").read_text("utf-8")
    return re.findall(r"^ +- run: (.+)$", text, re.MULTILINE)


def run(step: str, checkout: Path) -> "subprocess.CompletedProcess[str]":
    environ = {name: text for name, text in os.environ.items() if not name.startswith(OURS)}
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # pip then succeeds only if this environment has what the step asks for.
    environ["PIP_NO_INDEX"] = "1"
    return subprocess.run(
        ["sh", "-e", "-c", step],
        cwd=checkout,
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_job_passes(checkout: Path) -> None:
    for step in steps():
        done = run(step, checkout)

        assert not done.returncode, (step, done.stdout, done.stderr)
        # The emulation reports violations on standard error, and pip its own news.
        assert "API misuse" not in done.stderr
        if "pytest tests" in step:
            assert "1 passed" in done.stdout

    assert len(steps()) == 3


def test_the_last_step_finds_a_missing_wait(checkout: Path) -> None:
    program = checkout / "tests" / "sharing" / "test_sharing.py"
    text = program.read_text("utf-8")
    assert UNORDERED in text
    program.write_text(text.replace(UNORDERED, ""), "utf-8")

    codes = [run(step, checkout).returncode for step in steps()[1:]]

    assert codes == [0, 1]
