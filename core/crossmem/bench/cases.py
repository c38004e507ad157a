# SPDX-License-Identifier: Apache-2.0
"""Runs one of the programs in this folder, in a fresh interpreter."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Literal

from crossmem.bench.suite import Suite

__all__ = ["run_case"]

_DEADLINE_S: Final = 600.0


def run_case(
    suite: Suite,
    program: Literal["copies", "frameworks", "hand_overs", "round_trips"],
    name: str,
    **arguments: Any,
) -> dict[str, list[float]]:
    """Measure one case of a program, and return the numbers that the program prints.

    The numbers are times in seconds; the case ``readers`` also prints a ratio. If the program
    fails, the suite's report notes the reason, and the result is empty.

    Parameters
    ----------
    name
        The case: a key of the program's ``CASES``, or ``"measure"`` for ``"round_trips"``.
    arguments
        Arguments of the case's function.
    """
    path = str(Path(__file__).with_name(f"{program}.py"))
    try:
        done = subprocess.run(
            # The program is run by its path. With -m, Python would first import crossmem.bench and
            # many modules of crossmem, but the cold times of copies.py must include the import of
            # these modules.
            [sys.executable, "-P", path, name, json.dumps(arguments)],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_DEADLINE_S,
            env=suite.environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        words = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        suite.note(f"{name} {arguments}: {' '.join(words)}")
        return {}
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found
