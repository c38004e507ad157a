# SPDX-License-Identifier: Apache-2.0
"""Releases that are refused are finished later, and imports of what is still open are honest."""

from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import ascend_fault_actions, ascend_release_actions
    from tests.integration.conftest import StartNpuPeer, StartPeer
else:
    import ascend_fault_actions
    import ascend_release_actions

pytestmark = pytest.mark.ci

MECHANISMS = ("shareable", "key")
NBYTES = 5000
FREE = {"shareable": "free_physical", "key": "free"}


def violations(peer: Peer) -> int:
    number: int = peer.call(ascend_fault_actions.held)["violations"]
    return number


def leases(peer: Peer) -> list[int]:
    return [len(one.leases) for one in peer.call(actions.exports)]


# Raw handles --------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_raw_handle_comes_back_to_its_exporter(
    start_npu_peer: "StartNpuPeer", mechanism: str
) -> None:
    exporter, importer = start_npu_peer(mechanism), start_npu_peer(mechanism)
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data", lease=False)
    for peer in (exporter, importer):
        peer.call(actions.attach, "mapping", blob)
        assert peer.call(actions.read, "mapping", 4) == b"data"
    exporter.call(actions.write, "mapping", b"DATA")

    assert importer.call(actions.read, "mapping", 4) == b"DATA"
    forged = exporter.call(ascend_release_actions.forge, blob)
    with pytest.raises(crossmem.InvalidHandleError):
        exporter.call(actions.attach, "forged", forged)
    with pytest.raises(crossmem.BusyError):
        exporter.call(actions.free, "memory", busy="raise")

    for peer in (importer, exporter):
        peer.call(actions.unmap, "mapping")
    with pytest.raises(crossmem.InvalidHandleError):
        exporter.call(actions.attach, "forged", forged)
    exporter.call(actions.free, "memory", busy="raise")
    with pytest.raises(crossmem.StaleHandleError):
        exporter.call(actions.attach, "mapping", blob)
    assert violations(exporter) == 0


@pytest.mark.parametrize("first", ["raw", "leased"])
def test_raw_and_leased_imports_of_one_memory_are_two(start_peer: "StartPeer", first: str) -> None:
    owner, importer = start_peer(tracing=False), start_peer(tracing=False)
    for peer in (owner, importer):
        peer.call(ascend_release_actions.use_both_kinds)
    leased = owner.call(actions.offer, "memory", NBYTES, b"data")
    raw = owner.call(actions.export, "memory", lease=False)
    blobs = {"raw": raw, "leased": leased}
    for name in sorted(blobs, reverse=first == "raw"):
        importer.call(actions.attach, name, blobs[name])
        assert importer.call(actions.read, name, 4) == b"data"

    # What protects the leased one does not depend on what was there before.
    assert leases(owner) == [1]
    importer.call(actions.unmap, "leased")
    assert owner.call(actions.free, "memory", busy="wait") is None
    importer.call(actions.unmap, "raw")


# Freeing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_memory_is_not_taken_from_running_work(
    start_npu_peer: "StartNpuPeer", mechanism: str
) -> None:
    peer = start_npu_peer(mechanism, CROSSMEM_EMULATED_SLOW_STREAMS="1")
    peer.call(actions.allocate, "memory", NBYTES)
    peer.call(ascend_release_actions.begin_copy, "memory")
    peer.call(actions.free, "memory")

    assert violations(peer) == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_deferred_release_that_is_refused_is_nobody_s_error_and_not_lost(
    start_npu_peer: "StartNpuPeer", mechanism: str
) -> None:
    peer = start_npu_peer(mechanism)
    peer.call(actions.allocate, "dropped", NBYTES)
    peer.call(ascend_release_actions.fail, f"rt.{FREE[mechanism]}", count=99)
    peer.call(actions.drop, "dropped")
    peer.call(actions.allocate, "other", NBYTES)

    assert peer.call(ascend_release_actions.owned) == 2
    peer.call(ascend_release_actions.mend)
    peer.call(actions.collect)
    assert peer.call(ascend_release_actions.owned) == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_deferred_release_that_breaks_is_nobody_s_error_and_made_once(
    start_npu_peer: "StartNpuPeer", mechanism: str
) -> None:
    peer = start_npu_peer(mechanism)
    peer.call(actions.allocate, "dropped", NBYTES)
    peer.call(ascend_release_actions.break_, FREE[mechanism])
    peer.call(actions.drop, "dropped")
    peer.call(actions.allocate, "other", NBYTES)

    # Nobody knows whether it happened, and a second call could free the memory of others.
    assert peer.call(ascend_release_actions.owned) == 1
    peer.call(ascend_release_actions.mend)
    peer.call(actions.collect)
    assert peer.call(ascend_release_actions.owned) == 1


# Closing ------------------------------------------------------------------------------------


def test_memory_whose_close_is_refused_is_not_opened_twice(start_npu_peer: "StartNpuPeer") -> None:
    exporter, importer = start_npu_peer("shareable"), start_npu_peer("shareable")
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    importer.call(actions.import_, "import", blob)
    importer.call(ascend_release_actions.fail, "rt.free_physical", count=99)
    with pytest.raises(crossmem.DriverError):
        importer.call(actions.close, "import")
    # It is asked for again, and refused.
    with pytest.raises(crossmem.BusyError, match="close the previous import") as raised:
        importer.call(actions.import_, "import", blob)
    assert "collect" in (raised.value.hint or "")
    # The lease lasts as long as what it protects is open.
    assert leases(exporter) == [1]

    importer.call(ascend_release_actions.mend)
    importer.call(actions.attach, "mapping", blob)
    assert importer.call(actions.read, "mapping", 4) == b"data"
    importer.call(actions.unmap, "mapping")
    assert violations(exporter) == 0
    exporter.call(actions.free, "memory", busy="wait")


def test_undoing_a_batch_reaches_every_import(start_npu_peer: "StartNpuPeer") -> None:
    exporter, importer = start_npu_peer("shareable"), start_npu_peer("shareable")
    names = ["first", "second", "third"]
    blobs = [exporter.call(actions.offer, name, NBYTES, b"data") for name in names]
    # What is opened once for the process stays.
    importer.call(actions.allocate, "own", 1)
    before = importer.call(ascend_fault_actions.held)
    importer.call(ascend_release_actions.fail, "rt.mem_import_from_shareable_handle", skip=1)
    importer.call(ascend_release_actions.fail, "rt.free_physical")
    with pytest.raises(crossmem.DriverError, match="mem_import_from_shareable_handle"):
        importer.call(actions.attach_many, names, blobs)
    # Nobody uses it, and the vendor refused to close it: the next call does.
    assert importer.call(ascend_release_actions.users) == [0]

    importer.call(actions.attach_many, names, blobs)
    importer.call(actions.unmap, *names)
    importer.call(actions.collect)
    assert importer.call(ascend_release_actions.users) == []
    for name in names:
        exporter.call(actions.free, name, busy="wait", timeout=5 * SLOWNESS)
    assert {**importer.call(ascend_fault_actions.held), "used": before["used"]} == before
