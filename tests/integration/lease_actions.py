# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of leases, beside crossmem.conformance.actions; and raw clients.

A raw client speaks to a lease server without crossmem's own client: politely, or not.
"""

import contextlib
import ctypes
import os
import random
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.pool import settle
from crossmem.control import wire
from crossmem.control.endpoint import abstract_address, socket_path
from crossmem.models import ProcessIdentity
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.remote import RemoteImport
from crossmem.sharing.importer.table import ImportTable

_kept: list[object] = []


# Raw clients ----------------------------------------------------------------------------------


def connect(blob: bytes) -> socket.socket:
    """Connect to the exporter of a handle, as anybody can."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(20)
    try:
        connection.connect(abstract_address(crossmem.ShareableHandle.from_bytes(blob).owner))
    except BaseException:
        connection.close()
        raise
    return connection


def speak(version: int) -> None:
    """Let this process speak another version of the lease protocol."""
    pytest.MonkeyPatch().setattr(wire, "PROTOCOL_VERSION", version)


def request(blob: bytes, hello: bytes, *, number: int = 1, hold: int = 0, count: int = 1) -> bytes:
    """Return a request for a lease, or several times the same, that is right in every respect."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    server_nonce = wire.unpack_hello(hello).nonce
    nonce = os.urandom(wire.NONCE_NBYTES)
    context = wire.proof_context(server_nonce, nonce, number)
    proof = wire.prove(
        handle.secret, b"import", context, wire.pack_terms(hold, handle.export, 0), handle.core
    )
    wanted = wire.Wanted(handle.allocation, handle.export, proof, hold)
    start_time = ProcessIdentity.of_this_process().start_time
    body = wire.pack_request(wire.Request(nonce, 0, start_time, 0, 0, (wanted,) * count))
    (message,) = wire.pages(wire.MessageType.IMPORT, number, body)
    return message


def request_and_wait(blob: bytes, hold: int = 0) -> None:
    """Ask for a lease politely and never look at the answer."""
    connection = connect(blob)
    _kept.append(connection)
    connection.sendall(request(blob, connection.recv(1000), hold=hold))


def request_and_read(blob: bytes) -> bytes:
    """Ask for a lease and return the answer."""
    with connect(blob) as connection:
        connection.sendall(request(blob, connection.recv(1000)))
        return connection.recv(100_000)


def connect_and_ask_later(blob: bytes) -> None:
    """Connect and greet; :func:`ask_now` then asks for a lease."""
    connection = connect(blob)
    _kept[:] = [connection, connection.recv(1000)]


def ask_now(blob: bytes) -> None:
    """Ask for a lease, over the connection of :func:`connect_and_ask_later`."""
    connection, hello = _kept
    assert isinstance(connection, socket.socket)
    assert isinstance(hello, bytes)
    connection.sendall(request(blob, hello))


def ask_without_reading(blob: bytes, turns: int) -> str:
    """Send the largest requests there are, all right, and read nothing; say how that ended."""
    connection = connect(blob)
    _kept.append(connection)
    hello = connection.recv(1000)
    connection.settimeout(0.2)
    try:
        for number in range(turns):
            connection.sendall(request(blob, hello, number=number + 1, count=wire.MAX_WANTED))
    except OSError as error:
        return type(error).__name__
    return "all sent"


def ask_on_and_on(blob: bytes, seconds: float) -> int:
    """Ask for as much as one request may, read the reply and ask again; return how often."""
    turns = 0
    end = time.monotonic() + seconds
    with connect(blob) as connection:
        hello = connection.recv(1000)
        while time.monotonic() < end:
            turns += 1
            connection.sendall(request(blob, hello, number=turns, count=wire.MAX_WANTED))
            while not wire.HEADER.unpack_from(connection.recv(100_000))[1] & wire.LAST:
                pass
    return turns


def mutated(good: bytes, randomness: random.Random) -> bytes:
    """Return the beginning of a request, or of random bytes, with some bytes changed."""
    message = bytearray(randomness.choice([good, randomness.randbytes(40)]))
    for _ in range(randomness.randrange(4)):
        message[randomness.randrange(len(message))] = randomness.randrange(256)
    return bytes(message[: randomness.randrange(1, 90)])


# Exporters and importers that behave badly ----------------------------------------------------


def spin_for_ever() -> None:
    """Keep the main thread busy in pure Python."""
    while True:
        pass


def hold_the_gil(fifo: Path) -> None:
    """Keep every thread of this process from running Python, until something is in the FIFO."""
    descriptor = os.open(fifo, os.O_RDWR)
    ctypes.PyDLL(None).read(descriptor, ctypes.create_string_buffer(1), 1)
    os.close(descriptor)


def stop_serving() -> None:
    """End the lease server, as an exit does, and live on."""
    server = current().server
    assert server is not None
    server.stop()


def attach_impatiently(blob: bytes, times: int, timeout: float) -> int:
    """Try to attach again and again; return how often the exporter did not answer."""
    unanswered = 0
    for _ in range(times):
        try:
            crossmem.attach(blob, timeout=timeout).unmap()
        except crossmem.OwnerUnresponsiveError:
            unanswered += 1
    return unanswered


def attach_interrupted(blob: bytes) -> list[str]:
    """Attach, with an interrupt as soon as the memory is open; return what cleaning up said."""
    old = RemoteImport.open

    def interrupted(self: RemoteImport, *arguments: Any, **options: Any) -> None:
        old(self, *arguments, **options)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteImport, "open", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            crossmem.attach(blob)
    return getattr(caught.value, "__notes__", [])


def attach_over_and_over(_number: int, blob: bytes, times: int) -> None:
    """Attach and unmap so many times."""
    for _ in range(times):
        with crossmem.attach(blob) as mapping:
            assert mapping.read(4) == b"data"


def attach_until_it_is_gone(blob: bytes) -> str:
    """Attach and unmap until that fails; return the name of the error."""
    while True:
        try:
            crossmem.attach(blob).unmap()
        except crossmem.CrossmemError as error:
            return type(error).__name__


def break_connections() -> int:
    """Shut all lease connections of this process down, behind crossmem's back."""
    broken = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            connection = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue
        with connection:
            if connection.family == socket.AF_UNIX and connection.type == socket.SOCK_SEQPACKET:
                try:
                    connection.getpeername()
                except OSError:
                    continue
                connection.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


