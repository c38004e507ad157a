# SPDX-License-Identifier: Apache-2.0
"""The ``crossmem`` command. The library never imports this package.

The extra ``cli`` installs typer and rich. The modules that run in child processes import neither,
so that the children start fast.
"""

import errno
import os
import signal
import sys

__all__ = ["main"]

_NEEDED = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command with this process's arguments, and exit with the command's exit code."""
    # The parent may have left SIGCHLD ignored. In that case, the kernel discards the exit codes of
    # this process's children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
    from crossmem.cli.stdout import OutputError, watch_stdout

    watch_stdout()
    try:
        try:
            app(prog_name="crossmem")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OutputError as failed:
        # EPIPE needs no message: a reader such as `head` closes the pipe when it has read enough.
        if failed.error.errno != errno.EPIPE:
            print(f"error: the output cannot be written: {failed.error.strerror}", file=sys.stderr)
        # Python flushes stdout again when it exits. The rest of the output goes to /dev/null, so
        # that the second flush does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(3)
