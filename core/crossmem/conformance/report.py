# SPDX-License-Identifier: Apache-2.0
"""The kit's results for each law, as lines for the terminal and as JSON."""

from pathlib import Path
from typing import Final, Literal

from crossmem._version import __version__
from crossmem.models import Capabilities
from crossmem.models.report import FrozenModel

__all__ = [
    "LAWS",
    "POOL_LAWS",
    "QUEUE_LAWS",
    "TABLE",
    "TIMELINE_LAWS",
    "LawOutcome",
    "Recorder",
    "Report",
    "write_report",
]

LAWS: Final = tuple(f"C{number}" for number in range(1, 31))
"""The laws of the contract."""

POOL_LAWS: Final = tuple(f"P{number}" for number in range(1, 6))
"""The additional laws of pools."""

TIMELINE_LAWS: Final = tuple(f"L{number}" for number in range(1, 5))
"""The additional laws of timelines."""

QUEUE_LAWS: Final = tuple(f"Q{number}" for number in range(1, 16))
"""The additional laws of queues."""

TABLE: Final = "crossmem-laws"
"""Name of a pytest plugin, which prints the table of laws. ``-p no:crossmem-laws`` disables it."""

Outcome = Literal["passed", "failed", "skipped"]


class LawOutcome(FrozenModel):
    """The outcome of one law's tests."""

    passed: int
    failed: tuple[str, ...]
    """Names of the tests that failed."""
    skipped: dict[str, str]
    """Names of the tests that were skipped or that failed as expected, each with the reason."""


class Report(FrozenModel):
    """The outcome of a run of the kit."""

    version: str
    """Version of crossmem."""
    device: str
    """The requested device, such as ``"host"``."""
    runtime: str | None
    """The requested vendor binding."""
    mechanism: str | None
    """The requested mechanism."""
    capabilities: Capabilities | None
    """The device's capabilities; None if the device could not be opened."""
    laws: dict[str, LawOutcome]
    """Outcome of each law that had tests in the run."""

    def lines(self) -> list[str]:
        """Return a line for each law that had tests."""
        return [
            f"{law:4}{one.passed:4} passed{len(one.failed):4} failed{len(one.skipped):4} skipped"
            for law, one in self.laws.items()
        ]


class Recorder:
    """Collects the outcome of each test.

    Parameters
    ----------
    device, runtime, mechanism
        The requested device, runtime and mechanism.
    """

    def __init__(self, *, device: str, runtime: str | None, mechanism: str | None) -> None:
        self._device, self._runtime, self._mechanism = device, runtime, mechanism
        self.capabilities: Capabilities | None = None
        """The device's capabilities; None before the end of the run."""
        self._outcomes: dict[str, dict[str, tuple[Outcome, str]]] = {
            law: {} for law in (*LAWS, *POOL_LAWS, *TIMELINE_LAWS, *QUEUE_LAWS)
        }

    @property
    def has_any(self) -> bool:
        """Whether the outcome of at least one test was recorded."""
        return any(self._outcomes.values())

    def record(self, law: str, test: str, outcome: Outcome, reason: str = "") -> None:
        """Record the outcome of a test, of its setup or of its teardown.

        After one failure, the test counts as failed, whatever its other outcomes are.
        """
        tests = self._outcomes[law]
        if test not in tests or tests[test][0] != "failed":
            tests[test] = (outcome, reason)

    def report(self) -> Report:
        """Return the recorded outcomes."""
        return Report(
            version=__version__,
            device=self._device,
            runtime=self._runtime,
            mechanism=self._mechanism,
            capabilities=self.capabilities,
            laws={
                law: LawOutcome(
                    passed=sum(outcome == "passed" for outcome, _ in tests.values()),
                    failed=tuple(
                        name for name, (outcome, _) in tests.items() if outcome == "failed"
                    ),
                    skipped={
                        name: reason
                        for name, (outcome, reason) in tests.items()
                        if outcome == "skipped"
                    },
                )
                for law, tests in self._outcomes.items()
                if tests
            },
        )


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON."""
    path.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
