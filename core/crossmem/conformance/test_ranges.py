# SPDX-License-Identifier: Apache-2.0
"""Addresses reserved first and given memory later keep the laws, as all other mappings do."""

from dataclasses import replace
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions, probes
from crossmem.conformance.harness import Allocate, FreshPeer, Imports, capacity_of
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.driver import CopyKind, TracingDriver
from crossmem.driver.buffers import address_of, new_bytes

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
    # Not in the order of their addresses, and from two processes.
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


# C2 and C16: size, and what does not fit --------------------------------------------------


@needs_ranges
def test_c02_a_range_is_rounded_up(device: crossmem.Device) -> None:
    unit = device.capabilities.granularity_nbytes
    for nbytes, expected in ((1, unit), (unit, unit), (unit + 1, 2 * unit), (5 * unit, 5 * unit)):
        with device.reserve(nbytes) as addresses:
            assert addresses.nbytes == expected
            assert addresses.device is device


@needs_ranges
@pytest.mark.parametrize("nbytes", [0, -1, 2**63, 2**64, True, 1.0, "1", None])
def test_c16_sizes_that_no_range_has(
    device: crossmem.Device, tracer: TracingDriver, nbytes: Any
) -> None:
    before = dict(tracer.calls)
    with pytest.raises(crossmem.InvalidSizeError):
        device.reserve(nbytes)

    assert tracer.calls == before


@needs_ranges
def test_c16_places_that_do_not_fit(
    allocate: Allocate, imports: Imports, tracer: TracingDriver
) -> None:
    unit = imports.device.capabilities.granularity_nbytes
    small, large = allocate(1), allocate(2 * unit)
    addresses = imports.device.reserve(4 * unit)
    with addresses, addresses.map(large, at=unit):
        before = dict(tracer.calls)
        for at in (1, unit - 1, -unit, 4 * unit, 2**64, True, 0.0, None):
            with pytest.raises(crossmem.InvalidSizeError):
                addresses.map(small, at=at)  # type: ignore[arg-type]
        with pytest.raises(crossmem.InvalidSizeError):
            addresses.map(large, at=3 * unit)
        for memory, at in ((small, unit), (small, 2 * unit), (large, 0), (large, 2 * unit)):
            with pytest.raises(crossmem.BusyError):
                addresses.map(memory, at=at)

        assert tracer.calls == before

        # What was refused counts nowhere, and what fits between does fit.
        with addresses.map(small, at=0), addresses.map(small, at=3 * unit):
            pass
        small.free(busy="raise")


