# SPDX-License-Identifier: Apache-2.0
"""Laws C6, C9, C11 and C20: an unreceived message keeps memory until its sender dies."""

import time

import pytest

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver

NBYTES = 5000


def holders_of(blob: bytes) -> list[tuple[int, bool]]:
    """Return the pid of each lease on an export, and whether the lease belongs to a message."""
    return [
        (lease.pid, lease.in_message)
        for info in crossmem.exports()
        if info.handle.to_bytes() == blob
        for lease in info.leases
    ]


def others_than(blob: bytes, *expected: tuple[int, bool]) -> list[str]:
    found = holders_of(blob)
    return [] if found == list(expected) else [str(found)]


def test_c06_a_message_gives_memory_that_was_freed(
    device: crossmem.Device, peer: Peer, peer2: Peer
) -> None:
    allocation = device.allocate(NBYTES)
    allocation.write(b"sent")
    blob = allocation.export().to_bytes()
    peer.call(actions.attach, "m", blob)
    message = peer.call(actions.send, "m")
    peer.call(actions.unmap, "m")
    allocation.free()
    with pytest.raises(crossmem.StaleHandleError):
        peer2.call(actions.attach, "m", blob)

    peer2.call(actions.attach_reserved, ["m"], message)

    assert peer2.call(actions.read, "m", 4) == b"sent"

    peer2.call(actions.unmap, "m")
    with pytest.raises(crossmem.StaleHandleError):
        peer2.call(actions.attach_reserved, ["m"], message)


@pytest.mark.crossmem_core
def test_c09_memory_stays_for_a_message_until_its_receiver_is_done(
    device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    actions.offer("sent", NBYTES, b"kept")
    ((blob, number),) = actions.send("sent")
    allocation = actions.objects.pop("sent")
    before = tracer.live["blocks"]
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy="raise")
    allocation.free()
    crossmem.collect()

    assert tracer.live["blocks"] == before
    assert holders_of(blob) == [(actions.pid(), True)]

    peer.call(actions.attach_reserved, ["m"], [(blob, number)])

    assert settle(lambda: others_than(blob, (peer.pid, False))) == []
    assert peer.call(actions.read, "m", 4) == b"kept"
    assert tracer.live["blocks"] == before

    peer.call(actions.unmap, "m")

    assert settle(lambda: others_than(blob)) == []
    assert settle(lambda: ["lives"] * (tracer.live["blocks"] - before + 1)) == []


def test_c09_the_exporter_receives_its_own_message(
    device: crossmem.Device, tracer: TracingDriver
) -> None:
    actions.offer("sent", NBYTES, b"mine")
    message = actions.send("sent")
    actions.objects.pop("sent").free()
    before = tracer.live["blocks"]
    actions.attach_reserved(["back"], message)
    mapping = actions.objects.pop("back")

    assert mapping.read(4) == b"mine"
    assert holders_of(message[0][0]) == [(actions.pid(), False)]

    mapping.unmap()
    crossmem.collect()

    assert tracer.live["blocks"] == before - 1


def test_c11_a_reservation_ends_with_the_death_of_its_sender(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    blob = allocate(NBYTES).export().to_bytes()
    sender = fresh_peer()
    sender.call(actions.attach, "m", blob)
    sender.call(actions.send, "m")
    sender.call(actions.unmap, "m")
    assert settle(lambda: others_than(blob, (sender.pid, True))) == []

    sender.kill()

    assert settle(lambda: others_than(blob)) == []


def test_c20_an_exit_waits_for_messages_and_serves_their_receivers(
    fresh_peer: FreshPeer, peer: Peer
) -> None:
    sender = fresh_peer(CROSSMEM_EXIT_WAIT="60")
    sender.call(actions.offer, "sent", NBYTES, b"last")
    message = sender.call(actions.send, "sent")
    sender.call(actions.free, "sent")
    sender.request_exit()
    if blocks.are_used():
        # The first call of attach() opens the whole pool, and later calls send no request. So the
        # calls cannot show that the sender refuses requests. Instead, the test sleeps until the
        # sender has surely begun its exit.
        time.sleep(1.0)
    else:
        assert settle(lambda: not_refused(peer, message[0][0])) == []
    assert sender.exitcode is None

    peer.call(actions.attach_reserved, ["m"], message)

    assert peer.call(actions.read, "m", 4) == b"last"

    peer.call(actions.unmap, "m")

    assert sender.wait_exit(within=30) == 0
    assert "exiting while" not in sender.output()


def not_refused(peer: Peer, blob: bytes) -> list[str]:
    """Try to attach; return the outcome, or an empty list if the exiting exporter refuses."""
    try:
        peer.call(actions.attach, "m", blob)
    except crossmem.OwnerGoneError:
        return []
    except crossmem.StaleHandleError:
        return ["stale"]
    return ["attached"]
