# SPDX-License-Identifier: Apache-2.0
"""The table of a brief run: the times of each measured peer, and ratios.

A brief run does not compute the project's targets.
"""

from dataclasses import dataclass
from typing import Final

from crossmem.bench.plan import KIB, MIB
from crossmem.bench.report import Report
from crossmem.bench.tables import Table, number

__all__ = ["make_summary"]

_OURS: Final = "crossmem"
_TITLE: Final = "Medians, µs. Ratio: crossmem / other. Floor: only memfd, socket and mmap"


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the table. It shows the report's rows with this section, metric and size."""

    title: str
    section: str
    metric: str
    nbytes: int | None = None


_LINES: Final = (
    _Line("create 4 KiB", "life", "create", 4 * KIB),
    _Line("export", "life", "export", 4 * KIB),
    _Line("import and map", "life", "attach", 4 * KIB),
    _Line("unmap and close", "life", "detach", 4 * KIB),
    _Line("free", "life", "free", 4 * KIB),
    _Line("whole life of 4 KiB", "life", "life", 4 * KIB),
    _Line("whole life of 2 MiB", "life", "life", 2 * MIB),
    _Line("whole life of 1 GiB", "life", "life", 1024 * MIB),
    _Line("create, export, free", "loop", "each"),
    _Line("import from a busy owner", "busy", "busy"),
    _Line("attach 300 at once, each", "batch", "many"),
    _Line("attach again", "repeats", "attach repeated"),
    _Line("read 256 MiB with NumPy", "bandwidth", "read", 256 * MIB),
    _Line("write 256 MiB with NumPy", "bandwidth", "write", 256 * MIB),
)


def make_summary(report: Report) -> Table:
    """Return the table. A ratio is crossmem's time divided by the time left of the ratio."""
    peers = [name for name, one in report.peers.items() if one["state"] == "measured"]
    others = [name for name in peers if name != _OURS]
    heads = ["", *(report.peers[name]["title"] for name in peers if name == _OURS)]
    for name in others:
        heads += [report.peers[name]["title"], *(["ratio"] if _OURS in peers else [])]
    rows = []
    for line in _LINES:
        ours = _us(report, line, _OURS)
        cells = [line.title, *([number(ours)] if _OURS in peers else [])]
        for name in others:
            theirs = _us(report, line, name)
            cells.append(number(theirs))
            if _OURS in peers:
                cells.append(number(ours / theirs) if ours and theirs else "-")
        if any(cell != "-" for cell in cells[1:]):
            rows.append(tuple(cells))
    return Table(_TITLE, tuple(heads), tuple(rows))


def _us(report: Report, line: _Line, peer: str) -> float | None:
    """Return the time of an operation, in microseconds; None if it was not measured."""
    if line.section != "bandwidth":
        return report.value(line.section, peer, line.metric, nbytes=line.nbytes)
    # The floor maps memory with a plain mmap, so the row "plain mmap" has the floor's rate.
    subject = "plain mmap" if peer == "floor" else peer
    rate = report.value(line.section, subject, line.metric, nbytes=line.nbytes)
    return (line.nbytes or 0) / rate / 1e3 if rate else None
