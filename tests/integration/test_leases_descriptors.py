# SPDX-License-Identifier: Apache-2.0
"""Processes that run out of descriptors: a typed error that names the limit, and no more harm."""

import errno
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, forks, resources
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import lease_actions
    from tests.integration.conftest import StartPeer
else:
    import lease_actions

NBYTES = 4096
ENOUGH = 12


def names_the_limit(error: crossmem.CrossmemError) -> bool:
    assert isinstance(error, crossmem.DriverError), error
    assert error.name == "EMFILE", error
    return bool(re.search(r"\blimit\b.*\d+|\d+.*\blimit\b|ulimit -n", str(error), re.DOTALL))


def attempt(importer: Peer, blob: bytes) -> crossmem.CrossmemError | None:
    try:
        importer.call(actions.attach, "mapped", blob, timeout=1)
    except crossmem.CrossmemError as error:
        return error
    return None


def test_a_first_export_with_fewer_and_fewer_descriptors(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    exporter.call(actions.allocate, "warm", 1)
    refused = []
    for spare in range(ENOUGH):
        # Each time a new process, which has no lease server yet.
        blob, error = exporter.call(
            forks.in_child, lease_actions.export_within_limit, spare, stays=True
        )
        if error is not None:
            assert names_the_limit(error), spare
            refused.append(spare)
        importer.call(actions.attach, "mapped", blob)
        assert importer.call(actions.read, "mapped", 4) == b"data"
        importer.call(actions.unmap, "mapped")
    assert refused
    assert max(refused) < ENOUGH - 1


def test_allocating_until_none_is_left(start_peer: "StartPeer") -> None:
    exporter = start_peer()
    exporter.call(actions.offer, "memory", NBYTES)
    exporter.call(resources.limit_descriptors, 50)

    with pytest.raises(crossmem.DriverError) as caught:
        exporter.call(lease_actions.allocate_until_it_fails)

    assert names_the_limit(caught.value)
    exporter.call(actions.offer, "more", NBYTES)
    assert exporter.call(actions.live)["blocks"] == 2


def test_an_exporter_without_descriptors_still_serves_whom_it_knows(
    start_peer: "StartPeer",
) -> None:
    exporter, importer, stranger = start_peer(), start_peer(), start_peer()
    blobs = [exporter.call(actions.offer, name, NBYTES, b"data") for name in "ab"]
    importer.call(actions.attach, "one", blobs[0])
    exporter.call(lease_actions.use_up_descriptors)

    importer.call(actions.attach, "two", blobs[1], timeout=15 * SLOWNESS)
    assert importer.call(actions.read, "two", 4) == b"data"
    # Whom it does not know has to wait until a descriptor is free, and is told so.
    with pytest.raises(crossmem.OwnerUnresponsiveError) as caught:
        stranger.call(actions.attach, "never", blobs[0], timeout=0.5)
    assert str(exporter.pid) in str(caught.value)
    waiting = stranger.start(actions.attach, "late", blobs[0], timeout=30 * SLOWNESS)
    exporter.call(lease_actions.lift_limit)

    waiting.result()
    assert stranger.call(actions.read, "late", 4) == b"data"
    stranger.call(actions.unmap, "late")
    importer.call(actions.unmap, "one", "two")
    for name in "ab":
        exporter.call(actions.free, name, busy="wait", timeout=2 * SLOWNESS)


@pytest.mark.parametrize("spare", [1, 2])
def test_an_exporter_with_hardly_any_descriptors(start_peer: "StartPeer", spare: int) -> None:
    exporter, importer = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    exporter.call(lease_actions.lift_limit)
    exporter.call(resources.limit_descriptors, spare)
    refused = attempt(importer, blob)
    if refused is not None:
        assert isinstance(refused, crossmem.OwnerUnresponsiveError | crossmem.DriverError)
        assert str(exporter.pid) in str(refused)
        exporter.call(lease_actions.lift_limit)
        importer.call(actions.attach, "mapped", blob, timeout=15 * SLOWNESS)
    assert importer.call(actions.read, "mapped", 4) == b"data"
    importer.call(actions.unmap, "mapped")
    exporter.call(actions.free, "memory", busy="wait", timeout=2 * SLOWNESS)


def test_an_importer_with_fewer_and_fewer_descriptors(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    importer.call(actions.allocate, "warm", 1)
    refused = []
    for spare in range(ENOUGH):
        # Each time a new process, which has no connection yet.
        error = importer.call(forks.in_child, lease_actions.attach_within_limit, blob, spare)
        if error is not None:
            assert names_the_limit(error), spare
            refused.append(spare)
    assert refused
    assert max(refused) < ENOUGH - 1

    # Refused or not, nobody holds anything.
    exporter.call(actions.free, "memory", busy="wait", timeout=2 * SLOWNESS)


def more_than(before: list[str], of: Peer) -> list[str]:
    try:
        found = of.call(resources.descriptors)
    except OSError as error:
        # Looking takes one, too.
        if error.errno != errno.EMFILE:
            raise
        return ["all that the limit allows"]
    return list((Counter(found) - Counter(before)).elements())


def test_an_importer_that_has_no_room_for_what_it_is_given(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    count = 40
    blobs = [exporter.call(actions.offer, f"memory{n}", NBYTES, b"data") for n in range(count)]
    names = [f"mapped{n}" for n in range(count)]
    importer.call(actions.attach, "met", blobs[0])
    before = importer.call(resources.descriptors)
    importer.call(resources.limit_descriptors, 10)

    with pytest.raises(crossmem.DriverError) as caught:
        importer.call(actions.attach_many, names, blobs)

    assert names_the_limit(caught.value)
    # Threads of their own close what a peer sent. The connection is made anew at the next request.
    assert settle(lambda: more_than(before, importer)) == []
    # One by one they still fit: a mapping keeps no descriptor.
    for name, blob in zip(names, blobs, strict=True):
        importer.call(actions.attach, name, blob)
    assert importer.call(actions.read, names[-1], 4) == b"data"
    assert settle(lambda: more_than(before, importer)) == []
    importer.call(lease_actions.lift_limit)
    importer.call(actions.unmap, "met", *names)
    importer.call(actions.attach_many, names, blobs)
    importer.call(actions.unmap, *names)
    for n in range(count):
        exporter.call(actions.free, f"memory{n}", busy="wait", timeout=2 * SLOWNESS)


def test_an_interrupted_import_closes_each_descriptor_once(start_peer: "StartPeer") -> None:
    exporter, importer = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    importer.call(actions.attach, "mapped", blob)
    importer.call(actions.unmap, "mapped")
    before = importer.call(resources.descriptors)

    # A second close fails, where the number is not another file's by then.
    assert importer.call(lease_actions.attach_interrupted, blob) == []

    assert importer.call(resources.descriptors) == before
    exporter.call(actions.free, "memory", busy="wait", timeout=2 * SLOWNESS)
