# SPDX-License-Identifier: Apache-2.0
"""Charts of a report as SVG text: one dot for each median time, on a logarithmic axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final
from xml.sax.saxutils import escape

from crossmem.bench.plan import KIB
from crossmem.bench.report import Report
from crossmem.bench.tables import number

__all__ = ["make_charts"]

LOADS: Final = {
    "idle": "idle",
    "busy": "1 thread",
    "4 threads": "4 threads",
    "asyncio": "asyncio",
    "GIL held": "GIL held",
    "stopped": "SIGSTOP",
}
"""The titles of the loads on the exporter. Each key is the name of a load in a report."""

# The palette of Okabe and Ito: people with any colour vision can tell its colours apart.
_COLOURS: Final = ("#000000", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
_GREY: Final = "#4a5568"
_LEFT, _RIGHT, _WIDTH = 160, 680, 760
_TITLE_HEIGHT, _LEGEND_HEIGHT = 36, 28
_OURS: Final = ("crossmem", "crossmem pool")
_DOT_ROW, _GAP = 11, 12
_LEGEND_STEP: Final = 92


@dataclass(frozen=True, slots=True)
class _Chart:
    """The contents of a chart.

    ``series`` has the titles of the series, such as the loads. ``groups`` has a title for each
    peer, and the peer's value in each series, in microseconds. A value that was not measured is
    None.
    """

    title: str
    series: tuple[str, ...]
    groups: tuple[tuple[str, tuple[float | None, ...]], ...]


def make_charts(report: Report) -> dict[str, str]:
    """Return the charts as SVG texts. The keys are file names.

    If the report contains no value for a chart, the dict does not contain the chart.
    """
    charts = {
        "life.svg": _chart(
            report, "Whole life of one allocation of 4 KiB", "life", {"life": ""}, 4 * KIB
        ),
        "busy.svg": _chart(
            report, "Attach of 4 KiB while the exporter is busy", "busy", LOADS, None
        ),
    }
    return {name: _draw(chart) for name, chart in charts.items() if chart.groups}


def _chart(
    report: Report, title: str, section: str, series: dict[str, str], nbytes: int | None
) -> _Chart:
    groups = []
    for name, peer in report.peers.items():
        values = [report.value(section, name, metric, nbytes=nbytes) for metric in series]
        if any(values):
            groups.append((peer["title"], tuple(values)))
    return _Chart(f"{title}: medians, logarithmic", tuple(series.values()), tuple(groups))


def _draw(chart: _Chart) -> str:
    found = [one for _, values in chart.groups for one in values if one]
    low, high = floor(log10(min(found))), ceil(log10(max(found)))
    high = max(high, low + 1)

    def across(value: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (log10(value) - low) / (high - low), 1)

    start = _TITLE_HEIGHT + (_LEGEND_HEIGHT if len(chart.series) > 1 else 0)
    group = _DOT_ROW * len(chart.series) + _GAP
    bottom = start + group * len(chart.groups)
    size = f'width="{_WIDTH}" height="{bottom + 36}"'
    font = 'font-family="system-ui, sans-serif" font-size="13" fill="#1a202c"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 36}"',
        f'{size} role="img" aria-labelledby="title" {font}>',
        f'<title id="title">{escape(chart.title)}</title>',
        f'<rect {size} fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-weight="600">{escape(chart.title)}</text>',
        *_legend(chart.series),
    ]
    for power in range(low, high + 1):
        x, y = across(10.0**power), bottom + 18
        lines += [
            f'<line x1="{x}" y1="{start}" x2="{x}" y2="{bottom}" stroke="#cbd5e0"/>',
            f'<text x="{x}" y="{y}" text-anchor="middle" fill="{_GREY}">{_time(power)}</text>',
        ]
    for place, (title, values) in enumerate(chart.groups):
        top = start + group * place
        middle = top + group / 2
        weight = ' font-weight="600"' if title in _OURS else ""
        if place:
            lines.append(f'<line x1="10" y1="{top}" x2="{_RIGHT}" y2="{top}" stroke="#e2e8f0"/>')
        place_of = f'x="{_LEFT - 12}" y="{middle + 4:g}" text-anchor="end"'
        lines.append(f"<text {place_of}{weight}>{escape(title)}</text>")
        for index, value in enumerate(values):
            if not value:
                continue
            x, height = across(value), top + _GAP / 2 + _DOT_ROW * (index + 0.5)
            lines.append(f'<circle cx="{x}" cy="{height:g}" r="4.5" fill="{_COLOURS[index]}"/>')
            if len(values) == 1:
                lines.append(f'<text x="{x + 9:g}" y="{height + 4:g}">{number(value)} µs</text>')
    return "\n".join([*lines, "</svg>", ""])


def _legend(series: Sequence[str]) -> list[str]:
    if len(series) == 1:
        return []
    lines = []
    for index, title in enumerate(series):
        x = _LEFT + _LEGEND_STEP * index
        lines += [
            f'<circle cx="{x + 5}" cy="44" r="4.5" fill="{_COLOURS[index]}"/>',
            f'<text x="{x + 15}" y="48">{escape(title)}</text>',
        ]
    return lines


def _time(power: int) -> str:
    """Return a time of 10 ** ``power`` microseconds as text, such as ``"10 ms"``."""
    unit, less = ("s", 6) if power >= 6 else ("ms", 3) if power >= 3 else ("µs", 0)
    return f"{10.0 ** (power - less):g} {unit}"
