# SPDX-License-Identifier: Apache-2.0
"""Laws C3 to C5: equal handles of repeated exports, handles of parts, and unique handles."""

import pickle

import pytest

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.patterns import pattern, reforged
from crossmem.conformance.peers import Peer
from crossmem.driver import TracingDriver

NBYTES = 10_007


# C3: export repeats -----------------------------------------------------------------------


@pytest.mark.crossmem_not_of_blocks(
    "the vendor exports a whole pool, so no export belongs to one block"
)
@pytest.mark.crossmem_core
def test_c03_the_same_arguments_give_an_equal_handle(
    allocate: Allocate, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    before = tracer.calls["export"]
    first = allocation.export()
    repeats = [allocation.export() for _ in range(20)]

    assert all(one == first and hash(one) == hash(first) for one in repeats)
    assert {one.to_bytes() for one in repeats} == {first.to_bytes()}
    assert tracer.calls["export"] - before == 1


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
@pytest.mark.crossmem_core
def test_c03_the_vendor_exports_once_whoever_is_allowed(
    allocate: Allocate, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    before = tracer.calls["export"]
    everybody = allocation.export()
    some = allocation.export(allow=crossmem.Allow(pids=[1, 2]))

    assert some != everybody
    assert some == allocation.export(allow=crossmem.Allow(pids=[2, 1]))
    assert tracer.calls["export"] - before == 1


def test_c03_bytes_are_small_stable_and_come_back(allocate: Allocate) -> None:
    handles = [allocate(NBYTES).export() for _ in range(3)]
    blobs = [one.to_bytes() for one in handles]

    assert {len(blob) for blob in blobs} == {len(blobs[0])}
    assert 0 < len(blobs[0]) <= 1024
    for handle, blob in zip(handles, blobs, strict=True):
        assert handle.to_bytes() == blob

        for again in (
            crossmem.ShareableHandle.from_bytes(blob),
            pickle.loads(pickle.dumps(handle)),  # noqa: S301 - just made
        ):
            assert again == handle
            assert again.to_bytes() == blob

        assert handle.secret.hex() not in handle.to_json() + repr(handle)


# C4: parts --------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c04_three_parts_of_one_allocation(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, pattern(NBYTES, 5))
    handle = allocation.export()
    parts = {"first": (0, 100), "odd": (4097, 333), "last": (NBYTES - 1, 1)}
    for name, (offset, nbytes) in parts.items():
        peer.call(actions.attach, name, handle.slice(offset, nbytes).to_bytes())

        assert peer.call(actions.attribute, name, "nbytes") == nbytes
        assert peer.call(actions.read, name) == pattern(NBYTES, 5)[offset : offset + nbytes]

    pointers = {name: peer.call(actions.attribute, name, "ptr") for name in parts}

    assert pointers["odd"] - pointers["first"] == 4097

    peer.call(actions.write, "odd", b"here", offset=2)

    assert allocation.read(4, offset=4099) == b"here"


def test_c04_parts_of_parts(allocate: Allocate, peer: Peer) -> None:
    handle = allocate(NBYTES, pattern(NBYTES, 6)).export()
    part = crossmem.ShareableHandle.from_bytes(handle.slice(1000, 500).to_bytes()).slice(100, 50)

    assert (part.offset, part.length, part.nbytes) == (1100, 50, NBYTES)
    assert part == handle.slice(1100, 50)
    assert part != handle

    peer.call(actions.attach, "m", part)

    assert peer.call(actions.read, "m") == pattern(NBYTES, 6)[1100:1150]


def test_c04_the_exporter_checks_bounds(allocate: Allocate) -> None:
    handle = allocate(NBYTES).export()
    inner = handle.slice(100, 200)
    ranges = ((0, 0), (-1, 5), (0, -1), (NBYTES, 1), (0, NBYTES + 1), (2**64 - 1, 2), (1, NBYTES))
    for offset, nbytes in ranges:
        with pytest.raises(crossmem.InvalidSizeError):
            handle.slice(offset, nbytes)
    for offset, nbytes in ((0, 201), (200, 1), (-100, 50)):
        with pytest.raises(crossmem.InvalidSizeError):
            inner.slice(offset, nbytes)


def test_c04_the_importer_checks_bounds_of_access(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, bytes(NBYTES))
    peer.call(actions.attach, "m", allocation.export().slice(50, 10).to_bytes())
    for data, offset in ((b"x" * 11, 0), (b"x", 10), (b"x", -1), (b"xx", 9), (b"", 11)):
        with pytest.raises(crossmem.InvalidSizeError):
            peer.call(actions.write, "m", data, offset=offset)
    for nbytes, offset in ((11, 0), (1, 10), (1, -1), (-1, 0), (None, 11)):
        with pytest.raises(crossmem.InvalidSizeError):
            peer.call(actions.read, "m", nbytes, offset=offset)

    assert allocation.read() == bytes(NBYTES)


@pytest.mark.crossmem_requires("host_visible")
def test_c04_a_view_ends_with_its_part(allocate: Allocate) -> None:
    handle = allocate(NBYTES, pattern(NBYTES, 8)).export()
    with crossmem.attach(handle.slice(10, 20)) as mapping, mapping.view() as view:
        assert bytes(view) == pattern(NBYTES, 8)[10:30]


@pytest.mark.crossmem_core
def test_c04_the_importer_checks_bounds_of_the_handle(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES)
    blob = allocation.export().to_bytes()
    beyond = allocation.capacity
    before = peer.call(actions.calls)
    # Each forged handle has a valid checksum, and names a part that is empty or exceeds the memory.
    for offset, length in ((0, NBYTES + 1), (NBYTES, 1), (beyond, 1), (2**64 - 1, 2), (0, 0)):
        with pytest.raises(crossmem.InvalidHandleError):
            peer.call(actions.attach, "m", reforged(blob, part=(offset, length)))

    assert peer.call(actions.calls) == before


# C5: unique -------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c05_handles_differ_though_addresses_repeat(device: crossmem.Device) -> None:
    handles = []
    for _ in range(30):
        with device.allocate(NBYTES) as allocation:
            handles.append(allocation.export())

    assert len({one.to_bytes() for one in handles}) == 30
    assert len(set(handles)) == 30
    if blocks.are_used():
        return
    assert len({one.allocation for one in handles}) == 30
    assert len({one.secret for one in handles}) == 30


def test_c05_handles_of_live_allocations_lead_each_to_its_own(
    allocate: Allocate, peer: Peer
) -> None:
    blobs = [allocate(64, b"number %d" % index).export().to_bytes() for index in range(8)]
    names = [f"m{index}" for index in range(8)]
    peer.call(actions.attach_many, names, blobs)
    for index, name in enumerate(names):
        assert peer.call(actions.read, name, 8) == b"number %d" % index


def test_c05_two_exporters_never_make_the_same_handle(fresh_peer: FreshPeer, peer: Peer) -> None:
    # In both exporters, the next allocation has the number 1. Their addresses can be equal, too.
    one, two = fresh_peer(), fresh_peer()
    for each in (one, two):
        each.call(actions.number_from, 1)
    blobs = [each.call(actions.offer, "a", 64, text) for each, text in ((one, b"1"), (two, b"2"))]
    handles = [crossmem.ShareableHandle.from_bytes(blob) for blob in blobs]

    assert handles[0].allocation == handles[1].allocation
    assert handles[0] != handles[1]

    peer.call(actions.attach_many, "ab", blobs)

    assert [peer.call(actions.read, name, 1) for name in "ab"] == [b"1", b"2"]

    peer.call(actions.unmap, "a", "b")
