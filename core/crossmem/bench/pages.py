# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of a report in Markdown and the charts in SVG, for a documentation page."""

from pathlib import Path

from crossmem.bench.charts import make_charts
from crossmem.bench.render import make_tables
from crossmem.bench.report import Report
from crossmem.bench.tables import markdown

__all__ = ["write_page"]


def write_page(report: Report, folder: Path) -> list[Path]:
    """Write ``tables.md`` and the charts to a folder. Make the folder if it does not exist.

    Returns
    -------
    list
        The paths of the written files.

    Raises
    ------
    OSError
        The folder cannot be made, or a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"tables.md": "\n".join(map(markdown, make_tables(report))), **make_charts(report)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
