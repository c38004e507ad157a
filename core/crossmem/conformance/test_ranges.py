# SPDX-License-Identifier: Apache-2.0
"""Mappings in address ranges keep the laws, as all other mappings do."""

import pytest

import crossmem
from crossmem.conformance import actions, probes
from crossmem.conformance.harness import Allocate, FreshPeer, Imports, capacity_of
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.driver import CopyKind, TracingDriver
from crossmem.driver.buffers import address_of, new_bytes

pytestmark = pytest.mark.crossmem_not_of_blocks("address ranges map only whole allocations")

NBYTES = 5000

needs_ranges = pytest.mark.crossmem_requires("address_ranges")


# C1: visible ------------------------------------------------------------------------------


@needs_ranges
@pytest.mark.crossmem_core
def test_c01_a_piece_shows_what_others_write(imports: Imports, peer: Peer) -> None:
    data = pattern(NBYTES, 1)
    imported = imports.of(peer, "a", NBYTES, data)
    addresses = imports.range_for(imported)
    with imported.map() as mapping, addresses.map(imported, at=0) as piece:
        assert (piece.ptr, piece.offset, piece.nbytes) == (addresses.ptr, 0, NBYTES)
        assert piece.ptr != mapping.ptr
        assert piece.read() == data

        piece.write(b"through the piece", offset=100)

        assert peer.call(actions.read, "a", 17, offset=100) == b"through the piece"
        assert mapping.read(17, offset=100) == b"through the piece"

        peer.call(actions.write, "a", b"through the owner")

        assert piece.read(17) == b"through the owner"


@needs_ranges
def test_c01_ones_own_memory_is_seen_at_both_addresses(
    allocate: Allocate, imports: Imports, peer: Peer
) -> None:
    allocation = allocate(NBYTES, b"before")
    peer.call(actions.attach, "m", allocation.export().to_bytes())
    with imports.range_for(allocation).map(allocation, at=0) as piece:
        assert piece.ptr != allocation.ptr
        assert piece.read(6) == b"before"

        piece.write(b"during")

        assert allocation.read(6) == peer.call(actions.read, "m", 6) == b"during"

    assert allocation.read(6) == b"during"


@needs_ranges
def test_c01_consecutive_pieces_are_one_stretch_of_memory(
    imports: Imports, peer: Peer, peer2: Peer
) -> None:
    device = imports.device
    unit = device.capabilities.granularity_nbytes
    # The imports come from two processes, and are not mapped in the order of their addresses.
    last, first, middle = (
        imports.of(one, name, unit)
        for one, name in ((peer, "last"), (peer2, "first"), (peer, "middle"))
    )
    addresses = imports.range_for(last, first, middle)
    with (
        addresses.map(last, at=2 * unit),
        addresses.map(first, at=0),
        addresses.map(middle, at=unit),
    ):
        peer2.call(actions.write, "first", b"to the", offset=unit - 6)
        peer.call(actions.write, "middle", b" border")
        stretch = new_bytes(13)
        with address_of(stretch) as (target, nbytes):
            device.driver.copy(
                device.ordinal,
                target,
                addresses.ptr + unit - 6,
                nbytes,
                CopyKind.DEVICE_TO_HOST,
            )

        assert stretch == b"to the border"

        data = pattern(unit + 200, 7)
        with address_of(data) as (source, nbytes):
            device.driver.copy(
                device.ordinal,
                addresses.ptr + unit - 100,
                source,
                nbytes,
                CopyKind.HOST_TO_DEVICE,
            )
        device.synchronize()

        assert peer2.call(actions.read, "first", offset=unit - 100) == data[:100]
        assert peer.call(actions.read, "middle") == data[100:-100]
        assert peer.call(actions.read, "last", 100) == data[-100:]


# C2: size --------------------------------------------------------------------------------


@needs_ranges
def test_c02_a_range_is_rounded_up(device: crossmem.Device) -> None:
    unit = device.capabilities.granularity_nbytes
    for nbytes, expected in ((1, unit), (unit, unit), (unit + 1, 2 * unit), (5 * unit, 5 * unit)):
        with device.reserve(nbytes) as addresses:
            assert addresses.nbytes == expected
            assert addresses.device is device


# C7 and C8: calls of the driver, and imports of own memory --------------------------------


