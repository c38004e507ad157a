# SPDX-License-Identifier: Apache-2.0
"""The slowness of this machine: a factor by which the kit multiplies its deadlines."""

import os
import statistics
import subprocess
import sys
import time
from typing import Final

__all__ = ["SLOWNESS", "VARIABLE"]

VARIABLE: Final = "CROSSMEM_TEST_SLOWNESS"
"""Environment variable with the factor. If the variable is not set, the process measures the factor
and sets the variable for its children."""

_REFERENCE_S: Final = 0.028
"""Seconds that a new interpreter takes for ``_SAMPLE`` on the reference machine. That machine has
an idle CPU core of the year 2026."""
_SAMPLE: Final = "sum(range(1_000_000))"
_ROUNDS: Final = 5


def _measure() -> float:
    """Return the median time of the sample divided by ``_REFERENCE_S``. It is at least 1."""
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", _SAMPLE], check=True)
        times.append(time.perf_counter() - begin)
    return max(1.0, statistics.median(times) / _REFERENCE_S)


def _read() -> float:
    """Return the value of the variable. If the variable is not set, first set it to the factor."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{_measure():.2f}"
    try:
        return float(os.environ[VARIABLE])
    except ValueError:
        msg = (
            f"{VARIABLE} is {os.environ[VARIABLE]!r}; it must be a number: 1, or more on a slow "
            "machine"
        )
        raise ValueError(msg) from None


SLOWNESS: Final = _read()
"""The factor: the time of a program on this machine, divided by its time on the reference machine.
If the variable was set, the factor is the variable's value."""
