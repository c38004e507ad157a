# SPDX-License-Identifier: Apache-2.0
"""The tables of a report, and their output: with rich if it is installed, else as plain text."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TextIO

from crossmem.bench.charts import LOADS
from crossmem.bench.report import Report, Row, Target
from crossmem.bench.summary import make_summary
from crossmem.bench.tables import Table, number
from crossmem.bench.targets import size_name

__all__ = ["make_tables", "render", "targets_table"]

_LIFE_METRICS = ("create", "export", "attach", "detach", "free", "life", "total")
_LIFE_HEADS = (
    "create",
    "export",
    "import\n+ map",
    "unmap\n+ close",
    "free",
    "whole\nlife",
    "round\ntrip",
)


def make_tables(report: Report) -> list[Table]:
    """Return the tables that have rows. A brief report has one table. The targets come last."""
    if report.mode == "brief":
        return [make_summary(report)]
    tables = []
    sizes = sorted({row.nbytes for row in report.rows if row.section == "life" and row.nbytes})
    for nbytes in sizes:
        title = f"One allocation of {size_name(nbytes)} at a time, µs"
        tables.append(_peers(report, title, "life", _LIFE_METRICS, _LIFE_HEADS, nbytes=nbytes))
    count = report.settings["plan"]["batch"]
    held = f"{count} blocks of 4 KiB at once: first create all, then export all, ...; µs per block"
    tables += [
        _peers(report, "Churn of 4 KiB, µs per block, round trip included", "churn", ("each",)),
        _peers(report, held, "held", _LIFE_METRICS[:-1], _LIFE_HEADS[:-1]),
        *(
            _peers(
                report,
                f"Attach while the exporter is busy, µs, {name}",
                "busy",
                tuple(load + suffix for load in LOADS),
                tuple(LOADS.values()),
            )
            for name, suffix in (("median", ""), ("p99", ", p99"))
        ),
    ]
    for title, section in (
        ("Many imports, µs per import", "batch"),
        ("Repeats and parts, µs", "repeats"),
        ("Bandwidth through NumPy", "bandwidth"),
        ("Scale", "scale"),
        ("Trees of tensors", "trees"),
        ("One array through a queue", "queues"),
        ("Readers of one array", "readers"),
        ("Copies by crossmem and by NumPy", "updates"),
        ("Round trips between two processes, µs", "round trips"),
        ("Hand-overs in queues, µs", "hand-overs"),
        ("Import statements, ms", "import"),
        ("Calls from C into an emulated library, µs", "calls"),
    ):
        tables.append(_list(report, title, section))
    tables.append(_copies(report))
    tables.append(targets_table(report))
    return [table for table in tables if table.rows]


def targets_table(report: Report) -> Table:
    """Return the table of targets, with results and verdicts."""
    heads = ("target", "measured", "limit", "met")
    return Table("Targets", heads, tuple(map(_verdict_on, report.targets)))


def _peers(
    report: Report,
    title: str,
    section: str,
    metrics: tuple[str, ...],
    heads: tuple[str, ...] | None = None,
    *,
    nbytes: int | None = None,
) -> Table:
    rows = []
    for name, peer in report.peers.items():
        if peer["state"] != "measured":
            rows.append((peer["title"], peer["state"], *[""] * (len(metrics) - 1)))
            continue
        values = [report.value(section, name, metric, nbytes=nbytes) for metric in metrics]
        rows.append((peer["title"], *map(number, values)))
    if not any(row.section == section for row in report.rows):
        rows = []
    return Table(title, ("", *(heads or metrics)), tuple(rows))


def _copies(report: Report) -> Table:
    """Return the table of the times to share a dict of arrays and read it in another process."""
    found = [row for row in report.rows if row.section == "copies"]
    sizes = sorted({row.nbytes for row in found if row.nbytes})
    columns = [(nbytes, metric) for nbytes in sizes for metric in ("cold", "warm")]
    rows = []
    for title in dict.fromkeys(row.subject for row in found):
        values = [report.value("copies", title, metric, nbytes=size) for size, metric in columns]
        rows.append((title, *map(number, values)))
    for title, reason in report.absent.items() if found else ():
        rows.append((title, reason, *[""] * (len(columns) - 1)))
    heads = [f"{size_name(nbytes)}\n{metric}" for nbytes, metric in columns]
    return Table("Share a dict of arrays and read it, ms", ("", *heads), tuple(rows))


def _list(report: Report, title: str, section: str) -> Table:
    def line(row: Row) -> tuple[str, ...]:
        size = f" {size_name(row.nbytes)}" if row.nbytes else ""
        subject = "" if row.subject == "crossmem" else row.subject
        metric = "" if section in {"import", "calls"} else row.metric
        name = ", ".join(filter(None, (subject, metric + size)))
        return name, number(row.value), "" if row.unit == "count" else row.unit

    rows = tuple(line(row) for row in report.rows if row.section == section)
    return Table(title, ("", "value", "unit"), rows)


def _verdict_on(target: Target) -> tuple[str, ...]:
    verdict = {True: "yes", False: "NO", None: "not measured"}[target.met]
    if target.note:
        verdict += f" ({target.note})"
    sign = "at least" if target.at_least else "at most"
    return target.name, number(target.measured), f"{sign} {number(target.limit)}", verdict


def _facts(report: Report) -> list[str]:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    facts = [
        f"crossmem bench, {report.mode}, {report.date}, {report.seconds:g} s",
        f"{machine['cpu']}, {machine['cores']} CPUs{', virtual' if machine['virtual'] else ''}",
        f"{machine['memory_nbytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, "
        + machine["python"],
        f"{versions}; {report.settings['cpus']}",
    ]
    return facts[:3] if report.mode == "brief" else facts


def render(
    report: Report,
    tables: Sequence[Table] | None = None,
    *,
    file: TextIO | None = None,
    rich: bool | None = None,
) -> None:
    """Print a report: the lines about the run and the machine, the tables and the notes.

    Parameters
    ----------
    tables
        The tables to print; by default, all that :func:`make_tables` returns.
    file
        The output; by default standard output.
    rich
        Whether to use rich. None: use it if it is installed.
    """
    file = file or sys.stdout
    tables = make_tables(report) if tables is None else tables
    if find_spec("rich") is not None if rich is None else rich:
        _render_rich(report, tables, file)
    else:
        _render_plain(report, tables, file)


def _render_rich(report: Report, tables: Sequence[Table], file: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=file)
    for fact in _facts(report):
        console.print(Text(fact))
    colours = {"yes": "green", "NO": "bold red"}
    for table in tables:
        shown = RichTable(
            title=table.title,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
        )
        for i, head in enumerate(table.heads):
            shown.add_column(head, justify="right" if i else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(cell, style=colours.get(cell, "")) for cell in row))
        console.print()
        console.print(shown)
    for note in report.notes:
        console.print(Text(f"Note: {note}"))


def _render_plain(report: Report, tables: Sequence[Table], file: TextIO) -> None:
    lines = _facts(report)
    for table in tables:
        heads = tuple(head.replace("\n", " ") for head in table.heads)
        columns = list(zip(heads, *table.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        lines += ["", table.title]
        for row in (heads, *table.rows):
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
    lines += ["", *(f"Note: {note}" for note in report.notes)]
    print("\n".join(lines), file=file)
