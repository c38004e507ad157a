# SPDX-License-Identifier: Apache-2.0
"""Checks the kit's device before a run; otherwise each test would report the same fault."""

import subprocess
import sys
from typing import Final

import pytest

__all__ = ["refuse"]

_UNUSABLE: Final = 2
"""Exit code of a run with an unusable device. The command ``crossmem`` uses the same code."""

_OPEN: Final = f"""
import sys, crossmem
device, runtime, mechanism = (one or None for one in sys.argv[1:])
try:
    crossmem.device(device, runtime=runtime, mechanism=mechanism)
except crossmem.CrossmemError as error:
    print(f"ERROR: {{error}}", file=sys.stderr)
    sys.exit({_UNUSABLE})
"""


def refuse(config: pytest.Config) -> int | None:
    """Report an unusable device and return the exit code; return None if the run can go on."""
    names = ("crossmem_device", "crossmem_runtime", "crossmem_mechanism")
    # The check runs in a process of its own: this process may be the controller of pytest-xdist,
    # which must not load vendor libraries.
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, *(config.getoption(name) or "" for name in names)],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    # If the process failed with an error that is no ``CrossmemError``, the run continues. The kit's
    # tests then show that error with a traceback.
    if done.returncode != _UNUSABLE:
        return None
    sys.stderr.write(done.stderr)
    return _UNUSABLE