@needs_ranges
def test_c16_only_allocations_and_imports_are_mapped(
    allocate: Allocate, imports: Imports, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    addresses = imports.range_for(allocation)
    before = dict(tracer.calls)
    with crossmem.attach(allocation.export(), device=imports.device) as mapping:
        for one in (mapping, allocation.export(), None, allocation.ptr):
            with pytest.raises(crossmem.ConfigurationError, match="Allocation"):
                addresses.map(one, at=0)  # type: ignore[arg-type]

    assert tracer.calls["map_at"] == before.get("map_at", 0)


@needs_ranges
@pytest.mark.parametrize("method", ["reserve", "map_at"])
@pytest.mark.crossmem_core
def test_c16_a_failed_call_for_a_range_leaves_nothing(fresh_peer: FreshPeer, method: str) -> None:
    peer = fresh_peer()
    peer.call(actions.offer, "a", NBYTES, b"next")
    before = peer.call(actions.live)
    peer.call(probes.fail_once, method)
    with pytest.raises(crossmem.DriverError, match="EIO"):
        peer.call(actions.place_alone, "p", "r", "a")
    if method == "map_at":
        peer.call(actions.call, "r", "release")

    assert peer.call(actions.live) == before

    peer.call(actions.place_alone, "p", "r", "a")

    assert peer.call(actions.read, "p", 4) == b"next"


@needs_ranges
def test_c16_a_failed_piece_does_not_decide_what_the_range_takes(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    peer = fresh_peer()
    peer.call(actions.allocate, "a", NBYTES)
    peer.call(actions.import_, "i", allocate(NBYTES, b"lent").export().to_bytes())
    peer.call(actions.reserve, "r", NBYTES)
    peer.call(probes.fail_once, "map_at")
    with pytest.raises(crossmem.DriverError):
        peer.call(actions.place, "p", "r", "a", at=0)
    peer.call(actions.place, "p", "r", "i", at=0)

    assert peer.call(actions.read, "p", 4) == b"lent"


# C4, C22, C24 and C25: what a range takes -------------------------------------------------


@needs_ranges
def test_c04_a_part_is_not_mapped_alone(
    imports: Imports, peer: Peer, tracer: TracingDriver
) -> None:
    whole = imports.of(peer, "a", NBYTES, b"0123456789")
    addresses = imports.range_for(whole)
    before = tracer.calls["map_at"]
    for offset, nbytes in ((0, NBYTES - 1), (1, NBYTES - 1), (5, 1)):
        part = whole.handle.slice(offset, nbytes)
        with (
            crossmem.import_handle(part, device=imports.device) as imported,
            pytest.raises(crossmem.UnsupportedError, match="whole"),
        ):
            addresses.map(imported, at=0)

    assert tracer.calls["map_at"] == before

    same = whole.handle.slice(0, NBYTES)
    with (
        crossmem.import_handle(same, device=imports.device) as imported,
        addresses.map(imported, at=0) as piece,
    ):
        assert piece.read(5, offset=5) == b"56789"


@needs_ranges
@pytest.mark.parametrize("own_first", [True, False])
def test_c22_own_and_imported_memory_do_not_share_a_range(
    allocate: Allocate, imports: Imports, peer: Peer, tracer: TracingDriver, *, own_first: bool
) -> None:
    own, imported = allocate(NBYTES), imports.of(peer, "a", NBYTES)
    first, second = (own, imported) if own_first else (imported, own)
    addresses = imports.range_for(first, second)
    at = capacity_of(first)
    with addresses.map(first, at=0), pytest.raises(crossmem.UnsupportedError, match="first"):
        addresses.map(second, at=at)
    # The vendor may have bound the addresses for good.
    with pytest.raises(crossmem.UnsupportedError, match="first"):
        addresses.map(second, at=0)
    # An import of one's own memory is that memory.
    with crossmem.import_handle(own.export(), device=imports.device) as local:
        if own_first:
            with addresses.map(local, at=0), addresses.map(own, at=at) as piece:
                piece.write(b"same")

                assert own.read(4) == b"same"
        else:
            with pytest.raises(crossmem.UnsupportedError, match="first"):
                addresses.map(local, at=0)

    assert tracer.violations == []


@needs_ranges
def test_c24_a_range_takes_memory_of_its_device_only(
    imports: Imports, peer: Peer, tracer: TracingDriver
) -> None:
    device = imports.device
    others = [one for one in tracer.inner.devices() if one.ordinal != device.ordinal]
    if not others:
        pytest.skip("there is no other device")
    other = actions.device(f"{device.backend}:{others[0].ordinal}")
    addresses = imports.range_for(imports.of(peer, "a", NBYTES))
    before = tracer.calls["map_at"]
    refused = pytest.raises(crossmem.UnsupportedError, match=f"range of {device.name}")
    with other.allocate(NBYTES) as elsewhere, refused:
        addresses.map(elsewhere, at=0)
    if device.capabilities.peer_access:
        blob = peer.call(actions.offer, "b", NBYTES, spec=other.name)
        with crossmem.import_handle(blob, device=device) as imported, refused:
            addresses.map(imported, at=0)
        blob = peer.call(actions.export, "a")
        with crossmem.import_handle(blob, device=other) as imported, refused:
            addresses.map(imported, at=0)

    assert tracer.calls["map_at"] == before


@pytest.mark.crossmem_core
def test_c25_without_the_capability_nothing_is_reserved(
    device: crossmem.Device, tracer: TracingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = replace(device.capabilities, address_ranges=False)
    monkeypatch.setattr(device, "capabilities", without)
    before = dict(tracer.calls)
    with pytest.raises(crossmem.UnsupportedError, match="address_ranges"):
        device.reserve(NBYTES)

    assert tracer.calls == before


# C7 and C8: counted -----------------------------------------------------------------------


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
    # This mapping alone could let go of what a further one of its kind needs.
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
