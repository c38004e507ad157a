# SPDX-License-Identifier: Apache-2.0
"""Laws P1 and P2: a held block is not allocated again, and a freed block's handle stays stale."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.pools_of_tests import (
    NBYTES,
    MakePool,
    are_free,
    free_all,
    index_of,
    share,
    take_all,
)

# P1: a held block is not allocated again --------------------------------------------------


@pytest.mark.crossmem_core
def test_p01_a_freed_block_is_not_given_out_while_it_is_held(
    make_pool: MakePool, peer: Peer
) -> None:
    pool = make_pool(8)
    data = pattern(NBYTES, 3)
    block = share(pool, peer, "mapped", data)
    held = index_of(block)
    block.free()

    for _ in range(20):
        taken = take_all(pool)
        assert sorted(index_of(one) for one in taken) == sorted(set(range(8)) - {held})
        for one in taken:
            one.write(bytes(NBYTES))
        free_all(taken)

    assert peer.call(actions.read, "mapped") == data
    assert pool.stats().waiting == 1
    peer.call(actions.unmap, "mapped")
    taken = take_all(pool)
    assert sorted(index_of(one) for one in taken) == list(range(8))
    free_all(taken)


@pytest.mark.crossmem_core
def test_p01_no_block_is_given_out_twice(make_pool: MakePool, peer: Peer, peer2: Peer) -> None:
    pool = make_pool(64)
    chosen = random.Random(7)
    live: dict[int, crossmem.Block] = {}
    held: dict[int, tuple[Peer, str, bytes]] = {}
    for turn in range(400):
        if chosen.random() < 0.5 and len(live) + len(held) < 60:
            data = turn.to_bytes(8, "little")
            block = pool.allocate()
            index = index_of(block)
            assert index not in live
            assert index not in held
            block.write(data)
            live[index] = block
            if turn % 5 == 0:
                one, name = chosen.choice((peer, peer2)), f"mapped{turn}"
                one.call(actions.attach, name, block.export().to_bytes())
                held[index] = (one, name, data)
        elif live:
            live.pop(chosen.choice(list(live))).free()
        if turn % 20 == 0 and held:
            index = chosen.choice(list(held))
            one, name, data = held.pop(index)
            assert one.call(actions.read, name, 8) == data
            one.call(actions.unmap, name)
            if index in live:
                live.pop(index).free()
    for one, name, data in held.values():
        assert one.call(actions.read, name, 8) == data
        one.call(actions.unmap, name)
    free_all(list(live.values()))

    assert pool.stats().free == 64


def test_p01_every_holder_counts(make_pool: MakePool, peer: Peer, peer2: Peer) -> None:
    pool = make_pool(2)
    block = share(pool, peer, "mapped", b"kept")
    peer2.call(actions.attach, "mapped", block.export().to_bytes())
    own = crossmem.attach(block.export())
    block.free()

    for one in (peer, peer2):
        taken = take_all(pool)
        assert len(taken) == 1
        free_all(taken)
        assert one.call(actions.read, "mapped", 4) == b"kept"
        one.call(actions.unmap, "mapped")
    taken = take_all(pool)
    assert len(taken) == 1
    free_all(taken)
    assert own.read(4) == b"kept"
    own.unmap()
    taken = take_all(pool)
    assert len(taken) == 2
    free_all(taken)


@pytest.mark.crossmem_requires("readonly_imports")
def test_p01_each_kind_of_access_holds_the_block(make_pool: MakePool, peer: Peer) -> None:
    pool = make_pool(1)
    for first, second in ((False, True), (True, False)):
        block = pool.allocate()
        block.write(b"kept")
        blob = block.export().to_bytes()
        peer.call(actions.attach, "first", blob, readonly=first)
        peer.call(actions.attach, "second", blob, readonly=second)
        block.free()
        peer.call(actions.unmap, "first")

        assert not take_all(pool)
        assert peer.call(actions.read, "second", 4) == b"kept"

        peer.call(actions.unmap, "second")
        assert settle(are_free(pool, 1)) == []


def test_p01_a_message_keeps_its_block(make_pool: MakePool, peer: Peer) -> None:
    pool = make_pool(2)
    actions.objects["sent"] = block = pool.allocate()
    block.write(b"sent")
    message = actions.send("sent")
    block.free()

    for _ in range(3):
        taken = take_all(pool)
        assert len(taken) == 1
        taken[0].write(b"else")
        free_all(taken)
    peer.call(actions.attach_reserved, ["mapped"], message)
    assert peer.call(actions.read, "mapped", 4) == b"sent"
    taken = take_all(pool)
    assert len(taken) == 1
    free_all(taken)
    peer.call(actions.unmap, "mapped")

    assert settle(are_free(pool, 2)) == []
    actions.drop("sent")


@pytest.mark.crossmem_core
def test_p01_the_blocks_of_a_killed_importer_come_back(
    make_pool: MakePool, peer: Peer, fresh_peer: FreshPeer
) -> None:
    pool = make_pool(8)
    victim = fresh_peer()
    blocks = [share(pool, victim, f"mapped{number}") for number in range(3)]
    blocks.append(share(pool, peer, "mapped"))
    free_all(blocks)
    assert pool.stats().waiting == 4

    victim.kill()

    assert settle(are_free(pool, 7)) == []
    assert pool.stats().holders == {peer.pid: 1}
    peer.call(actions.unmap, "mapped")
    assert pool.stats().free == 8


@pytest.mark.crossmem_core
def test_p01_a_stopped_importer_keeps_what_it_holds_until_it_is_killed(
    make_pool: MakePool, fresh_peer: FreshPeer
) -> None:
    pool = make_pool(2)
    importer = fresh_peer()
    share(pool, importer, "mapped").free()
    importer.stop()

    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        taken = take_all(pool)
        assert len(taken) == 1
        free_all(taken)
        time.sleep(0.05)
    importer.kill()

    assert settle(are_free(pool, 2)) == []


def _attach_some(blobs: list[bytes], seconds: float) -> int:
    """Attach blocks in turn for some seconds; return the number of mappings with wrong contents.

    The owner frees the blocks at the same time.
    """
    end = time.monotonic() + seconds
    wrong = 0
    while time.monotonic() < end:
        for number, blob in enumerate(blobs):
            try:
                with crossmem.attach(blob) as mapping:
                    wrong += mapping.read(8) != number.to_bytes(8, "little")
            except crossmem.StaleHandleError:
                pass
    return wrong


def test_p01_who_attaches_while_a_block_is_freed_has_it_or_has_not(
    make_pool: MakePool, peer: Peer
) -> None:
    pool = make_pool(64)
    blocks = [pool.allocate() for _ in range(32)]
    for number, block in enumerate(blocks):
        block.write(number.to_bytes(8, "little"))
    answer = peer.start(_attach_some, [one.export().to_bytes() for one in blocks], 2.0)
    while blocks:
        time.sleep(0.02)
        blocks.pop().free()
        # The pool allocates freed blocks again, and the test overwrites them. An importer that
        # attached such a block by a stale handle would read wrong contents.
        taken = [pool.allocate() for _ in range(8)]
        for one in taken:
            one.write(b"\xff" * 8)
            one.export()
        free_all(taken)

    assert answer.result() == 0
    assert settle(are_free(pool, 64)) == []


# P2: stale for ever -----------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_p02_handles_of_freed_blocks_are_stale_however_often_they_are_reused(
    make_pool: MakePool, peer: Peer, peer2: Peer
) -> None:
    pool = make_pool(2)
    handles: list[crossmem.ShareableHandle] = []
    for _ in range(40):
        block = pool.allocate()
        handles.append(block.export())
        if len(handles) == 20:
            peer.call(actions.attach, "mapped", handles[-1].to_bytes())
            peer.call(actions.unmap, "mapped")
        block.free()

    assert len({one.to_bytes() for one in handles}) == 40
    live = [pool.allocate() for _ in range(2)]
    for one in live:
        one.export()
    for handle in handles:
        blob = handle.to_bytes()
        for place in (peer.call, peer2.call, _here):
            for refused in (actions.attach, actions.import_):
                with pytest.raises(crossmem.StaleHandleError):
                    place(refused, "never", blob)
            with pytest.raises(crossmem.StaleHandleError):
                place(actions.attach_many, ["a", "b"], [live[0].export().to_bytes(), blob])
    free_all(live)


def _here(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@pytest.mark.crossmem_core
def test_p02_from_the_moment_in_which_free_returns(make_pool: MakePool, peer: Peer) -> None:
    pool = make_pool(64)
    kept = share(pool, peer, "kept")
    for number in range(20):
        block = share(pool, peer, "mapped")
        handle = block.export()
        if number % 2:
            peer.call(actions.unmap, "mapped")
        block.free()
        if number % 2:
            with pytest.raises(crossmem.StaleHandleError):
                peer.call(actions.attach, "never", handle.to_bytes())
        with pytest.raises(crossmem.StaleHandleError):
            crossmem.attach(handle.slice(0, 8))
        if not number % 2:
            peer.call(actions.unmap, "mapped")
    peer.call(actions.unmap, "kept")
    kept.free()

    assert settle(are_free(pool, 64)) == []


def test_p02_who_holds_a_later_life_gets_no_earlier_one(make_pool: MakePool, peer: Peer) -> None:
    pool = make_pool(1)
    handles = []
    for _ in range(3):
        block = pool.allocate()
        handles.append(block.export().to_bytes())
        block.free()
        assert pool.stats().free == 1
    block = share(pool, peer, "mapped", b"live")

    for blob in handles:
        for refused in (actions.attach, actions.import_):
            with pytest.raises(crossmem.StaleHandleError):
                peer.call(refused, "never", blob)
    # The refused imports did not end the hold on the live block.
    block.free()
    assert pool.stats().waiting == 1
    assert peer.call(actions.read, "mapped", 4) == b"live"
    peer.call(actions.unmap, "mapped")
    assert pool.stats().free == 1


def test_p02_a_withdrawn_handle_is_stale_in_the_blocks_next_lives(
    make_pool: MakePool, peer: Peer
) -> None:
    pool = make_pool(1)
    withdrawn = []
    for _ in range(3):
        block = share(pool, peer, "mapped")
        peer.call(actions.unmap, "mapped")
        withdrawn.append(block.export().to_bytes())
        block.withdraw(withdrawn[-1])
        withdrawn.append(block.export().to_bytes())
        block.free()
    block = share(pool, peer, "mapped")
    peer.call(actions.unmap, "mapped")

    for blob in withdrawn:
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(actions.attach, "never", blob)
    block.free()


def test_p02_who_holds_a_withdrawn_life_gets_the_next_one(make_pool: MakePool, peer: Peer) -> None:
    pool = make_pool(1)
    block = share(pool, peer, "old", b"both")
    old = block.export().to_bytes()
    block.withdraw(old)
    new = block.export().to_bytes()
    peer.call(actions.attach, "new", new)
    peer.call(actions.unmap, "old")

    assert peer.call(actions.read, "new", 4) == b"both"
    with pytest.raises(crossmem.StaleHandleError):
        peer.call(actions.attach, "never", old)
    block.free()
    assert not take_all(pool)
    peer.call(actions.unmap, "new")
    assert settle(are_free(pool, 1)) == []
