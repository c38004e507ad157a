# SPDX-License-Identifier: Apache-2.0
"""Whether the device of a run of the kit can be used at all; else each test would say why not."""

import subprocess
import sys
from typing import Final

import pytest

__all__ = ["refuse"]

_UNUSABLE: Final = 2
"""Exit code of a run whose device cannot be used, as of the command ``crossmem``."""

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
    """Say why the device cannot be used, and return the exit code; None if it can be used."""
    names = ("crossmem_device", "crossmem_runtime", "crossmem_mechanism")
    # In a process of its own: this one may only report, and loads no vendor's library.
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, *(config.getoption(name) or "" for name in names)],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    # What is no error of crossmem's is left to the kit, whose traceback says more.
    if done.returncode != _UNUSABLE:
        return None
    sys.stderr.write(done.stderr)
    return _UNUSABLE
