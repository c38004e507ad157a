# SPDX-License-Identifier: Apache-2.0
"""The elements of the commands' output, as objects that the library ``rich`` prints."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

__all__ = [
    "Advance",
    "facts",
    "grid",
    "nbytes_text",
    "output",
    "plain",
    "print_json",
    "progress_bar",
    "seconds_text",
    "show_error",
    "show_step",
]

Advance = Callable[[int], object]
"""A function that advances a progress bar by a number of bytes."""

_KIB: Final = 1024
_TEN: Final = 10
_HUNDRED: Final = 100
_THOUSAND: Final = 1000


def output() -> Console:
    """Return the console for results."""
    return Console(highlight=False)


def _errors() -> Console:
    return Console(stderr=True, highlight=False)


def print_json(report: BaseModel) -> None:
    """Print a report as JSON. A command prints at most one JSON document."""
    print(report.model_dump_json(indent=2))


def show_error(message: str, hint: str | None, call: str = "") -> None:
    """Print an error message, the failed call, and the hint to standard error."""
    console = _errors()
    # rich does not wrap these lines, so it inserts no line break into a command that a user copies.
    console.print(
        Text.assemble(("error: ", "bold red"), (_visible(message), "red")), soft_wrap=True
    )
    if call:
        console.print(Text(_visible(call)), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), _visible(hint)), soft_wrap=True)


def show_step(text: str) -> None:
    """Print the current step of a long command to standard error."""
    _errors().print(Text(text, style="dim"))


def plain(text: str) -> str:
    """Return markup of ``rich`` that shows untrusted text. Escape markup and control characters."""
    return escape(_visible(text))


def _visible(text: str) -> str:
    """Return untrusted text with its control characters escaped."""
    # A file name, for example, may contain escape sequences that change the terminal's title.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def nbytes_text(nbytes: int) -> str:
    """Return a size for people, such as ``"256.0 MiB"``."""
    if nbytes < _KIB:
        return f"{nbytes} B"
    units = iter(("KiB", "MiB", "GiB", "TiB"))
    size, unit = nbytes / _KIB, next(units)
    while round(size, 1) >= _KIB and (larger := next(units, None)):
        size, unit = size / _KIB, larger
    return f"{size:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """Return a duration for people, such as ``"412 µs"``, ``"3.20 ms"`` or ``"1.24 s"``."""
    micro = _micro()
    for factor, unit in ((1e6, micro), (1e3, "ms"), (1, "s")):
        number = seconds * factor
        if round(number, 1) < _THOUSAND or unit == "s":
            break
    digits = 0 if unit == micro or round(number, 1) >= _HUNDRED else 2 if number < _TEN else 1
    return f"{number:.{digits}f} {unit}"


def _micro() -> str:
    try:
        "µ".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "us"
    return "µs"


def facts(rows: Sequence[tuple[str, str]], *, is_cut: bool = False) -> Padding:
    """Return a list of names and values. Long values are cut if ``is_cut``, else wrapped."""
    table = Table.grid(padding=(0, 2))
    longest = max((len(name) for name, _ in rows), default=0)
    table.add_column(style="bold", no_wrap=True, min_width=longest)
    table.add_column(overflow="ellipsis" if is_cut else "fold", no_wrap=is_cut)
    for name, value in rows:
        table.add_row(plain(name), plain(value))
    return Padding(table, (0, 0, 1, 0))


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Padding:
    """Return a table whose header is underlined.

    If the terminal is too narrow, the last column is wrapped, and the other columns are cut.

    Parameters
    ----------
    columns
        Headers; ``>`` at the start marks a column of numbers.
    rows
        Cells, in rich's markup.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(
            column.removeprefix(">"),
            justify=justify,
            no_wrap=column != columns[-1],
            overflow="fold" if column == columns[-1] else "ellipsis",
        )
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 1, 0))


@contextmanager
def progress_bar(text: str, nbytes: int) -> Iterator[Advance]:
    """Show a bar on standard error during a ``with`` block; yield the function that advances it.

    If standard error is not a terminal, no bar is shown.
    """
    console = _errors()
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(plain(text), total=nbytes)
        yield lambda done: bar.advance(task, done)
