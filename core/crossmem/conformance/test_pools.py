# SPDX-License-Identifier: Apache-2.0
"""Laws P1 to P5: the promises of pools, besides those that their blocks keep as allocations."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.control import words
from crossmem.models import BlockHandle
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.blocks import PoolImports

NBYTES = 4096


class MakePool(Protocol):
    """Makes a pool on the device under test. The fixture closes the pool after the test."""

    def __call__(self, blocks: int, nbytes: int = NBYTES) -> crossmem.Pool:
        """Return a new pool."""
        ...


@pytest.fixture
def make_pool(device: crossmem.Device, guarded: None) -> Iterator[MakePool]:
    made: list[crossmem.Pool] = []

    def make(blocks: int, nbytes: int = NBYTES) -> crossmem.Pool:
        made.append(device.pool(nbytes, blocks))
        return made[-1]

    yield make
    for one in made:
        one.close()


def index_of(block: crossmem.Block) -> int:
    """Return the index of a block in its pool."""
    handle = block.export()
    assert isinstance(handle, BlockHandle)
    return handle.index


def take_all(pool: crossmem.Pool) -> list[crossmem.Block]:
    """Allocate and export all blocks of a pool."""
    taken: list[crossmem.Block] = []
    while True:
        try:
            taken.append(pool.allocate())
        except crossmem.OutOfMemoryError:
            return taken
        # The pool reads the rows only of exported blocks.
        taken[-1].export()


def free_all(blocks: list[crossmem.Block]) -> None:
    """Free each of the blocks."""
    while blocks:
        blocks.pop().free()


def share(pool: crossmem.Pool, peer: Peer, name: str, data: bytes = b"") -> crossmem.Block:
    """Allocate a block, and have a peer attach it and keep it under a name."""
    block = pool.allocate()
    if data:
        block.write(data)
    peer.call(actions.attach, name, block.export().to_bytes())
    return block


def are_free(pool: crossmem.Pool, count: int) -> Callable[[], list[str]]:
    """Return a check that a pool has ``count`` free blocks."""

    def check() -> list[str]:
        free = pool.stats().free
        return [] if free == count else [f"{free} blocks are free, not {count}"]

    return check


# P1: a held block is not allocated again -------------------------------------------------


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
    """Attach blocks while the owner frees them; return how many had another block's contents."""
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
        # The freed blocks get other contents as soon as they are allocated again.
        taken = [pool.allocate() for _ in range(8)]
        for one in taken:
            one.write(b"\xff" * 8)
            one.export()
        free_all(taken)

    assert answer.result() == 0
    assert settle(are_free(pool, 64)) == []


# P2: handles stay stale --------------------------------------------------------------------


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
    # The refused attach left the other hold unchanged.
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


# P3: a stopped importer delays its own blocks only ----------------------------------------


@pytest.mark.crossmem_core
def test_p03_a_stopped_importer_delays_no_other_block(
    make_pool: MakePool, peer: Peer, fresh_peer: FreshPeer
) -> None:
    pool = make_pool(64)
    stopped = fresh_peer()
    theirs = [share(pool, stopped, f"mapped{number}") for number in range(3)]
    first = share(pool, peer, "mapped")
    peer.call(actions.unmap, "mapped")
    first.free()
    stopped.stop()

    start = time.monotonic()
    free_all(theirs)
    for _ in range(10):
        taken = take_all(pool)
        assert len(taken) == 61
        peer.call(actions.attach, "mapped", taken[0].export().to_bytes())
        peer.call(actions.unmap, "mapped")
        taken.pop().free(busy="wait", timeout=SOON_S)
        free_all(taken)
    took_s = time.monotonic() - start
    assert pool.stats().waiting == 3
    stopped.cont()
    for number in range(3):
        stopped.call(actions.unmap, f"mapped{number}")

    assert settle(are_free(pool, 64)) == []
    assert took_s < 2 * SOON_S


def test_p03_nor_a_block_that_is_waited_for(
    make_pool: MakePool, peer: Peer, fresh_peer: FreshPeer
) -> None:
    pool = make_pool(2)
    stopped = fresh_peer()
    blocks = [share(pool, stopped, "mapped"), share(pool, peer, "mapped")]
    free_all(blocks)
    stopped.stop()

    ending = threading.Timer(0.2, peer.call, (actions.unmap, "mapped"))
    ending.start()
    pool.allocate(timeout=SOON_S).free()
    ending.join()
    stopped.kill()

    assert settle(are_free(pool, 2)) == []


# P4: garbage in a row ---------------------------------------------------------------------


