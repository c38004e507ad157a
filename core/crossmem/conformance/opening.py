# SPDX-License-Identifier: Apache-2.0
"""Checks the kit's device before a run, so that a fault is reported once, not by each test."""

import subprocess
import sys
from dataclasses import fields
from typing import Final

import pytest

from crossmem.conformance.report import LAWS, POOL_LAWS, QUEUE_LAWS, TIMELINE_LAWS
from crossmem.models import Capabilities

__all__ = ["refuse"]

_UNUSABLE: Final = 2
"""Exit code for an unusable device or option. The command ``crossmem`` uses the same code."""

_REQUIRABLE: Final = frozenset(
    [*LAWS, *POOL_LAWS, *TIMELINE_LAWS, *QUEUE_LAWS, *(one.name for one in fields(Capabilities))]
)
"""The names of laws and capabilities, for the option ``--crossmem-require``."""

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
    """Check the kit's options, and whether the device can be opened.

    If the run cannot start, write an error and return the exit code. Otherwise, return None.
    """
    if unknown := sorted(set(config.getoption("crossmem_require")) - _REQUIRABLE):
        names = ", ".join(unknown)
        sys.stderr.write(f"ERROR: --crossmem-require: neither laws nor capabilities: {names}\n")
        return _UNUSABLE
    options = ("crossmem_device", "crossmem_runtime", "crossmem_mechanism")
    # This function may run in the controller of pytest-xdist, which must not load vendor libraries.
    # So another process opens the device.
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, *(config.getoption(name) or "" for name in options)],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    # If that process failed, but not with a ``CrossmemError``, the run continues. The tests then
    # show the error with a traceback.
    if done.returncode != _UNUSABLE:
        return None
    sys.stderr.write(done.stderr)
    return _UNUSABLE
