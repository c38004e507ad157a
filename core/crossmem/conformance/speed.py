# SPDX-License-Identifier: Apache-2.0
"""How slow this machine is. The kit multiplies its deadlines by this factor."""

import os
import statistics
import subprocess
import sys
import time
from typing import Final

__all__ = ["SLOWNESS", "VARIABLE"]

VARIABLE: Final = "CROSSMEM_TEST_SLOWNESS"
"""The variable that replaces the measurement. A process that measures sets it for its children."""

_REFERENCE_S: Final = 0.028
"""Time of the sample on the reference machine for the deadlines: an idle core of 2026."""
_SAMPLE: Final = "sum(range(1_000_000))"
_ROUNDS: Final = 5


def _measure() -> float:
    """Return the median time of a small program relative to the reference machine; at least 1."""
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", _SAMPLE], check=True)
        times.append(time.perf_counter() - begin)
    return max(1.0, statistics.median(times) / _REFERENCE_S)


if VARIABLE not in os.environ:
    os.environ[VARIABLE] = f"{_measure():.2f}"
try:
    SLOWNESS: Final = float(os.environ[VARIABLE])
except ValueError:
    msg = f"{VARIABLE} is {os.environ[VARIABLE]!r}; it must be a number, 1 on a usual machine"
    raise ValueError(msg) from None
"""How many times longer than on the reference machine a program takes here; at least 1."""
