# SPDX-License-Identifier: Apache-2.0
"""The parts of a report's tables."""

from dataclasses import dataclass

__all__ = ["Table", "number"]


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, column heads and rows of text; the first column is the widest."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number(value: float | None) -> str:
    """Return a number with three significant digits, ``"-"`` for None."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) >= 1:
        return f"{value:.0f}"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
