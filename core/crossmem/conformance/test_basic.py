# SPDX-License-Identifier: Apache-2.0
"""Laws C1 and C2: processes read each other's writes, and memory has the requested size."""

from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.harness import Allocate
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.driver.buffers import address_of
from crossmem.sharing.exporter.allocation import record_of

NBYTES = 10_007


# C1: visible ------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c01_bytes_go_both_ways(allocate: Allocate, peer: Peer) -> None:
    first, second = pattern(NBYTES, 1), pattern(NBYTES // 2, 99)
    allocation = allocate(NBYTES, first)
    peer.call(actions.attach, "m", allocation.export().to_bytes())

    assert peer.call(actions.read, "m") == first

    peer.call(actions.write, "m", second)
    allocation.device.synchronize()

    assert allocation.read() == second + first[len(second) :]


@pytest.mark.crossmem_core
def test_c01_two_importers_see_each_other(allocate: Allocate, peer: Peer, peer2: Peer) -> None:
    blob = allocate(NBYTES, bytes(NBYTES)).export().to_bytes()
    for one in (peer, peer2):
        one.call(actions.attach, "m", blob)
    peer.call(actions.write, "m", b"from one", offset=4000)

    assert peer2.call(actions.read, "m", 10, offset=3999) == b"\0from one\0"


def test_c01_odd_ranges_and_the_last_byte(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, pattern(NBYTES, 3))
    peer.call(actions.attach, "m", allocation.export().to_bytes())
    for offset, nbytes in ((1, 3), (4095, 4099), (NBYTES - 1, 1), (NBYTES, 0)):
        expected = pattern(NBYTES, 3)[offset : offset + nbytes]

        assert peer.call(actions.read, "m", nbytes, offset=offset) == expected

    peer.call(actions.write, "m", b"!", offset=NBYTES - 1)

    assert allocation.read(2, offset=NBYTES - 2) == pattern(NBYTES, 3)[-2:-1] + b"!"


@pytest.mark.crossmem_requires("host_visible")
def test_c01_a_view_is_the_memory_itself(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, bytes(NBYTES))
    blob = allocation.export().to_bytes()
    peer.call(actions.attach, "m", blob)
    peer.call(actions.call, "m", "view", keep="v")
    allocation.write(b"later", offset=77)

    assert peer.call(actions.call, "v", "__getitem__", 77) == ord("l")

    peer.call(actions.call, "v", "__setitem__", NBYTES - 1, 200)
    with allocation.view() as view:
        assert (view.nbytes, view[NBYTES - 1], view.readonly) == (NBYTES, 200, False)


def test_c01_a_host_invisible_device_refuses_views(allocate: Allocate) -> None:
    allocation = allocate(NBYTES)
    if allocation.device.capabilities.host_visible:
        allocation.view().release()
        return
    with pytest.raises(crossmem.UnsupportedError):
        allocation.view()


def test_c01_every_form_of_a_handle_works(allocate: Allocate, peer: Peer) -> None:
    handle = allocate(NBYTES, b"forms").export()
    blob = handle.to_bytes()
    peer.call(actions.attach_many, "abc", [handle, blob, bytearray(blob)])

    assert [peer.call(actions.read, name, 5) for name in "abc"] == [b"forms"] * 3


def copy_between(target: str, source: str, **options: Any) -> None:
    """Copy from one named object to another."""
    actions.objects[target].copy_from(actions.objects[source], **options)


def test_c01_copies_on_the_device_go_both_ways(allocate: Allocate, peer: Peer) -> None:
    data = pattern(NBYTES, 5)
    allocation = allocate(NBYTES, data)
    peer.call(actions.attach, "m", allocation.export().to_bytes())
    peer.call(actions.allocate, "a", 2 * NBYTES)
    peer.call(copy_between, "a", "m", offset=NBYTES)

    assert peer.call(actions.read, "a", offset=NBYTES) == data

    peer.call(actions.write, "a", b"back again")
    peer.call(copy_between, "m", "a", nbytes=5, offset=NBYTES - 5, source_offset=5)

    assert allocation.read() == data[:-5] + b"again"


def test_c01_copies_between_two_mappings(allocate: Allocate, peer: Peer) -> None:
    source, target = allocate(NBYTES, pattern(NBYTES, 6)), allocate(NBYTES, bytes(NBYTES))
    blobs = [one.export().to_bytes() for one in (source, target)]
    peer.call(actions.attach_many, ["s", "t"], blobs)
    peer.call(copy_between, "t", "s", nbytes=NBYTES - 4097, offset=1, source_offset=4096)

    expected = pattern(NBYTES, 6)[4096:-1]

    assert target.read() == b"\0" + expected + bytes(4096)


def test_c01_copies_within_one_allocation(allocate: Allocate) -> None:
    allocation = allocate(NBYTES, b"0123456789")
    allocation.copy_from(allocation, nbytes=10, offset=NBYTES - 10)

    assert allocation.read(10, offset=NBYTES - 10) == b"0123456789"


@pytest.mark.crossmem_not_of_blocks("the driver knows whole pools, not their blocks")
@pytest.mark.crossmem_core
def test_c01_importers_see_what_a_driver_filled(allocate: Allocate, peer: Peer) -> None:
    data, lead = pattern(30 * NBYTES, 11), 4097
    allocation = allocate(len(data) + 2 * lead)
    block = record_of(allocation).memory.block
    with address_of(data) as (address, nbytes):
        # A driver may have one method for few bytes and another for many, so this test fills ranges
        # of three sizes.
        for start, end in ((lead, nbytes), (1, lead), (0, 1)):
            allocation.device.driver.fill(block, lead + start, address + start, end - start)
    allocation.device.synchronize()
    peer.call(actions.attach, "m", allocation.export().to_bytes())

    assert peer.call(actions.read, "m", len(data), offset=lead) == data
    assert allocation.read(len(data), offset=lead) == data


# C2: size ---------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c02_nbytes_as_asked_and_capacity_rounded_up(
    allocate: Allocate, capabilities: crossmem.Capabilities, peer: Peer
) -> None:
    unit = capabilities.granularity_nbytes
    for nbytes in (1, unit - 1, unit, unit + 1, 3 * unit + 7):
        allocation = allocate(nbytes)
        handle = allocation.export()
        capacity = -(-nbytes // unit) * unit
        if blocks.are_used():
            # Each allocation is a block of a pool here. The capacity of a block is not rounded to
            # the granularity.
            capacity = allocation.capacity
            assert nbytes <= capacity

        assert (allocation.nbytes, allocation.capacity) == (nbytes, capacity)

        peer.call(actions.attach, "m", handle.to_bytes())
        travelled = peer.call(actions.attribute, "m", "handle")

        assert (travelled.nbytes, travelled.capacity) == (nbytes, capacity)
        assert peer.call(actions.attribute, "m", "nbytes") == nbytes

        peer.call(actions.write, "m", b"z", offset=nbytes - 1)

        assert allocation.read(1, offset=nbytes - 1) == b"z"

        # The bytes between the size and the capacity exist, but the API refuses access to them.
        with pytest.raises(crossmem.InvalidSizeError):
            peer.call(actions.write, "m", b"z", offset=nbytes)
        with pytest.raises(crossmem.InvalidSizeError):
            allocation.read(1, offset=nbytes)
        peer.call(actions.unmap, "m")


def test_c02_more_than_four_gigabytes(
    device: crossmem.Device, capabilities: crossmem.Capabilities, peer: Peer
) -> None:
    nbytes = (4 << 30) + 4099
    if nbytes > capabilities.max_allocation_nbytes:
        pytest.skip(f"the device allocates at most {capabilities.max_allocation_nbytes} bytes")
    try:
        allocation = device.allocate(nbytes)
    except crossmem.OutOfMemoryError as error:
        pytest.skip(f"the device has no room: {error.message}")
    with allocation:
        allocation.write(b"end", offset=nbytes - 3)
        part = allocation.export().slice(nbytes - 5, 5)
        peer.call(actions.attach, "m", part.to_bytes())

        assert peer.call(actions.read, "m", offset=2) == b"end"

        peer.call(actions.unmap, "m")
