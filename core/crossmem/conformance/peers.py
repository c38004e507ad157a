# SPDX-License-Identifier: Apache-2.0
"""Other processes that do what a test tells them, under deadlines.

A :class:`Peer` is a process as good as a fresh interpreter, forked from a warm one or started anew.
It calls module-level functions, mostly those of :mod:`crossmem.conformance.actions`, one after the
other in its main thread, and sends back what they return or raise. Every wait has a deadline, and
whatever is left of a peer is killed.
"""

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from typing_extensions import override

from crossmem.conformance import blocks
from crossmem.conformance.channel import GRACE_S, START_TIMEOUT_S, receive, send
from crossmem.conformance.forkserver import ForkedProcess, ForkServerError
from crossmem.conformance.servers import fork_peer, server_descriptors
from crossmem.conformance.speed import SLOWNESS

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "Peer",
    "PeerDiedError",
    "PeerTimeoutError",
    "Pending",
    "kill_all",
    "kit_descriptors",
]

DEFAULT_TIMEOUT_S: Final = 40.0 * SLOWNESS
"""How long a call may take, in seconds."""

_STDERR_TAIL_NBYTES: Final = 4000
_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; from crossmem.conformance.channel import serve; "
    "serve({descriptor})"
)

_alive: "weakref.WeakSet[Peer]" = weakref.WeakSet()


class PeerDiedError(Exception):
    """The peer ended before it answered.

    Parameters
    ----------
    message
        What was asked of it, and the end of what it wrote to its standard error.
    exitcode
        As :attr:`subprocess.Popen.returncode`: negative for a signal.
    """

    def __init__(self, message: str, exitcode: int) -> None:
        super().__init__(message, exitcode)
        self.exitcode = exitcode

    @override
    def __str__(self) -> str:
        return str(self.args[0])


class PeerTimeoutError(Exception):
    """The peer did not answer within the deadline of the call."""


class Pending:
    """The answer to a call that a peer may still be working on. Made by :meth:`Peer.start`."""

    def __init__(self, peer: "Peer", number: int, timeout_s: float) -> None:
        self._peer = peer
        self._number = number
        self._timeout_s = timeout_s

    def result(self, timeout_s: float | None = None) -> Any:
        """Return what the function returned, or raise what it raised.

        Raises
        ------
        PeerDiedError, PeerTimeoutError
            Where there is no answer.
        """
        return self._peer.answer(self._number, self._timeout_s if timeout_s is None else timeout_s)

    def is_done(self) -> bool:
        """Whether the answer is there."""
        return self._peer.has_answer(self._number)


