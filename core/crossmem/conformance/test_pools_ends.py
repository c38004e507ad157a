# SPDX-License-Identifier: Apache-2.0
"""Laws P3 to P5: stopped importers, rubbish in rows, and exhausted pools."""

import random
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.pools_of_tests import (
    NBYTES,
    MakePool,
    are_free,
    free_all,
    index_of,
    share,
    take_all,
)
from crossmem.control import words
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.blocks import PoolImports

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


# P4: rubbish in a row ---------------------------------------------------------------------


def fill_row(seed: int, *, header: bool = False) -> None:
    """Write rubbish over the words for imported pools in this process's row, and over words nearby.

    With ``header``, the rubbish begins at the header of the row.
    """
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
        # A row has a word for each slot of a control segment, and the slots of both pools lie in
        # one control segment. So the rubbish also covers the words for ``other``. These words have
        # no effect, because the rogue has no lease on ``other``.
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
    # A row has a word for each slot of a control segment, and the slots of all pools lie in one
    # control segment. So the rubbish in the rogue's row also covers words for the second pool. The
    # rubbish has no effect there, because the rogue has no lease on the second pool. ``peer`` holds
    # one block of the second pool, so seven blocks are free.
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
