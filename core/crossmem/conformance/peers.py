# SPDX-License-Identifier: Apache-2.0
"""Processes that execute a test's requests within time limits.

A :class:`Peer` is a new interpreter, or the fork of a server that has imported crossmem, but never
used it. A peer calls module-level functions, mostly those of :mod:`crossmem.conformance.actions`,
one after the other in its main thread, and sends back their results or exceptions.
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
"""How long a call may take by default, in seconds."""

_STDERR_TAIL_NBYTES: Final = 4000
_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; from crossmem.conformance.channel import serve; "
    "serve({descriptor})"
)

_alive: "weakref.WeakSet[Peer]" = weakref.WeakSet()


class PeerDiedError(Exception):
    """The peer ended before it replied.

    Parameters
    ----------
    message
        A text: when the peer died, and the last part of the peer's standard output and error.
    exitcode
        As in :attr:`subprocess.Popen.returncode`: negative if a signal ended the peer.
    """

    def __init__(self, message: str, exitcode: int) -> None:
        super().__init__(message, exitcode)
        self.exitcode = exitcode

    @override
    def __str__(self) -> str:
        return str(self.args[0])


class PeerTimeoutError(Exception):
    """The peer did not reply, stop or exit in time."""


class Pending:
    """The reply to a call that may still be running. Made by :meth:`Peer.start`."""

    def __init__(self, peer: "Peer", number: int, timeout_s: float) -> None:
        self._peer = peer
        self._number = number
        self._timeout_s = timeout_s

    def result(self, timeout_s: float | None = None) -> Any:
        """Return the function's result, or raise its exception.

        Raises
        ------
        PeerDiedError, PeerTimeoutError
            The peer ended before it replied, or did not reply in time.
        """
        return self._peer.answer(self._number, self._timeout_s if timeout_s is None else timeout_s)

    def is_done(self) -> bool:
        """Whether the reply has arrived."""
        return self._peer.has_answer(self._number)


class Peer:
    """A separate process that calls functions for a test.

    Parameters
    ----------
    device, runtime, mechanism
        Select the device that :func:`crossmem.conformance.actions.device` returns in the peer.
    environment
        Changes to the environment that the peer inherits from this process. None removes a
        variable.
    tracing
        Whether drivers are wrapped in :class:`crossmem.driver.TracingDriver`.
    fresh
        Whether the peer is a new interpreter instead of a fork. Tests of start, exit, exec and fork
        need a new interpreter. Vendor libraries that do not survive a fork also need one.

    Notes
    -----
    The process leads a process group, so :meth:`destroy` also ends its forked children. The end of
    a ``with`` block calls :meth:`destroy`.
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
        """The process id of the peer."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """The exit code as in :attr:`subprocess.Popen.returncode`, or None while the peer runs."""
        return self._process.poll()

    @property
    def descriptors(self) -> frozenset[int]:
        """The descriptors that this process has open for the peer."""
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
        """Call a module-level function in the peer; return its result, or raise its exception.

        Parameters
        ----------
        function
            The function. The peer imports the function's module.
        within
            Time limit, in seconds. If the call takes ``GRACE_S`` seconds longer, the peer ends.
        """
        return self.start(function, *args, within=within, **kwargs).result()

    def start(
        self,
        function: Callable[..., Any],
        *args: Any,
        within: float = DEFAULT_TIMEOUT_S,
        **kwargs: Any,
    ) -> Pending:
        """Send a call to the peer and return at once. The peer executes calls in order."""
        number = next(self._numbers)
        request = (number, function, args, kwargs, within + GRACE_S)
        self._socket.settimeout(within)
        try:
            send(self._socket, request)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(f"before {function.__name__} was called") from None
        return Pending(self, number, within)

    def has_answer(self, number: int) -> bool:
        """Whether the reply to a call has arrived."""
        while number not in self._answers and self._is_readable(0.0):
            self._take()
        return number in self._answers

    def answer(self, number: int, timeout_s: float) -> Any:
        """Wait for the reply to a call; return the result or raise the exception in the reply."""
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
        """Return whether data arrives in time. Raise if the peer has died and no data is left."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        events = dict(poll.poll(max(0.0, timeout_s) * 1000))
        if self._pidfd in events and self._socket.fileno() not in events:
            # If a forked child holds the socket open, the socket does not report the peer's end.
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
        """Return the last part of the peer's standard output and error so far."""
        if self._stderr.closed:
            return ""
        descriptor = self._stderr.fileno()
        start = max(0, os.fstat(descriptor).st_size - _STDERR_TAIL_NBYTES)
        return os.pread(descriptor, _STDERR_TAIL_NBYTES, start).decode(errors="replace")

    # The peer's end -----------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the peer with SIGKILL and wait for its end. Its forked children live on."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._process.wait(GRACE_S)

    def stop(self) -> None:
        """Stop the peer with SIGSTOP, and wait until it has stopped."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        deadline = time.monotonic() + GRACE_S
        # waitpid() would report the stop only to the peer's parent, which may be a fork server.
        while self._state() != b"T":
            if time.monotonic() > deadline:
                raise PeerTimeoutError(f"{self!r} does not stop")
            time.sleep(0.0005)

    def cont(self) -> None:
        """Continue the peer after :meth:`stop`."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def request_exit(self) -> None:
        """Ask the peer to exit normally, and do not wait."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self._socket, None)

    def wait_exit(self, *, within: float = DEFAULT_TIMEOUT_S) -> int:
        """Wait for the end of the peer and return the exit code.

        Raises
        ------
        PeerTimeoutError
            The peer did not end in time, and was killed.
        """
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.destroy()
            raise PeerTimeoutError(f"{self!r} did not exit within {within} s") from None

    def exit(self, *, within: float = DEFAULT_TIMEOUT_S) -> str:
        """Make the peer exit normally, check that its exit code is 0, and return its output."""
        self.request_exit()
        exitcode = self.wait_exit(within=within)

        assert exitcode == 0, f"{self!r}\n{self.output()}"
        return self.output()

    def destroy(self) -> None:
        """Kill the peer and its forked children, and close the connection. Never raises."""
        if self._stderr.closed:
            return
        with contextlib.suppress(Exception):
            if self._is_running() and "COVERAGE_PROCESS_START" in os.environ:
                # A killed process saves no coverage, so the peer saves it now.
                self.start(_save_coverage).result(3)
        # After the peer was reaped, a new process may have the peer's pid, and must not be killed.
        # If no process has this pid, the process group contains only forked children of the peer.
        if self._process.returncode is None or not self._state():
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
        """Whether the peer lives and is not stopped."""
        return self._process.poll() is None and self._state() in {b"R", b"S", b"D"}

    def _state(self) -> bytes:
        """Return the kernel's letter for the state of the peer; empty if no process has its pid."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
            return stat[stat.rindex(b")") + 2 :][:1]
        return b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def _save_coverage() -> None:
    import coverage  # noqa: PLC0415 - installed if COVERAGE_PROCESS_START is set

    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.stop()
        measuring.save()


def kill_all() -> None:
    """Destroy every peer of this process."""
    for peer in list(_alive):
        peer.destroy()


def kit_descriptors() -> frozenset[int]:
    """Return the descriptors of this process for connections to peers and fork servers."""
    return server_descriptors().union(*(peer.descriptors for peer in _alive))