def lift_limit() -> None:
    """Allow as many descriptors as the hard limit does; needs none itself."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def use_up_descriptors() -> None:
    """Leave no descriptor at all, until the limit is lifted."""
    resources.limit_descriptors(0)
    with contextlib.suppress(OSError):
        while True:
            os.open(os.devnull, os.O_RDONLY)  # until the process ends


def attach_within_limit(blob: bytes, spare: int) -> crossmem.CrossmemError | None:
    """Attach with so many descriptors to spare, and again without a limit.

    Return what was raised at first.
    """
    refused = None
    resources.limit_descriptors(spare)
    try:
        actions.attach("limited", blob)
    except crossmem.CrossmemError as error:
        refused = error
    lift_limit()
    actions.attach("unlimited", blob)
    assert actions.read("unlimited", 4) == b"data"
    return refused


def export_within_limit(spare: int) -> tuple[bytes, crossmem.CrossmemError | None]:
    """Export for the first time with so many descriptors to spare, and again without a limit.

    Return the handle, and what was raised at first.
    """
    refused = None
    actions.allocate("limited", 4096)
    actions.write("limited", b"data")
    resources.limit_descriptors(spare)
    try:
        actions.export("limited")
    except crossmem.CrossmemError as error:
        refused = error
    lift_limit()
    blob = actions.export("limited")
    assert resources.threads().count("crossmem-leases") == 1
    assert resources.descriptors().count("anon_inode:[eventpoll]") == 1
    return blob, refused


def allocate_until_it_fails() -> None:
    """Allocate until no descriptor is left; free everything; raise why it ended."""
    with contextlib.ExitStack() as stack:
        for _ in range(10_000):
            stack.enter_context(actions.device().allocate(1))


def churn_in_threads(blob: bytes) -> None:
    """Let threads import and export that do not end before the process does."""

    def churn() -> None:
        # Which is what threads are told once the process has given everything back.
        with contextlib.suppress(crossmem.ClosedError):
            while True:
                with crossmem.attach(blob), actions.device().allocate(1) as allocation:
                    allocation.export()

    for _ in range(4):
        threading.Thread(target=churn, daemon=True).start()


def attach_in_background(blob: bytes, timeout: float) -> None:
    """Let a thread wait for an exporter that this process knows while the process goes on."""

    def attach() -> None:
        with contextlib.suppress(crossmem.ClosedError):
            crossmem.attach(blob, timeout=timeout)

    threading.Thread(target=attach, daemon=True).start()
    (connection,) = current().part(ImportTable)._connections.values()
    # Taken by the thread, so this one cannot have it.
    while connection.lock.acquire(blocking=False):
        connection.lock.release()
        time.sleep(0.001)


def settles_without_late_replies() -> bool:
    """Whether this process drops late replies without a further call of the application."""
    connections = list(current().part(ImportTable)._connections.values())

    def late() -> list[str]:
        return [
            repr(one)
            for one in connections
            if one.late_replies or (one._link is not None and one._link.has_messages)
        ]

    return settle(late) == []


def use_what_another_thread_asks_for(known: str, blob: bytes, timeout: float) -> float:
    """Map and unmap an import while a thread asks for more of it; return how long that took."""
    imported = actions.objects[known]
    errors: list[str] = []

    def ask() -> None:
        try:
            crossmem.attach(blob, timeout=timeout)
        except crossmem.OwnerUnresponsiveError as error:
            errors.append(type(error).__name__)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(timeout / 4)
    start = time.monotonic()
    for _ in range(3):
        with imported.map() as mapping:
            assert mapping.read(4) == b"data"
    imported.close()
    took_s = time.monotonic() - start
    thread.join()
    assert errors == ["OwnerUnresponsiveError"]
    return took_s


# Squatters ------------------------------------------------------------------------------------


def identity() -> ProcessIdentity:
    """Return who this process is; no lease server is needed for that."""
    return ProcessIdentity.of_this_process()


def squat(owner: ProcessIdentity, run_dir: Path | None) -> None:
    """Listen where a process's lease server is expected: at its abstract address or its path."""
    squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if run_dir is None:
        squatter.bind(abstract_address(owner))
    else:
        path = socket_path(run_dir, owner)
        path.unlink(missing_ok=True)
        squatter.bind(str(path))
    squatter.listen()
    heard: list[bytes] = []

    def serve() -> None:
        while True:
            connection, _ = squatter.accept()
            with connection:
                connection.send(wire.pack_hello(bytes(16)))
                connection.settimeout(5)
                try:
                    heard.append(connection.recv(100_000))
                except OSError:
                    heard.append(b"")

    threading.Thread(target=serve, daemon=True).start()
    _kept[:] = [squatter, heard]


def heard() -> list[bytes]:
    """Return what those who came to the squatter have said."""
    found = _kept[1]
    assert isinstance(found, list)
    return found