def fill_row(seed: int, *, header: bool = False) -> None:
    """Write random words into this process's row: the blocks' words, and perhaps the header."""
    chosen = random.Random(seed)
    for arena in current().part(PoolImports).arenas.values():
        first = 0 if header else arena.at - 1
        for index in range(first, arena.at + 4 * arena.pool.blocks):
            rubbish = chosen.choice((0, 1, 2, 3, 2**64 - 1, chosen.getrandbits(64)))
            words.store(arena.row, index, rubbish)


@pytest.mark.crossmem_core
def test_p04_rubbish_in_a_row_pins_blocks_at_worst(
    make_pool: MakePool, peer: Peer, fresh_peer: FreshPeer
) -> None:
    pool, other = make_pool(16), make_pool(16)
    rogue = fresh_peer()
    data = pattern(NBYTES, 5)
    block = share(pool, peer, "mapped", data)
    share(pool, rogue, "mapped").free()
    held = index_of(block)
    block.free()

    for seed in range(20):
        rogue.call(fill_row, seed, header=seed % 4 == 3)
        for _ in range(3):
            taken = take_all(pool)
            assert len({index_of(one) for one in taken} | {held}) == len(taken) + 1
            for one in taken:
                one.write(bytes(NBYTES))
            free_all(taken)
        stats = pool.stats()
        assert stats.free + stats.live + stats.waiting == 16
        crossmem.exports()
        crossmem.collect()
        # The rogue has no lease on the other pool, whose slots lie in the same segment.
        assert other.stats().free == 16
        taken = take_all(other)
        assert len(taken) == 16
        free_all(taken)
        assert peer.call(actions.read, "mapped") == data
    rogue.kill()

    assert settle(are_free(pool, 15)) == []
    assert settle(are_free(other, 16)) == []
    peer.call(actions.unmap, "mapped")
    assert settle(are_free(pool, 16)) == []


def test_p04_words_of_blocks_that_one_has_no_lease_on_pin_nothing(
    make_pool: MakePool, peer: Peer, fresh_peer: FreshPeer
) -> None:
    pools = [make_pool(8) for _ in range(3)]
    rogue = fresh_peer()
    share(pools[0], rogue, "mapped").free()
    # This pool lies in the same segment, and the peer has a lease on it.
    share(pools[1], peer, "mapped").free()
    rogue.call(fill_row, 1)

    for _ in range(3):
        for pool, count in zip(pools[1:], (7, 8), strict=True):
            taken = take_all(pool)
            assert len(taken) == count
            free_all(taken)
    peer.call(actions.unmap, "mapped")
    rogue.kill()
    for pool in pools:
        assert settle(are_free(pool, 8)) == []


# P5: an exhausted pool --------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_p05_an_exhausted_pool_says_who_holds_its_blocks(
    make_pool: MakePool, peer: Peer, peer2: Peer
) -> None:
    pool = make_pool(4)
    blocks = [share(pool, peer, f"mapped{number}") for number in range(3)]
    peer2.call(actions.attach, "mapped", blocks[0].export().to_bytes())
    blocks.append(pool.allocate())
    for one in blocks[:2]:
        one.free()

    with pytest.raises(crossmem.OutOfMemoryError) as caught:
        pool.allocate()

    text = str(caught.value)
    assert f"process {peer.pid} (2)" in text
    assert f"process {peer2.pid} (1)" in text
    peer2.call(actions.unmap, "mapped")
    for number in range(3):
        peer.call(actions.unmap, f"mapped{number}")
    free_all(blocks)
    assert settle(are_free(pool, 4)) == []


def test_p05_it_waits_as_long_as_was_said(make_pool: MakePool) -> None:
    pool = make_pool(2)
    taken = take_all(pool)
    start = time.monotonic()
    with pytest.raises(crossmem.OutOfMemoryError):
        pool.allocate(timeout=0.3)
    took_s = time.monotonic() - start
    free_all(taken)

    assert 0.3 <= took_s < SOON_S


@pytest.mark.parametrize("way", ["freed", "unmapped", "killed"])
@pytest.mark.crossmem_core
def test_p05_a_wait_ends_when_a_block_comes_back(
    make_pool: MakePool, fresh_peer: FreshPeer, way: str
) -> None:
    pool = make_pool(2)
    importer = fresh_peer()
    blocks = [share(pool, importer, "mapped"), pool.allocate()]
    if way == "freed":
        importer.call(actions.unmap, "mapped")
        end: Callable[[], object] = blocks.pop(1).free
    else:
        blocks.pop(0).free()
        unmap = partial(importer.call, actions.unmap, "mapped")
        end = importer.kill if way == "killed" else unmap
    ending = threading.Timer(0.2, end)
    ending.start()
    start = time.monotonic()
    blocks.append(pool.allocate(timeout=10 * SOON_S))
    took_s = time.monotonic() - start
    ending.join()
    free_all(blocks)

    assert took_s < 0.2 + SOON_S
    assert settle(are_free(pool, 2)) == []
