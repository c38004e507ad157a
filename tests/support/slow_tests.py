# SPDX-License-Identifier: Apache-2.0
"""Which tests may be slow, and the list of those that are.

A default test is one that every newcomer runs, so it has a limit. Times are divided by the slowness
of the machine, which :mod:`crossmem.conformance.speed` measures.
"""

import os
from collections import defaultdict
from typing import Final

import pytest

from crossmem.conformance.speed import SLOWNESS

VARIABLE: Final = "CROSSMEM_TEST_SLOW"
"""Set by ``.ci/run`` for the default tests: they are timed, and one that is too slow fails."""

LISTED_S: Final = 3.0
LIMIT_S: Final = 10.0
TOO_SLOW: Final = 6
"""The exit code if all tests passed, and one was too slow. It is not a code of pytest."""

_KIT: Final = "tests/kit/test_kit.py::test_every_law_holds"
_WHOLE: Final = "a quarter of the conformance kit, which shows that crossmem works on this machine"
_CORE: Final = "the core of the conformance kit on an emulation"

EXCEPTIONS: Final[dict[str, str]] = {
    f"{_KIT}[host-memfd-whole-1]": _WHOLE,
    f"{_KIT}[host-memfd-whole-2]": _WHOLE,
    f"{_KIT}[host-memfd-whole-3]": _WHOLE,
    f"{_KIT}[host-memfd-whole-4]": _WHOLE,
    f"{_KIT}[ascend-shareable-core]": _CORE,
    f"{_KIT}[hip-legacy-core]": _CORE,
    "tests/kit/test_foreign.py::test_every_law_holds_for_foreign_memory": (
        "the conformance kit's tests of adopted memory, on a backend made for them"
    ),
}
"""Default tests that may take longer, each with the reason; they also begin first."""

MAX_EXCEPTIONS: Final = 20


class SlowTests:
    """The pytest plugin that times tests."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The setup of a session's fixture counts for the test that needs it first.
        self._seconds[report.nodeid] += report.duration / SLOWNESS

    def _too_slow(self) -> list[str]:
        return [
            nodeid
            for nodeid, seconds in self._seconds.items()
            if seconds > LIMIT_S and nodeid not in EXCEPTIONS
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self._too_slow():
            session.exitstatus = TOO_SLOW

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"tests over {LISTED_S} s, on a machine {SLOWNESS} times slower")
        for nodeid, seconds in sorted(self._seconds.items(), key=lambda one: -one[1]):
            if seconds > LISTED_S:
                terminalreporter.write_line(f"{seconds:6.1f} s  {nodeid}")
        for nodeid in self._too_slow():
            terminalreporter.write_line(
                f"{nodeid} takes over {LIMIT_S} s. Make it faster, mark it ci, or name the reason "
                "in tests/support/slow_tests.py.",
                red=True,
            )


def register(config: pytest.Config) -> None:
    """Time the tests where the environment asks for it, in the process that reports."""
    if VARIABLE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SlowTests(), "crossmem-slow-tests")
