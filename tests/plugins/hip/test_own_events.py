# SPDX-License-Identifier: Apache-2.0
"""A vendor refuses to open an event in the process that created it; a timeline does not need to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

PROGRAM = Path(__file__).parent / "own_events.py"


@pytest.mark.parametrize("device", ["hip:0", "cuda:0"])
def test_a_process_opens_its_own_timeline_of_events(device: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), device],
        env={**os.environ, "CROSSMEM_EMULATED_STATE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30 * SLOWNESS,
    )

    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
