# SPDX-License-Identifier: Apache-2.0
"""Law C10: importers do not depend on each other."""

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer

NBYTES = 5000


@pytest.mark.crossmem_core
def test_c10_closing_affects_nobody_else(allocate: Allocate, peer: Peer, peer2: Peer) -> None:
    allocation = allocate(NBYTES, b"common")
    blob = allocation.export().to_bytes()
    for one in (peer, peer2):
        one.call(actions.attach, "m", blob)
    peer.call(actions.unmap, "m")

    assert peer2.call(actions.read, "m", 6) == b"common"

    peer2.call(actions.write, "m", b"C")

    assert allocation.read(6) == b"Common"

    # The lease of ``peer2`` stays.
    with pytest.raises(crossmem.BusyError, match=str(peer2.pid)):
        allocation.free(busy="raise")

    peer.call(actions.attach, "m", blob)

    assert peer.call(actions.read, "m", 6) == b"Common"


def test_c10_within_one_process_too(allocate: Allocate, peer: Peer) -> None:
    handle = allocate(NBYTES, b"0123456789").export()
    peer.call(actions.attach, "whole", handle)
    peer.call(actions.attach, "part", handle.slice(3, 4))
    peer.call(actions.import_, "i", handle)
    peer.call(actions.map_, "m", "i")
    peer.call(actions.unmap, "whole")

    assert peer.call(actions.read, "part") == b"3456"

    peer.call(actions.unmap, "part")

    assert peer.call(actions.read, "m", 10) == b"0123456789"


def test_c10_an_importers_exit_affects_nobody_else(
    allocate: Allocate, fresh_peer: FreshPeer, peer: Peer
) -> None:
    allocation = allocate(NBYTES, b"common")
    blob = allocation.export().to_bytes()
    leaving = fresh_peer()
    for one in (leaving, peer):
        one.call(actions.attach, "m", blob)
    leaving.exit()

    assert peer.call(actions.read, "m", 6) == b"common"

    allocation.write(b"C")

    assert peer.call(actions.read, "m", 6) == b"Common"


def test_c10_a_forwarded_handle_is_the_exporters(
    allocate: Allocate, peer: Peer, peer2: Peer
) -> None:
    blob = allocate(NBYTES, b"forwarded").export().to_bytes()
    peer.call(actions.attach, "m", blob)
    forwarded = peer.call(actions.attribute, "m", "handle")
    peer2.call(actions.attach, "m", forwarded)
    peer.call(actions.unmap, "m")

    assert forwarded.to_bytes() == blob
    assert peer2.call(actions.read, "m", 9) == b"forwarded"


def test_c10_eight_importers_at_once(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    allocation = allocate(NBYTES, bytes(8))
    blob = allocation.export().to_bytes()
    peers = [fresh_peer(tracing=False) for _ in range(8)]
    for attaching in [one.start(actions.attach, "m", blob) for one in peers]:
        attaching.result()
    handle = crossmem.ShareableHandle.from_bytes(blob)
    (report,) = [one for one in crossmem.exports() if one.handle == handle]

    assert sorted(one.pid for one in report.leases) == sorted(one.pid for one in peers)

    for number, one in enumerate(peers):
        one.call(actions.write, "m", b"x", offset=number)
        one.call(actions.unmap, "m")

    assert allocation.read(8) == b"x" * 8
