# SPDX-License-Identifier: Apache-2.0
"""A process that forks peers, because starting an interpreter takes longer than most tests.

The server is a new interpreter. It has imported the modules that peers use, but has not used
crossmem. So a child inherits no state of crossmem, and is equivalent to a new interpreter. Each
child gets its own environment, ``sys.path``, process group and standard output.
"""

import contextlib
import gc
import os
import pickle
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module, metadata
from typing import Final

from typing_extensions import override

from crossmem.conformance.channel import START_TIMEOUT_S, serve

__all__ = [
    "ForkServer",
    "ForkServerError",
    "ForkedProcess",
    "plugin_modules",
    "server_variables",
]

_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from crossmem.conformance.forkserver import serve_forks; serve_forks({descriptor})"
)
_MAX_REQUEST_NBYTES: Final = 1 << 18
_READ_AT_IMPORT: Final = ("CROSSMEM_TEST_", "CROSSMEM_BARRIER")
_NUMBER: Final = struct.Struct("<q")


def server_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a server may read before it forks.

    A child that needs other values of these variables needs another server. The result leaves out
    variables whose names begin with ``CROSSMEM_`` or ``PYTEST_``, unless the name begins with
    a string in ``_READ_AT_IMPORT``. Each child sets its own values of the variables that are left
    out, before its first use of crossmem.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("CROSSMEM_", "PYTEST_")) or name.startswith(_READ_AT_IMPORT)
    }


def plugin_modules() -> list[str]:
    """Return the names of the imported modules of crossmem's plugins."""
    plugins = {one.module.partition(".")[0] for one in metadata.entry_points(group="crossmem")}
    return [name for name in sys.modules if name.partition(".")[0] in plugins]


class ForkServerError(Exception):
    """A child's pid or exit code is unknown, because its status pipe was closed."""


class ForkedProcess:
    """A child of a fork server, with the part of the :class:`subprocess.Popen` API that peers use.

    Parameters
    ----------
    status
        Read end of the pipe through which the server sends the pid, and later the exit code.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        self.returncode: int | None = None
        try:
            self.pid = self._read(START_TIMEOUT_S)
        except BaseException:
            os.close(status)
            raise

    def _read(self, timeout_s: float) -> int:
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise subprocess.TimeoutExpired("a forked peer", timeout_s)
        data = os.read(self.status, _NUMBER.size)
        if not data:
            raise ForkServerError("the fork server ended before it reported on its child")
        (number,) = _NUMBER.unpack(data)
        return int(number)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float) -> int:
        """Wait for the end of the process and return the exit code.

        Raises
        ------
        subprocess.TimeoutExpired
            The process has not ended after `timeout` seconds.
        ForkServerError
            The server ended, or :meth:`close` was called, before the exit code arrived.
        """
        if self.returncode is None:
            if self.status < 0:
                raise ForkServerError("the child's status pipe is closed")
            self.returncode = self._read(timeout)
            self.close()
        return self.returncode

    def close(self) -> None:
        """Close the status pipe. An exit code that has not arrived stays unknown."""
        if self.status >= 0:
            status, self.status = self.status, -1
            os.close(status)

    @override
    def __repr__(self) -> str:
        return f"<ForkedProcess {self.pid}>"


class ForkServer:
    """The client's side of a fork server.

    Parameters
    ----------
    environment
        The environment of the server, from :func:`server_variables`.

    Notes
    -----
    The server ends when its connection to this process closes, so the server ends soon after this
    process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._pid = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = _PROGRAM.format(path=sys.path, descriptor=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", program],
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )

    @property
    def descriptor(self) -> int:
        """The descriptor of this process's connection to the server."""
        return self._control.fileno()

    @property
    def is_running(self) -> bool:
        """Whether the server's process is running."""
        return self._process.poll() is None

    def fork(
        self,
        modules: Iterable[str],
        environment: Mapping[str, str],
        stream: socket.socket,
        output: int,
    ) -> ForkedProcess:
        """Start a peer that serves calls on `stream`, with `output` as standard output and error.

        The server imports `modules` first, unless it has done so for an earlier child.
        """
        status, theirs = os.pipe()
        try:
            request = pickle.dumps((tuple(modules), dict(environment), sys.path))
            socket.send_fds(self._control, [request], [stream.fileno(), output, theirs])
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(theirs)
        return ForkedProcess(status)

    def close(self) -> None:
        """End the server; its children live on.

        In a forked child of the client, only close the child's copy of the connection.
        """
        self._control.close()
        if self._pid == os.getpid():
            self._process.wait()
        else:
            # Only the client can wait for the server, because the client is the server's parent.
            # Without a return code, the finaliser of Popen would warn about a running process.
            self._process.returncode = 0


# The server's side ------------------------------------------------------------------------


class _Server:
    """The server: one thread, which waits for requests and for children that end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, tuple[int, int]] = {}
        """The process id and the status pipe of each child. The key is the child's pidfd."""
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> tuple[int, dict[str, str], list[str]] | None:
        """Serve until the client closes the connection.

        In a child, return the descriptor of its stream, its environment and its ``sys.path``. In
        the server, return None at the end.
        """
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._tell_end(descriptor)
                    continue
                data, descriptors, _, _ = socket.recv_fds(self._control, _MAX_REQUEST_NBYTES, 3)
                if not data:
                    return None
                stream, output, status = descriptors
                modules, environment, path = pickle.loads(data)  # noqa: S301 - from this program
                for name in modules:
                    import_module(name)
                # Without this call, garbage collections would write to the existing objects. The
                # kernel would then copy pages that the children share with the server.
                gc.freeze()
                if self._fork(output, status):
                    return stream, environment, path
                os.close(stream)

    def _fork(self, output: int, status: int) -> bool:
        """Fork; return True in the child and False in the server."""
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            self._forget()
            for standard in (1, 2):
                os.dup2(output, standard)
            os.close(output)
            os.close(status)
            return True
        with contextlib.suppress(PermissionError, ProcessLookupError):
            # The client may kill the group before the child runs, so the server sets the group too.
            os.setpgid(pid, pid)
        os.close(output)
        os.write(status, _NUMBER.pack(pid))
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid, status
        self._poll.register(pidfd, select.POLLIN)
        return False

    def _forget(self) -> None:
        """In a child, close the descriptors that only the server uses."""
        self._control.close()
        for pidfd, (_, status) in self._children.items():
            os.close(pidfd)
            os.close(status)

    def _tell_end(self, pidfd: int) -> None:
        pid, status = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(status, _NUMBER.pack(code))
        os.close(pidfd)
        os.close(status)


def serve_forks(descriptor: int) -> None:
    """Serve the client's requests to fork. In a forked child, serve a test's calls."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    child = _Server(control).run()
    if child is None:
        return
    stream, environment, path = child
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    serve(stream)
