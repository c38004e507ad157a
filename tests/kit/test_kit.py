# SPDX-License-Identifier: Apache-2.0
"""The whole kit passes on every backend of ours, each law has tests, and nothing takes long."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAWS = {f"C{number}" for number in range(1, 27)}
LIMIT_S = 300.0
_ASCEND = ("--crossmem-device", "ascend:0", "--crossmem-runtime", "emulated")

BACKENDS = {
    "emulated": ("--crossmem-device", "emulated:0"),
    "ascend, shareable": (*_ASCEND, "--crossmem-mechanism", "shareable"),
    "ascend, key": (*_ASCEND, "--crossmem-mechanism", "key"),
}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_law_holds(backend: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    started = time.monotonic()
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"),
            *("--rootdir", str(tmp_path), "--pyargs", "crossmem.conformance"),
            *(*BACKENDS[backend], "--crossmem-report", str(report)),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=480,
        env={**os.environ, "CROSSMEM_EMULATED_STATE": str(tmp_path / "host")},
    )
    took_s = time.monotonic() - started

    assert run.returncode == 0, run.stdout[-5000:]

    laws = json.loads(report.read_text("utf-8"))["laws"]

    assert set(laws) >= LAWS
    assert all(laws[law]["passed"] > 0 and not laws[law]["failed"] for law in LAWS)
    # Coverage slows it down; without, the kit takes half of this.
    assert took_s < LIMIT_S or "COVERAGE_PROCESS_START" in os.environ
