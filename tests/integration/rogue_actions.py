# SPDX-License-Identifier: Apache-2.0
"""Exporters that answer wrongly: what an importer has to bear, for the tests of leases."""

import array
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import crossmem
from crossmem.control import segments, wire
from crossmem.control.endpoint import abstract_address
from crossmem.control.records import Allow, Export
from crossmem.control.segments import HEADER_WORDS, SLOTS, WORDS
from crossmem.control.wire import MessageType
from crossmem.models import ProcessIdentity
from crossmem.sharing.exporter.allocation import record_of

if TYPE_CHECKING:
    from tests.integration import stranger_actions
else:
    import stranger_actions

NBYTES = 4096
SECRET = bytes(range(16))

Behaviour = Callable[[socket.socket], None]

_kept: list[object] = []
_met: set[socket.socket] = set()
"""Connections on which a row was sent."""


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
            if kind in LINGERING:
                LINGERING[kind](connection)
                return
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
    request: bytes,
    *,
    nbytes: int = NBYTES,
    descriptors: int = 1,
    secret: bytes = SECRET,
    slot: int = 0,
    has_row: bool = False,
) -> bytes:
    number = wire.HEADER.unpack_from(request)[3]
    context = wire.proof_context(bytes(16), request[wire.HEADER.size :][:16], number)
    grant = wire.Grant(slot, 1, has_row, nbytes, NBYTES, descriptors, ())
    return wire.pack_grant(grant, secret, context)


def _send(connection: socket.socket, message: bytes, descriptors: list[int]) -> None:
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    connection.sendmsg([message], ancillary)


def _memory(nbytes: int = NBYTES) -> int:
    """Return memory whose size nothing holds."""
    descriptor = os.memfd_create("rogue")
    os.ftruncate(descriptor, nbytes)
    return descriptor


def _words() -> list[int]:
    """Return a control segment in which slot 0 is live, and a row."""
    made: list[int] = []
    control = segments.create("rogue", made, is_written_by_maker=True)
    control.words[HEADER_WORDS] = 1
    _kept.append(control)
    _kept.append(segments.create("rogue", made, is_written_by_maker=False))
    return made


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
    has_row = connection not in _met
    _met.add(connection)
    words = _words() if has_row else []
    _send(connection, _reply(request, _grant(request, has_row=has_row)), [*words, _memory()])


def _lending_a_socket(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request, slot=1 << 40)), [connection.fileno()])


def _without_words(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request)), [_memory()])


def _resizable_words(connection: socket.socket) -> None:
    request = _asked(connection)
    words = [_memory(8 * WORDS), _memory(8 * WORDS)]
    _send(connection, _reply(request, _grant(request, has_row=True)), [*words, _memory()])


def _small_words(connection: socket.socket) -> None:
    request = _asked(connection)
    words = [_words()[0], _memory()]
    _send(connection, _reply(request, _grant(request, has_row=True)), [*words, _memory()])


def _too_many_words(connection: socket.socket) -> None:
    request = _asked(connection)
    grant = _grant(request, has_row=True, slot=64 * SLOTS)
    _send(connection, _reply(request, grant), [*_words(), _memory()])


def _half_a_row(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request, descriptors=0, has_row=True)), [_words()[0]])


def _words_again(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(
        connection, _reply(request, _grant(request, has_row=True)), [*_words(), connection.fileno()]
    )


def _generous(connection: socket.socket) -> None:
    request = _asked(connection)
    _send(connection, _reply(request, _grant(request) * 3), [_memory() for _ in range(3)])


# With sockets whose last close takes a minute -------------------------------------------------


def _greeting(connection: socket.socket) -> None:
    for _ in range(5):
        stranger_actions.send_lingering(connection, wire.pack_hello(bytes(16)))


def _answer(connection: socket.socket) -> None:
    connection.send(wire.pack_hello(bytes(16)))
    while True:
        request = _asked(connection)
        grant = _reply(request, _grant(request, has_row=True))
        stranger_actions.send_lingering(connection, grant, tuple(_words()))


def _row(connection: socket.socket) -> None:
    connection.send(wire.pack_hello(bytes(16)))
    while True:
        request = _asked(connection)
        grant = _reply(request, _grant(request, has_row=True))
        stranger_actions.send_lingering(connection, grant, (_words()[0], _memory()))


def _pages(connection: socket.socket) -> None:
    connection.send(wire.pack_hello(bytes(16)))
    request = _asked(connection)
    for number in range(20):
        page = _reply(request, b"", flags=0, number=number)
        stranger_actions.send_lingering(connection, page)


def _page_and_the_end(connection: socket.socket) -> None:
    connection.send(wire.pack_hello(bytes(16)))
    request = _asked(connection)
    passed = [stranger_actions.lingering() for _ in range(18)]
    _send(connection, _reply(request, b"", flags=0), [one.fileno() for one in passed])
    connection.shutdown(socket.SHUT_RDWR)
    for one in passed:
        threading.Thread(target=one.close, daemon=True).start()


def _unread(connection: socket.socket) -> None:
    connection.send(wire.pack_hello(bytes(16)))
    request = _asked(connection)
    connection.send(b"rubbish")
    for _ in range(3):
        stranger_actions.send_lingering(connection, _reply(request, b"", flags=0))


def _named(*behaviours: Behaviour) -> dict[str, Behaviour]:
    return {one.__name__.removeprefix("_"): one for one in behaviours}


LINGERING = _named(_greeting, _answer, _row, _pages, _page_and_the_end, _unread)
"""What it sends with each."""

GREETINGS = _named(_silent, _closing, _strange_hello, _newer)
"""What it does with whoever connects."""

ANSWERS = _named(
    _closing_when_asked, _deaf, _chatty, _never_ending, _babbling, _headless, _ignorant,
    _boasting, _stuffing, _empty_handed, _resizable, _lending_a_socket, _generous,
    _without_words, _resizable_words, _small_words, _too_many_words, _words_again, _half_a_row,
)  # fmt: skip
"""How it answers a request."""
