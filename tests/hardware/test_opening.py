# SPDX-License-Identifier: Apache-2.0
"""The measurement for devices runs: on the emulation, where its numbers mean nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

SCRIPT = Path(__file__).with_name("opening.py")


@pytest.mark.ci
@pytest.mark.timeout(70)
def test_each_way_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_STATE", str(tmp_path / "host"))

    done = subprocess.run(
        [sys.executable, SCRIPT, "--runtime", "emulated", "--rounds", "2"],
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| ([\w ]+) \| (\d+) \| (\d+) \| (\d+) \|$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["raw call", "crossmem"]
