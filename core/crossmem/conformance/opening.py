# SPDX-License-Identifier: Apache-2.0
"""The check of the kit's device before a run; otherwise each test would report the same fault."""

import subprocess
import sys
from typing import Final

import pytest

__all__ = ["refuse"]

_UNUSABLE: Final = 2
"""Exit code of a run with an unusable device, as in the command ``crossmem``."""

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
    """Report why the device cannot be used, and return the exit code; None if it can be used."""
    names = ("crossmem_device", "crossmem_runtime", "crossmem_mechanism")
    # The check runs in a process of its own: this process may be the controller of pytest-xdist,
    # which must not load vendor libraries.
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, *(config.getoption(name) or "" for name in names)],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    # If the process failed with another error than one of crossmem's, the kit's tests will show
    # that error with a traceback.
    if done.returncode != _UNUSABLE:
        return None
    sys.stderr.write(done.stderr)
    return _UNUSABLE
