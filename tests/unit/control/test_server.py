# SPDX-License-Identifier: Apache-2.0
"""What the lease server leaves behind where the kernel watches nothing more for it."""

import errno
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossmem.control.connection import ServerConnection
from crossmem.control.endpoint import new_socket
from crossmem.control.server import LeaseServer
from crossmem.models import ProcessIdentity
from crossmem.plugin import Registry


class Full:
    """An epoll without room for another descriptor."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll

    def register(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    run_dir = tmp_path / "run"
    server: Any = LeaseServer(ProcessIdentity.of_this_process(), run_dir, Registry(), 1)
    yield server

    server.stop()


def test_an_importer_that_cannot_be_watched_leaves_nothing(server: Any) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, server.lock:
        server._epoll = Full(server._epoll)
        connection = ServerConnection(ours, server._buffer)
        before = sorted(Path("/proc/self/fd").iterdir())
        with pytest.raises(OSError, match="No space left"):
            server._holder_of(connection, ProcessIdentity.of_this_process().start_time)

        assert sorted(Path("/proc/self/fd").iterdir()) == before
        assert not server._holders


def test_a_connection_that_cannot_be_watched_is_closed(server: Any) -> None:
    with new_socket() as importer, server.lock:
        server._epoll = Full(server._epoll)
        importer.connect(str(server._path))
        server._accept(server._listeners[0])

        assert not server._connections
        assert importer.recv(1) == b""
