# SPDX-License-Identifier: Apache-2.0
"""Laws C28 and C3: exports are withdrawn while their memory lives on."""

import os

import pytest

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.old_drivers import raw_handles_or_skip
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.strangers import MakeStranger, needs_foreign
from crossmem.driver import TracingDriver

NBYTES = 5000


def withdraw(name: str, blob: bytes) -> None:
    """Withdraw, in a peer, an export of a named allocation."""
    actions.objects[name].withdraw(blob)


def reports_of(handle: crossmem.ShareableHandle) -> list[crossmem.ExportInfo]:
    """Return this process's reports about one of its exports."""
    return [one for one in crossmem.exports() if one.handle == handle]


def refuses(peer: Peer, blob: bytes) -> None:
    """Check that a peer's imports of a withdrawn handle fail without a call of the driver."""
    before = peer.call(actions.calls)
    for action in (actions.attach, actions.import_):
        with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
            peer.call(action, "never", blob)
    with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
        peer.call(actions.attach_many, ["never"], [blob])

    # If the tests use blocks, the peer may open the whole pool before its import is refused.
    assert blocks.are_used() or peer.call(actions.calls) == before


@pytest.mark.crossmem_core
def test_c28_no_process_imports_by_it_for_the_first_time(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"stays")
    handle = allocation.export()
    allocation.withdraw(handle)

    refuses(peer, handle.to_bytes())
    refuses(peer, handle.slice(10, 10).to_bytes())
    assert allocation.read(5) == b"stays"


@pytest.mark.crossmem_core
def test_c28_who_has_it_keeps_it(allocate: Allocate, peer: Peer, peer2: Peer) -> None:
    allocation = allocate(NBYTES, b"kept")
    handle = allocation.export()
    blob = handle.to_bytes()
    peer.call(actions.attach, "mapped", blob)
    peer.call(actions.import_, "imported", blob)
    allocation.withdraw(handle)

    refuses(peer2, blob)
    assert peer.call(actions.read, "mapped", 4) == b"kept"
    # A holder imports again without a request, as long as it has the memory.
    peer.call(actions.attach, "again", blob)
    peer.call(actions.map_, "late", "imported")
    assert peer.call(actions.read, "again", 4) == peer.call(actions.read, "late", 4) == b"kept"
    if not blocks.are_used():
        (report,) = reports_of(handle)
        assert report.withdrawn
        assert not report.waiting
        assert [one.pid for one in report.leases] == [peer.pid]


@pytest.mark.crossmem_core
def test_c28_who_gave_it_up_does_not_get_it_again(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES)
    handle = allocation.export()
    peer.call(actions.attach, "mapped", handle.to_bytes())
    allocation.withdraw(handle)
    peer.call(actions.unmap, "mapped")

    refuses(peer, handle.to_bytes())
    assert settle(lambda: ["listed"] * len(reports_of(handle))) == []


