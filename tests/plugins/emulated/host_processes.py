# SPDX-License-Identifier: Apache-2.0
"""Processes of an emulated host, or of a real one, that do what a test tells them to."""

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

import crossmem_emulated
from crossmem.conformance.speed import SLOWNESS

DEADLINE_S = 30 * SLOWNESS
# Not under coverage: its tracer has a lock that a killed or forked process may hold.
MEASURING = ("COV_CORE_", "COVERAGE_")
_FOLDERS = [str(Path(__file__).parent / name) for name in ("", "acl", "hip")]
_PRELOADED: list[str] = []
_LIBRARY = str(Path(crossmem_emulated.__file__).parent)


class HostProgram:
    """What a child can be told to do, beside calling the functions of the vendor's library."""

    library: Any
    """The vendor's, or the emulation of it."""
    connection: Connection
    """The pipe to the test."""

    def peek(self, pointer: int, nbytes: int = 1) -> bytes:
        """Read as the host does, without asking the library."""
        return ctypes.string_at(pointer, nbytes)

    def poke(self, pointer: int, data: bytes) -> None:
        ctypes.memmove(pointer, data, len(data))

    def answer(self, name: str, *arguments: Any) -> Any:
        """Return what a call gives, a failure included."""
        return self.ask(name, *arguments)

    def in_fork(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Return what calls give in a forked child."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if not child:
            try:
                theirs.send([self.answer(*call) for call in calls])
            finally:
                os._exit(0)
        theirs.close()
        try:
            results: list[Any] = ours.recv() if ours.poll(DEADLINE_S) else ["it hangs"]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return results

    def memory_held(self, pid: int | str = "self") -> int:
        """Return how many descriptors and mappings of emulated memory a process has."""
        folder = Path(f"/proc/{pid}")
        # The descriptor that lists the folder is gone by the time that its link is read.
        links = [str(one.readlink()) for one in (folder / "fd").iterdir() if one.is_symlink()]
        maps = (folder / "maps").read_text("utf-8").splitlines()
        return sum("/memfd:crossmem" in one for one in (*links, *maps))

    def run(self, module: str, function: str, *arguments: Any) -> Any:
        """Call a function that a file beside this one has for its tests."""
        return getattr(import_module(module), function)(self.library, *arguments)

    def rows(self) -> dict[str, int]:
        """Return how much the emulated host knows, after it looked who is alive."""
        machine = self.library.machine
        with machine.transaction() as tables:
            machine.reap(tables)
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            names = [name for (name,) in tables.execute(query)]
            return {
                name: tables.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608
                for name in names
            }

    def fail(self, name: str, code: int, counts: dict[str, int]) -> None:
        """Let calls of the emulation fail."""
        self.library.faults.add(name, code, **counts)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call one of these functions or of the library's, or return an attribute."""
        found: Any = self
        for part in name.split("."):
            found = getattr(found, part)
        return found(*arguments) if callable(found) else found


def _serve(
    connection: Connection, environment: Mapping[str, str], program_class: type[HostProgram]
) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.clear()
    os.environ.update(environment)
    program = program_class()
    program.connection = connection
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = (True, program.ask(name, *arguments))
        except Exception as error:  # noqa: BLE001 - the test decides whether it is wanted
            answer = (False, error)
        connection.send(answer)


class Functions:
    """Functions of a module in another process."""

    def __init__(self, call: Callable[..., Any], module: str) -> None:
        self._call = call
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._call(f"{self._module}.{name}", *arguments)


class HostProcess:
    """A process that does what it is told.

    Parameters
    ----------
    program_class
        What it runs.
    environment
        All of its environment.
    is_real
        Whether it calls a vendor's library: those may not survive a fork, so it starts anew.
        Others are forked from a clean process, within milliseconds.
    """

    def __init__(
        self, program_class: type[HostProgram], environment: Mapping[str, str], *, is_real: bool
    ) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        context: Any = multiprocessing.get_context("spawn" if is_real else "forkserver")
        self._process = context.Process(
            target=_serve, args=(theirs, dict(environment), program_class)
        )
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid

    def begin(self, name: str, *arguments: Any) -> None:
        self._connection.send((name, arguments))

    def result(self) -> Any:
        if not self._connection.poll(DEADLINE_S):
            raise TimeoutError(f"process {self.pid} does not answer")
        try:
            is_fine, value = self._connection.recv()
        except ConnectionResetError:
            # It died before it read what it was told.
            raise EOFError from None
        if not is_fine:
            raise value
        return value

    def result_or_kill(self, after_s: float) -> Any:
        """Return what it answers within a time; after that, kill it."""
        if not self._connection.poll(after_s):
            self._process.kill()
        return self.result()

    def call(self, name: str, *arguments: Any) -> Any:
        self.begin(name, *arguments)
        return self.result()

    def kill(self) -> None:
        """Let it die as it stands."""
        self._process.kill()
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int | None:
        """Return how it ended."""
        self._process.join(DEADLINE_S)
        return cast("int | None", self._process.exitcode)

    def leave(self) -> None:
        """Let it exit, without releasing anything."""
        self._connection.close()
        assert self.wait() == 0

    def destroy(self) -> None:
        """End it, however it is."""
        self._connection.close()
        self._process.kill()
        self._process.join(DEADLINE_S)


def die_after(lines: int) -> None:
    """Kill this process before the emulation has run a number of lines."""
    left = lines

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            return None
        if event == "line":
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def preload(module: str) -> None:
    """Let the process that forks the others import a module beforehand."""
    _PRELOADED.append(module)
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)


def start_server() -> None:
    """Start the process from which the others are forked, where it finds what it preloads.

    Every folder's are forked from one process, which the first test of any of them starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(_FOLDERS), prepend=os.pathsep)
        for name in list(os.environ):
            if name.startswith(MEASURING):
                patch.delenv(name)
        forkserver.ensure_running()
