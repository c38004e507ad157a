# SPDX-License-Identifier: Apache-2.0
"""The common parts of all commands: the form of their help, and the exits after errors."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from crossmem import CrossmemError, __version__
from crossmem.cli.problems import UNUSABLE, ExitCode, UsageProblem
from crossmem.cli.render import print_json, show_error

__all__ = ["Json", "examples", "reflow", "reporting"]

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else to stdout.")
]


def examples(lines: Sequence[tuple[str, str]]) -> str:
    """Return an epilog with commands to copy and their meanings."""
    width = max(len(command) for command, _ in lines)
    shown = [f"[cyan]{command.ljust(width)}[/cyan]  {meaning}" for command, meaning in lines]
    return "\n".join(["[bold]Examples[/bold]", *shown])


def reflow(function: Callable[..., object]) -> str:
    """Return a docstring as paragraphs of one line each, for a terminal of any width."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


@contextmanager
def reporting(command: str, *, as_json: bool) -> Iterator[None]:
    """Turn a command's error into a message, a JSON document if requested, and an exit code."""
    details = ""
    try:
        yield
    except UsageProblem as error:
        code, name, message, hint = ExitCode.USAGE, "UsageError", error.message, error.hint
    except UNUSABLE as error:
        code, name, message, hint = ExitCode.USAGE, type(error).__name__, error.message, error.hint
        details = error.details
    except CrossmemError as error:
        code, name, hint = ExitCode.CROSSMEM_ERROR, type(error).__name__, error.hint
        details = error.details
        # str(error) also names a driver's failed call. The hint is cut out, because show_error()
        # prints the hint on a line of its own.
        message = str(error).replace(f"\nHint: {error.hint}", "")
    except KeyboardInterrupt:
        code, name, message, hint = ExitCode.INTERRUPTED, "Interrupted", "interrupted", None
    else:
        return
    if as_json:
        from crossmem.cli.reports import ErrorReport

        print_json(
            ErrorReport(
                command=command,
                version=__version__,
                error=name,
                message=message,
                hint=hint,
                details=details,
                exit_code=code,
            )
        )
    show_error(message, hint)
    raise typer.Exit(code)
