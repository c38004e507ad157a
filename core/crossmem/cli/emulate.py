# SPDX-License-Identifier: Apache-2.0
"""Runs a program on an emulation of a vendor's library."""

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, Self

from crossmem.cli.problems import UsageProblem
from crossmem.errors import ConfigurationError
from crossmem.plugin import Emulation, EmulationReport, EmulationRequest
from crossmem.sharing.base.process import current

__all__ = ["prepare", "print_environment", "run", "show"]

_NOT_FOUND, _NOT_RUNNABLE, _SIGNALLED = 127, 126, 128
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_STEP_MS: Final = 250
"""Length of one wait for the program's end. It is also the longest delay of a forwarded signal."""


def prepare(api: str, request: EmulationRequest) -> Emulation:
    """Return an emulation. The caller closes it.

    Raises
    ------
    CrossmemError
        There is no emulation of ``api``, or the emulation cannot work here.
    """
    given = {
        "CROSSMEM_EMULATED_DEVICES": ("--devices", request.devices),
        "CROSSMEM_EMULATED_CAPACITY": ("--capacity", request.capacity),
        "CROSSMEM_EMULATED_STATE": ("--state", request.state),
    }
    try:
        return current().registry.emulation(api, request)
    except ConfigurationError as error:
        # The emulation's error names a variable, but the user gave an option.
        for variable, (option, value) in given.items():
            if value is not None:
                error.message = error.message.replace(variable, option)
                error.hint = error.hint and error.hint.replace(variable, option)
        raise


def print_environment(emulation: Emulation) -> None:
    """Print the shell commands that set the environment in which programs find the emulation."""
    for name, value in sorted(emulation.environment(os.environ).items()):
        if os.environ.get(name) != value:
            print(f"export {name}={shlex.quote(value)}")


def run(emulation: Emulation, command: Sequence[str]) -> int:
    """Run a program on the emulation and return its exit status, as a shell reports it.

    Raises
    ------
    UsageProblem
        There is no command to run.
    """
    if not command:
        raise UsageProblem("there is no command to run", hint="put the command after --")
    environ = emulation.environment(os.environ)
    with _Forwarding() as forwarding:
        try:
            program = subprocess.Popen(command, env=environ)  # noqa: S603 - the user's command
        except FileNotFoundError:
            print(f"crossmem: {command[0]}: there is no such command", file=sys.stderr)
            return _NOT_FOUND
        except OSError as error:
            print(f"crossmem: {command[0]}: {error.strerror}", file=sys.stderr)
            return _NOT_RUNNABLE
        with program:
            forwarding.begin(program)
            _await_end(program.pid)
            status = program.wait()
    status = status if status >= 0 else _SIGNALLED - status
    if status == _SIGNALLED + signal.SIGSEGV and emulation.segfault_note:
        print(f"crossmem: the program ended by SIGSEGV: {emulation.segfault_note}", file=sys.stderr)
    return status


def _await_end(pid: int) -> None:
    """Wait in short steps for the end of a program.

    Python runs no signal handler during a system call. A signal that arrives right before a system
    call does not interrupt the call. So with one long wait, the handler of such a signal would run
    only after the end of the program.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        # The program has ended, or this process has no descriptor left. The caller waits for the
        # program in both cases.
        return
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        while not ended.poll(_STEP_MS):
            pass
    finally:
        os.close(pidfd)


class _Forwarding:
    """Forwards signals to a program. These signals do not end this process itself."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _FORWARDED:
            self._before[number] = signal.signal(number, self._forward)
        self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def begin(self, program: "subprocess.Popen[bytes]") -> None:
        """Record the program, and forward the signals that arrived before its start."""
        self._program = program
        while self._early:
            program.send_signal(self._early.pop(0))

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # At Ctrl-C, the terminal sends SIGINT to this process and to the program if both are in the
        # foreground. If this process forwarded SIGINT too, the program would get it twice.
        if not _in_foreground():
            self._forward(number, frame)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if self._program is None:
            self._early.append(number)
        else:
            self._program.send_signal(number)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def show(report: EmulationReport, *, with_calls: bool) -> None:
    """List API misuse on standard error and, if ``with_calls``, how often each function ran."""
    say = sys.stderr.write
    if count := len(report.violations):
        say(f"crossmem: {count} API misuse{'s' if count > 1 else ''} found:\n")
    elif with_calls:
        say("crossmem: no API misuse found\n")
    for one in report.violations:
        say(f"  {one.rule}  process {one.pid}  {one.call}: {one.text}\n")
    if with_calls:
        say(f"crossmem: {sum(report.calls.values())} calls\n")
        for name, count in report.calls.items():
            say(f"  {count:8}  {name}\n")
