# SPDX-License-Identifier: Apache-2.0
"""The whole kit passes on every backend, and every law has tests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

ASCEND = ("--crossmem-device", "ascend:0", "--crossmem-runtime", "emulated")
MECHANISMS = ("shareable", "key")
# On "310b-rc" there is nothing that could be shared.
ACL_PROFILES = ("documented", "cann8", "a2", "a3", "950", "old-driver")
HIP = ("--crossmem-device", "hip:0", "--crossmem-runtime", "emulated")
CUDA = ("--crossmem-device", "cuda:0", "--crossmem-runtime", "emulated")
# The edition "documented" is for every run; "cuda" is what the backend cuda has.
HIP_PROFILES = ("clr24", "clr26", "rocm5")
# ROCm 5 has none.
VIRTUAL_PROFILES = ("clr24", "clr26", "cuda")
LAWS = {f"C{number}" for number in range(1, 27)}


class KitRun:
    """The kit on one backend, on an emulated host of its own."""

    def __init__(
        self, folder: Path, options: tuple[str, ...], environment: dict[str, str], *, measured: bool
    ) -> None:
        folder.mkdir()
        self._report = folder / "report.json"
        kept = {
            name: value
            for name, value in os.environ.items()
            if measured or not name.startswith("COVERAGE_")
        }
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"),
                *("--rootdir", str(folder), "--pyargs", "crossmem.conformance"),
                *(*options, "--crossmem-report", str(self._report)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**kept, "CROSSMEM_EMULATED_STATE": str(folder / "host"), **environment},
        )

    @property
    def has_not_failed(self) -> bool:
        """Whether the run goes on, or has passed."""
        return not self._process.poll()

    def check(self, *, timeout_s: float) -> None:
        """Wait until the run has passed, with a test at least for each law."""
        output, _ = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0, output[-5000:]
        laws: dict[str, Any] = json.loads(self._report.read_text("utf-8"))["laws"]
        assert set(laws) >= LAWS
        assert all(laws[law]["passed"] > 0 and not laws[law]["failed"] for law in LAWS)

    def end(self) -> None:
        """End the run, if it has not ended yet."""
        self._process.kill()
        self._process.communicate()


class StartKit(Protocol):
    """Starts the kit with options; coverage, which takes twice the time, only where asked for."""

    def __call__(self, *options: str, measured: bool = False, **environment: str) -> KitRun: ...


@pytest.fixture
def start_kit(tmp_path: Path) -> Iterator[StartKit]:
    runs: list[KitRun] = []

    def start(*options: str, measured: bool = False, **environment: str) -> KitRun:
        run = KitRun(tmp_path / str(len(runs)), options, environment, measured=measured)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.end()


@pytest.fixture(scope="session")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KitRun]]:
    """Start the kit on each backend, on a host of its own: they wait more than they work."""
    folder = tmp_path_factory.mktemp("kits")
    runs = [
        KitRun(folder / "emulated", ("--crossmem-device", "emulated:0"), {}, measured=True),
        KitRun(
            folder / "ascend", (*ASCEND, "--crossmem-mechanism", "shareable"), {}, measured=False
        ),
        KitRun(folder / "hip", HIP, {}, measured=False),
    ]
    yield runs
    for run in runs:
        run.end()


# Among the first.
def test_the_kit_begins_on_every_backend(kits: list[KitRun]) -> None:
    assert all(run.has_not_failed for run in kits)


# Among the last tests, which conftest.py sees to.
@pytest.mark.timeout(1100)
def test_every_law_holds_on_every_backend(kits: list[KitRun]) -> None:
    for run in kits:
        run.check(timeout_s=1000)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("profile", HIP_PROFILES)
def test_every_law_holds_on_every_hip_profile(start_kit: StartKit, profile: str) -> None:
    start_kit(*HIP, CROSSMEM_EMULATED_HIP_PROFILE=profile).check(timeout_s=800)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_law_holds_on_cuda(start_kit: StartKit) -> None:
    start_kit(*CUDA).check(timeout_s=800)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("profile", ["documented", *VIRTUAL_PROFILES])
def test_every_law_holds_by_virtual_memory(start_kit: StartKit, profile: str) -> None:
    backend = CUDA if profile == "cuda" else HIP
    run = start_kit(
        *(*backend, "--crossmem-mechanism", "vmm"), CROSSMEM_EMULATED_HIP_PROFILE=profile
    )
    run.check(timeout_s=800)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("profile", ACL_PROFILES)
def test_every_law_holds_on_every_acl_profile(start_kit: StartKit, profile: str) -> None:
    runs = [
        start_kit(*ASCEND, "--crossmem-mechanism", mechanism, CROSSMEM_EMULATED_ACL_PROFILE=profile)
        for mechanism in MECHANISMS
    ]
    for run in runs:
        run.check(timeout_s=800)
