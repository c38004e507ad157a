# SPDX-License-Identifier: Apache-2.0
"""Exporters that answer wrongly: what an importer has to bear, for the tests of leases."""

import array
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable

import crossmem
from crossmem.control import wire
from crossmem.control.endpoint import abstract_address
from crossmem.control.records import Allow, Export
from crossmem.control.wire import MessageType
from crossmem.models import ProcessIdentity
from crossmem.sharing.exporter.allocation import record_of

NBYTES = 4096
SECRET = bytes(range(16))

Behaviour = Callable[[socket.socket], None]

_kept: list[object] = []


def pretend(kind: str) -> bytes:
    """Become an exporter that misbehaves in one way; return a handle of what it never made."""
    owner = ProcessIdentity.of_this_process()
    handle = crossmem.ShareableHandle(
        backend="emulated", mechanism="memfd", device="host:0", allocation=1, export=0,
        secret=SECRET, owner=owner, nbytes=NBYTES, capacity=NBYTES, access="rw",
    )  # fmt: skip
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(abstract_address(owner))
    server.listen()
    _kept.append(server)

    def converse(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if kind in GREETINGS:
                GREETINGS[kind](connection)
                return
            connection.send(wire.pack_hello(bytes(16)))
            while True:
                ANSWERS[kind](connection)

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            _kept.append(connection)
            threading.Thread(target=converse, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return handle.to_bytes()


def offer_in_two_sizes(nbytes: int) -> tuple[bytes, bytes]:
    """Export memory, and once more as if it were larger; return both handles."""
    allocation = crossmem.device("emulated:0").allocate(NBYTES)
    _kept.append(allocation)
    handle = allocation.export()
    larger = crossmem.ShareableHandle(
        backend=handle.backend, mechanism=handle.mechanism, device=handle.device,
        allocation=handle.allocation, export=handle.export + 1, secret=SECRET, owner=handle.owner,
        nbytes=nbytes, capacity=nbytes, access="rw",
    )  # fmt: skip
    record = record_of(allocation)
    server = record.process.server
    assert server is not None
    assert record.unit is not None
    exported = record.memory.export("rw", raw=False)
    server.leases.publish(Export(record.unit, larger, Allow(), exported))
    return handle.to_bytes(), larger.to_bytes()


def _reply(
    request: bytes, body: bytes, *, flags: int = wire.LAST, number: int | None = None
) -> bytes:
    asked = wire.HEADER.unpack_from(request)[3]
    return wire.HEADER.pack(MessageType.REPLY, flags, 0, asked if number is None else number) + body


def _grant(
    request: bytes, *, nbytes: int = NBYTES, descriptors: int = 1, secret: bytes = SECRET
) -> bytes:
    number = wire.HEADER.unpack_from(request)[3]
    context = wire.proof_context(bytes(16), request[wire.HEADER.size :][:16], number)
    return wire.pack_grant(wire.Grant(7, nbytes, NBYTES, descriptors, ()), secret, context)


def _send(connection: socket.socket, message: bytes, descriptors: list[int]) -> None:
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    connection.sendmsg([message], ancillary)


def _memory(nbytes: int = NBYTES) -> int:
    """Return memory whose size nothing holds."""
    descriptor = os.memfd_create("rogue")
    os.ftruncate(descriptor, nbytes)
    return descriptor


def _asked(connection: socket.socket) -> bytes:
    """Wait for the next request, before the first of which the importer wants to be greeted."""
    request = connection.recv(100_000)
    # What it has cancelled needs no answer.
    while request and request[0] != MessageType.IMPORT:
        request = connection.recv(100_000)
    if not request:
        raise BrokenPipeError
    return request


def _silent(_connection: socket.socket) -> None:
    """Accept, and that is all."""


def _closing(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def _closing_when_asked(connection: socket.socket) -> None:
    _asked(connection)
    connection.shutdown(socket.SHUT_RDWR)


def _strange_hello(connection: socket.socket) -> None:
    connection.send(b"220 mail.example.org ready\r\n")


def _newer(connection: socket.socket) -> None:
    connection.send(wire.HEADER.pack(MessageType.HELLO, 1, 0, 0) + struct.pack("<H16s", 99, b""))


def _deaf(connection: socket.socket) -> None:
    _asked(connection)


def _chatty(connection: socket.socket) -> None:
    request = _asked(connection)
    while True:
        connection.send(_reply(request, b"x" * 100, number=2**63))


def _never_ending(connection: socket.socket) -> None:
    request = _asked(connection)
    while True:
        connection.send(_reply(request, b"x" * 50_000, flags=0))


def _babbling(connection: socket.socket) -> None:
    request = _asked(connection)
    connection.send(_reply(request, os.urandom(300)))


def _headless(connection: socket.socket) -> None:
    _asked(connection)
    connection.send(b"x")


def _ignorant(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request, secret=bytes(16))), [_memory()])


def _boasting(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request, nbytes=1 << 40)), [_memory()])


def _stuffing(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request)), [_memory() for _ in range(200)])


def _empty_handed(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request)), [])


def _resizable(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request)), [_memory()])


def _lending_a_socket(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request)), [connection.fileno()])


def _generous(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request) * 3), [_memory() for _ in range(3)])


def _named(*behaviours: Behaviour) -> dict[str, Behaviour]:
    return {one.__name__.removeprefix("_"): one for one in behaviours}


GREETINGS = _named(_silent, _closing, _strange_hello, _newer)
"""What it does with whoever connects."""

ANSWERS = _named(
    _closing_when_asked, _deaf, _chatty, _never_ending, _babbling, _headless, _ignorant,
    _boasting, _stuffing, _empty_handed, _resizable, _lending_a_socket, _generous,
)  # fmt: skip
"""How it answers a request."""
