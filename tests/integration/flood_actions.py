# SPDX-License-Identifier: Apache-2.0
"""Peers that ask, send or leave unread without end, for the tests of leases."""

import os
import select
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import crossmem
from crossmem.conformance import actions
from crossmem.control import wire
from crossmem.control.endpoint import abstract_address
from crossmem.models import ProcessIdentity

if TYPE_CHECKING:
    from tests.integration import lease_actions, stranger_actions
else:
    import lease_actions
    import stranger_actions

_kept: list[object] = []


def become(user: int, run_dir: Path | None = None) -> None:
    """Become another user, to whom the run directory belongs from now on."""
    if run_dir is not None:
        os.chown(run_dir, user, user)
    # What is imported later may be hidden from that user.
    crossmem.device("emulated:0").allocate(1).free()
    os.setuid(user)


def offer_to(name: str, uids: list[int]) -> bytes:
    """Export memory for processes of certain users."""
    allocation = actions.objects[name] = crossmem.device("emulated:0").allocate(4096)
    return allocation.export(allow=crossmem.Allow(uids=uids)).to_bytes()


def known_connections(blob: bytes, count: int) -> list[tuple[socket.socket, bytes]]:
    """Connect so often and ask once each; return the largest request for each connection, too."""
    made = []
    for _ in range(count):
        connection = lease_actions.connect(blob)
        hello = connection.recv(1000)
        connection.sendall(lease_actions.request(blob, hello))
        connection.recv(100_000)
        largest = lease_actions.request(blob, hello, number=2, count=wire.MAX_WANTED)
        made.append((connection, largest))
    return made


def let_a_child_ask(blob: bytes, count: int) -> int:
    """Connect so often, and fork a child that asks on these connections; return its pid."""
    made = known_connections(blob, count)

    def ask(connection: socket.socket, request: bytes) -> None:
        with suppress(OSError):
            while True:
                connection.sendall(request)

    child = os.fork()
    if not child:
        threads = [threading.Thread(target=ask, args=one) for one in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    return child


def ask_on_many(blob: bytes, count: int) -> None:
    """Ask for as much as one request may on each of so many connections, for ever."""
    made = {one.fileno(): (one, request) for one, request in known_connections(blob, count)}
    readable = select.poll()

    def ask() -> None:
        for descriptor, (connection, request) in made.items():
            readable.register(descriptor, select.POLLIN)
            connection.sendall(request)
        with suppress(OSError):
            while True:
                for descriptor, _events in readable.poll():
                    connection, request = made[descriptor]
                    reply = connection.recv(100_000)
                    if wire.HEADER.unpack_from(reply)[1] & wire.LAST:
                        connection.sendall(request)

    threading.Thread(target=ask, daemon=True).start()


def ask_and_leave_unread(blob: bytes, count: int) -> None:
    """Ask for as much as one request may on each of so many connections, and read no reply."""
    for _ in range(count):
        connection = lease_actions.connect(blob)
        _kept.append(connection)
        hello = connection.recv(1000)
        connection.sendall(lease_actions.request(blob, hello, count=wire.MAX_WANTED))


def send_lingering_on_many(blob: bytes, user: int) -> None:
    """Connect for ever, each time with a socket whose last close takes a minute."""
    os.setuid(user)
    while True:
        with suppress(OSError), lease_actions.connect(blob) as connection:
            stranger_actions.send_lingering(connection, b"rubbish")


def squat_with_a_full_backlog(owner: ProcessIdentity, user: int | None) -> None:
    """Listen where an exporter was, and leave no room for anybody who connects."""
    if user is not None:
        os.setuid(user)
    squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    squatter.bind(abstract_address(owner))
    squatter.listen(0)
    _kept.append(squatter)
    with suppress(BlockingIOError):
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            _kept.append(connection)
            connection.setblocking(False)
            connection.connect(abstract_address(owner))
