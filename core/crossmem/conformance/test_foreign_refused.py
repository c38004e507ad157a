# SPDX-License-Identifier: Apache-2.0
"""Refused adoptions, and the reports of ``how_can_share``."""

from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import Allocate, Imports
from crossmem.conformance.peers import Peer
from crossmem.conformance.strangers import MakeStranger, needs_foreign, took
from crossmem.driver import TracingDriver

pytestmark = pytest.mark.crossmem_not_of_blocks("adopted memory lies in no pool")


@needs_foreign
def test_c16_sizes_that_do_not_fit(
    stranger: MakeStranger, device: crossmem.Device, tracer: TracingDriver
) -> None:
    memory = stranger(2)
    live = tracer.live
    for at, nbytes in ((0, 0), (0, -1), (0, memory.nbytes + 1), (1, memory.nbytes), (0, 2**64)):
        with pytest.raises(crossmem.InvalidSizeError):
            memory.adopt(nbytes, at=at, neighbours="expose")
    sizes: tuple[Any, ...] = (1.5, None, "1", True)
    for size in sizes:
        with pytest.raises(crossmem.InvalidSizeError):
            device.adopt(memory.ptr, size, owner=memory)

    assert tracer.live == live


def test_c16_what_is_no_address(device: crossmem.Device, tracer: TracingDriver) -> None:
    before = dict(tracer.calls)
    addresses: tuple[Any, ...] = (0, -1, 2**63, 2**64, 1.0, None, "1", b"1", True)
    for address in addresses:
        with pytest.raises(crossmem.ConfigurationError, match="address"):
            device.adopt(address, 1, owner=device)
        with pytest.raises(crossmem.ConfigurationError, match="address"):
            crossmem.how_can_share(address, device)
    with pytest.raises(crossmem.ConfigurationError, match="owner"):
        device.adopt(4096, 1, owner=None)
    for neighbours in ("", "hide", True, 1):
        with pytest.raises(crossmem.ConfigurationError, match="neighbours"):
            device.adopt(4096, 1, owner=device, neighbours=neighbours)  # type: ignore[arg-type]
    with pytest.raises(crossmem.ConfigurationError, match="device"):
        crossmem.how_can_share(4096, None)  # type: ignore[arg-type]

    assert tracer.calls == before


def refused(device: crossmem.Device, ptr: int, nbytes: int = 1) -> str:
    """Check that the error and ``how_can_share`` give the same reason, and return the reason."""
    with pytest.raises(crossmem.UnsupportedError) as caught:
        device.adopt(ptr, nbytes, owner=device, neighbours="expose")
    (way,) = (
        one for one in crossmem.how_can_share(ptr, device).ways if one.mechanism == device.mechanism
    )

    assert way.obstacle is not None
    assert way.obstacle in str(caught.value)
    assert (way.base, way.nbytes, way.exposed_nbytes) == (0, 0, 0)
    assert caught.value.hint is not None
    assert caught.value.operation == "adopt"
    return way.obstacle


def test_c25_adopting_is_refused_where_the_backend_does_not_offer_it(
    device: crossmem.Device, capabilities: crossmem.Capabilities, tracer: TracingDriver
) -> None:
    if capabilities.foreign_memory:
        pytest.skip("the device's capability foreign_memory is true")
    before = dict(tracer.calls)
    others = [device.for_mechanism(name).capabilities for name in capabilities.mechanisms]
    # how_can_share() calls inspect() once for each mechanism with the capability foreign_memory.
    asked = {"inspect": sum(one.foreign_memory for one in others)}

    assert "foreign_memory" in refused(device, 1 << 40)
    assert took(tracer, before) == {name: count for name, count in asked.items() if count}


@needs_foreign
def test_c22_neighbours_are_not_exposed_unless_asked_for(
    stranger: MakeStranger, tracer: TracingDriver
) -> None:
    memory = stranger(2)
    live, exports = tracer.live, tracer.calls["export"]
    for at, nbytes in ((0, memory.nbytes - 1), (1, memory.nbytes - 1), (100, 1)):
        with pytest.raises(
            crossmem.UnsupportedError, match=f"{memory.nbytes - nbytes} other bytes"
        ):
            memory.adopt(nbytes, at=at)

    assert (tracer.live, tracer.calls["export"]) == (live, exports)

    memory.adopt(1, at=100, neighbours="expose").free()
    memory.adopt().free()


