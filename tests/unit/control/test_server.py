# SPDX-License-Identifier: Apache-2.0
"""What the lease server leaves behind, reads late and lets go of."""

import errno
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from crossmem.control import wire
from crossmem.control.connection import ServerConnection
from crossmem.control.endpoint import new_socket
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.server import LeaseServer
from crossmem.driver import Exported
from crossmem.models import ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry

SECRET = b"sixteen bytes  ."


class Refs:
    """A socket that takes no descriptor: others have not read theirs."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def sendmsg(self, *_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


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
    # Its thread does not run: the tests do what it would do.
    server: Any = LeaseServer(ProcessIdentity.of_this_process(), run_dir, Registry(), 10)
    yield server

    server.stop()


@pytest.fixture
def handle(server: Any) -> ShareableHandle:
    """Return the handle of an export of that server."""
    return publish(server, 1)


def publish(server: Any, allocation: int) -> ShareableHandle:
    """Let a server export something; return its handle."""
    handle = ShareableHandle(
        backend="emulated", mechanism="memfd", device="host:0", allocation=allocation, export=0,
        secret=SECRET, owner=ProcessIdentity.of_this_process(), nbytes=100, capacity=4096,
        access="rw",
    )  # fmt: skip
    unit = Unit(allocation, None, lambda: None)
    export = Export(unit, handle, Allow(), Exported())
    server.leases.publish(export)
    return handle


def reserve(server: Any, handle: ShareableHandle, count: int) -> list[int]:
    """Reserve an export for a message of this process so many times; return the numbers."""
    numbers: list[int] = []
    assert server.leases.reserve_mine([handle] * count, 0, numbers) is None
    return numbers


def leases_of(server: Any, allocation: int) -> list[Any]:
    """Return the leases on an allocation."""
    found = [leases for unit, _, leases in server.leases.report() if unit.allocation == allocation]
    return list(found[0])


def accept(server: Any, importer: socket.socket) -> ServerConnection:
    """Connect an importer and return the server's end, greeted."""
    importer.connect(str(server._path))
    server._accept(server._listeners[0])
    importer.recv(1000)
    found: ServerConnection = list(server._connections.values())[-1]
    return found


def ask(
    server: Any,
    importer: socket.socket,
    connection: ServerConnection,
    handle: ShareableHandle,
    are_right: list[bool],
) -> list[wire.Grant | wire.Refusal]:
    """Ask for an export so many times, with right and wrong proofs, in one request."""
    context = wire.proof_context(connection.nonce, bytes(16), 1)
    proof = wire.prove(SECRET, b"import", context, wire.pack_reservation(0), handle.core)
    wanted = [
        wire.Wanted(handle.allocation, 0, proof if is_right else bytes(16))
        for is_right in are_right
    ]
    request = wire.Request(bytes(16), 0, handle.owner.start_time, wanted)
    server._answer(connection, wire.MessageType.IMPORT, 1, request)
    return wire.unpack_replies(importer.recv(wire.MAX_MESSAGE_NBYTES)[wire.HEADER.size :])


def send_releases(importer: socket.socket, numbers: list[int]) -> None:
    """End reservations, each in a message of its own."""
    for number in numbers:
        importer.send(wire.pack_ids(wire.MessageType.RELEASE, 0, [number]))


def test_an_importer_that_cannot_be_watched_leaves_nothing(server: Any) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server._loop.epoll = Full(server._loop.epoll)
        connection = ServerConnection(ours, server._buffer)
        before = sorted(Path("/proc/self/fd").iterdir())
        with pytest.raises(OSError, match="No space left"):
            server._holders.find(connection, ProcessIdentity.of_this_process().start_time)

        assert sorted(Path("/proc/self/fd").iterdir()) == before
        assert not server._holders._holders


def test_a_connection_that_cannot_be_watched_is_closed(server: Any) -> None:
    with new_socket() as importer:
        server._loop.epoll = Full(server._loop.epoll)
        importer.connect(str(server._path))
        server._accept(server._listeners[0])

        assert not server._connections
        assert importer.recv(1) == b""


def test_processes_that_ask_in_vain_leave_half_of_the_descriptors(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (100, 100))
    with ExitStack() as stack:
        for number in range(60):
            connection = accept(server, stack.enter_context(new_socket()))
            # As if each were of another process.
            connection.pid = 2**23 + number
            server._holders.find(connection, 0)

        pidfds = [one for one in server._holders._holders if one.pidfd is not None]
        assert len(server._connections) + len(pidfds) <= 50
        assert connection.number in server._connections


