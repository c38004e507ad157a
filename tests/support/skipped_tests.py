# SPDX-License-Identifier: Apache-2.0
"""One line on the tests that were skipped, and a list of those that need a framework."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "CROSSMEM_TEST_SKIPPED"
"""Names a file that gets the tests which a framework is missing for, a line each."""

_FRAMEWORKS: Final = {"torch": "PyTorch", "cupy": "CuPy", "ml_dtypes": "ml_dtypes"}
_MISSING: Final = re.compile(r"could not import '(\w+)")


def cause(reason: str) -> str:
    """Return why a test was skipped, in the same words for the same cause."""
    if found := _MISSING.search(reason):
        reason = f"{_FRAMEWORKS.get(found[1], found[1])} is not installed"
    return reason.partition(";")[0]


def needs_framework(reason: str) -> bool:
    """Whether a test was skipped for want of what the second environment of ``.ci/run`` has."""
    return any(name in cause(reason) for name in _FRAMEWORKS.values())


def summary(reasons: list[str]) -> str:
    """Return the line."""
    counts = Counter(map(cause, reasons))
    told = "; ".join(f"{count} because {reason}" for reason, count in counts.most_common())
    return f"{len(reasons)} tests or files skipped: {told}"


class SkippedTests:
    """The pytest plugin that tells of skipped tests."""

    def __init__(self, target: Path | None) -> None:
        self._target = target

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        # By name, because each worker tells of the files that it skipped.
        skipped = {
            report.nodeid: report.longrepr[2].removeprefix("Skipped: ")
            for report in terminalreporter.getreports("skipped")
            if isinstance(report.longrepr, tuple)
        }
        if skipped:
            terminalreporter.write_line(summary(list(skipped.values())))
        if self._target is not None:
            with self._target.open("a", encoding="utf-8") as file:
                needing = (nodeid for nodeid, why in skipped.items() if needs_framework(why))
                file.writelines(f"{nodeid}\n" for nodeid in needing)


def register(config: pytest.Config) -> None:
    """Tell of skipped tests in the process that reports."""
    target = os.environ.get(VARIABLE)
    plugin = SkippedTests(Path(target).absolute() if target else None)
    config.pluginmanager.register(plugin, "crossmem-skipped-tests")
