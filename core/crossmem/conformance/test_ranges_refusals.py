# SPDX-License-Identifier: Apache-2.0
"""Address ranges refuse wrong requests before any driver call. A failed request has no effect."""

from dataclasses import replace
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions, probes
from crossmem.conformance.harness import Allocate, FreshPeer, Imports, capacity_of
from crossmem.conformance.peers import Peer
from crossmem.driver import TracingDriver

pytestmark = pytest.mark.crossmem_not_of_blocks("address ranges map only whole allocations")

NBYTES = 5000

needs_ranges = pytest.mark.crossmem_requires("address_ranges")


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

        # A refused request occupies no addresses, so a request that fits still succeeds.
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
    # The first piece was own memory or imported memory. Even after the unmap of this piece, the
    # range accepts only memory of the same kind.
    with pytest.raises(crossmem.UnsupportedError, match="first"):
        addresses.map(second, at=0)
    # An import of this process's own memory counts as own memory.
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
