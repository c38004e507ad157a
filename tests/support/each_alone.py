# SPDX-License-Identifier: Apache-2.0
"""Run each file of default tests in a pytest of its own: none may need what another one left."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

_TESTS: Final = Path(__file__).parents[1]
_FINE: Final = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _run(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=0", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, str(path)], check=False, capture_output=True, text=True, cwd=_TESTS.parent
    )


def main() -> int:
    """Run them, as many at once as there are cores; return how many failed."""
    paths = sorted(_TESTS.rglob("test_*.py"))
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        for path, done in zip(paths, executor.map(_run, paths), strict=True):
            if done.returncode not in _FINE:
                failed += 1
                print(f"{path} fails when it runs alone:\n{done.stdout}{done.stderr}", flush=True)
    print(f"{len(paths)} files ran alone, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
