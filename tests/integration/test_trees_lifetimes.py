# SPDX-License-Identifier: Apache-2.0
"""What was received stays right, whatever becomes of the process that shared it."""

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance.peers import PeerDiedError

if TYPE_CHECKING:
    from tests.integration import tree_actions
    from tests.integration.conftest import StartPeer
else:
    import tree_actions

NBYTES = 8 * 2**20


@pytest.mark.parametrize("end", ["drop", "close", "exit", "kill"])
def test_what_was_received_stays_right(start_peer: "StartPeer", end: str) -> None:
    """Emulated memory survives its owner, so all of these are promised."""
    owner = start_peer(fresh=end == "exit", CROSSMEM_EXIT_WAIT="0.1")
    reader = start_peer()
    blob = owner.call(tree_actions.share, "tree", 5)
    expected = tree_actions.digest_of(tree_actions.make(5))

    assert reader.call(tree_actions.receive, "tree", blob) == expected
    if end == "exit":
        owner.exit()
    elif end == "kill":
        owner.kill()
        assert owner.exitcode == -signal.SIGKILL
    else:
        if end == "close":
            owner.call(tree_actions.close, "tree")
        owner.call(tree_actions.drop, "tree")
        owner.call(tree_actions.collect_garbage)
        # Memory that was freed too early would be used again, and overwritten.
        owner.call(tree_actions.share, "other", 6)

    assert reader.call(tree_actions.digest, "tree") == expected
    reader.call(tree_actions.collect_garbage)
    assert reader.call(tree_actions.digest, "tree") == expected


def test_a_tree_that_was_closed_before_it_was_received_is_stale(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share, "tree", 5)
    owner.call(tree_actions.close, "tree")

    with pytest.raises(crossmem.StaleHandleError):
        reader.call(tree_actions.receive, "tree", blob)


@pytest.mark.parametrize("options", [{}, {"access": "ro"}], ids=str)
def test_the_value_of_a_closed_tree_is_shared_again(
    start_peer: "StartPeer", options: dict[str, Any]
) -> None:
    owner, early, late = start_peer(), start_peer(), start_peer()
    blob = owner.call(tree_actions.share, "tree", 5, **options)
    expected = early.call(tree_actions.receive, "tree", blob)
    owner.call(tree_actions.take_value, "tree", "value")
    owner.call(tree_actions.close, "tree")

    again = owner.call(tree_actions.share_again, "value", "again")

    assert late.call(tree_actions.receive, "tree", again) == expected
    assert early.call(tree_actions.digest, "tree") == expected


def test_a_tree_whose_owner_is_gone_is_not_received(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share, "tree", 5)
    owner.kill()

    with pytest.raises(crossmem.OwnerGoneError):
        reader.call(tree_actions.receive, "tree", blob)


def test_what_a_dead_process_made_is_shared_on_as_a_copy(start_peer: "StartPeer") -> None:
    owner, middle, reader = start_peer(), start_peer(), start_peer()
    blob = owner.call(tree_actions.share, "tree", 5)
    expected = middle.call(tree_actions.receive, "tree", blob)
    owner.kill()

    with pytest.raises(crossmem.UnsupportedError, match="owner of its memory is dead"):
        middle.call(tree_actions.share_again, "tree", "again")
    again = middle.call(tree_actions.share_again, "tree", "again", copy="allow")

    assert reader.call(tree_actions.receive, "tree", again) == expected
    message = middle.call(tree_actions.put, "tree")
    assert reader.call(tree_actions.get, "message", message) == expected


