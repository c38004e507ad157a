# SPDX-License-Identifier: Apache-2.0
"""The lease server among clients that are silent, talk rubbish or do not listen."""

import array
import contextlib
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.control import wire
from crossmem.control.wire import MessageType

if TYPE_CHECKING:
    from tests.integration import lease_actions
    from tests.integration.conftest import StartPeer
else:
    import lease_actions


class Scene(NamedTuple):
    """An exporter, somebody who imports from it, and what the exporter had open before."""

    exporter: Peer
    importer: Peer
    blob: bytes
    before: list[str]

    def check_the_exporter_works(self) -> None:
        self.importer.call(actions.attach, "mapped", self.blob, timeout=30 * SLOWNESS)
        assert self.importer.call(actions.read, "mapped", 4) == b"data"
        self.importer.call(actions.unmap, "mapped")
        assert self.exporter.call(actions.violations) == []

    def check_nothing_is_left(self) -> None:
        def more() -> list[str]:
            found: list[str] = self.exporter.call(resources.descriptors)
            for known in self.before:
                if known in found:
                    found.remove(known)
            return found

        assert settle(more) == []


@pytest.fixture
def scene(start_peer: "StartPeer") -> Scene:
    exporter, importer = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", 4096, b"data")
    importer.call(actions.attach, "mapped", blob)
    importer.call(actions.unmap, "mapped")
    return Scene(exporter, importer, blob, exporter.call(resources.descriptors))


def header(kind: int, *, flags: int = wire.LAST, request: int = 1) -> bytes:
    return wire.HEADER.pack(kind, flags, 0, request)


def import_of(
    *, count: int, records: bytes = b"", request: int = 1, kind: MessageType = MessageType.IMPORT
) -> bytes:
    body = struct.pack("<16sQQI", bytes(16), 2**64 - 1, 2**64 - 1, count) + records
    return header(kind, request=request) + body


FULL_PAGE = wire.MAX_MESSAGE_NBYTES - wire.HEADER.size

