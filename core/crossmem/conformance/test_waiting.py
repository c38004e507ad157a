# SPDX-License-Identifier: Apache-2.0
"""Law C26: waits for stopped processes end at their timeouts, and busy processes answer."""

import time

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S

_NBYTES = 4096


@pytest.mark.crossmem_not_of_blocks(
    "attaching a further block of a pool sends no request to the owner"
)
@pytest.mark.crossmem_core
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
            assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S

        # A stopped exporter counts as alive. This process already holds ``met``, so attaching
        # ``met`` again needs no reply from the exporter.
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
    assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S


def test_c26_the_environment_gives_the_default(fresh_peer: FreshPeer) -> None:
    exporter, importer = fresh_peer(), fresh_peer(CROSSMEM_TIMEOUT="0.3")
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    exporter.stop()

    start = time.monotonic()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        importer.call(actions.attach, "never", blob)
    assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S


@pytest.mark.crossmem_not_of_blocks(
    "attaching a further block of a pool sends no request to the owner"
)
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
            # Each export has one lease. So the request that timed out has left no lease behind.
            leases = [len(info.leases) for info in exporter.call(actions.exports)]
            assert leases == [1, 1]
    exporter.call(actions.free, "a", busy="wait", timeout=5)
    exporter.call(actions.free, "b", busy="wait", timeout=5)
    assert exporter.call(actions.live)["blocks"] == 0


def test_c26_a_busy_exporter_answers(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES, b"data")
    # The exporter is still busy when the test ends. The fixture then kills it.
    working = exporter.start(actions.busy, 30.0)

    for _ in range(3):
        peer.call(actions.attach, "mapped", blob, timeout=9.0)
        assert peer.call(actions.read, "mapped", 4) == b"data"
        peer.call(actions.unmap, "mapped")

    assert not working.is_done()


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
        actions.attach(f"mapping{number}", blobs[number], timeout=3.0)
        actions.unmap(f"mapping{number}")
    except crossmem.CrossmemError as error:
        return error, time.monotonic() - start
    return None, time.monotonic() - start


@pytest.mark.crossmem_not_of_blocks(
    "attaching a further block of a pool sends no request to the owner"
)
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

    assert all(info.leases == () for info in crossmem.exports())
    peer.call(actions.free, "memory", busy="wait", timeout=5)


@pytest.mark.crossmem_core
def test_c26_waiting_for_leases_ends_when_the_time_is_over(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(_NBYTES)
    peer.call(actions.attach, "mapped", allocation.export().to_bytes())

    start = time.monotonic()
    with pytest.raises(crossmem.BusyError, match=str(peer.pid)):
        allocation.free(busy="wait", timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 0.3 + SOON_S

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
