# SPDX-License-Identifier: Apache-2.0
"""What the lease server leaves behind, reads late and lets go of."""

import errno
import resource
import select
import socket
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from crossmem.control import holders, processes, wire
from crossmem.control.connection import ServerConnection
from crossmem.control.descriptors import admit
from crossmem.control.endpoint import new_socket
from crossmem.control.leases import new_number
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.server import LeaseServer
from crossmem.driver import Exported, Peer
from crossmem.models import ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry

SECRET = b"sixteen bytes  ."
REQUEST = wire.Request(bytes(16), 0, ProcessIdentity.of_this_process().start_time, 1, 0, ())


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


def publish(
    server: Any, allocation: int, grant: Callable[[Export, Peer], None] | None = None
) -> ShareableHandle:
    """Let a server export something; return its handle."""
    handle = ShareableHandle(
        backend="emulated", mechanism="memfd", device="host:0", allocation=allocation, export=0,
        secret=SECRET, owner=ProcessIdentity.of_this_process(), nbytes=100, capacity=4096,
        access="rw",
    )  # fmt: skip
    unit = Unit(allocation, grant, lambda: None)
    export = Export(unit, handle, Allow(), Exported())
    server.leases.publish(export)
    return handle


def reserve(server: Any, handle: ShareableHandle, count: int) -> list[int]:
    """Reserve an export for a message of this process so many times; return the numbers."""
    numbers = [new_number() for _ in range(count)]
    assert server.leases.reserve_mine([handle] * count, numbers, 0) is None
    return numbers


def leases_of(server: Any, allocation: int) -> list[Any]:
    """Return the leases on an allocation."""
    found = [leases for unit, _, leases in server.leases.report() if unit.allocation == allocation]
    return list(found[0])


def accept(server: Any, importer: socket.socket) -> ServerConnection:
    """Connect an importer and return the server's end, greeted."""
    importer.connect(str(server._listeners._path))
    admit(importer)
    server._listeners._accept(server._listeners._sockets[0])
    importer.recv(1000)
    found: ServerConnection = list(server._connections.values())[-1]
    return found


def serve(server: Any, connection: ServerConnection) -> None:
    """Handle what a peer has sent, in rounds of the loop."""
    for _ in range(10):
        server._handle_all([connection.number])


def ask(
    server: Any,
    importer: socket.socket,
    connection: ServerConnection,
    handle: ShareableHandle,
    are_right: list[bool],
    session: int = 1,
) -> list[wire.Grant | wire.Refusal]:
    """Ask for an export so many times, with right and wrong proofs, in one request."""
    context = wire.proof_context(connection.nonce, bytes(16), 1)
    proof = wire.prove(
        SECRET, b"import", context, wire.pack_terms(0, handle.export, 0), handle.core
    )
    wanted = [
        wire.Wanted(handle.allocation, 0, proof if is_right else bytes(16))
        for is_right in are_right
    ]
    request = wire.Request(bytes(16), 0, handle.owner.start_time, session, 0, wanted)
    server._answer(connection, wire.MessageType.IMPORT, 1, request)
    reply = importer.recv(wire.MAX_MESSAGE_NBYTES)
    return list(wire.unpack_replies(reply[wire.HEADER.size :], len(are_right)))


def send_ends(importer: socket.socket, numbers: list[int]) -> None:
    """End reservations, each in a message of its own."""
    for number in numbers:
        importer.send(wire.pack_ids(wire.MessageType.END, [number]))


def test_an_importer_that_cannot_be_watched_leaves_nothing(server: Any) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server._loop.epoll = Full(server._loop.epoll)
        connection = ServerConnection(ours, server._buffer)
        before = sorted(Path("/proc/self/fd").iterdir())
        with pytest.raises(OSError, match="No space left"):
            server._holders.find(connection, REQUEST)

        assert sorted(Path("/proc/self/fd").iterdir()) == before
        assert not server._holders._holders


def test_a_connection_that_cannot_be_watched_is_closed(server: Any) -> None:
    with new_socket() as importer:
        server._loop.epoll = Full(server._loop.epoll)
        importer.connect(str(server._listeners._path))
        server._listeners._accept(server._listeners._sockets[0])

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
            server._holders.find(connection, REQUEST)

        pidfds = [one for one in server._holders._holders.values() if one.pidfd is not None]
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
        connection.finish()
        server._flush(connection)
        assert not server._unsent