def test_copies_are_freed_after_the_last_reader(start_peer: "StartPeer") -> None:
    owner, readers = start_peer(), [start_peer(), start_peer()]
    owner.call(tree_actions.share, "none", 1)
    owner.call(tree_actions.close, "none")
    before = owner.call(tree_actions.mapped)
    before_readers = [one.call(tree_actions.mapped) for one in readers]
    blob = owner.call(tree_actions.share, "tree", 5)
    for one in readers:
        one.call(tree_actions.receive, "tree", blob)

    assert owner.call(tree_actions.mapped) == before + 1
    assert [one.call(tree_actions.mapped) for one in readers] == [n + 1 for n in before_readers]
    leases = owner.call(tree_actions.lessees)
    assert [one.pid for one in readers] in leases

    owner.call(tree_actions.close, "tree")
    readers[0].call(tree_actions.drop, "tree")
    readers[1].kill()
    assert readers[0].call(tree_actions.mapped) == before_readers[0]
    deadline = time.monotonic() + 30
    while owner.call(tree_actions.mapped) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert owner.call(tree_actions.mapped) == before
    assert not any(owner.call(tree_actions.lessees))


def test_what_was_received_is_shared_again_by_the_same_handle(start_peer: "StartPeer") -> None:
    owner, first, second = start_peer(), start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)
    first.call(tree_actions.receive, "tree", blob)
    forwarded = first.call(tree_actions.share_again, "tree", "again")
    there = crossmem.Shared.from_bytes(forwarded).message

    assert there.handles == crossmem.Shared.from_bytes(blob).message.handles
    first.call(tree_actions.drop, "tree", "again")
    first.call(tree_actions.collect_garbage)
    second.call(tree_actions.receive, "tree", forwarded)
    first.call(tree_actions.receive, "tree", forwarded)
    assert {first.pid, second.pid} in [set(one) for one in owner.call(tree_actions.lessees)]
    first.call(tree_actions.write, "tree", 9)
    assert second.call(tree_actions.digest, "tree") == first.call(tree_actions.digest, "tree")


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.long)])
def test_memory_is_counted_once_for_all_readers(start_peer: "StartPeer", count: int) -> None:
    owner, readers = start_peer(), [start_peer() for _ in range(count)]
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)
    for one in readers:
        one.call(tree_actions.receive, "tree", blob)

    parts = [one.call(tree_actions.proportional_nbytes) for one in readers]
    whole = owner.call(tree_actions.proportional_nbytes) + sum(parts)
    assert whole < NBYTES * 1.5
    assert max(parts) < NBYTES * 1.5 / count
    assert owner.call(tree_actions.mapped) == 2


# Read-only ---------------------------------------------------------------------------------------


def test_the_kernel_keeps_what_is_read_only(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)

    reader.call(tree_actions.receive, "tree", blob, readonly=True)

    assert not reader.call(tree_actions.is_writeable, "tree")
    with pytest.raises(ValueError, match="read-only"):
        reader.call(tree_actions.write, "tree", 1)
    with pytest.raises(PeerDiedError) as died:
        reader.call(tree_actions.write_all_the_same, "tree", 1)
    assert died.value.exitcode == -signal.SIGSEGV


def test_numpy_alone_keeps_what_is_read_only_by_agreement(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES)

    reader.call(tree_actions.receive, "tree", blob, readonly="advisory")

    assert not reader.call(tree_actions.is_writeable, "tree")
    with pytest.raises(ValueError, match="read-only"):
        reader.call(tree_actions.write, "tree", 1)
    reader.call(tree_actions.write_all_the_same, "tree", 1)


def test_an_owner_may_let_others_read_alone(start_peer: "StartPeer") -> None:
    owner, reader = start_peer(), start_peer()
    blob = owner.call(tree_actions.share_born, "tree", NBYTES, access="ro")

    reader.call(tree_actions.receive, "tree", blob)

    assert not reader.call(tree_actions.is_writeable, "tree")


def test_a_tree_for_others_alone_is_refused(start_peer: "StartPeer") -> None:
    owner, reader, stranger = start_peer(), start_peer(), start_peer()
    blob = owner.call(tree_actions.share, "tree", 5, allow=crossmem.Allow(pids=[reader.pid]))

    reader.call(tree_actions.receive, "tree", blob)
    for act in (tree_actions.receive, tree_actions.version_of):
        with pytest.raises(crossmem.AccessDeniedError):
            stranger.call(act, "tree", blob)
