# SPDX-License-Identifier: Apache-2.0
"""Importers die, exporters die, and some only stand still: laws C11, C12 and C26."""

import time

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.forks import sleeping_child
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver

_SOON_S = 1.0
"""What the laws promise."""
_NBYTES = 4096

each_way_to_fork = pytest.mark.parametrize("with_handlers", [True, False], ids=["fork", "raw-fork"])


def _leases_of(blob: bytes) -> list[int]:
    """Return the pids of those who hold an export of this process."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    return [
        lease.pid for info in crossmem.exports() if info.handle == handle for lease in info.leases
    ]


def _wait_until_free(allocation: crossmem.Allocation) -> float:
    """Wait until nobody leases the memory and free it; return how long that took, in seconds."""
    start = time.monotonic()
    allocation.free(busy="wait", timeout=10)
    return time.monotonic() - start


# C11 ----------------------------------------------------------------------------------------


def test_c11_killing_an_importer_ends_its_leases(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    blob = allocate(_NBYTES).export().to_bytes()
    importer = fresh_peer()
    importer.call(actions.attach, "mapped", blob)
    importer.call(actions.import_, "imported", blob)
    assert _leases_of(blob) == [importer.pid]

    importer.kill()

    assert settle(lambda: _leases_of(blob), within=_SOON_S) == []


def test_c11_a_waiting_exporter_hears_of_the_death(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    allocation = allocate(_NBYTES)
    exporter, importer = fresh_peer(), fresh_peer()
    importer.call(actions.attach, "mapped", exporter.call(actions.offer, "memory", _NBYTES))
    importer.call(actions.attach, "mine", allocation.export().to_bytes())
    # Nobody asks whether the importer lives while these two wait.
    waiting = exporter.start(actions.free, "memory", busy="wait", timeout=15)
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy="wait", timeout=0.05)
    assert not waiting.is_done()

    importer.kill()

    waiting.result(_SOON_S)
    assert _wait_until_free(allocation) < _SOON_S


@each_way_to_fork
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

    assert _wait_until_free(allocation) < _SOON_S


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

    def left() -> list[int]:
        crossmem.collect()
        return [tracer.live["blocks"]] if tracer.live["blocks"] > before else []

    assert settle(left, within=_SOON_S) == []


def test_c11_others_keep_their_leases_when_one_importer_is_killed(
    allocate: Allocate, peer: Peer, fresh_peer: FreshPeer
) -> None:
    blob = allocate(_NBYTES, b"kept").export().to_bytes()
    importer = fresh_peer()
    for one in (peer, importer):
        one.call(actions.attach, "mapped", blob)

    importer.kill()

    assert settle(lambda: set(_leases_of(blob)) ^ {peer.pid}, within=_SOON_S) == set()
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

    assert _wait_until_free(allocation) < _SOON_S


# C12 ----------------------------------------------------------------------------------------


@each_way_to_fork
def test_c12_a_killed_exporter_is_seen_to_be_dead(
    fresh_peer: FreshPeer, *, with_handlers: bool
) -> None:
    exporter = fresh_peer()
    blob, other = (exporter.call(actions.offer, name, _NBYTES, b"data") for name in "ab")
    with crossmem.attach(blob) as mapping, crossmem.import_handle(blob) as imported:
        assert mapping.owner_alive
        assert imported.owner_alive
        exporter.call(sleeping_child, with_handlers=with_handlers)

        exporter.kill()

        dead = settle(lambda: ["alive"] if mapping.owner_alive else [], within=_SOON_S)
        assert dead == []
        assert not imported.owner_alive
        start = time.monotonic()
        with pytest.raises(crossmem.OwnerGoneError, match=str(exporter.pid)):
            crossmem.attach(other)
        assert time.monotonic() - start < _SOON_S


@each_way_to_fork
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
    assert time.monotonic() - start < _SOON_S


@each_way_to_fork
def test_c12_an_import_under_way_ends_when_the_exporter_is_killed(
    peer: Peer, fresh_peer: FreshPeer, *, with_handlers: bool
) -> None:
    exporter = fresh_peer()
    met, unmet = (exporter.call(actions.offer, name, _NBYTES) for name in "ab")
    peer.call(actions.attach, "mapped", met)
    exporter.call(sleeping_child, with_handlers=with_handlers)
    exporter.stop()
    waiting = peer.start(actions.attach, "never", unmet, timeout=15)
    # Long enough for it to be waiting; the law holds just the same where it is not yet.
    settle(lambda: [] if waiting.is_done() else ["waiting"], within=0.1)
    assert not waiting.is_done()

    exporter.kill()

    with pytest.raises(crossmem.OwnerGoneError):
        waiting.result(_SOON_S)
    peer.call(actions.unmap, "mapped")


@pytest.mark.crossmem_requires("survives_owner")
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


# C26 ----------------------------------------------------------------------------------------


def test_c26_a_stopped_exporter_is_waited_for_as_long_as_was_said(fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    met, unmet = (exporter.call(actions.offer, name, _NBYTES, b"data") for name in "ab")
    with crossmem.attach(met) as mapping:
        exporter.stop()
        for attempt in (
            lambda: crossmem.attach(unmet, timeout=0.3),
            lambda: crossmem.import_handle(unmet, timeout=0.3),
            lambda: crossmem.attach_many([unmet, met], timeout=0.3),
        ):
            start = time.monotonic()
            with pytest.raises(crossmem.OwnerUnresponsiveError, match=str(exporter.pid)):
                attempt()
            assert 0.3 <= time.monotonic() - start < 0.3 + _SOON_S

        # What is imported already needs nobody, and stopped is not dead.
        assert mapping.owner_alive
        assert mapping.read(4) == b"data"
        crossmem.attach(met, timeout=0.3).unmap()


def test_c26_one_who_never_met_the_exporter_waits_no_longer(fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    exporter.stop()

    start = time.monotonic()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        crossmem.attach(blob, timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 0.3 + _SOON_S


def test_c26_the_environment_gives_the_default(fresh_peer: FreshPeer) -> None:
    exporter, importer = fresh_peer(), fresh_peer(CROSSMEM_TIMEOUT="0.3")
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    exporter.stop()

    start = time.monotonic()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        importer.call(actions.attach, "never", blob)
    assert 0.3 <= time.monotonic() - start < 0.3 + _SOON_S


def test_c26_an_exporter_that_goes_on_answers_and_lost_nothing(fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    met, unmet = (exporter.call(actions.offer, name, _NBYTES, b"data") for name in "ab")
    with crossmem.attach(met):
        exporter.stop()
        with pytest.raises(crossmem.OwnerUnresponsiveError):
            crossmem.attach(unmet, timeout=0.1)
        exporter.cont()

        with crossmem.attach(unmet, timeout=10) as mapping:
            assert mapping.read(4) == b"data"
            # What it granted to the request that nobody waits for any more was taken back.
            leases = [len(info.leases) for info in exporter.call(actions.exports)]
            assert leases == [1, 1]
    exporter.call(actions.free, "a", busy="wait", timeout=5)
    exporter.call(actions.free, "b", busy="wait", timeout=5)
    assert exporter.call(actions.live)["blocks"] == 0


def test_c26_a_busy_exporter_answers(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES, b"data")
    working = exporter.start(actions.busy, 2.0)

    for _ in range(3):
        peer.call(actions.attach, "mapped", blob, timeout=2.0)
        assert peer.call(actions.read, "mapped", 4) == b"data"
        peer.call(actions.unmap, "mapped")

    assert not working.is_done()
    working.result()


def test_c26_a_stopped_exporter_holds_up_no_import_from_another(
    peer: Peer, fresh_peer: FreshPeer
) -> None:
    stopped, importer = fresh_peer(), fresh_peer()
    never = stopped.call(actions.offer, "memory", _NBYTES)
    blob = peer.call(actions.offer, "memory", _NBYTES)
    stopped.stop()

    found = importer.call(actions.in_threads, 2, _attach_one_of, [never, blob])

    assert isinstance(found[0][0], crossmem.OwnerUnresponsiveError)
    assert found[1][0] is None
    assert found[1][1] < found[0][1]


def _attach_one_of(number: int, blobs: list[bytes]) -> tuple[Exception | None, float]:
    start = time.monotonic()
    try:
        crossmem.attach(blobs[number], timeout=1.0).unmap()
    except crossmem.CrossmemError as error:
        return error, time.monotonic() - start
    return None, time.monotonic() - start


def test_c26_all_or_nothing_where_one_exporter_of_several_is_stopped(
    allocate: Allocate, peer: Peer, fresh_peer: FreshPeer
) -> None:
    stopped = fresh_peer()
    blobs = [
        allocate(_NBYTES).export().to_bytes(),
        peer.call(actions.offer, "memory", _NBYTES),
        stopped.call(actions.offer, "memory", _NBYTES),
    ]
    stopped.stop()

    with pytest.raises(crossmem.OwnerUnresponsiveError):
        crossmem.attach_many(blobs, timeout=0.3)

    assert _leases_of(blobs[0]) == []
    peer.call(actions.free, "memory", busy="wait", timeout=5)


def test_c26_waiting_for_leases_ends_when_the_time_is_over(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(_NBYTES)
    peer.call(actions.attach, "mapped", allocation.export().to_bytes())

    start = time.monotonic()
    with pytest.raises(crossmem.BusyError, match=str(peer.pid)):
        allocation.free(busy="wait", timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 0.3 + _SOON_S

    peer.call(actions.unmap, "mapped")
    allocation.free(busy="raise")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_c26_a_timeout_is_a_positive_number_of_seconds(peer: Peer, timeout: float) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    for attempt in (crossmem.attach, crossmem.import_handle):
        with pytest.raises(crossmem.ConfigurationError, match="timeout"):
            attempt(blob, timeout=timeout)


@pytest.mark.parametrize("timeout", [float("inf"), 1e12, 10**7])
def test_c26_a_timeout_may_be_longer_than_anybody_waits(peer: Peer, timeout: float) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, b"data")

    with crossmem.attach(blob, timeout=timeout) as mapping:
        assert mapping.read(4) == b"data"
