# SPDX-License-Identifier: Apache-2.0
"""Functions that all commands use, for help texts and for the exit after an error."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from crossmem import CrossmemError, __version__
from crossmem.cli.problems import UNUSABLE, ExitCode, UsageProblem, failed_call
from crossmem.cli.render import print_json, show_error
from crossmem.guards import clause

__all__ = ["Json", "examples", "reflow", "reporting"]

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else to stdout.")
]


def examples(lines: Sequence[tuple[str, str]]) -> str:
    """Return the examples at the end of a help text. Each line shows a command and its meaning."""
    width = max(len(command) for command, _ in lines)
    shown = [f"[cyan]{command.ljust(width)}[/cyan]  {meaning}" for command, meaning in lines]
    return "\n".join(["[bold]Examples[/bold]", *shown])


def reflow(function: Callable[..., object]) -> str:
    """Return a function's docstring with each paragraph on one line, for terminals of any width."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


@contextmanager
def reporting(command: str, *, as_json: bool) -> Iterator[None]:
    """Turn a command's error into a message, a JSON document if requested, and an exit code."""
    details = call = ""
    try:
        yield
    except UsageProblem as error:
        code, name, message, hint = ExitCode.USAGE, "UsageError", error.message, error.hint
    except UNUSABLE as error:
        code, name, message, hint = ExitCode.USAGE, type(error).__name__, error.message, error.hint
        details = error.details
    except CrossmemError as error:
        code, name = ExitCode.CROSSMEM_ERROR, type(error).__name__
        message, hint, details = error.message, error.hint, error.details
        call = failed_call(error)
    except OSError as error:
        code, name, hint = ExitCode.CROSSMEM_ERROR, type(error).__name__, None
        about = f" ({error.filename})" if error.filename is not None else ""
        message = clause(f"the system refused a call: {error.strerror or error}{about}")
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
                call=call,
                details=details,
                exit_code=code,
            )
        )
    show_error(message, hint, call)
    raise typer.Exit(code)
