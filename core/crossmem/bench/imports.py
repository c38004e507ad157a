# SPDX-License-Identifier: Apache-2.0
"""Measures how long import statements take in fresh interpreters."""

import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["IMPORTS", "bytecode_cached_in", "time_import"]

_DEADLINE_S: Final = 60.0

IMPORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "import crossmem": "import crossmem",
        # crossmem imports each of its modules at the module's first use. attach and device need
        # most of these modules.
        "import crossmem, device and attach": "from crossmem import attach, device",
        # pydantic loads its parts at their first use. Every program with pydantic has a model, so
        # the statement loads BaseModel.
        "import pydantic, pluggy": "import pydantic, pluggy; pydantic.BaseModel",
        "import pydantic, pluggy, with one model": (
            "import pydantic, pluggy\nclass Model(pydantic.BaseModel):\n    number: int"
        ),
    }
)
"""The statements whose time is measured. The key is the statement's name in the report."""

_PROGRAM: Final = """\
import os, sys
os.sched_setaffinity(0, {{{cpu}}})
from time import perf_counter
start = perf_counter()
{statement}
print(perf_counter() - start)
"""


def bytecode_cached_in(folder: str, environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which Python caches all bytecode under ``folder``.

    A source tree may have no bytecode, and ``environment`` may forbid Python to write
    bytecode. Without a cache, the times would include the compilation of some modules.
    """
    changed = {**environment, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    changed.pop("PYTHONDONTWRITEBYTECODE", None)
    return changed


def time_import(statement: str, *, cpu: int, environment: dict[str, str]) -> float:
    """Return the seconds that a statement takes in a fresh interpreter on the given CPU.

    Raises
    ------
    subprocess.SubprocessError
        The statement fails or takes longer than a minute.
    """
    program = _PROGRAM.format(cpu=cpu, statement=statement)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        env=environment,
    )
    return float(done.stdout)
