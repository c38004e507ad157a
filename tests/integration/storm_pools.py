# SPDX-License-Identifier: Apache-2.0
"""What a worker of test_storm.py does with pools, beside what it does with allocations."""

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

import crossmem
from crossmem.conformance.speed import SLOWNESS
from crossmem.models import BlockHandle
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.blocks import PoolImports

if TYPE_CHECKING:
    from tests.integration import storm_worker
else:
    import storm_worker

BLOCK_NBYTES: Final = 4096
BLOCKS: Final = 12
_MOST_LIVE: Final = 4
_IDLE_WITHIN_S: Final = 20.0 * SLOWNESS
"""How long blocks may wait at the end, when every process has released what it held."""


class PoolActor(storm_worker.Actor):
    """An actor that has a pool, too, and gives its blocks away like allocations."""

    def __init__(self, board: Path, seed: int) -> None:
        super().__init__(board, seed)
        self.pool: crossmem.Pool | None = None
        self.idle_within_s = _IDLE_WITHIN_S
        self.steps += [
            (6, self.share_block),
            (4, self.free_block),
            (8, self.attach_bytes),
            (1, self.look_at_pool),
            (0.3, self.renew_pool),
        ]

    @property
    def own_blocks(self) -> list[int]:
        """Places in ``own`` of the blocks."""
        return [n for n, (one, _, _) in enumerate(self.own) if isinstance(one, crossmem.Block)]

    def share_block(self) -> None:
        """Give a block away; it may have had many lives."""
        if self.pool is None:
            self.pool = self.call(self.device.pool, BLOCK_NBYTES, BLOCKS)
        if len(self.own_blocks) >= _MOST_LIVE:
            self.free_block()
        timeout_s = self.chance.choice((0.0, 0.0, 0.2))
        try:
            nbytes = self.chance.randint(8, BLOCK_NBYTES)
            block = self.call(self.pool.allocate, nbytes, timeout=timeout_s)
        except crossmem.OutOfMemoryError:
            # Others hold the freed ones, or are stopped.
            self.counts["pools used up"] += 1
            return
        self.publish(block, self.call(block.export))
        self.counts["blocks"] += 1

    def free_block(self) -> None:
        """Free a block, which others may hold."""
        if own := self.own_blocks:
            self.free_one(self.chance.choice(own))

    def attach_bytes(self) -> None:
        """Attach by bytes: those of a block take no message once its pool is open."""
        handle = self.found()
        if handle is None:
            return
        blob = handle.to_bytes()

        def attach() -> list[crossmem.Mapping]:
            mapping = self.call(crossmem.attach, blob)
            self.counts["blocks attached"] += isinstance(handle, BlockHandle)
            return [mapping]

        self.attach_with(attach, [handle])

    def look_at_pool(self) -> None:
        """Count the blocks: each is free, live or waiting."""
        if self.pool is None:
            return
        stats = self.call(self.pool.stats)
        if (
            stats.free + stats.live + stats.waiting != stats.blocks
            or min(stats.free, stats.live) < 0
        ):
            self.problem(f"blocks are missing: {stats}")
        self.call(self.pool.exports)

    def renew_pool(self) -> None:
        """Close the pool, while others may hold its blocks, and its own are live."""
        pool, self.pool = self.pool, None
        if pool is not None:
            self.call(pool.close)
            self.counts["pools closed"] += 1

    # The end -------------------------------------------------------------------------------

    @override
    def release(self) -> None:
        super().release()
        # The owners of pools end after this process has, or before.
        self.call(current().part(PoolImports).close_idle)

    @override
    def free_all(self) -> None:
        super().free_all()
        pool, self.pool = self.pool, None
        if pool is None:
            return
        end = time.monotonic() + self.idle_within_s
        while (stats := pool.stats()).free != BLOCKS and time.monotonic() < end:
            time.sleep(0.01)
        if stats.free != BLOCKS or stats.holders or stats.in_messages:
            self.problem(f"a pool has lost blocks: {stats}")
        taken = []
        with contextlib.suppress(crossmem.OutOfMemoryError):
            while True:
                taken.append(pool.allocate())
        if len({one.ptr for one in taken}) != BLOCKS:
            self.problem(f"a pool gives {len(taken)} of {BLOCKS} blocks: {stats}")
        for one in taken:
            one.free()
        pool.close()

    # Interrupts ----------------------------------------------------------------------------

    def is_exported(self, handle: crossmem.ShareableHandle) -> bool:
        """Whether memory of this process can still be imported."""
        server = current().server
        if server is None:
            return False
        if isinstance(handle, BlockHandle):
            arena: Any = server.leases.pools.arenas.get(handle.allocation)
            return arena is not None and arena.words[arena.at + handle.index] == handle.generation
        return handle.allocation in {unit.allocation for unit, _, _ in server.leases.report()}
