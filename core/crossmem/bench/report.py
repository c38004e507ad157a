# SPDX-License-Identifier: Apache-2.0
"""What a run found."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

__all__ = ["SCHEMA", "Report", "Row", "Target", "percentile"]

SCHEMA: Final = 1
"""Version of the JSON form."""


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """One number: the median of the rounds, each itself a median where it repeats.

    Parameters
    ----------
    section
        Which table it belongs to, such as ``"life"``.
    subject
        What was measured: the name of a peer, or of a case.
    metric
        Which of its numbers this is, such as ``"create"``.
    value
        The number, in ``unit``.
    unit
        ``"us"``, ``"GB/s"``, ``"ms"``, ``"ratio"`` or ``"count"``.
    nbytes
        Size of the memory in bytes, None where it has no part in it.
    rounds
        The number of each round.
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
    """A promise and what was measured.

    Parameters
    ----------
    name
        What is promised, in words.
    measured
        The ratio or count, None where it could not be measured.
    limit
        What it may be at most or, where ``at_least``, must be at least.
    at_least
        Direction of the limit.
    note
        What the reader must know, such as why nothing was measured.
    """

    name: str
    measured: float | None
    limit: float
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the promise holds, None where it was not measured."""
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


@dataclass(slots=True)
class Report:
    """All rows of a run, and what is needed to judge them.

    Parameters
    ----------
    mode
        ``"quick"`` or ``"full"``.
    date
        When the run began, in UTC, as ISO 8601.
    machine
        CPU, kernel, versions.
    settings
        Rounds, counts and CPUs of this run.
    absent
        What a table's line says where a way of sharing outside :attr:`peers` was not measured, by
        the way's name.
    peers
        Name of every peer: its title, version, and state: ``"measured"``, ``"not installed"`` or
        what went wrong.
    rows
        The numbers.
    notes
        What could not be measured, and why.
    targets
        What the project promises, beside what was measured.
    seconds
        How long the run took.
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
        """Add the median of some rounds as a row; no rounds make no row."""
        if rounds:
            shown = tuple(round(value, 4) for value in rounds)
            value = round(median(rounds), 4)
            self.rows.append(Row(section, subject, metric, value, unit, nbytes, shown))

    def value(
        self, section: str, subject: str, metric: str, *, nbytes: int | None = None
    ) -> float | None:
        """Return the number of a row, None where there is no such row."""
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
        """Return everything as values that JSON can express."""
        data = {"schema": SCHEMA, **asdict(self)}
        data["targets"] = [{**asdict(target), "met": target.met} for target in self.targets]
        return data

    def to_json(self) -> str:
        """Return everything as JSON text."""
        return json.dumps(self.as_dict(), indent=2)
