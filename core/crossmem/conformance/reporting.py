# SPDX-License-Identifier: Apache-2.0
"""The kit's report, as a plugin of pytest.

The controller of pytest-xdist makes the report, but never imports the kit's ``conftest.py``. So
these hooks are in this module.
"""

import pickle
from pathlib import Path
from typing import Any, Final

import pytest

from crossmem.conformance.report import TABLE, Recorder, write_report

__all__ = ["ABOUT_LAW", "CAPABILITIES", "recorder_of"]

ABOUT_LAW: Final = "crossmem_about_law"
"""Name of the attribute that the kit adds to pytest's report of a test. The attribute is a tuple:
the law, the name of the test, and a reason. The reason says why the test was skipped, or why its
failure is expected. For all other outcomes, the reason is ``""``."""
CAPABILITIES: Final = "crossmem_capabilities"
"""The key under which a worker sends the device's pickled capabilities."""
_recorder: Final = pytest.StashKey[Recorder]()


def recorder_of(config: pytest.Config) -> Recorder:
    """Return the recorder of the tests' outcomes."""
    return config.stash[_recorder]


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder, and the plugin that prints the table."""
    config.stash[_recorder] = Recorder(
        device=config.getoption("crossmem_device"),
        runtime=config.getoption("crossmem_runtime"),
        mechanism=config.getoption("crossmem_mechanism"),
    )
    config.pluginmanager.register(_Listener(config.stash[_recorder]))
    config.pluginmanager.register(_Table(), TABLE)


class _Listener:
    """Receives the reports of tests from all processes."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if ABOUT_LAW in vars(report):
            law, test, reason = vars(report)[ABOUT_LAW]
            self._recorder.record(law, test, report.outcome, reason)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {}).get(CAPABILITIES)
        if told is not None:
            self._recorder.capabilities = pickle.loads(told)  # noqa: S301 - from a worker


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report to the file of ``--crossmem-report``."""
    config = session.config
    path = config.getoption("crossmem_report")
    recorder = recorder_of(config)
    if path is not None and recorder.has_any and not hasattr(config, "workeroutput"):
        write_report(recorder.report(), Path(path))


class _Table:
    """Prints the outcome of each law at the end of the run."""

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        recorder = recorder_of(config)
        if not recorder.has_any:
            return
        report = recorder.report()
        terminalreporter.section(f"laws of crossmem on {report.device}")
        for line in report.lines():
            terminalreporter.write_line(line)
