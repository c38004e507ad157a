# SPDX-License-Identifier: Apache-2.0
"""Tables of text, and their form in Markdown."""

from dataclasses import dataclass

__all__ = ["Table", "markdown", "number"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text: the heading of the table, the heads of the columns, and the rows.

    Raises
    ------
    ValueError
        The number of cells in a row differs from the number of heads.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                msg = f"{self.title!r} has {len(self.heads)} columns, but {len(row)} cells in {row}"
                raise ValueError(msg)


def markdown(table: Table) -> str:
    """Return the Markdown of a table and of the table's heading."""

    def line(cells: tuple[str, ...]) -> str:
        shown = (cell.replace("\n", " ").replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(shown)} |"

    rule = f"|{'---|' * len(table.heads)}"
    return "\n".join([f"## {table.title}", "", line(table.heads), rule, *map(line, table.rows), ""])


def number(value: float | None) -> str:
    """Return a number as text, or ``"-"`` for None.

    Integers, and numbers from 1000 on, have no decimals. Other numbers have up to three significant
    digits.
    """
    if value is None:
        return "-"
    if value == int(value) and abs(value) >= 1:
        return f"{value:.0f}"
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"