def test_a_process_that_has_become_another_user_is_asked_for_anew(
    server: Any, handle: ShareableHandle
) -> None:
    with ExitStack() as stack:
        replies = []
        for uid in (handle.owner.uid, handle.owner.uid + 1):
            importer = stack.enter_context(new_socket())
            connection = accept(server, importer)
            connection.uid = uid
            replies += ask(server, importer, connection, handle, [True])

        assert isinstance(replies[0], wire.Grant)
        assert isinstance(replies[1], wire.Refusal)
        assert replies[1].status is wire.Status.DENIED


def test_a_reply_whose_descriptors_cannot_be_sent_is_told_of_once(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with new_socket() as importer:
        connection: Any = accept(server, importer)
        connection.socket = Refs(connection.socket)
        connection.queue(1, b"a reply", (0,))
        for _ in range(3):
            server._flush(connection)

        assert connection in server._unsent
        (record,) = caplog.records
        assert "ulimit -n" in record.getMessage()
        connection.forget_replies()
        server._flush(connection)
        assert not server._unsent


# What was sent and not read yet ---------------------------------------------------------------


@pytest.mark.parametrize("is_told_by", ["reading", "writing"])
def test_releases_are_read_though_their_sender_closed_with_a_reply_unread(
    server: Any, handle: ShareableHandle, is_told_by: str
) -> None:
    with new_socket() as importer:
        connection = accept(server, importer)
        numbers = reserve(server, handle, 3)
        connection.queue(1, b"a reply", ())
        if is_told_by == "reading":
            server._flush(connection)
        send_releases(importer, numbers)
        importer.close()
        if is_told_by == "writing":
            server._flush(connection)
        server._serve(connection, at_most=10)

        assert leases_of(server, 1) == []
        assert not server._connections


def test_who_cannot_be_sent_a_reply_sees_the_end_and_is_read_until_its_own(
    server: Any, handle: ShareableHandle
) -> None:
    with new_socket() as importer:
        connection = accept(server, importer)
        connection.queue(1, b"a reply", (2**20,))
        server._flush(connection)
        assert importer.recv(1000) == b""
        send_releases(importer, reserve(server, handle, 3))
        importer.close()
        server._serve(connection, at_most=10)

        assert leases_of(server, 1) == []
        assert not server._connections


def test_releases_are_read_before_a_connection_is_let_go_of(
    server: Any, handle: ShareableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_socket() as importer:
        accept(server, importer)
        send_releases(importer, reserve(server, handle, 3))
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (0, 0))
        server._make_room()

        assert leases_of(server, 1) == []
        assert not server._connections


# What one peer can cost -----------------------------------------------------------------------


def test_after_the_first_refusal_nothing_is_looked_at(server: Any, handle: ShareableHandle) -> None:
    with new_socket() as importer:
        connection = accept(server, importer)
        are_right = [True, False, True, *[False] * 10_000]
        granted, first, *others = ask(server, importer, connection, handle, are_right)

        assert isinstance(granted, wire.Grant)
        assert first == wire.Refusal(
            wire.Status.UNKNOWN, "the secret or a field of the handle is wrong"
        )
        assert others == [wire.Refusal(wire.Status.UNKNOWN, "")] * 10_001
        assert [one.number for one in leases_of(server, 1)] == [granted.lease]


class Numbers(list[int]):
    """Lease numbers that count how often they are gone through."""

    turns = 0

    @override
    def __iter__(self) -> Iterator[int]:
        self.turns += 1
        return super().__iter__()


def test_a_release_is_looked_at_once_however_many_replies_wait(
    server: Any, handle: ShareableHandle
) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            connection = accept(server, stack.enter_context(new_socket()))
            connection.is_answered = False
            server._unsent.add(connection)
        (number,) = reserve(server, handle, 1)
        numbers = Numbers([number])
        server._release(numbers)
        server._unsent.clear()

        assert leases_of(server, 1) == []
        # Once to compare them with what waits, and once to end them.
        assert numbers.turns <= 2


def test_catching_up_asks_once_for_each_importer_however_much_it_has(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, read = ServerConnection.receive, []

    def read_and_count(connection: ServerConnection, at_most: int) -> Iterator[Any]:
        read.append(connection.number)
        return receive(connection, at_most)

    with new_socket() as importer:
        connection = accept(server, importer)
        for number in range(1, 6):
            ask(server, importer, connection, publish(server, number), [True])
        monkeypatch.setattr(ServerConnection, "receive", read_and_count)
        server._answer_bells()

        assert read == [connection.number]
