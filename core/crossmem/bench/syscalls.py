# SPDX-License-Identifier: Apache-2.0
"""Lists the system calls that another process's main thread makes between two marks."""

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final

__all__ = ["TraceError", "count_system_calls"]

_MARK: Final = "getpgid"
_ATTACH_DEADLINE_S: Final = 10.0
_END_DEADLINE_S: Final = 10.0


class TraceError(Exception):
    """The system calls could not be listed; the message says why."""


def count_system_calls(pid: int, action: Callable[[], object]) -> list[str]:
    """Run an action. Return the names of the system calls that a process makes between two marks.

    A mark is a call of ``getpgid``.

    Parameters
    ----------
    pid
        The process. Only the calls of its main thread are listed.
    action
        A function that makes the process set a mark, do the traced work, and set another mark.

    Raises
    ------
    TraceError
        strace is not installed, cannot trace the process, or did not see exactly two marks.
    """
    program = shutil.which("strace")
    if program is None:
        msg = "strace is not installed"
        raise TraceError(msg)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "calls")
        tracer = subprocess.Popen(
            [program, "-f", "-p", str(pid), "-o", str(log)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_for_attach(tracer)
            action()
        finally:
            tracer.send_signal(signal.SIGINT)  # strace detaches, and the process continues
            try:
                tracer.wait(_END_DEADLINE_S)
            except subprocess.TimeoutExpired:
                tracer.kill()
                tracer.wait()
            if tracer.stderr is not None:
                tracer.stderr.close()
        return _between_marks(log.read_text(errors="replace"), pid)


def _wait_for_attach(tracer: "subprocess.Popen[str]") -> None:
    said: list[str] = []

    def read() -> None:
        if tracer.stderr is not None:
            said.append(tracer.stderr.readline())

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(_ATTACH_DEADLINE_S)
    if not said or "attached" not in said[0]:
        msg = f"strace could not attach: {said[0].strip() if said else 'it said nothing'}"
        raise TraceError(msg)


def _between_marks(log: str, pid: int) -> list[str]:
    calls: list[str] = []
    marks = 0
    for line in log.splitlines():
        # If a call overlaps another thread's call, strace prints a second line for the call's end.
        # The pattern matches only the first line.
        found = re.match(r"(\d+)\s+(\w+)\(", line)
        if not found or int(found[1]) != pid:
            continue
        if found[2] == _MARK:
            marks += 1
        elif marks == 1:
            calls.append(found[2])
    if marks != 2:
        msg = f"strace saw {marks} calls of {_MARK}, not 2"
        raise TraceError(msg)
    return calls
