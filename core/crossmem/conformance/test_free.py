# SPDX-License-Identifier: Apache-2.0
"""Laws C9 and C27: freeing takes no memory from importers; freed memory is released promptly."""

import time
from typing import Literal

import pytest

import crossmem
from crossmem.conformance import actions, probes
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.driver import TracingDriver

NBYTES = 5000

WAYS: tuple[Literal["defer", "raise", "wait"], ...] = ("defer", "raise", "wait")


def reports(allocation_number: int) -> list[crossmem.ExportInfo]:
    """Return the entries of :func:`crossmem.exports` for one allocation."""
    return [one for one in crossmem.exports() if one.handle.allocation == allocation_number]


@pytest.mark.crossmem_core
def test_c09_free_defers_until_the_lease_ends(
    device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    allocation = device.allocate(NBYTES)
    allocation.write(b"deferred")
    handle = allocation.export()
    peer.call(actions.attach, "m", handle.to_bytes())
    before = tracer.live["blocks"]
    allocation.free()
    crossmem.collect()
    (report,) = reports(handle.allocation)

    assert report.waiting
    assert [one.pid for one in report.leases] == [peer.pid]
    assert tracer.live["blocks"] == before
    assert peer.call(actions.read, "m", 8) == b"deferred"

    peer.call(actions.write, "m", b"still")

    assert peer.call(actions.read, "m", 8) == b"stillred"

    peer.call(actions.unmap, "m")

    assert settle(lambda: ["waits"] * len(reports(handle.allocation))) == []
    assert settle(lambda: ["lives"] * (tracer.live["blocks"] - before + 1)) == []


def test_c09_deferred_memory_is_freed_by_any_later_call(
    device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    allocation = device.allocate(NBYTES)
    peer.call(actions.attach, "m", allocation.export().to_bytes())
    before = tracer.live["blocks"]
    with allocation:
        pass
    peer.call(actions.unmap, "m")

    def still_there() -> list[str]:
        device.allocate(1).free()
        return [] if tracer.live["blocks"] == before - 1 else ["not freed"]

    assert settle(still_there) == []


def test_c09_collect_says_how_much_it_freed(device: crossmem.Device, peer: Peer) -> None:
    allocations = [device.allocate(NBYTES) for _ in range(3)]
    for number, allocation in enumerate(allocations):
        peer.call(actions.attach, f"m{number}", allocation.export().to_bytes())
        allocation.free()

    assert crossmem.collect() == 0

    peer.call(actions.unmap, "m0", "m1", "m2")

    def what_waits() -> list[str]:
        # The reaper may have freed some of the memory already (C27).
        assert 0 <= crossmem.collect() <= 3
        return [str(one) for one in crossmem.exports() if one.waiting]

    assert settle(what_waits) == []


def test_c09_raise_changes_nothing(device: crossmem.Device, peer: Peer, peer2: Peer) -> None:
    allocation = device.allocate(NBYTES)
    blob = allocation.export().to_bytes()
    peer.call(actions.attach, "m", blob)
    with pytest.raises(crossmem.BusyError, match=str(peer.pid)):
        allocation.free(busy="raise")

    assert not allocation.closed

    allocation.write(b"on")
    peer2.call(actions.attach, "m", blob)

    assert peer2.call(actions.read, "m", 2) == b"on"

    peer.call(actions.unmap, "m")
    peer2.call(actions.unmap, "m")

    assert settle(lambda: ["leased"] * sum(len(one.leases) for one in crossmem.exports())) == []

    allocation.free(busy="raise")

    assert allocation.closed


@pytest.mark.crossmem_core
def test_c09_wait_waits_for_the_last_lease(peer: Peer, peer2: Peer) -> None:
    blob = peer.call(actions.offer, "a", NBYTES)
    peer2.call(actions.attach, "m", blob)
    peer2.call(actions.attach, "n", blob)
    freeing = peer.start(actions.free, "a", busy="wait", timeout=15)
    peer2.call(actions.unmap, "m")
    time.sleep(0.2)

    assert not freeing.is_done()

    peer2.call(actions.unmap, "n")
    freeing.result()

    assert peer.call(actions.attribute, "a", "closed")
    assert peer.call(actions.live)["blocks"] == 0


def test_c09_wait_gives_up_in_time_and_changes_nothing(
    device: crossmem.Device, peer: Peer, peer2: Peer
) -> None:
    allocation = device.allocate(NBYTES)
    blob = allocation.export().to_bytes()
    peer.call(actions.attach, "m", blob)
    start = time.monotonic()
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy="wait", timeout=0.3)

    assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S
    assert not allocation.closed

    peer2.call(actions.attach, "m", blob)
    for one in (peer, peer2):
        one.call(actions.unmap, "m")
    allocation.free(busy="wait")


def test_c09_whoever_imports_while_it_is_freed_has_it_or_has_not(
    device: crossmem.Device, peer: Peer
) -> None:
    for round_ in range(40):
        allocation = device.allocate(NBYTES)
        allocation.write(b"whole")
        blob = allocation.export().to_bytes()
        attaching = peer.start(actions.attach, "m", blob)
        time.sleep(round_ % 8 * 0.0002)
        freed = True
        try:
            allocation.free(busy="raise")
        except crossmem.BusyError:
            freed = False
        try:
            attaching.result()
        except crossmem.StaleHandleError:
            assert freed
            continue

        assert not freed
        assert peer.call(actions.read, "m", 5) == b"whole"

        peer.call(actions.unmap, "m")
        allocation.free(busy="wait")


@pytest.mark.crossmem_not_of_blocks(
    "the vendor maps a whole pool, so no mapping belongs to one block"
)
@pytest.mark.crossmem_core
def test_c09_the_importers_device_is_synchronised_before_unmapping(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    blob = allocate(NBYTES).export().to_bytes()
    importer = fresh_peer()
    importer.call(probes.start_journal)
    importer.call(actions.attach, "m", blob)
    importer.call(actions.unmap, "m")
    importer.call(actions.import_, "i", blob)
    importer.call(actions.map_, "m", "i")
    importer.call(actions.unmap, "m")
    importer.call(actions.map_, "dropped", "i")
    importer.call(actions.drop, "m", "dropped")
    importer.call(actions.collect)
    journal = importer.call(probes.journal)
    before_unmap = [journal[at - 1] for at, name in enumerate(journal) if name == "unmap"]

    assert before_unmap == ["synchronize"] * 3


def test_c09_dropped_memory_is_kept_for_importers(
    device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    allocation = device.allocate(NBYTES)
    allocation.write(b"dropped")
    peer.call(actions.attach, "m", allocation.export().to_bytes())
    before = tracer.live["blocks"]
    with pytest.warns(ResourceWarning, match="without free"):
        del allocation
    crossmem.collect()

    assert peer.call(actions.read, "m", 7) == b"dropped"
    assert tracer.live["blocks"] == before

    peer.call(actions.unmap, "m")

    def still_there() -> list[str]:
        return [] if tracer.live["blocks"] < before else [f"{crossmem.collect()}"]

    assert settle(still_there) == []


def test_c09_memory_that_nobody_holds_is_freed_at_once(
    device: crossmem.Device, tracer: TracingDriver
) -> None:
    before = tracer.live["blocks"]
    for busy in WAYS:
        for exported in (False, True):
            allocation = device.allocate(NBYTES)
            assert tracer.live["blocks"] == before + 1
            if exported:
                allocation.export()
            allocation.free(busy=busy)
            assert tracer.live["blocks"] == before


def test_c09_an_unknown_way_to_free_is_refused(allocate: Allocate) -> None:
    allocation = allocate(NBYTES)
    with pytest.raises(crossmem.ConfigurationError, match="never"):
        allocation.free(busy="never")  # type: ignore[arg-type]

    assert not allocation.closed


@pytest.mark.crossmem_not_of_blocks(
    "if importers held a freed block, the exporter's next call of crossmem returns it to the pool"
)
@pytest.mark.crossmem_core
def test_c27_freed_memory_goes_back_though_its_exporter_sleeps(
    device: crossmem.Device, peer: Peer
) -> None:
    blob = peer.call(actions.offer, "sleeps", NBYTES, b"prompt")
    mapping = crossmem.attach(blob, device=device)
    peer.call(actions.keep_tracer, "driver")

    def count_frees() -> int:
        # Each call of crossmem releases freed memory. Reading this attribute does not call
        # crossmem, so only the reaper can release the memory.
        return int(peer.call(actions.attribute, "driver", "calls")["free"])

    before = count_frees()
    peer.call(actions.free, "sleeps")
    assert count_frees() == before
    mapping.unmap()
    assert settle(lambda: [] if count_frees() > before else ["not freed"]) == []
    assert count_frees() == before + 1