WRONG = {
    "one byte": [b"\x02"],
    "half a header": [header(MessageType.RELEASE)[:7]],
    "zeroes": [bytes(5000)],
    "no such type": [header(0), header(7), header(255)],
    "a server's hello": [wire.pack_hello(bytes(16))],
    "a server's reply": [header(MessageType.REPLY) + b"\0" * 60],
    "an empty request": [header(MessageType.IMPORT)],
    "a request for nothing": [import_of(count=0)],
    "fewer records than said": [import_of(count=3, records=bytes(36))],
    "more records than said": [import_of(count=1, records=bytes(72))],
    "as many as can be said": [import_of(count=2**32 - 1, records=bytes(36))],
    "a reservation of nothing": [import_of(count=0, kind=MessageType.RESERVE)],
    "fewer than said to reserve": [import_of(count=3, records=bytes(36), kind=MessageType.RESERVE)],
    "a cut off release": [header(MessageType.RELEASE) + bytes(13)],
    "too large": [header(MessageType.IMPORT) + bytes(wire.MAX_MESSAGE_NBYTES)],
    "much too large": [header(MessageType.RELEASE) + bytes(150_000)],
    "pages without end": [header(MessageType.IMPORT, flags=0) + bytes(FULL_PAGE)] * 40,
    "reservations without end": [header(MessageType.RESERVE, flags=0) + bytes(FULL_PAGE)] * 40,
    "small pages": [header(MessageType.IMPORT, flags=0) + bytes(20)] * 2,
    "text": [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"],
}

# Odd, but nothing that a slow or late client of ours could not send.
ODD = {
    "a release of what it never had": [wire.pack_ids(MessageType.RELEASE, 0, range(1, 2000))],
    "a release of nothing": [header(MessageType.RELEASE)],
    "a cancel of what it never asked": [header(MessageType.CANCEL, request=2**64 - 1)],
    "unknown flags": [header(MessageType.RELEASE, flags=0xFE)],
    "an unfinished request": [header(MessageType.IMPORT, flags=0) + bytes(FULL_PAGE)] * 3,
    "a reservation of what never was": [
        import_of(count=1, records=b"\xff" * 36, kind=MessageType.RESERVE)
    ],
    "more reservations than there may be": list(
        wire.pages(MessageType.RESERVE, 1, import_of(count=5000, records=bytes(36 * 5000))[12:])
    ),
    "a request for what never was": [import_of(count=1, records=b"\xff" * 36)],
}


def send(connection: socket.socket, messages: list[bytes], descriptors: list[int]) -> bool:
    """Send messages; return whether the server took them all."""
    ancillary = []
    if descriptors:
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
    try:
        for message in messages:
            connection.sendmsg([message], ancillary)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def is_closed(connection: socket.socket) -> bool:
    """Read until the server closes the connection; False where it does not in time."""
    connection.settimeout(20)
    try:
        while connection.recv(100_000):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("stuffed", [False, True], ids=["", "with-descriptors"])
def test_rubbish_is_refused_and_changes_nothing(scene: Scene, *, stuffed: bool) -> None:
    with Path(os.devnull).open() as null:
        descriptors = [null.fileno()] * 100 if stuffed else []
        for name, messages in WRONG.items():
            with lease_actions.connect(scene.blob) as connection:
                for message in messages:
                    if not send(connection, [message], descriptors):
                        break
                assert is_closed(connection), name
        scene.check_the_exporter_works()
    scene.check_nothing_is_left()
    assert "Traceback" not in scene.exporter.output()


@pytest.mark.parametrize("stuffed", [False, True], ids=["", "with-descriptors"])
def test_odd_messages_are_taken(scene: Scene, *, stuffed: bool) -> None:
    with contextlib.ExitStack() as stack:
        null = stack.enter_context(Path(os.devnull).open())
        for name, messages in ODD.items():
            connection = stack.enter_context(lease_actions.connect(scene.blob))
            assert send(connection, messages, [null.fileno()] * 100 if stuffed else []), name
            # It is still served: a proper request is answered.
            hello = connection.recv(1000)
            connection.sendall(lease_actions.request(scene.blob, hello, number=9))
            reply = b""
            while not reply or wire.HEADER.unpack_from(reply)[3] != 9:
                reply = connection.recv(100_000)
            (grant,) = wire.unpack_replies(reply[wire.HEADER.size :])
            assert isinstance(grant, wire.Grant), name
            connection.sendall(wire.pack_ids(MessageType.RELEASE, 0, [grant.lease]))
        scene.check_the_exporter_works()
        scene.exporter.call(actions.free, "memory", busy="wait", timeout=2 * SLOWNESS)
    scene.check_nothing_is_left()


def test_random_rubbish(scene: Scene) -> None:
    randomness = random.Random(26)
    for _ in range(150):
        with lease_actions.connect(scene.blob) as connection:
            good = lease_actions.request(scene.blob, connection.recv(1000))
            for _ in range(randomness.randrange(1, 6)):
                message = bytearray(randomness.choice([good, randomness.randbytes(40)]))
                for _ in range(randomness.randrange(4)):
                    message[randomness.randrange(len(message))] = randomness.randrange(256)
                cut = bytes(message[: randomness.randrange(1, 90)])
                if not send(connection, [cut], []):
                    break
    scene.check_the_exporter_works()
    assert "Traceback" not in scene.exporter.output()
    # What was granted by chance is this process's until it ends; nothing but that is left.
    watched = scene.exporter.call(resources.descriptors).count("anon_inode:[pidfd]")
    assert watched <= scene.before.count("anon_inode:[pidfd]") + 1


def test_a_wrong_proof_is_answered_and_gives_nothing(scene: Scene) -> None:
    with lease_actions.connect(scene.blob) as connection:
        good = lease_actions.request(scene.blob, connection.recv(1000))
        for at in range(wire.HEADER.size, len(good), 3):
            if at in range(wire.HEADER.size + 16, wire.HEADER.size + 36):
                continue  # what it reports of itself, and the count
            bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
            connection.sendall(bad)
            (reply,) = wire.unpack_replies(connection.recv(100_000)[wire.HEADER.size :])
            assert isinstance(reply, wire.Refusal), at
    assert [info.leases for info in scene.exporter.call(actions.exports)] == [()]


def test_a_request_played_back_on_another_connection_gives_nothing(scene: Scene) -> None:
    with lease_actions.connect(scene.blob) as one, lease_actions.connect(scene.blob) as two:
        good = lease_actions.request(scene.blob, one.recv(1000))
        two.recv(1000)
        two.sendall(good)
        (reply,) = wire.unpack_replies(two.recv(100_000)[wire.HEADER.size :])
    assert isinstance(reply, wire.Refusal)


def test_silent_clients_hold_nobody_up(scene: Scene) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(lease_actions.connect(scene.blob))
        scene.check_the_exporter_works()
    scene.check_nothing_is_left()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"the hard limit of descriptors is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_clients(scene: Scene) -> None:
    scene.exporter.call(lease_actions.lift_limit)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(lease_actions.connect(scene.blob)) for _ in range(1000)]
        hellos = [client.recv(1000) for client in clients]
        scene.check_the_exporter_works()
        for client, hello in zip(clients, hellos, strict=True):
            client.sendall(lease_actions.request(scene.blob, hello))
        for client in clients:
            reply = client.recv(100_000)
            (grant,) = wire.unpack_replies(reply[wire.HEADER.size :])
            assert isinstance(grant, wire.Grant)
            client.sendall(wire.pack_ids(MessageType.RELEASE, 0, [grant.lease]))
        scene.check_the_exporter_works()
        scene.exporter.call(actions.free, "memory", busy="wait", timeout=5 * SLOWNESS)
    scene.check_nothing_is_left()


@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_silent_clients_do_not_use_up_the_descriptors(scene: Scene) -> None:
    scene.exporter.call(resources.limit_descriptors, 100)
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(lease_actions.connect(scene.blob))
        # Who is already known is served, who is new is let in, and memory can be allocated.
        scene.check_the_exporter_works()
        with lease_actions.connect(scene.blob) as newcomer:
            hello = newcomer.recv(1000)
            newcomer.sendall(lease_actions.request(scene.blob, hello))
            assert newcomer.recv(1000)
        scene.exporter.call(actions.offer, "more", 4096)


def test_little_is_kept_for_who_does_not_read(scene: Scene, start_peer: "StartPeer") -> None:
    def resident_nbytes() -> int:
        status = Path(f"/proc/{scene.exporter.pid}/status").read_text("ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    before = resident_nbytes()
    rude = start_peer()
    ended = rude.start(lease_actions.ask_without_reading, scene.blob, 60, within=90)

    while not ended.is_done():
        scene.check_the_exporter_works()

    assert ended.result() != "all sent"
    assert resident_nbytes() - before < 64 << 20
    scene.check_the_exporter_works()


def test_handles_are_not_reachable_by_guessing(scene: Scene) -> None:
    handle = crossmem.ShareableHandle.from_bytes(scene.blob)
    with lease_actions.connect(scene.blob) as connection:
        connection.recv(1000)
        for allocation in range(4):
            record = struct.pack("<QI16sQ", allocation, handle.export, bytes(16), 0)
            connection.sendall(import_of(count=1, records=record, request=allocation))
            (reply,) = wire.unpack_replies(connection.recv(100_000)[wire.HEADER.size :])
            assert isinstance(reply, wire.Refusal)