class Peer:
    """A process of its own that calls functions for a test.

    Parameters
    ----------
    device, runtime, mechanism
        What :func:`crossmem.conformance.actions.device` gives there.
    environment
        Variables to set, or with None to remove, beside this process's.
    tracing
        Whether drivers are wrapped in :class:`crossmem.driver.TracingDriver`.
    fresh
        Whether it is an interpreter of its own from the start, instead of a child of a warm one.
        For tests of start, exit, exec and fork, and for vendor libraries that survive no fork.

    Notes
    -----
    The process leads a process group, so that children which it forks end with it in
    :meth:`destroy`. A context manager that destroys it.
    """

    def __init__(
        self,
        device: str,
        *,
        runtime: str | None = None,
        mechanism: str | None = None,
        environment: Mapping[str, str | None] | None = None,
        tracing: bool = True,
        fresh: bool = False,
    ) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, tuple[bool, Any, str]] = {}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in destroy()
        self._socket, theirs = socket.socketpair()
        changed = dict(os.environ)
        for name, value in (environment or {}).items():
            changed.pop(name, None)
            if value is not None:
                changed[name] = value
        self._pidfd = -1
        self._process: subprocess.Popen[bytes] | ForkedProcess
        try:
            with theirs:
                if fresh:
                    self._process = self._spawn(changed, theirs)
                else:
                    self._process = fork_peer(changed, theirs, self._stderr.fileno())
        except BaseException:
            self._socket.close()
            self._stderr.close()
            raise
        _alive.add(self)
        try:
            self._pidfd = os.pidfd_open(self.pid)
            send(self._socket, (device, runtime, mechanism, tracing, blocks.are_used()))
            self.answer(0, START_TIMEOUT_S)
        except BaseException:
            self.destroy()
            raise

    def _spawn(
        self, environment: dict[str, str], stream: socket.socket
    ) -> "subprocess.Popen[bytes]":
        program = _PROGRAM.format(path=sys.path, descriptor=stream.fileno())
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", program],
            env=environment,
            pass_fds=(stream.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            process_group=0,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """None while it runs, else as :attr:`subprocess.Popen.returncode`."""
        return self._process.poll()

    @property
    def descriptors(self) -> frozenset[int]:
        """Descriptors of this process that serve to talk to the peer."""
        if self._pidfd < 0:
            return frozenset()
        found = {self._socket.fileno(), self._stderr.fileno(), self._pidfd}
        if isinstance(self._process, ForkedProcess) and self._process.returncode is None:
            found.add(self._process.status)
        return frozenset(found)

    @override
    def __repr__(self) -> str:
        return f"<Peer {self.pid}, exit code {self.exitcode}>"

    # Calls --------------------------------------------------------------------------------

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        within: float = DEFAULT_TIMEOUT_S,
        **kwargs: Any,
    ) -> Any:
        """Call a module-level function in the peer; return what it returns, raise what it raises.

        Parameters
        ----------
        function
            Pickled by reference: its module is imported in the peer.
        within
            How long that may take, in seconds. The peer ends itself a while after that.
        """
        return self.start(function, *args, within=within, **kwargs).result()

    def start(
        self,
        function: Callable[..., Any],
        *args: Any,
        within: float = DEFAULT_TIMEOUT_S,
        **kwargs: Any,
    ) -> Pending:
        """As :meth:`call`, but do not wait. Calls are done in the order in which they came."""
        number = next(self._numbers)
        request = (number, function, args, kwargs, within + GRACE_S)
        self._socket.settimeout(within)
        try:
            send(self._socket, request)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(f"before {function.__name__} was called") from None
        return Pending(self, number, within)

    def has_answer(self, number: int) -> bool:
        """Whether the answer to a call is there."""
        while number not in self._answers and self._is_readable(0.0):
            self._take()
        return number in self._answers

    def answer(self, number: int, timeout_s: float) -> Any:
        """Wait for the answer to a call. Called by :class:`Pending`."""
        deadline = time.monotonic() + timeout_s
        while number not in self._answers:
            if not self._is_readable(deadline - time.monotonic()):
                raise PeerTimeoutError(f"{self!r} did not answer within {timeout_s} s")
            self._take()
        is_result, value, trace = self._answers.pop(number)
        if is_result:
            return value
        value.add_note(f"in {self!r}:\n{trace}")
        raise value

    def _take(self) -> None:
        self._socket.settimeout(GRACE_S)
        try:
            number, *answer = receive(self._socket)
        except (EOFError, ConnectionResetError):
            raise self._died("while a call was under way") from None
        self._answers[number] = tuple(answer)

    def _is_readable(self, timeout_s: float) -> bool:
        """Wait until there is something to read, or nothing will come any more."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        events = dict(poll.poll(max(0.0, timeout_s) * 1000))
        if self._pidfd in events and self._socket.fileno() not in events:
            # A forked child of it may hold the socket open.
            raise self._died("while a call was under way")
        return bool(events)

    def _died(self, when: str) -> PeerDiedError:
        try:
            exitcode: int = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.destroy()
            exitcode = self._process.wait(0)
        return PeerDiedError(f"{self!r} died {when}\n{self.output()}", exitcode)

    def output(self) -> str:
        """Return the end of what it wrote to standard output and error so far."""
        if self._stderr.closed:
            return ""
        descriptor = self._stderr.fileno()
        start = max(0, os.fstat(descriptor).st_size - _STDERR_TAIL_NBYTES)
        return os.pread(descriptor, _STDERR_TAIL_NBYTES, start).decode(errors="replace")

    # Ends ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill it with SIGKILL and wait for its end. Children that it forked live on."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._process.wait(GRACE_S)

    def stop(self) -> None:
        """Stop it with SIGSTOP, and wait until it stands still."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        deadline = time.monotonic() + GRACE_S
        # Only its parent, which may be a fork server, could wait for this.
        while self._state() != b"T":
            if time.monotonic() > deadline:
                raise PeerTimeoutError(f"{self!r} does not stop")
            time.sleep(0.0005)

    def cont(self) -> None:
        """Let it go on after :meth:`stop`."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def request_exit(self) -> None:
        """Ask it to end as a program does that comes to its end; do not wait."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self._socket, None)

    def wait_exit(self, *, within: float = DEFAULT_TIMEOUT_S) -> int:
        """Wait for its end and return the exit code.

        Raises
        ------
        PeerTimeoutError
            Where it does not end; it is killed then.
        """
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.destroy()
            raise PeerTimeoutError(f"{self!r} did not exit within {within} s") from None

    def exit(self, *, within: float = DEFAULT_TIMEOUT_S) -> str:
        """Let it end normally, check that it did, and return its output."""
        self.request_exit()
        exitcode = self.wait_exit(within=within)

        assert exitcode == 0, f"{self!r}\n{self.output()}"
        return self.output()

    def destroy(self) -> None:
        """Kill what is left of it and of its children, and close everything. Never raises."""
        if self._stderr.closed:
            return
        with contextlib.suppress(Exception):
            if "COVERAGE_PROCESS_START" in os.environ and self._is_running():
                # What it ran is to be counted, and a killed process cannot tell any more.
                self.start(_save_coverage).result(3)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired, ForkServerError):
            self._process.wait(GRACE_S)
        if isinstance(self._process, ForkedProcess):
            self._process.close()
        self._socket.close()
        self._stderr.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        _alive.discard(self)

    def _is_running(self) -> bool:
        """Whether it lives and was not stopped."""
        return self._process.poll() is None and self._state() in {b"R", b"S", b"D"}

    def _state(self) -> bytes:
        """Return the letter by which the kernel names its state; nothing once it is gone."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
            return stat[stat.rindex(b")") + 2 :][:1]
        return b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def _save_coverage() -> None:
    import coverage  # noqa: PLC0415 - where the variable is set, it runs here

    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.stop()
        measuring.save()


def kill_all() -> None:
    """Destroy every peer of this process, so that nothing waits for one any more."""
    for peer in list(_alive):
        peer.destroy()


def kit_descriptors() -> frozenset[int]:
    """Return the descriptors of this process that serve to talk to peers."""
    return server_descriptors().union(*(peer.descriptors for peer in _alive))
