# SPDX-License-Identifier: Apache-2.0
"""Counts the calls of an emulated library's functions in each process, for a report."""

import atexit
import functools
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["VARIABLE", "Calls", "read_calls"]

_log = logging.getLogger(__name__)

VARIABLE: Final = "CROSSMEM_EMULATED_CALLS"
"""The environment variable that names a folder. A process that has made calls writes its counts to
the folder when the process ends. Without the variable, calls are not counted."""

_SUFFIX: Final = ".json"


def read_calls(folder: Path) -> Mapping[str, int]:
    """Return how often each function was called by the processes that wrote to a folder.

    Log a warning for each incomplete file, and do not count its calls.
    """
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*")):
        try:
            counts.update({str(name): int(n) for name, n in json.loads(path.read_bytes()).items()})
        except (OSError, ValueError, AttributeError, TypeError):
            pid = path.stem.rpartition("-")[2]
            _log.warning(
                "process %s was killed while it wrote its counts: its calls are not counted", pid
            )
    return dict(sorted(counts.items()))


class Calls:
    """Counts the calls of one library's functions in this process, if :data:`VARIABLE` is set.

    ``library`` is the name of the emulation, such as ``"hip"``.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._folder = os.environ.get(VARIABLE, "")
        self._counts: Counter[str] = Counter()
        if self._folder:
            atexit.register(self._write)
            os.register_at_fork(after_in_child=self._counts.clear)

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts its calls and calls ``function``.

        If :data:`VARIABLE` is not set, return ``function`` itself.
        """
        if not self._folder:
            return function

        @functools.wraps(function)
        def counting(*arguments: Any) -> Any:
            self._counts[name] += 1
            return function(*arguments)

        return counting

    def _write(self) -> None:
        if not self._counts:
            return
        path = Path(self._folder, f"{self._library}-{os.getpid()}.part")
        try:
            path.write_text(json.dumps(self._counts), "utf-8")
            # The process may be killed during the write. Then the file keeps the suffix .part.
            path.rename(path.with_suffix(_SUFFIX))
        except OSError:
            # Usually, the command that requested the report has ended and removed the folder.
            return
