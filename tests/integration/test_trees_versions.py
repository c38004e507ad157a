# SPDX-License-Identifier: Apache-2.0
"""Trees that are published again and again, across processes."""

import time
from typing import TYPE_CHECKING

import pytest

import crossmem

if TYPE_CHECKING:
    from tests.integration import tree_actions
    from tests.integration.conftest import StartPeer
else:
    import tree_actions

NBYTES = 65536


def test_readers_see_versions_in_order_and_what_was_written_before(start_peer: "StartPeer") -> None:
    owner, readers = start_peer(), [start_peer(), start_peer()]
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)
    for one in readers:
        one.call(tree_actions.receive, "array", blob)
        one.call(tree_actions.open_, "tree", blob)
        assert one.call(tree_actions.version, "tree") == 0
    followers = [one.start(tree_actions.follow, "tree", "array", 20) for one in readers]
    for step in range(1, 21):
        assert owner.call(tree_actions.publish, "tree", step) == step

    for follower in followers:
        seen = follower.result()
        versions = [version for version, _low, _high in seen]
        assert versions == sorted(set(versions))
        assert versions[-1] == 20
        # Whoever does not wait for an answer may see newer bytes, but never older ones.
        assert all(low >= version for version, low, _high in seen)
    assert readers[0].call(tree_actions.wait, "tree", 3, 1) == 20


def test_waiting_is_bounded(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)
    reader.call(tree_actions.open_, "tree", blob)
    began = time.monotonic()

    with pytest.raises(crossmem.WaitTimeoutError, match="no version after 0"):
        reader.call(tree_actions.wait, "tree", 0, 0.3)

    assert 0.3 <= time.monotonic() - began < 10
    with pytest.raises(crossmem.WaitTimeoutError):
        owner.call(tree_actions.wait, "tree", 0, 0.01)
    with pytest.raises(crossmem.ConfigurationError, match="must be a version"):
        reader.call(tree_actions.wait, "tree", -1, 0.1)


@pytest.mark.parametrize("who", ["owner", "reader"])
def test_a_wait_of_no_time_looks_once(start_peer: "StartPeer", who: str) -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)
    reader.call(tree_actions.open_, "tree", blob)
    one = owner if who == "owner" else reader

    with pytest.raises(crossmem.WaitTimeoutError, match="within 0 s"):
        one.call(tree_actions.wait, "tree", 0, 0)
    assert owner.call(tree_actions.publish, "tree", 5) == 1
    assert one.call(tree_actions.wait, "tree", 0, 0) == 1
    for wrong in (-1, False):
        with pytest.raises(crossmem.ConfigurationError, match="timeout is"):
            one.call(tree_actions.wait, "tree", 1, wrong)


def test_readers_see_what_an_owner_does_with_its_copies(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share, "tree", 7)
    reader.call(tree_actions.receive, "received", blob)
    reader.call(tree_actions.open_, "tree", blob)
    with pytest.raises(crossmem.UnsupportedError, match="not to the shared arrays"):
        owner.call(tree_actions.publish, "tree")

    for version, in_place in ((1, False), (2, True), (3, False), (4, True)):
        value = 10 * version
        assert owner.call(tree_actions.train, "tree", 7, value, in_place=in_place) == version
        assert reader.call(tree_actions.wait, "tree", version - 1, 5) == version
        assert reader.call(tree_actions.bounds, "received") == [(value, value)] * 5
    with pytest.raises(crossmem.UnsupportedError, match="only the process that shares this tree"):
        reader.call(tree_actions.train, "tree", 7, 1, in_place=False)
    assert reader.call(tree_actions.bounds, "received") == [(40, 40)] * 5


@pytest.mark.parametrize(
    ("end", "error"),
    [("kill", crossmem.OwnerGoneError), ("close", crossmem.ClosedError)],
)
def test_waiting_ends_with_the_owner(
    start_peer: "StartPeer", end: str, error: type[Exception]
) -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)
    reader.call(tree_actions.open_, "tree", blob)
    reader.call(tree_actions.version, "tree")
    waiting = reader.start(tree_actions.wait, "tree", 0, 15)
    time.sleep(0.1)

    if end == "kill":
        owner.kill()
    else:
        owner.call(tree_actions.close, "tree")

    with pytest.raises(error):
        waiting.result()


def test_only_the_owner_publishes(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)
    reader.call(tree_actions.open_, "tree", blob)

    with pytest.raises(crossmem.UnsupportedError, match="only the process that shares this tree"):
        reader.call(tree_actions.publish, "tree")
    owner.call(tree_actions.close, "tree")
    with pytest.raises(crossmem.ClosedError):
        owner.call(tree_actions.publish, "tree")
    with pytest.raises(crossmem.ClosedError):
        reader.call(tree_actions.version, "tree")


def test_more_trees_than_one_page_has_versions(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    before = reader.call(tree_actions.mapped)
    blobs = owner.call(tree_actions.share_many, 300)
    owner.call(tree_actions.publish_each, "many")

    found = reader.call(tree_actions.versions_of, "many", blobs)

    assert found == [number % 3 for number in range(300)]
    assert reader.call(tree_actions.mapped) - before == 5
    # No place is used twice: a stream may still wait for the version of a closed tree.
    owner.call(tree_actions.drop, "many")
    fresh = owner.call(tree_actions.share_many, 300)
    assert reader.call(tree_actions.versions_of, "fresh", fresh) == [0] * 300
    assert reader.call(tree_actions.mapped) - before == 10
    with pytest.raises(crossmem.ClosedError):
        reader.call(tree_actions.versions_again, "many")


def test_a_forked_child_has_no_part_in_its_parents_trees(start_peer: "StartPeer") -> None:
    owner, other = start_peer(fresh=True), start_peer()
    blob = other.call(tree_actions.share, "tree", 5)
    own = owner.call(tree_actions.share_born, "tree", NBYTES)

    answers = owner.call(tree_actions.look_in_a_child, "tree", blob)

    assert len(answers) == 6
    assert answers[:5] == ["ForkedProcessError"] * 5
    assert answers[5] == tree_actions.digest_of(tree_actions.make(5))
    assert owner.call(tree_actions.publish, "tree", 3) == 1
    assert other.call(tree_actions.receive, "mine", own) == owner.call(
        tree_actions.receive, "mine", own
    )