@needs_foreign
def test_c22_memory_that_nobody_has(stranger: MakeStranger, device: crossmem.Device) -> None:
    memory = stranger()
    address = memory.ptr
    memory.free()
    buffer = bytearray(100)

    for ptr in (address, id(buffer), 1, (1 << 63) - 1):
        assert refused(device, ptr)


def test_c22_memory_of_crossmem_is_not_adopted(
    device: crossmem.Device, allocate: Allocate, peer: Peer, tracer: TracingDriver
) -> None:
    allocation = allocate(5000)
    before = dict(tracer.calls)
    for offset in (0, 1, 4999, allocation.capacity - 1):
        assert f"allocation {allocation.export().allocation} " in refused(
            device, allocation.ptr + offset
        )

    blob = peer.call(actions.offer, "a", 5000)
    with crossmem.attach(blob, device=device) as mapping:
        for offset in (0, 4999):
            assert f"process {peer.pid}" in refused(device, mapping.ptr + offset)

    assert not {"inspect", "adopt"} & set(took(tracer, before))


def test_c22_memory_that_waits_for_leases_is_not_adopted(
    device: crossmem.Device, peer: Peer
) -> None:
    with device.allocate(5000) as allocation:
        ptr = allocation.ptr
        peer.call(actions.attach, "m", allocation.export().to_bytes())

    assert "freed" in refused(device, ptr)


@pytest.mark.crossmem_requires("address_ranges")
def test_c22_addresses_of_a_range_are_not_adopted(
    device: crossmem.Device, allocate: Allocate, imports: Imports
) -> None:
    allocation = allocate(5000)
    addresses = imports.range_for(allocation)

    assert "range" in refused(device, addresses.ptr)

    with addresses.map(allocation, at=0) as piece:
        assert "range" in refused(device, piece.ptr + 1)


@pytest.mark.crossmem_requires("address_ranges", "foreign_memory")
def test_c22_a_range_takes_no_adopted_memory(stranger: MakeStranger, imports: Imports) -> None:
    with stranger().adopt() as adopted:
        addresses = imports.range_for(adopted)
        with pytest.raises(crossmem.UnsupportedError, match="adopted"):
            addresses.map(adopted, at=0)
        with (
            crossmem.import_handle(adopted.export(), device=imports.device) as imported,
            pytest.raises(crossmem.UnsupportedError, match="adopted"),
        ):
            addresses.map(imported, at=0)


@needs_foreign
def test_c24_memory_of_another_device_is_refused(
    stranger: MakeStranger, device: crossmem.Device, tracer: TracingDriver
) -> None:
    others = [one.ordinal for one in tracer.inner.devices() if one.ordinal != device.ordinal]
    if not others:
        pytest.skip("the backend has one device")
    other = actions.device(f"{device.backend}:{others[0]}")

    assert refused(other, stranger().ptr)


@needs_foreign
def test_c25_what_applies_is_told_beforehand(
    stranger: MakeStranger, device: crossmem.Device, tracer: TracingDriver
) -> None:
    memory = stranger(2)
    before = dict(tracer.calls)
    for at in (0, 1, memory.nbytes - 1):
        report = crossmem.how_can_share(memory.ptr + at, device)

        assert (report.ptr, report.device) == (memory.ptr + at, device.name)
        assert tuple(way.mechanism for way in report.ways) == device.capabilities.mechanisms
        assert device.mechanism in report.mechanisms
        (way,) = (one for one in report.ways if one.mechanism == device.mechanism)
        assert (way.base, way.nbytes) == (memory.ptr, memory.nbytes)
        assert way.exposed_nbytes == memory.nbytes
        assert f"{device.mechanism}: yes" in str(report)

    assert set(took(tracer, before)) == {"inspect"}
