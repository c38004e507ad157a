# SPDX-License-Identifier: Apache-2.0
"""Law C16: impossible requests are refused, and leave nothing behind."""

import re
from collections import Counter
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions, probes, resources
from crossmem.conformance.blocks import close_pools
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver

NBYTES = 5000
NOTHING = dict.fromkeys(
    (
        "blocks",
        "exports",
        "imports",
        "mappings",
        "ranges",
        "streams",
        "registrations",
        "events",
        "vendor queues",
        "vendor buffers",
    ),
    0,
)


@pytest.mark.parametrize("nbytes", [0, -1, -(2**63), 2**63, 2**64, True, 1.0, "1", None])
def test_c16_sizes_that_are_none(
    device: crossmem.Device, tracer: TracingDriver, nbytes: Any
) -> None:
    before = dict(tracer.calls)
    with pytest.raises(crossmem.InvalidSizeError):
        device.allocate(nbytes)

    assert tracer.calls == before


def test_c16_more_than_the_device_can_ever_give(
    device: crossmem.Device, capabilities: crossmem.Capabilities, tracer: TracingDriver
) -> None:
    before = dict(tracer.calls)
    limit = capabilities.max_allocation_nbytes
    with pytest.raises(crossmem.InvalidSizeError, match=str(limit)):
        device.allocate(limit + 1)

    assert tracer.calls == before


def fill(device: crossmem.Device) -> tuple[list[crossmem.Allocation], crossmem.OutOfMemoryError]:
    """Allocate the largest size until a call fails; return the allocations and the error."""
    held: list[crossmem.Allocation] = []
    nbytes = device.capabilities.max_allocation_nbytes
    for _ in range(1000):
        try:
            held.append(device.allocate(nbytes))
        except crossmem.OutOfMemoryError as error:
            return held, error
    raise AssertionError(f"{device} allocated {nbytes} bytes a thousand times")


def largest(device: crossmem.Device) -> int:
    """Halve the largest allowed size until it can be allocated; return the resulting size."""
    nbytes = device.capabilities.max_allocation_nbytes
    while True:
        try:
            device.allocate(nbytes).free()
        except crossmem.OutOfMemoryError:
            nbytes //= 2
        else:
            return nbytes


@pytest.mark.crossmem_core
def test_c16_a_full_device_gives_nothing_and_recovers(
    device: crossmem.Device, tracer: TracingDriver
) -> None:
    live = tracer.live
    held, error = fill(device)
    try:
        assert isinstance(error, MemoryError)
        assert tracer.live["blocks"] == live["blocks"] + len(held)
    finally:
        for one in held:
            one.free()

    assert tracer.live == live
    # The sum of the following allocations exceeds the memory of the device, so the allocations
    # succeed only if freed memory is used again.
    nbytes = largest(device) // 2
    # With --crossmem-blocks, an open pool keeps the memory of its freed blocks. Blocks of another
    # size cannot use this memory.
    close_pools()
    for _ in range(4 * len(held) + 5):
        device.allocate(nbytes).free()
    close_pools()
    again, _ = fill(device)
    for one in again:
        one.free()

    assert len(again) == len(held)


@pytest.mark.crossmem_not_of_blocks("law P5 has the rules for an exhausted pool")
def test_c16_out_of_memory_says_what_waits_on_leases(device: crossmem.Device, peer: Peer) -> None:
    waiting = device.allocate(NBYTES)
    capacity = waiting.capacity
    peer.call(actions.attach, "m", waiting.export().to_bytes())
    waiting.free()
    held, error = fill(device)
    for one in held:
        one.free()

    assert re.search(rf"\b{capacity} bytes in 1 ", str(error)), error
    assert "exports()" in (error.hint or "")

    peer.call(actions.unmap, "m")

    assert settle(lambda: ["waits" for one in crossmem.exports() if one.waiting]) == []

    held, error = fill(device)
    for one in held:
        one.free()

    assert re.search(r"\b0 bytes in 0 ", str(error)), error


@pytest.mark.crossmem_not_of_blocks(
    "the vendor exports a whole pool, so no export belongs to one block"
)
@pytest.mark.parametrize("method", ["allocate", "export"])
@pytest.mark.crossmem_core
def test_c16_a_failed_call_of_the_exporter_leaves_nothing(
    fresh_peer: FreshPeer, peer: Peer, method: str
) -> None:
    owner = fresh_peer()
    owner.call(probes.fail_once, method)
    with pytest.raises(crossmem.DriverError, match="EIO") as caught:
        owner.call(actions.offer, "a", NBYTES)

    assert (caught.value.call, caught.value.code, caught.value.name) == (method, 5, "EIO")

    left = owner.call(actions.state)["live"]

    assert left == NOTHING | {"blocks": int(method == "export")}

    # The next call of the method succeeds.
    blob = owner.call(actions.offer, "b", NBYTES, b"next")
    peer.call(actions.attach, "m", blob)

    assert peer.call(actions.read, "m", 4) == b"next"

    if method == "export":
        assert owner.call(actions.export, "a")
    peer.call(actions.unmap, "m")


def new_descriptors(of: Peer, before: dict[str, Any]) -> list[str]:
    now: list[str] = of.call(actions.state)["descriptors"]
    return list((Counter(now) - Counter(before["descriptors"])).elements())


