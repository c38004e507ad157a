# SPDX-License-Identifier: Apache-2.0
"""Distinguishes failed writes to standard output from other causes of ``OSError``."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

__all__ = ["OutputError", "watch_stdout"]


class OutputError(Exception):
    """A write to standard output failed. ``error`` is the ``OSError`` of the write."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _Output(io.TextIOWrapper):
    @override
    def write(self, text: str, /) -> int:
        with _output_errors():
            return super().write(text)

    @override
    def flush(self) -> None:
        with _output_errors():
            super().flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(error) from error


def watch_stdout() -> None:
    """Let failed writes to standard output raise :class:`OutputError`."""
    before = sys.stdout
    # Only Python's own object is replaced. If standard output is closed, ``sys.stdout`` is None. If
    # the caller has replaced ``sys.stdout``, the caller's object stays.
    if type(before) is io.TextIOWrapper:
        encoding, errors, lines = before.encoding, before.errors, before.line_buffering
        through = before.write_through
        sys.stdout = _Output(
            before.detach(), encoding, errors, line_buffering=lines, write_through=through
        )