def test_c28_withdrawn_exports_keep_memory_from_being_freed(
    device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    allocation = device.allocate(NBYTES)
    before = tracer.live["blocks"]
    allocation.write(b"leased")
    handle = allocation.export()
    peer.call(actions.attach, "mapped", handle.to_bytes())
    allocation.withdraw(handle)
    with pytest.raises(crossmem.BusyError, match=str(peer.pid)):
        allocation.free(busy="raise")
    with pytest.raises(crossmem.BusyError, match=str(peer.pid)):
        allocation.free(busy="wait", timeout=0.05)
    allocation.free()
    crossmem.collect()

    assert tracer.live["blocks"] == before
    assert peer.call(actions.read, "mapped", 6) == b"leased"

    peer.call(actions.unmap, "mapped")

    assert settle(lambda: [] if tracer.live["blocks"] < before else ["not freed"]) == []


def test_c28_the_death_of_who_had_it_ends_it(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    allocation = allocate(NBYTES)
    handle = allocation.export()
    importer = fresh_peer()
    importer.call(actions.attach, "mapped", handle.to_bytes())
    allocation.withdraw(handle)
    importer.kill()

    assert settle(lambda: ["listed"] * len(reports_of(handle))) == []
    allocation.free(busy="wait", timeout=SOON_S)


def test_c28_parts_are_withdrawn_with_their_export(
    allocate: Allocate, peer: Peer, peer2: Peer
) -> None:
    allocation = allocate(NBYTES, b"whole and part")
    handle = allocation.export()
    part, other = handle.slice(10, 4), handle.slice(100, 100)
    peer.call(actions.attach, "part", part.to_bytes())
    allocation.withdraw(part)

    for blob in (handle.to_bytes(), part.to_bytes(), other.to_bytes()):
        refuses(peer2, blob)
    # A process that holds a part holds the whole export, so it may import the whole.
    peer.call(actions.attach, "whole", handle.to_bytes())
    assert peer.call(actions.read, "whole", 14) == b"whole and part"
    assert peer.call(actions.read, "part") == b"part"


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
def test_c28_other_exports_stay(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"other")
    allow = crossmem.Allow(pids=[peer.pid])
    handle, other = allocation.export(), allocation.export(allow=allow)
    allocation.withdraw(handle)

    assert allocation.export(allow=allow) == other
    # The peer imports the other handle. It has never imported the withdrawn handle.
    peer.call(actions.attach, "other", other.to_bytes())
    refuses(peer, handle.to_bytes())
    assert peer.call(actions.read, "other", 5) == b"other"


@pytest.mark.crossmem_core
def test_c28_a_new_export_is_for_everybody(allocate: Allocate, peer: Peer, peer2: Peer) -> None:
    allocation = allocate(NBYTES, b"first")
    old = allocation.export()
    peer.call(actions.attach, "old", old.to_bytes())
    allocation.withdraw(old)
    new = allocation.export()
    for one in (peer, peer2):
        one.call(actions.attach, "new", new.to_bytes())

        assert one.call(actions.read, "new", 5) == b"first"

    refuses(peer2, old.to_bytes())
    peer2.call(actions.write, "new", b"again")
    assert peer.call(actions.read, "old", 5) == b"again"
    peer.call(actions.unmap, "old")
    refuses(peer, old.to_bytes())
    assert peer.call(actions.read, "new", 5) == b"again"


def test_c28_messages_under_way_keep_it(allocate: Allocate, peer: Peer, peer2: Peer) -> None:
    blob = peer.call(actions.offer, "memory", NBYTES, b"message")
    message = peer.call(actions.send, "memory")
    peer.call(withdraw, "memory", blob)

    refuses(peer2, blob)
    peer2.call(actions.attach_reserved, ["received"], message)
    assert peer2.call(actions.read, "received", 7) == b"message"
    # The message's reservation ended when the message was first received.
    with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
        actions.attach_reserved(["late"], message)
    peer2.call(actions.unmap, "received")
    refuses(peer2, blob)


def test_c28_messages_to_its_own_process_keep_it(device: crossmem.Device) -> None:
    with device.allocate(NBYTES) as allocation:
        allocation.write(b"own")
        actions.objects["own"] = allocation
        message = actions.send("own")
        del actions.objects["own"]
        allocation.withdraw(allocation.export())
        actions.attach_reserved(["received"], message)
        received = actions.objects.pop("received")

        assert received.read(3) == b"own"

        received.unmap()
        with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
            crossmem.attach(received.handle)


def test_c28_nobody_sends_it_on(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES)
    handle = allocation.export()
    peer.call(actions.attach, "mapped", handle.to_bytes())
    own = crossmem.attach(handle)
    allocation.withdraw(handle)
    with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
        peer.call(actions.send, "mapped")
    actions.objects["own"] = own
    with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
        actions.send("own")
    del actions.objects["own"]
    own.unmap()


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
@pytest.mark.crossmem_core
def test_c28_in_the_exporting_process_too(allocate: Allocate) -> None:
    allocation = allocate(NBYTES, b"mine")
    allow = crossmem.Allow(pids=[os.getpid()])
    handle, other = allocation.export(), allocation.export(allow=allow)
    with crossmem.attach(handle) as mapping:
        allocation.withdraw(handle)
        with crossmem.attach(handle) as again:
            assert mapping.read(4) == again.read(4) == b"mine"
    for attempt in (crossmem.attach, crossmem.import_handle):
        with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
            attempt(handle)
    with crossmem.attach(other), pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
        crossmem.attach(handle)
    with crossmem.attach(allocation.export()) as mapping:
        assert mapping.read(4) == b"mine"


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
def test_c28_a_process_that_was_admitted_by_pid(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"named")
    allow = crossmem.Allow(pids=[peer.pid])
    for _ in range(3):
        handle = allocation.export(allow=allow)
        peer.call(actions.attach, "mapped", handle.to_bytes())

        assert peer.call(actions.read, "mapped", 5) == b"named"

        allocation.withdraw(handle)
        peer.call(actions.unmap, "mapped")
        refuses(peer, handle.to_bytes())


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
def test_c28_withdrawing_twice_is_harmless(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES)
    allow = crossmem.Allow(pids=[peer.pid])
    held, handle = allocation.export(allow=allow), allocation.export()
    peer.call(actions.attach, "mapped", held.to_bytes())
    for one in (held, handle, held, handle, handle.to_bytes()):
        allocation.withdraw(one)
    new = allocation.export()
    allocation.withdraw(handle)

    refuses(peer, handle.to_bytes())
    peer.call(actions.attach, "new", new.to_bytes())
    assert peer.call(actions.attach, "again", held.to_bytes())


def test_c28_only_handles_of_the_allocation_can_be_withdrawn(
    allocate: Allocate, device: crossmem.Device, peer: Peer
) -> None:
    allocation, other = allocate(NBYTES), allocate(NBYTES)
    handle = other.export()
    theirs = peer.call(actions.offer, "theirs", NBYTES)
    mine = allocation.export()
    for wrong in (handle, handle.to_bytes(), theirs, b"no handle"):
        with pytest.raises(crossmem.InvalidHandleError):
            allocation.withdraw(wrong)
    with device.allocate(NBYTES) as freed:
        old = freed.export()
    with pytest.raises(crossmem.ClosedError):
        freed.withdraw(old)

    for good in (mine, handle):
        peer.call(actions.attach, "mapped", good.to_bytes())
        peer.call(actions.unmap, "mapped")


@needs_foreign
def test_c28_one_adoption_of_foreign_memory_is_withdrawn(
    stranger: MakeStranger, peer: Peer, peer2: Peer
) -> None:
    memory = stranger(1, b"one other")
    with (
        memory.adopt(3, neighbours="expose") as one,
        memory.adopt(5, at=4, neighbours="expose") as other,
    ):
        first, second = one.export(), other.export()
        peer.call(actions.attach, "one", first.to_bytes())
        # Each adoption withdraws only its own export, although one allocation of the vendor
        # contains both adoptions.
        with pytest.raises(crossmem.InvalidHandleError):
            one.withdraw(second)
        one.withdraw(first)

        refuses(peer2, first.to_bytes())
        assert peer.call(actions.read, "one") == b"one"
        peer2.call(actions.attach, "other", second.to_bytes())
        assert peer2.call(actions.read, "other") == b"other"
        with crossmem.attach(second) as mine:
            assert mine.read() == b"other"
        assert one.export() != first
        peer.call(actions.unmap, "one")
        peer2.call(actions.unmap, "other")


@pytest.mark.crossmem_not_of_blocks("blocks have no raw handles")
@pytest.mark.crossmem_requires("raw_handles")
def test_c28_raw_handles_cannot_be_withdrawn(allocate: Allocate) -> None:
    allocation = allocate(NBYTES)
    with raw_handles_or_skip():
        handle = allocation.export(lease=False)
    with pytest.raises(crossmem.UnsupportedError, match="raw"):
        allocation.withdraw(handle)

    assert allocation.export(lease=False) == handle


def test_c28_a_withdrawn_export_leaves_nothing(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES)
    handle = allocation.export()
    before = len(crossmem.exports())
    for _ in range(20):
        peer.call(actions.attach, "mapped", handle.to_bytes())
        peer.call(actions.unmap, "mapped")
        allocation.withdraw(handle)
        handle = allocation.export()

    assert len(crossmem.exports()) == before


@pytest.mark.crossmem_core
def test_c03_a_withdrawn_handle_is_replaced_by_a_new_one(
    allocate: Allocate, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    old = allocation.export()
    before = tracer.calls["export"]
    allocation.withdraw(old)
    new = allocation.export()

    assert new != old
    assert new.to_bytes() != old.to_bytes()
    assert allocation.export() == new
    assert tracer.calls["export"] == before
