# SPDX-License-Identifier: Apache-2.0
"""Exit codes, and the errors of commands."""

from enum import IntEnum
from pathlib import Path
from typing import Final

from crossmem.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    ConfigurationError,
    CrossmemError,
    DeviceNotFoundError,
    DriverError,
)

__all__ = [
    "UNUSABLE",
    "BenchmarkError",
    "ExitCode",
    "UsageProblem",
    "failed_call",
    "reason_and_hint",
    "write_text",
]

UNUSABLE: Final = (
    BackendNotFoundError,
    BackendUnavailableError,
    ConfigurationError,
    DeviceNotFoundError,
)
"""The errors of crossmem after which a command exits with 2. The cause is an invalid option or
setting, or a backend or device that cannot be used."""


class ExitCode(IntEnum):
    """The exit codes of commands.

    If ``conformance`` has run pytest, it exits with the exit code of pytest. If ``emulate`` has run
    a program, it exits with the exit status of the program.
    """

    OK = 0
    MISMATCH = 1
    """The command has finished, but a digest is wrong or the benchmark missed a target."""
    USAGE = 2
    """An argument, a device, a file or a setting cannot be used."""
    CROSSMEM_ERROR = 3
    """An operation of crossmem was refused or failed, or a process of the command died."""
    INTERRUPTED = 130
    """The user pressed Ctrl-C."""


class UsageProblem(Exception):  # noqa: N818 - not a failure of the program
    """An argument, a device or a file cannot be used, or a required package is missing.

    Parameters
    ----------
    message
        The invalid value, and what is wrong with it.
    hint
        The remedy.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BenchmarkError(CrossmemError):
    """A process of the benchmark failed, died or did not finish in time."""


def failed_call(error: CrossmemError) -> str:
    """Return a text that names the failed driver call; "" if the error does not name a call."""
    if isinstance(error, DriverError) and error.call:
        return f"{error.call} failed with {error.name} ({error.code})"
    return ""


def reason_and_hint(error: BaseException) -> tuple[str, str | None]:
    """Return an error's message and hint. Only crossmem's errors have a hint."""
    if isinstance(error, CrossmemError):
        return error.message, error.hint
    return f"{type(error).__name__}: {error}", None


def write_text(path: Path, text: str) -> None:
    """Write a text to a file whose path the user gave.

    Raises
    ------
    UsageProblem
        The file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"cannot write {str(path)!r}: {error.strerror}") from error
