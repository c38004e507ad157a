# SPDX-License-Identifier: Apache-2.0
"""Messages that reserve blocks, withdrawn blocks, and threads that share a pool."""

import time
from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import pool_actions, pool_life_actions, reservation_actions, word_actions
    from tests.integration.conftest import StartPeer
else:
    import pool_actions
    import pool_life_actions
    import reservation_actions
    import word_actions

NBYTES = 4096
BLOCKS = 6
AT_ONCE_S = 0.05 * SLOWNESS
"""More than any attach that asks nobody takes; less than one that waits for somebody."""


@pytest.fixture
def owner(start_peer: "StartPeer") -> Peer:
    """Return the owner of ``pool``."""
    found = start_peer(tracing=False, fresh=True, CROSSMEM_EXIT_WAIT="60")
    found.call(pool_actions.make, "pool", NBYTES, BLOCKS)
    return found


@pytest.fixture
def importer(start_peer: "StartPeer") -> Peer:
    return start_peer(tracing=False, fresh=True)


def give(owner: Peer, *names: str) -> dict[str, bytes]:
    """Let the owner give blocks, each full of its name."""
    return {name: owner.call(pool_actions.give, name, "pool", name.encode()) for name in names}


def stats_of(owner: Peer) -> Any:
    return owner.call(pool_actions.stats, "pool")


def comes_to(owner: Peer, **expected: object) -> bool:
    """Whether the blocks of the pool come to be used like that, within a second."""

    def wrong() -> list[object]:
        stats = stats_of(owner)
        assert stats.free + stats.live + stats.waiting == BLOCKS
        found = {name: getattr(stats, name) for name in expected}
        return [] if found == expected else [found]

    return settle(wrong, within=1 + SLOWNESS) == []


def closes_within_a_second(owner: Peer) -> bool:
    """Whether the memory of a closed pool is given back, with no call of anybody."""
    return settle(lambda: [1] * owner.call(word_actions.live), within=1 + SLOWNESS) == []


# Withdrawals and threads --------------------------------------------------------------------------


def test_who_holds_a_withdrawn_block_attaches_it_by_its_new_handle(
    owner: Peer, importer: Peer
) -> None:
    first = give(owner, "a")["a"]
    importer.call(actions.attach, "first", first)
    owner.call(pool_actions.withdraw, "a")
    second = owner.call(actions.export, "a")

    importer.call(actions.attach, "second", second)
    importer.call(actions.unmap, "first")
    owner.call(actions.free, "a")
    assert comes_to(owner, waiting=1, holders={importer.pid: 1})
    assert importer.call(pool_actions.shown, "second") == b"a"
    importer.call(actions.unmap, "second")
    assert comes_to(owner, free=BLOCKS, holders={})
    for blob in (first, second):
        with pytest.raises(crossmem.StaleHandleError):
            importer.call(actions.attach, "never", blob)


@pytest.mark.parametrize("by", ["withdraw", "free and wait"])
def test_a_block_that_another_thread_freed_is_left_alone(owner: Peer, by: str) -> None:
    give(owner, "a")

    assert owner.call(pool_life_actions.is_next_life_untouched, "pool", by)


def test_two_threads_that_end_one_block_free_it_once(owner: Peer) -> None:
    assert owner.call(pool_life_actions.is_freed_once_by_two_threads)


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_that_share_a_pool(owner: Peer, threads: int) -> None:
    assert owner.call(pool_life_actions.work_in_threads, "pool", threads, 2.0) == {}

    assert comes_to(owner, free=BLOCKS, live=0, waiting=0, holders={})
    assert owner.call(pool_actions.fill, "pool", b"z") == BLOCKS


# Messages -----------------------------------------------------------------------------------------


def send(owner: Peer, *names: str) -> list[tuple[bytes, int]]:
    message: list[tuple[bytes, int]] = owner.call(pool_actions.send, names)
    return message


