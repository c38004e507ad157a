# SPDX-License-Identifier: Apache-2.0
"""The mechanism is the device's where memory is made, and the handle's where it is imported."""

from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer

if TYPE_CHECKING:
    from tests.integration import mechanism_actions
    from tests.integration.conftest import StartPeer
else:
    import mechanism_actions


@pytest.fixture
def pair(start_peer: "StartPeer") -> tuple[Peer, Peer]:
    peers = start_peer(tracing=False), start_peer(tracing=False)
    for one in peers:
        one.call(mechanism_actions.begin)
    return peers


@pytest.mark.parametrize("mechanism", ["memfd", "slow"])
def test_the_driver_is_told_the_mechanism_at_every_step(
    pair: tuple[Peer, Peer], mechanism: str
) -> None:
    owner, importer = pair
    blob = owner.call(mechanism_actions.offer, "a", mechanism, spec="emulated:1")
    importer.call(actions.attach, "m", blob)
    importer.call(actions.attach, "again", blob, device="emulated:1")

    assert crossmem.ShareableHandle.from_bytes(blob).mechanism == mechanism
    assert [one for one in owner.call(mechanism_actions.hear) if one[0] != "capabilities"] == [
        ("allocate", 1, mechanism),
        ("export", mechanism, "rw", False),
    ]
    heard = importer.call(mechanism_actions.hear)
    assert [one for one in heard if one[0] != "capabilities"] == [("import_", 1, 1, mechanism)]
    # Once for each device, and once more where another mechanism is used.
    assert len(heard) == len(set(heard))
    assert importer.call(mechanism_actions.place, "m") == (1, mechanism, mechanism == "memfd")


def test_another_device_is_allowed_by_the_handles_mechanism(pair: tuple[Peer, Peer]) -> None:
    owner, importer = pair
    fast = owner.call(mechanism_actions.offer, "a", None)
    slow = owner.call(mechanism_actions.offer, "b", "slow")
    importer.call(actions.attach, "m", fast, device="emulated:1")
    heard = [one for one in importer.call(mechanism_actions.hear) if one[0] == "import_"]

    assert heard == [("import_", 1, 0, "memfd")]

    with pytest.raises(crossmem.UnsupportedError, match="peer_access"):
        importer.call(actions.attach, "n", slow, device="emulated:1")
    with pytest.raises(crossmem.UnsupportedError, match="readonly_exports"):
        owner.call(actions.export, "b", access="ro")
    owner.call(actions.export, "a", access="ro")


def test_a_mechanism_that_the_importer_lacks_is_named(
    pair: tuple[Peer, Peer], start_peer: "StartPeer"
) -> None:
    blob = pair[0].call(mechanism_actions.offer, "a", "slow")
    with pytest.raises(crossmem.UnsupportedError, match="'slow'; it has: memfd"):
        start_peer().call(actions.attach, "m", blob)


def test_raw_and_leased_exports_are_remembered_apart(pair: tuple[Peer, Peer]) -> None:
    owner, _ = pair
    owner.call(mechanism_actions.offer, "a", "memfd")
    owner.call(actions.export, "a", lease=False)
    owner.call(actions.export, "a", allow=crossmem.Allow(uids=[12345]))
    owner.call(actions.export, "a", lease=False)
    heard = [one for one in owner.call(mechanism_actions.hear) if one[0] == "export"]

    assert heard == [("export", "memfd", "rw", False), ("export", "memfd", "rw", True)]

    # A driver that cannot do both says so, and what was exported stays.
    blob = owner.call(mechanism_actions.offer, "b", "slow")
    with pytest.raises(crossmem.UnsupportedError, match="cannot become raw"):
        owner.call(actions.export, "b", lease=False)

    assert owner.call(actions.export, "b") == blob

    owner.call(actions.free, "a", busy="raise")
    owner.call(actions.free, "b", busy="raise")


@pytest.mark.parametrize("mechanism", ["memfd", "slow"])
def test_a_device_keeps_its_mechanism_when_it_travels(
    pair: tuple[Peer, Peer], mechanism: str
) -> None:
    owner, importer = pair
    pickled = owner.call(mechanism_actions.send_device, mechanism)
    found = importer.call(mechanism_actions.receive_device, pickled)

    assert found == ("emulated:1", mechanism, True)