@needs_ranges
@pytest.mark.crossmem_core
def test_c07_the_exact_calls_of_a_ranges_life(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    peer = fresh_peer()
    peer.call(actions.import_, "i", allocate(NBYTES).export().to_bytes())
    peer.call(probes.start_journal)
    peer.call(actions.place_alone, "p", "r", "i")

    assert peer.call(probes.journal) == ["reserve", "map_at"]

    peer.call(actions.unmap, "p")

    assert peer.call(probes.journal) == ["synchronize", "unmap_at"]

    peer.call(actions.place, "p", "r", "i", at=0)
    peer.call(actions.unmap, "p")
    peer.call(actions.call, "r", "release")
    peer.call(actions.close, "i")

    assert peer.call(probes.journal) == ["map_at", "synchronize", "unmap_at", "release", "close"]


@needs_ranges
def test_c07_mapped_in_many_places_it_is_opened_once(imports: Imports, peer: Peer) -> None:
    blob = peer.call(actions.offer, "a", NBYTES, b"once")
    before = dict(actions.calls())
    # After an attach, the driver may have released a resource that only further mappings need, such
    # as a descriptor. Mappings in the range must still work.
    attached = crossmem.attach(blob, device=imports.device)
    with crossmem.import_handle(blob, device=imports.device) as imported:
        addresses = imports.range_for(imported, imported, imported)
        places = range(0, addresses.nbytes, capacity_of(imported))
        pieces = [addresses.map(imported, at=at) for at in places]
        with imported.map() as mapping:
            mapping.write(b"twice")
        attached.unmap()

        assert {piece.read(5) for piece in pieces} == {b"twice"}

        for piece in pieces:
            piece.unmap()
        with addresses.map(imported, at=0) as piece:
            assert piece.read(5) == b"twice"
    after = actions.calls()

    assert after["import_"] - before.get("import_", 0) == 1
    assert after["map"] - before.get("map", 0) == 1
    assert after["close"] - before.get("close", 0) == 1


@needs_ranges
def test_c07_mapped_again_at_the_same_address(imports: Imports, peer: Peer, peer2: Peer) -> None:
    one, two = imports.of(peer, "a", NBYTES, b"one"), imports.of(peer2, "b", NBYTES, b"two")
    addresses = imports.range_for(one)
    for memory, expected in ((one, b"one"), (two, b"two"), (one, b"one")):
        with addresses.map(memory, at=0) as piece:
            assert piece.ptr == addresses.ptr
            assert piece.read(3) == expected


@needs_ranges
def test_c08_ones_own_import_keeps_the_memory_in_a_range(
    device: crossmem.Device, tracer: TracingDriver
) -> None:
    allocation = device.allocate(NBYTES)
    allocation.write(b"kept")
    before = tracer.calls["import_"]
    imported = crossmem.import_handle(allocation.export(), device=device)
    with device.reserve(allocation.capacity) as addresses:
        with addresses.map(imported, at=0) as piece:
            allocation.free()
            crossmem.collect()

            assert piece.read(4) == b"kept"
        imported.close()

    assert tracer.calls["import_"] == before


# C9, C10 and C12: running work and other processes ----------------------------------------


@needs_ranges
@pytest.mark.parametrize("is_own", [True, False])
def test_c09_a_piece_is_unmapped_after_the_devices_work(
    allocate: Allocate, fresh_peer: FreshPeer, *, is_own: bool
) -> None:
    peer = fresh_peer()
    peer.call(actions.allocate, "own", NBYTES)
    peer.call(actions.import_, "imported", allocate(NBYTES).export().to_bytes())
    peer.call(actions.place_alone, "p", "r", "own" if is_own else "imported")
    peer.call(probes.start_journal)
    peer.call(actions.unmap, "p")

    assert peer.call(probes.journal) == ["synchronize", "unmap_at"]


@needs_ranges
def test_c10_unmapping_a_piece_disturbs_nobody(allocate: Allocate, peer: Peer, peer2: Peer) -> None:
    allocation = allocate(NBYTES, b"shared")
    for one in (peer, peer2):
        one.call(actions.import_, "i", allocation.export().to_bytes())
        one.call(actions.place_alone, "p", "r", "i")
    peer.call(actions.unmap, "p")
    peer.call(actions.call, "r", "release")

    assert peer2.call(actions.read, "p", 6) == allocation.read(6) == b"shared"


@needs_ranges
@pytest.mark.crossmem_requires("survives_owner")
def test_c12_pieces_outlive_a_killed_exporter(imports: Imports, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    imported = imports.of(exporter, "a", NBYTES, b"orphaned")
    addresses = imports.range_for(imported, imported)
    with addresses.map(imported, at=0) as before:
        exporter.kill()
        with addresses.map(imported, at=capacity_of(imported)) as after:
            after.write(b"O")

            assert before.read(8) == b"Orphaned"