@pytest.mark.parametrize("method", ["import_", "map"])
@pytest.mark.crossmem_core
def test_c16_a_failed_call_of_the_importer_leaves_nothing(
    allocate: Allocate, fresh_peer: FreshPeer, method: str
) -> None:
    importer = fresh_peer()
    blob = allocate(NBYTES, b"next").export().to_bytes()
    importer.call(actions.attach, "connected", blob)
    importer.call(actions.unmap, "connected")
    before = importer.call(actions.state)
    importer.call(probes.fail_once, method)
    with pytest.raises(crossmem.DriverError, match="EIO"):
        importer.call(actions.attach, "m", blob)

    assert importer.call(actions.state)["live"] == NOTHING
    # Other threads of the importer close the descriptors of the failed call, so the test waits.
    assert settle(lambda: new_descriptors(importer, before)) == []
    assert settle(lambda: held_but(0)) == []

    importer.call(actions.attach, "m", blob)

    assert importer.call(actions.read, "m", 4) == b"next"

    importer.call(actions.unmap, "m")


@pytest.mark.crossmem_not_of_blocks(
    "the vendor opens a pool as a whole, so vendor calls cannot be counted for one block"
)
@pytest.mark.parametrize("method", ["import_", "map"])
def test_c16_a_failure_in_a_batch_leaves_nothing(
    allocate: Allocate, fresh_peer: FreshPeer, method: str
) -> None:
    importer = fresh_peer()
    blobs = [allocate(NBYTES, b"%d" % number).export().to_bytes() for number in range(4)]
    importer.call(actions.attach, "m", blobs[0])
    importer.call(probes.fail_once, method)
    with pytest.raises(crossmem.DriverError):
        importer.call(actions.attach_many, "abcd", blobs)

    assert importer.call(actions.live) == NOTHING | {"imports": 1, "mappings": 1}
    assert importer.call(actions.read, "m", 1) == b"0"
    assert settle(lambda: held_but(1)) == []

    importer.call(actions.attach_many, "abcd", blobs)

    assert [importer.call(actions.read, name, 1) for name in "abcd"] == [b"0", b"1", b"2", b"3"]


def held_but(count: int) -> list[str]:
    """Return a complaint, or an empty list if all exports together have ``count`` leases."""
    given = sum(len(one.leases) for one in crossmem.exports())
    return [] if given == count else [f"{given} leases"]


@pytest.mark.crossmem_not_of_blocks(
    "the vendor opens a pool as a whole, so vendor calls cannot be counted for one block"
)
def test_c16_a_batch_makes_one_open_for_each_allocation(allocate: Allocate, peer: Peer) -> None:
    assert crossmem.attach_many([]) == []

    handles = [allocate(64, b"%03d" % number).export() for number in range(100)]
    names = [f"m{number}" for number in range(200)]
    before = peer.call(actions.calls)
    peer.call(actions.attach_many, names, [one.to_bytes() for one in handles * 2])
    after = peer.call(actions.calls)

    assert after["import_"] - before.get("import_", 0) == 100
    assert after["map"] - before.get("map", 0) == 100
    assert peer.call(actions.read, "m142", 3) == b"042"


def test_c16_ranges_of_ones_own_memory(allocate: Allocate) -> None:
    allocation = allocate(NBYTES, bytes(NBYTES))
    for offset in (-1, NBYTES, NBYTES + 1, 2**64, 1.5, None):
        with pytest.raises(crossmem.InvalidSizeError):
            allocation.write(b"x", offset=offset)  # type: ignore[arg-type]
    for nbytes, offset in ((NBYTES + 1, 0), (2, NBYTES - 1), (-1, 0), (2**64, 0), ("1", 0)):
        with pytest.raises(crossmem.InvalidSizeError):
            allocation.read(nbytes, offset=offset)  # type: ignore[arg-type]

    assert allocation.read() == bytes(NBYTES)


def test_c16_ranges_of_copies_on_the_device(allocate: Allocate, tracer: TracingDriver) -> None:
    small, large = allocate(100, bytes(100)), allocate(200, bytes(200))
    before = dict(tracer.calls)
    large.copy_from(small, nbytes=0, offset=200, source_offset=100)
    refused: tuple[tuple[Any, Any, Any], ...] = (
        (101, 0, 0),
        (100, 101, 0),
        (1, 0, 100),
        (1, -1, 0),
        (1, 0, -1),
        (-1, 0, 0),
        (2**64, 0, 0),
        (1.0, 0, 0),
        (None, 101, 0),
        (None, 0, -1),
        (None, 0, None),
    )
    for nbytes, offset, source_offset in refused:
        with pytest.raises(crossmem.InvalidSizeError):
            large.copy_from(small, nbytes=nbytes, offset=offset, source_offset=source_offset)
    with pytest.raises(crossmem.InvalidSizeError):
        small.copy_from(large)
    with pytest.raises(crossmem.ConfigurationError, match="write"):
        small.copy_from(b"host bytes")  # type: ignore[arg-type]

    assert tracer.calls == before


def test_c16_no_descriptor_is_kept_for_a_mapping(allocate: Allocate, peer: Peer) -> None:
    handles = [allocate(64).export() for _ in range(20)]
    peer.call(actions.attach, "first", handles[0])
    before = len(peer.call(resources.descriptors))
    peer.call(actions.attach_many, [f"m{number}" for number in range(20)], handles)
    for number in range(200):
        peer.call(actions.attach, f"part{number}", handles[number % 20].slice(number % 20, 1))

    assert len(peer.call(resources.descriptors)) <= before