# Plugins and peers that make trouble ----------------------------------------------------------


class UnprintableError(Exception):
    """An exception whose text raises as well."""

    @override
    def __repr__(self) -> str:
        msg = "no text"
        raise ValueError(msg)


@pytest.mark.parametrize(
    "error",
    [ValueError("a fault\nof the plugin"), SystemExit(3), CancelledError(), UnprintableError()],
    ids=lambda error: type(error).__name__,
)
def test_a_grant_that_raises_is_one_refusal_and_one_line(
    server: Any, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def grant(_export: Export, _peer: Peer) -> None:
        raise error

    handle = publish(server, 1, grant)
    unit = server.leases.exports.get(1, 0).unit
    with new_socket() as importer:
        connection = accept(server, importer)
        for _ in range(3):
            (refusal,) = ask(server, importer, connection, handle, [True])
            assert isinstance(refusal, wire.Refusal)
            assert refusal.status is wire.Status.FAILED
            assert type(error).__name__ in refusal.reason
            assert "\n" not in refusal.reason

    (record,) = caplog.records
    assert type(error).__name__ in record.getMessage()
    assert not unit.pins
    assert server.leases.retire(unit, even_if_leased=False)


# What was sent and not read yet ---------------------------------------------------------------


@pytest.mark.parametrize("is_told_by", ["reading", "writing"])
def test_ends_are_read_though_their_sender_closed_with_a_reply_unread(
    server: Any, handle: ShareableHandle, is_told_by: str
) -> None:
    with new_socket() as importer:
        connection = accept(server, importer)
        numbers = reserve(server, handle, 3)
        connection.queue(1, b"a reply", ())
        if is_told_by == "reading":
            server._flush(connection)
        send_ends(importer, numbers)
        importer.close()
        if is_told_by == "writing":
            server._flush(connection)
        serve(server, connection)

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
        send_ends(importer, reserve(server, handle, 3))
        importer.close()
        serve(server, connection)

        assert leases_of(server, 1) == []
        assert not server._connections


def test_each_connection_of_a_process_has_its_turn(server: Any, handle: ShareableHandle) -> None:
    with new_socket() as first, new_socket() as other:
        numbers = [accept(server, importer).number for importer in (first, other)]
        send_ends(first, [1, 2, 3, 4])
        send_ends(other, reserve(server, handle, 1))
        for _ in range(2):
            # The first one is always ready, and comes first.
            server._handle_all(list(numbers))

        assert leases_of(server, 1) == []


def test_who_hangs_up_while_a_reply_waits_is_let_go_of(
    server: Any, handle: ShareableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._in_flight, "own_uid", -1)
    monkeypatch.setattr(server._in_flight, "has_room", lambda *_: False)
    with new_socket() as importer:
        connection = accept(server, importer)
        with suppress(BlockingIOError):
            ask(server, importer, connection, handle, [True])
        assert connection in server._unsent
    server._handle_all(server._loop.wait(0))

    assert not server._connections
    assert server.leases.retire(server.leases.exports.get(1, 0).unit, even_if_leased=False)


def test_a_row_that_was_lost_keeps_no_export(server: Any, handle: ShareableHandle) -> None:
    other = publish(server, 2)
    with new_socket() as importer:
        connection = accept(server, importer)
        for one in (handle, other):
            # The second request does not know of the row that the first one brought.
            ask(server, importer, connection, one, [True])
        holder = connection.holder
        assert holder is not None
        assert [one.handle for one in holder.exports] == [other]
        for number in (1, 2):
            unit = server.leases.exports.get(number, 0).unit
            assert server.leases.retire(unit, even_if_leased=False)
        assert not holder.holds_something


def test_ends_are_read_before_a_connection_is_let_go_of(
    server: Any, handle: ShareableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_socket() as importer:
        accept(server, importer)
        send_ends(importer, reserve(server, handle, 3))
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
        assert leases_of(server, 1) == []


def test_catching_up_reads_all_that_has_come_and_ends(server: Any, handle: ShareableHandle) -> None:
    with new_socket() as importer:
        accept(server, importer)
        send_ends(importer, reserve(server, handle, 10))
        server._answer_bells()

        assert leases_of(server, 1) == []


# Rows -------------------------------------------------------------------------------------------


def test_a_row_is_sent_once_and_again_to_who_lost_it(server: Any, handle: ShareableHandle) -> None:
    with new_socket() as importer:
        connection = accept(server, importer)
        both = ask(server, importer, connection, handle, [True, True])
        (again,) = ask(server, importer, connection, handle, [True])
        (holder,) = server._holders._holders.values()

    assert [one.has_row for one in both if isinstance(one, wire.Grant)] == [True, False]
    assert isinstance(again, wire.Grant)
    assert again.has_row
    assert len(holder.rows) == 1
    (export,) = holder.exports
    assert list(export.rows) == list(holder.rows.values())


def test_no_process_gets_rows_without_end(server: Any, handle: ShareableHandle) -> None:
    with new_socket() as importer:
        connection = accept(server, importer)
        before = len(list(Path("/proc/self/fd").iterdir()))
        answers = []
        for session in range(1, 12):
            answers += ask(server, importer, connection, handle, [True], session=session)

    statuses = [one.status if isinstance(one, wire.Refusal) else None for one in answers]
    assert statuses == [None] * 8 + [wire.Status.NO_ROW] * 3
    # Its rows were sent, and this process has none of them open.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_memory_is_not_freed_while_a_reply_with_its_descriptors_waits(
    server: Any, handle: ShareableHandle
) -> None:
    with new_socket() as importer:
        connection: Any = accept(server, importer)
        connection.socket = Refs(connection.socket)
        with suppress(BlockingIOError):
            ask(server, importer, connection, handle, [True])
        (unit,) = server.leases.exports.units()

        assert not server.leases.retire(unit, even_if_leased=True)
        server._drop(connection)
        assert server.leases.retire(unit, even_if_leased=True)


def test_an_invisible_process_is_one_however_many_sessions_it_invents(
    server: Any, handle: ShareableHandle
) -> None:
    with ExitStack() as stack:
        found = set()
        for session in range(1, 20):
            importer = stack.enter_context(new_socket())
            hidden: Any = accept(server, importer)
            hidden.pid = 0
            ask(server, importer, hidden, handle, [True], session=session)
            found.add(hidden.holder)

        holder = hidden.holder
        if not processes.pidfd_number(holder.pidfd):
            pytest.skip("this kernel gives all pidfds one number (before Linux 6.9)")
        assert found == {holder}
        assert len(holder.rows) == 8


def test_invisible_processes_of_an_older_kernel_are_told_apart_by_session(
    server: Any, handle: ShareableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "pidfd_number", lambda _pidfd: 0)
    with new_socket() as one, new_socket() as two:
        for session, importer in enumerate((one, two), 1):
            hidden: Any = accept(server, importer)
            hidden.pid = 0
            ask(server, importer, hidden, handle, [True], session=session)

        found = {connection.holder for connection in server._connections.values()}
        assert len(found) == 2


def test_who_is_not_visible_is_nobody_else(server: Any, handle: ShareableHandle) -> None:
    with new_socket() as one, new_socket() as two:
        visible, hidden = accept(server, one), accept(server, two)
        ask(server, one, visible, handle, [True])
        hidden.pid = 0
        # Its session is the other's pid.
        ask(server, two, hidden, handle, [True], session=visible.pid)

        assert visible.holder is not hidden.holder
        assert visible.holder is not None
        assert visible.holder.pid == visible.pid


def test_rows_that_were_not_sent_are_closed_in_the_end(tmp_path: Path) -> None:
    def open_rows() -> int:
        names = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return sum("crossmem-row" in name for name in names)

    server: Any = LeaseServer(ProcessIdentity.of_this_process(), tmp_path / "r", Registry(), 10)
    handle, before = publish(server, 1), open_rows()
    with new_socket() as importer:
        connection: Any = accept(server, importer)
        connection.socket = Refs(connection.socket)
        with suppress(BlockingIOError):
            ask(server, importer, connection, handle, [True])
        assert open_rows() == before + 1
        server.stop()
        assert open_rows() == before
