# SPDX-License-Identifier: Apache-2.0
"""Law C6: a handle of freed memory cannot open memory."""

import pytest

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.harness import Allocate
from crossmem.conformance.peers import Peer

NBYTES = 5000


@pytest.mark.crossmem_core
def test_c06_a_first_import_of_freed_memory(device: crossmem.Device, peer: Peer) -> None:
    with device.allocate(NBYTES) as allocation:
        handle = allocation.export()
    before = peer.call(actions.calls)
    for blob in (handle.to_bytes(), handle.slice(10, 10).to_bytes()):
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(actions.import_, "i", blob)
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(actions.attach, "m", blob)

    # The import of a freed allocation is refused before the driver opens anything. If the tests use
    # blocks of pools, the peer may open the whole pool before the import of the block is refused.
    assert blocks.are_used() or peer.call(actions.calls) == before


def test_c06_free_makes_stale_while_others_still_hold(
    device: crossmem.Device, peer: Peer, peer2: Peer
) -> None:
    allocation = device.allocate(NBYTES)
    blob = allocation.export().to_bytes()
    peer.call(actions.attach, "m", blob)
    allocation.free()
    with pytest.raises(crossmem.StaleHandleError):
        peer2.call(actions.attach, "m", blob)

    # A former holder is refused like a new importer.
    peer.call(actions.unmap, "m")
    with pytest.raises(crossmem.StaleHandleError):
        peer.call(actions.attach, "m", blob)


@pytest.mark.crossmem_core
def test_c06_memory_at_the_same_address_is_other_memory(
    device: crossmem.Device, peer: Peer
) -> None:
    old: list[bytes] = []
    for round_ in range(10):
        with device.allocate(NBYTES) as allocation:
            allocation.write(b"round %d" % round_)
            blob = allocation.export().to_bytes()
            peer.call(actions.attach, "m", blob)

            assert peer.call(actions.read, "m", 7) == b"round %d" % round_

            for earlier in old:
                with pytest.raises(crossmem.StaleHandleError):
                    peer.call(actions.attach, "other", earlier)
            peer.call(actions.unmap, "m")
            old.append(blob)


def test_c06_deferred_memory_at_the_same_address(device: crossmem.Device, peer: Peer) -> None:
    first = device.allocate(NBYTES)
    first.write(b"first")
    blob = first.export().to_bytes()
    peer.call(actions.attach, "held", blob)
    first.free()
    with device.allocate(NBYTES) as second:
        second.write(b"other")

        assert peer.call(actions.read, "held", 5) == b"first"

        peer.call(actions.unmap, "held")
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(actions.attach, "m", blob)


def test_c06_in_the_exporting_process_too(device: crossmem.Device) -> None:
    with device.allocate(NBYTES) as allocation:
        handle = allocation.export()
    with pytest.raises(crossmem.StaleHandleError):
        crossmem.attach(handle)
    with pytest.raises(crossmem.StaleHandleError):
        crossmem.import_handle(handle.to_bytes())


def test_c06_one_stale_handle_spoils_the_batch(allocate: Allocate, peer: Peer) -> None:
    good = allocate(NBYTES, b"good").export().to_bytes()
    gone = allocate(NBYTES)
    stale = gone.export().to_bytes()
    gone.free()
    with pytest.raises(crossmem.StaleHandleError):
        peer.call(actions.attach_many, "abc", [good, stale, good])

    assert not any(peer.call(actions.live).values())

    peer.call(actions.attach, "m", good)

    assert peer.call(actions.read, "m", 4) == b"good"
