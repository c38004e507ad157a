# SPDX-License-Identifier: Apache-2.0
"""The ``crossmem`` command. The library never imports this package.

The extra ``cli`` installs typer and rich. The modules that run in child processes import neither,
so that the children start fast.
"""

import errno
import os
import sys

__all__ = ["main"]

_NEEDED = frozenset({"rich", "typer"})
_OUTPUT_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


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
    try:
        app(prog_name="crossmem")
    except OSError as error:
        if error.errno not in _OUTPUT_FAULTS:
            raise
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        # The rest of the output cannot be written at the exit, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(3)
