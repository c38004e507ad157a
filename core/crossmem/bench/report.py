# SPDX-License-Identifier: Apache-2.0
"""The report of a run of the benchmark: its rows and its targets."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

__all__ = ["SCHEMA", "Report", "Row", "Target", "percentile"]

SCHEMA: Final = 1
"""Version of the JSON form."""


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value v such that at least ``percent`` % of the values are at most v."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the report.

    Parameters
    ----------
    section
        The row's section of the report, such as ``"life"``.
    subject
        The name of the measured peer or case.
    metric
        The measured quantity, such as ``"create"``.
    value
        The median of the values in ``rounds``, in ``unit``.
    unit
        ``"us"``, ``"GB/s"``, ``"ms"``, ``"ratio"`` or ``"count"``.
    nbytes
        Size of the memory in bytes; None if the size is fixed or does not matter.
    rounds
        The value of each round, in ``unit``. A 99th percentile is computed from the samples of all
        rounds together, so its row has one value. Rows of the sections ``copies`` and ``updates``
        have the value of each repetition.
    """

    section: str
    subject: str
    metric: str
    value: float
    unit: str
    nbytes: int | None = None
    rounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """A target and its result.

    Parameters
    ----------
    name
        The target, as text.
    measured
        The measured ratio, count or time; None if the measurement is missing.
    limit
        The smallest allowed value if ``at_least`` is true, else the largest allowed value.
    at_least
        True: ``measured`` must be at least ``limit``. False: it must be at most ``limit``.
    note
        A note for the reader, such as the reason for a missing measurement.
    """

    name: str
    measured: float | None
    limit: float
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met, None if nothing was measured."""
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


@dataclass(slots=True)
class Report:
    """All rows of a run, and the data to judge them.

    Parameters
    ----------
    mode
        ``"smoke"``, ``"brief"``, ``"quick"`` or ``"full"``.
    date
        Start of the run, in UTC, as ISO 8601.
    machine
        Facts about the machine, such as the CPU, the kernel and versions of packages.
    settings
        Device, CPUs and plan of this run.
    absent
        The benchmark compares ways to share a dict of arrays. This field contains the ways that
        were not measured, because their package is missing. The key is the title of the way. The
        value, ``"not installed"``, appears in the table instead of times.
    peers
        Title, version and state of each peer. The key is the peer's name. The state is
        ``"measured"``, ``"not installed"`` or ``"failed"``.
    rows
        The rows, in the order in which they were added.
    notes
        Sentences for the reader, for example why a measurement failed.
    targets
        The project's targets, with their results.
    seconds
        Duration of the run, in seconds.
    """

    mode: str
    date: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    seconds: float = 0.0

    def add(
        self,
        section: str,
        subject: str,
        metric: str,
        rounds: Sequence[float],
        unit: str,
        *,
        nbytes: int | None = None,
    ) -> None:
        """Add a row whose value is the median of ``rounds``. If ``rounds`` is empty, add no row."""
        if rounds:
            shown = tuple(round(value, 4) for value in rounds)
            value = round(median(rounds), 4)
            self.rows.append(Row(section, subject, metric, value, unit, nbytes, shown))

    def value(
        self, section: str, subject: str, metric: str, *, nbytes: int | None = None
    ) -> float | None:
        """Return the value of the row with these four fields, None if there is no such row."""
        for row in self.rows:
            if (row.section, row.subject, row.metric, row.nbytes) == (
                section,
                subject,
                metric,
                nbytes,
            ):
                return row.value
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can express."""
        data = {"schema": SCHEMA, **asdict(self)}
        data["targets"] = [{**asdict(target), "met": target.met} for target in self.targets]
        return data

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report that :meth:`to_json` wrote as ``text``.

        Raises
        ------
        ValueError
            The text is not a report of the version ``SCHEMA``.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
            msg = f"the document is not a report of version {SCHEMA}"
            raise ValueError(msg)
        try:
            rows = [Row(**{**row, "rounds": tuple(row["rounds"])}) for row in data.pop("rows")]
            targets = [
                Target(**{name: one[name] for name in one if name != "met"})
                for one in data.pop("targets")
            ]
            return cls(**data, rows=rows, targets=targets)
        except (KeyError, TypeError) as error:
            msg = f"the document is not a report: {error}"
            raise ValueError(msg) from error
