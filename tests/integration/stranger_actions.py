# SPDX-License-Identifier: Apache-2.0
"""Strangers: processes that have no handle, and send what the receiver must not wait for."""

import array
import contextlib
import os
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.control import descriptors, wire
from crossmem.control.endpoint import abstract_address, new_socket, socket_path
from crossmem.models import ProcessIdentity

if TYPE_CHECKING:
    from tests.integration import lease_actions
else:
    import lease_actions

_LINGER_S = 60
_BUFFER_NBYTES = 1 << 14

_kept: list[object] = []


def forget_passrights() -> None:
    """Make this process as on a kernel before Linux 6.16, which cannot refuse descriptors."""
    pytest.MonkeyPatch().setattr(descriptors, "_SO_PASSRIGHTS", 9999)


def close_without_threads() -> None:
    """Let no thread start that closes descriptors, as where the interpreter ends before it runs."""

    def no_thread(*_: object) -> int:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    pytest.MonkeyPatch().setattr(descriptors, "start_new_thread", no_thread)


def refuses_descriptors() -> bool:
    """Whether this kernel refuses descriptors."""
    with new_socket() as probe:
        return descriptors.refuses(probe)


def lingering() -> socket.socket:
    """Return a socket whose last close takes a minute, because nobody reads what it has sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Not create_connection, whose lookup imports what another user may not read.
        connection = socket.socket()
        # Small ones are soon full.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_NBYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_NBYTES)
        connection.connect(listener.getsockname())
        reader, _ = listener.accept()
    _kept.append(reader)
    linger = struct.pack("ii", 1, _LINGER_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            connection.send(bytes(1 << 16))
    return connection


def send_lingering(connection: socket.socket, message: bytes, others: tuple[int, ...] = ()) -> bool:
    """Send a message with a socket whose last close is the receiver's; False if it is refused."""
    passed = lingering()
    rights = array.array("i", [*others, passed.fileno()])
    try:
        connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError:
        # The kernel refuses it, or the receiver has closed the connection.
        return False
    finally:
        # The last close may be this one.
        threading.Thread(target=passed.close, daemon=True).start()
    return True


def send_lingering_to_an_exporter(blob: bytes, connections: int, user: int | None) -> int:
    """Connect so often, and send lingering sockets each time; return how many were taken.

    One in two connections is closed at once, the others live on.
    """
    if user is not None:
        os.setuid(user)
    taken = 0
    for number in range(connections):
        connection = lease_actions.connect(blob)
        for message in (b"", wire.pack_ids(wire.MessageType.END, [1]), b"rubbish"):
            taken += send_lingering(connection, message)
        if number % 2:
            connection.close()
        else:
            _kept.append(connection)
    return taken


def greet_with_lingering(owner: ProcessIdentity, run_dir: Path | None, user: int | None) -> None:
    """Listen where an exporter was, and greet whoever comes with lingering sockets."""
    if run_dir is not None:
        path = socket_path(run_dir, owner)
        path.unlink(missing_ok=True)
        run_dir.chmod(0o777)
    if user is not None:
        os.setuid(user)
    squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    squatter.bind(abstract_address(owner) if run_dir is None else str(path))
    squatter.listen()
    _kept.append(squatter)

    def serve() -> None:
        while True:
            connection, _ = squatter.accept()
            _kept.append(connection)
            for message in (b"", wire.pack_hello(bytes(16)), b"rubbish"):
                send_lingering(connection, message)

    threading.Thread(target=serve, daemon=True).start()
