# SPDX-License-Identifier: Apache-2.0
"""The ``crossmem`` command. The library never imports this package.

The extra ``cli`` installs typer and rich. The modules :mod:`~crossmem.cli.app`,
:mod:`~crossmem.cli.benchmark`, :mod:`~crossmem.cli.commands` and
:mod:`~crossmem.cli.demonstration` import typer, and :mod:`~crossmem.cli.render` imports rich. The
modules that run in child processes import neither typer nor rich.
"""

import sys

__all__ = ["main"]

_NEEDED = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command with this process's arguments, and exit with the command's exit code."""
    try:
        from crossmem.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        print(
            f"error: the crossmem command needs {missing}; "
            f"run: {sys.executable} -m pip install 'crossmem[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    app(prog_name="crossmem")
