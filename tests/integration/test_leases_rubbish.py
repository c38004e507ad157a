# SPDX-License-Identifier: Apache-2.0
"""The lease server among clients that are silent, talk rubbish or do not listen."""

import contextlib
import random
import resource
import socket
import struct
import time
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
    body = struct.pack("<16sQQQQII", bytes(16), *[2**64 - 1] * 4, 0, count) + records
    return header(kind, request=request) + body


FULL_PAGE = wire.MAX_MESSAGE_NBYTES - wire.HEADER.size

WRONG = {
    "one byte": [b"\x02"],
    "half a header": [header(MessageType.END)[:7]],
    "zeroes": [bytes(5000)],
    "no such type": [header(0), header(7), header(255)],
    "a server's hello": [wire.pack_hello(bytes(16))],
    "a server's reply": [header(MessageType.REPLY) + b"\0" * 60],
    "an empty request": [header(MessageType.IMPORT)],
    "a request for nothing": [import_of(count=0)],
    "fewer records than said": [import_of(count=3, records=bytes(44))],
    "more records than said": [import_of(count=1, records=bytes(88))],
    "as many as can be said": [import_of(count=2**32 - 1, records=bytes(44))],
    "a reservation of nothing": [import_of(count=0, kind=MessageType.RESERVE)],
    "fewer than said to reserve": [import_of(count=3, records=bytes(44), kind=MessageType.RESERVE)],
    "a cut off end": [header(MessageType.END) + bytes(13)],
    "a cut off hint": [header(MessageType.HINT) + bytes(13)],
    "too large": [header(MessageType.IMPORT) + bytes(wire.MAX_MESSAGE_NBYTES)],
    "much too large": [header(MessageType.END) + bytes(150_000)],
    "a page of a request": [header(MessageType.IMPORT, flags=0) + bytes(FULL_PAGE)],
    "a page of reservations": [header(MessageType.RESERVE, flags=0) + bytes(FULL_PAGE)],
    "more than one request asks for": [
        import_of(count=wire.MAX_WANTED + 1, records=bytes(44 * (wire.MAX_WANTED + 1)))
    ],
    "text": [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"],
}

# Odd, but nothing that a slow or late client of ours could not send.
ODD = {
    "an end of what it never had": [wire.pack_ids(MessageType.END, range(1, 2000))],
    "an end of nothing": [header(MessageType.END)],
    "a hint at what it never had": [wire.pack_ids(MessageType.HINT, range(0, 2**64, 2**54))],
    "unknown flags": [header(MessageType.HINT, flags=0xFE)],
    "a reservation of what never was": [
        import_of(count=1, records=b"\xff" * 44, kind=MessageType.RESERVE)
    ],
    "all reservations that one request asks for": [
        import_of(
            count=wire.MAX_WANTED, records=bytes(44 * wire.MAX_WANTED), kind=MessageType.RESERVE
        )
    ],
    "a request for what never was": [import_of(count=1, records=b"\xff" * 44)],
}


def send(connection: socket.socket, messages: list[bytes]) -> bool:
    """Send messages; return whether the server took them all."""
    try:
        for message in messages:
            connection.send(message)
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


def test_rubbish_is_refused_and_changes_nothing(scene: Scene) -> None:
    for name, messages in WRONG.items():
        with lease_actions.connect(scene.blob) as connection:
            for message in messages:
                if not send(connection, [message]):
                    break
            assert is_closed(connection), name
    scene.check_the_exporter_works()
    scene.check_nothing_is_left()
    assert "Traceback" not in scene.exporter.output()


def test_odd_messages_are_taken(scene: Scene) -> None:
    with contextlib.ExitStack() as stack:
        for name, messages in ODD.items():
            connection = stack.enter_context(lease_actions.connect(scene.blob))
            assert send(connection, messages), name
            # It is still served: a proper request is answered.
            hello = connection.recv(1000)
            connection.sendall(lease_actions.request(scene.blob, hello, number=9))
            reply = b""
            while not reply or wire.HEADER.unpack_from(reply)[3] != 9:
                reply = connection.recv(100_000)
            (grant,) = wire.unpack_replies(reply[wire.HEADER.size :])
            assert isinstance(grant, wire.Grant), name
            connection.sendall(wire.pack_ids(MessageType.HINT, [grant.slot]))
        scene.check_the_exporter_works()
        scene.exporter.call(actions.free, "memory", busy="wait", timeout=2 * SLOWNESS)
    scene.check_nothing_is_left()


def test_random_rubbish(scene: Scene) -> None:
    randomness = random.Random(26)
    for _ in range(150):
        with lease_actions.connect(scene.blob) as connection:
            good = lease_actions.request(scene.blob, connection.recv(1000))
            for _ in range(randomness.randrange(1, 6)):
                if not send(connection, [lease_actions.mutated(good, randomness)]):
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
            if at in range(wire.HEADER.size + 16, wire.HEADER.size + 56):
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
            client.sendall(wire.pack_ids(MessageType.HINT, [grant.slot]))
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


@pytest.mark.ci
def test_little_is_kept_for_who_does_not_read(scene: Scene, start_peer: "StartPeer") -> None:
    def resident_nbytes() -> int:
        status = Path(f"/proc/{scene.exporter.pid}/status").read_text("ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    before = resident_nbytes()
    rude = start_peer()
    ended = [
        rude.start(lease_actions.ask_without_reading, scene.blob, 60, within=90) for _ in range(20)
    ]

    while not ended[-1].is_done():
        scene.check_the_exporter_works()

    assert "all sent" not in {one.result() for one in ended}
    assert resident_nbytes() - before < 64 << 20
    scene.check_the_exporter_works()


def test_greedy_importers_hold_nobody_up(scene: Scene, start_peer: "StartPeer") -> None:
    scene.importer.call(actions.attach, "held", scene.blob)
    greedy = [start_peer() for _ in range(3)]
    asking = [one.start(lease_actions.ask_on_and_on, scene.blob, 4.0) for one in greedy]
    rude = start_peer()
    asking.append(rude.start(lease_actions.ask_without_reading, scene.blob, 60))

    waited = []
    while not all(one.is_done() for one in asking):
        start = time.monotonic()
        with pytest.raises(crossmem.BusyError):
            scene.exporter.call(actions.free, "memory", busy="wait", timeout=0.5)
        waited.append(time.monotonic() - start)
        scene.exporter.call(actions.offer, "more", 4096)
        scene.exporter.call(actions.free, "more")

    assert max(waited) < 0.5 + SLOWNESS
    assert all(one.result() for one in asking)


def test_handles_are_not_reachable_by_guessing(scene: Scene) -> None:
    handle = crossmem.ShareableHandle.from_bytes(scene.blob)
    with lease_actions.connect(scene.blob) as connection:
        connection.recv(1000)
        for allocation in range(4):
            record = struct.pack("<QI16sQQ", allocation, handle.export, bytes(16), 0, 0)
            connection.sendall(import_of(count=1, records=record, request=allocation))
            (reply,) = wire.unpack_replies(connection.recv(100_000)[wire.HEADER.size :])
            assert isinstance(reply, wire.Refusal)
