# SPDX-License-Identifier: Apache-2.0
"""Laws C11 and C12: deaths of importers and of exporters."""

import time

import pytest

import crossmem
from crossmem.conformance import actions, blocks, resources
from crossmem.conformance.forks import sleeping_child
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.driver import TracingDriver

_NBYTES = 4096

each_way_to_fork = pytest.mark.parametrize("with_handlers", [True, False], ids=["fork", "raw-fork"])


def _holders_of(blob: bytes) -> list[str]:
    """Return the pids of the holders of an export of this process."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    return [
        str(lease.pid)
        for info in crossmem.exports()
        if info.handle == handle
        for lease in info.leases
    ]


def _others_than(peer: Peer, blob: bytes) -> list[str]:
    return sorted({*_holders_of(blob)} ^ {str(peer.pid)})


def _wait_until_free(allocation: crossmem.Allocation) -> float:
    """Wait until memory has no lease, and free the memory. Return the duration in seconds."""
    start = time.monotonic()
    allocation.free(busy="wait", timeout=2 * SOON_S)
    return time.monotonic() - start


# C11 ----------------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c11_killing_an_importer_ends_its_leases(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    blob = allocate(_NBYTES).export().to_bytes()
    importer = fresh_peer()
    importer.call(actions.attach, "mapped", blob)
    importer.call(actions.import_, "imported", blob)
    assert _holders_of(blob) == [str(importer.pid)]

    importer.kill()

    assert settle(lambda: _holders_of(blob)) == []


def test_c11_a_waiting_exporter_hears_of_the_death(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    allocation = allocate(_NBYTES)
    exporter, importer = fresh_peer(), fresh_peer()
    importer.call(actions.attach, "mapped", exporter.call(actions.offer, "memory", _NBYTES))
    importer.call(actions.attach, "mine", allocation.export().to_bytes())
    # This process and the peer ``exporter`` both export to the importer. In each of these two
    # processes, only the waiting free() can notice the importer's death, because no other call of
    # crossmem runs.
    waiting = exporter.start(actions.free, "memory", busy="wait", timeout=2 * SOON_S)
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy="wait", timeout=0.05)
    assert not waiting.is_done()

    importer.kill()

    waiting.result(SOON_S)
    assert _wait_until_free(allocation) < SOON_S


@each_way_to_fork
@pytest.mark.crossmem_core
def test_c11_even_where_a_forked_child_of_it_lives_on(
    allocate: Allocate, fresh_peer: FreshPeer, *, with_handlers: bool
) -> None:
    allocation = allocate(_NBYTES)
    blob = allocation.export().to_bytes()
    importer = fresh_peer()
    importer.call(actions.attach, "mapped", blob)
    importer.call(actions.import_, "imported", blob)
    importer.call(sleeping_child, with_handlers=with_handlers)

    importer.kill()

    assert _wait_until_free(allocation) < SOON_S


def test_c11_memory_that_was_freed_comes_back_when_its_last_importer_is_killed(
    allocate: Allocate, fresh_peer: FreshPeer, tracer: TracingDriver
) -> None:
    before = tracer.live["blocks"]
    allocation = allocate(_NBYTES)
    importers = [fresh_peer(), fresh_peer()]
    for importer in importers:
        importer.call(actions.attach, "mapped", allocation.export().to_bytes())
    allocation.free()
    importers[0].kill()
    crossmem.collect()
    assert tracer.live["blocks"] == before + 1

    importers[1].kill()

    def left() -> list[str]:
        crossmem.collect()
        return ["a block"] * (tracer.live["blocks"] - before)

    assert settle(left) == []


def test_c11_others_keep_their_leases_when_one_importer_is_killed(
    allocate: Allocate, peer: Peer, fresh_peer: FreshPeer
) -> None:
    blob = allocate(_NBYTES, b"kept").export().to_bytes()
    importer = fresh_peer()
    for one in (peer, importer):
        one.call(actions.attach, "mapped", blob)

    importer.kill()

    assert settle(lambda: _others_than(peer, blob)) == []
    assert peer.call(actions.read, "mapped", 4) == b"kept"


def test_c11_a_stopped_importer_keeps_its_leases_until_it_is_killed(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    allocation = allocate(_NBYTES)
    importer = fresh_peer()
    importer.call(actions.attach, "mapped", allocation.export().to_bytes())
    importer.stop()

    with pytest.raises(crossmem.BusyError, match=str(importer.pid)):
        allocation.free(busy="raise")
    with pytest.raises(crossmem.BusyError, match=str(importer.pid)):
        allocation.free(busy="wait", timeout=0.2)
    importer.kill()

    assert _wait_until_free(allocation) < SOON_S


# C12 ----------------------------------------------------------------------------------------


def _alive(held: crossmem.Mapping | crossmem.Import) -> list[str]:
    return ["alive"] if held.owner_alive else []


@each_way_to_fork
@pytest.mark.crossmem_core
def test_c12_a_killed_exporter_is_seen_to_be_dead(
    fresh_peer: FreshPeer, *, with_handlers: bool
) -> None:
    exporter = fresh_peer()
    blob, other = (exporter.call(actions.offer, name, _NBYTES, b"data") for name in "ab")
    with crossmem.attach(blob) as mapping, crossmem.import_handle(blob) as imported:
        assert _alive(mapping) == _alive(imported) == ["alive"]
        exporter.call(sleeping_child, with_handlers=with_handlers)

        exporter.kill()

        assert settle(lambda: _alive(mapping)) == []
        assert _alive(imported) == []
        start = time.monotonic()
        if blocks.are_used():
            # If attach() attaches a further block of an open pool, it checks whether the owner
            # lives, but only if the last such check was at least half a second ago. So without the
            # sleep, attach() could still succeed.
            time.sleep(0.5)
        with pytest.raises(crossmem.OwnerGoneError, match=str(exporter.pid)):
            crossmem.attach(other)
        assert time.monotonic() - start < SOON_S


@each_way_to_fork
@pytest.mark.crossmem_core
def test_c12_whoever_never_met_the_exporter_hears_at_once_that_it_is_dead(
    fresh_peer: FreshPeer, *, with_handlers: bool
) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    exporter.call(sleeping_child, with_handlers=with_handlers)
    exporter.kill()

    start = time.monotonic()
    for attempt in (
        lambda: crossmem.attach(blob),
        lambda: crossmem.import_handle(blob),
        lambda: crossmem.attach_many([blob]),
    ):
        with pytest.raises(crossmem.OwnerGoneError, match=str(exporter.pid)):
            attempt()
    assert time.monotonic() - start < SOON_S


@pytest.mark.crossmem_not_of_blocks(
    "attaching a further block of a pool sends no request to the owner"
)
@each_way_to_fork
def test_c12_an_import_under_way_ends_when_the_exporter_is_killed(
    peer: Peer, fresh_peer: FreshPeer, *, with_handlers: bool
) -> None:
    exporter = fresh_peer()
    met, unmet = (exporter.call(actions.offer, name, _NBYTES) for name in "ab")
    peer.call(actions.attach, "mapped", met)
    exporter.call(sleeping_child, with_handlers=with_handlers)
    exporter.stop()
    waiting = peer.start(actions.attach, "never", unmet, timeout=2 * SOON_S)
    # The exporter must die while attach() waits. This pause lets attach() begin its wait.
    settle(lambda: [] if waiting.is_done() else ["waiting"], within=0.1)
    assert not waiting.is_done()

    exporter.kill()

    with pytest.raises(crossmem.OwnerGoneError):
        waiting.result(SOON_S)
    peer.call(actions.unmap, "mapped")


@pytest.mark.crossmem_requires("survives_owner")
@pytest.mark.crossmem_core
def test_c12_importers_keep_the_memory_of_a_killed_exporter(
    peer: Peer, fresh_peer: FreshPeer
) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES, b"outlives")
    peer.call(actions.attach, "mapped", blob)
    exporter.kill()

    with pytest.raises(crossmem.OwnerGoneError):
        crossmem.attach(blob)
    assert peer.call(actions.read, "mapped", 8) == b"outlives"
    peer.call(actions.write, "mapped", b"changed!")
    assert peer.call(actions.read, "mapped", 8) == b"changed!"


def test_c12_what_a_dead_exporter_left_can_be_given_back(
    fresh_peer: FreshPeer, tracer: TracingDriver
) -> None:
    before = tracer.live
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    imported, mapping = crossmem.import_handle(blob), crossmem.attach(blob)
    second = imported.map()
    exporter.kill()

    second.unmap()
    mapping.unmap()
    imported.close()

    assert tracer.live == before


@pytest.mark.crossmem_core
def test_c12_no_file_of_a_killed_exporter_is_left(fresh_peer: FreshPeer) -> None:
    def share(exporter: Peer, importer: Peer) -> set[resources.NamedFile]:
        blob = exporter.call(actions.offer, "memory", _NBYTES)
        importer.call(actions.attach, "mapped", blob)
        files = [one.call(resources.named_files) for one in (exporter, importer)]
        return set.union(*files)

    # Files that another exporter and importer also use belong to the backend as a whole. The test
    # ignores these files.
    known = share(fresh_peer(), fresh_peer())
    exporter, importer = fresh_peer(), fresh_peer()
    named = share(exporter, importer) - known
    exporter.kill()
    importer.kill()

    # If a backend keeps memory in files, the next allocation of any process removes the files of
    # dead processes.
    user = fresh_peer()
    user.call(actions.allocate, "next", _NBYTES)
    user.call(actions.free, "next")

    assert settle(lambda: resources.remaining(named)) == []
