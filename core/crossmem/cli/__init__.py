# SPDX-License-Identifier: Apache-2.0
"""The ``crossmem`` command. The library never imports this package.

Only :mod:`crossmem.cli.app`, :mod:`crossmem.cli.render` and :mod:`crossmem.cli.views` use typer
and rich; they come with the extra ``cli``.
"""

import sys

__all__ = ["main"]

_NEEDED = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command with the arguments of this process, and exit with its code."""
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
