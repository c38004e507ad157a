# SPDX-License-Identifier: Apache-2.0
"""One line on the tests that were skipped: how many, and why."""

import re
from collections import Counter
from typing import Final

import pytest

_MISSING: Final = re.compile(r"could not import '(\w+)")


def summary(reasons: list[str]) -> str:
    """Return the line."""
    counts = Counter(
        f"{found[1]} is not installed" if (found := _MISSING.search(reason)) else reason
        for reason in reasons
    )
    told = "; ".join(f"{count} because {reason}" for reason, count in counts.most_common())
    return f"{len(reasons)} tests or files skipped: {told}"


class SkippedTests:
    """The pytest plugin that writes the line."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        reasons = [
            report.longrepr[2].removeprefix("Skipped: ")
            for report in terminalreporter.getreports("skipped")
            if isinstance(report.longrepr, tuple)
        ]
        if reasons:
            terminalreporter.write_line(summary(reasons))


def register(config: pytest.Config) -> None:
    """Write the line in the process that reports."""
    config.pluginmanager.register(SkippedTests(), "crossmem-skipped-tests")