@pytest.mark.parametrize("is_known", [False, True])
def test_a_message_keeps_a_freed_block(owner: Peer, importer: Peer, *, is_known: bool) -> None:
    blobs = give(owner, "a", "b")
    if is_known:
        importer.call(actions.attach, "b", blobs["b"])
    message = send(owner, "a", "b")
    owner.call(pool_actions.free_all, "ab")

    # Once without and once with a process that waits for a block.
    assert owner.call(pool_actions.fill, "pool", b"z") == BLOCKS - 2
    assert owner.call(pool_actions.wait_for_all, "pool") == BLOCKS - 2
    with pytest.raises(crossmem.StaleHandleError):
        importer.call(actions.attach, "never", blobs["a"])
    importer.call(actions.attach_reserved, ["a", "b again"], message)
    assert importer.call(pool_actions.shown, "a") == b"a"
    assert importer.call(pool_actions.shown, "b again") == b"b"
    assert comes_to(owner, waiting=2, holders={importer.pid: 2})
    importer.call(actions.unmap, "a", "b again", *["b"] * is_known)
    assert comes_to(owner, free=BLOCKS, waiting=0, holders={})


def test_a_block_in_a_message_says_what_to_do_with_the_message(owner: Peer) -> None:
    give(owner, "a")
    send(owner, "a")

    with pytest.raises(crossmem.BusyError, match="message that nobody received") as caught:
        owner.call(actions.free, "a", busy="raise")

    assert caught.value.hint == 'receive or discard the message, or free with busy="defer"'


def test_a_message_of_another_block_delays_no_wait(owner: Peer, importer: Peer) -> None:
    blobs = give(owner, *"abcdef")
    send(owner, "f")
    importer.call(actions.attach, "a", blobs["a"])
    owner.call(actions.free, "a")
    waiting = owner.start(pool_actions.seconds_of_allocate, "next", "pool", 20.0)
    time.sleep(0.1)

    importer.call(actions.unmap, "a")

    assert waiting.result() < 5


@pytest.mark.parametrize("end", ["received", "discarded", "its receiver dies", "its sender dies"])
def test_a_closed_pool_waits_for_messages(owner: Peer, importer: Peer, end: str) -> None:
    blobs = give(owner, "a")
    sender = owner
    if end == "its sender dies":
        sender = importer
        importer.call(actions.attach, "a", blobs["a"])
    message = sender.call(pool_actions.send, ["a"])
    owner.call(pool_actions.free_all, "a")
    owner.call(actions.call, "pool", "close")
    time.sleep(0.6)
    assert owner.call(word_actions.live) == 1
    if end == "received":
        importer.call(actions.attach_reserved, ["got"], message)
        assert importer.call(pool_actions.shown, "got") == b"a"
        importer.call(actions.unmap, "got")
    elif end == "discarded":
        importer.call(reservation_actions.throw_away, message)
    elif end == "its sender dies":
        importer.kill()
    else:
        importer.call(actions.attach_reserved, ["got"], message)
        importer.kill()

    assert closes_within_a_second(owner)


def test_no_message_takes_the_next_life_of_a_block(start_peer: "StartPeer") -> None:
    owner, receiver = start_peer(tracing=False), start_peer(tracing=False)
    owner.call(pool_actions.make, "pool", NBYTES, 1)
    first = give(owner, "a")["a"]
    owner.call(actions.free, "a")
    second = give(owner, "b")["b"]
    ((_, number),) = send(owner, "b")

    for peer in (owner, receiver):
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(reservation_actions.put_bytes, first)
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(actions.attach_reserved, ["never"], [(first, number)])
    receiver.call(actions.attach_reserved, ["b"], [(second, number)])
    assert receiver.call(pool_actions.shown, "b") == b"b"


def test_messages_of_a_withdrawn_block(owner: Peer, importer: Peer) -> None:
    give(owner, "a")
    first = send(owner, "a")
    owner.call(pool_actions.withdraw, "a")
    second = send(owner, "a")

    with pytest.raises(crossmem.StaleHandleError):
        owner.call(reservation_actions.put_bytes, first[0][0])
    importer.call(actions.attach_reserved, ["first"], first)
    importer.call(actions.attach_reserved, ["second"], second)
    importer.call(actions.unmap, "first", "second")
    owner.call(actions.free, "a")
    assert comes_to(owner, free=BLOCKS, holders={})


def test_a_block_that_is_freed_while_a_message_enters_it_is_seen_to_be_freed(owner: Peer) -> None:
    give(owner, "a")

    assert owner.call(pool_life_actions.free_while_it_is_reserved, "pool", "a")

    assert comes_to(owner, free=BLOCKS)
    owner.call(actions.call, "pool", "close")
    assert closes_within_a_second(owner)
