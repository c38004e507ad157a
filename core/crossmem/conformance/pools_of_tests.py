# SPDX-License-Identifier: Apache-2.0
"""Helpers of the pool tests."""

from collections.abc import Callable
from typing import Final, Protocol

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.models import BlockHandle

__all__ = ["NBYTES", "MakePool", "are_free", "free_all", "index_of", "share", "take_all"]

NBYTES: Final = 4096


class MakePool(Protocol):
    """The type of the fixture ``make_pool``."""

    def __call__(self, blocks: int, nbytes: int = NBYTES) -> crossmem.Pool:
        """Make a pool, which is closed after the test."""
        ...


def index_of(block: crossmem.Block) -> int:
    """Return the index of a block in its pool."""
    handle = block.export()
    assert isinstance(handle, BlockHandle)
    return handle.index


def take_all(pool: crossmem.Pool) -> list[crossmem.Block]:
    """Allocate and export all free blocks of a pool; return the blocks."""
    taken: list[crossmem.Block] = []
    while True:
        try:
            taken.append(pool.allocate())
        except crossmem.OutOfMemoryError:
            return taken
        # Before the owner reuses a block that was exported, the owner reads the importers' rows.
        # The tests check these reads, so this function exports each block.
        taken[-1].export()


def free_all(blocks: list[crossmem.Block]) -> None:
    """Free all blocks of a list, and empty the list."""
    while blocks:
        blocks.pop().free()


def share(pool: crossmem.Pool, peer: Peer, name: str, data: bytes = b"") -> crossmem.Block:
    """Allocate a block, let a peer attach it under a name, and return the block."""
    block = pool.allocate()
    if data:
        block.write(data)
    peer.call(actions.attach, name, block.export().to_bytes())
    return block


def are_free(pool: crossmem.Pool, count: int) -> Callable[[], list[str]]:
    """Return a check for ``settle``. The check returns ``[]`` if ``count`` blocks are free."""

    def check() -> list[str]:
        free = pool.stats().free
        return [] if free == count else [f"{free} blocks are free, not {count}"]

    return check
