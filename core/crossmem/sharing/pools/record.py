# SPDX-License-Identifier: Apache-2.0
"""The record of a pool. It owns the pool's allocation until no block needs the memory."""

from functools import partial

from typing_extensions import override

from crossmem.control.arenas import Arena
from crossmem.control.records import Allow
from crossmem.models import Access
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import wait_for_work
from crossmem.sharing.base.forks import forget_kept, keep_from_children
from crossmem.sharing.exporter.allocation import Allocation, record_of
from crossmem.sharing.importer.blocks import PoolImports

__all__ = ["PoolRecord"]


class PoolRecord(Record):
    """The memory of a pool.

    Parameters
    ----------
    memory
        The allocation that contains all blocks. This record frees it.
    stride
        Number of bytes from the start of a block to the start of the next block.
    allow, access
        The processes that may import blocks, and their access.
    """

    __slots__ = (
        "access",
        "allow",
        "arena",
        "base",
        "copies",
        "device",
        "idle",
        "memory",
        "number",
        "process",
        "ready",
        "stride",
        "usage",
    )

    def __init__(
        self, memory: Allocation, stride: int, allow: Allow | None, access: Access
    ) -> None:
        super().__init__()
        record = record_of(memory)
        self.process = record.process
        self.device = memory.device
        self.memory = memory
        self.stride = stride
        self.allow = allow
        self.access = access
        self.number = record.number
        self.base = memory.ptr
        self.usage = record.usage
        # Freeing a block reads these references on the hot path.
        self.copies = self.usage.copies
        self.ready, self.idle = self.process.deferred.ready, self.process.deferred.idle
        # The memory is new, so no work of the device uses it yet, and the export need not wait.
        handle = memory.export(allow=allow, access=access, synchronize=False)
        server = self.process.start_server()
        wait = None
        if self.device.capabilities.host_visible:
            keep_from_children(self.base, memory.capacity)
        else:
            wait = partial(wait_for_work, self.device)
        export = server.leases.exports.get(handle.allocation, handle.export)
        self.arena = Arena(server.leases, export, stride, wait)

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Close the pool. Its memory is freed when all blocks are freed and none is reserved."""
        # stop() sets ``is_closing``. A thread that allocates a block reads this flag and takes the
        # block in one step. So from now on, the count of live blocks does not grow.
        self.arena.stop()
        self.end_if_unused()

    def end_if_unused(self) -> None:
        """Free the memory if no block is live and no message reserves one."""
        arena, deferred = self.arena, self.process.deferred
        if self.is_done:
            deferred.waiting.discard(self)
            return
        if arena.reserved:
            arena.reclaim(all_of_them=True)
            deferred.start_reaper()
        if arena.live or arena.reserved:
            deferred.waiting.add(self)
            return
        with self.process.state:
            if self.is_done:
                return
            # forget_kept() names memory by its address. Once is_done is set, the memory may be
            # freed, and other memory may get the address. So is_done is set last.
            arena.close()
            forget_kept(self.base)
            self.is_done = True
        deferred.waiting.discard(self)
        # If a signal handler raises before this call, the allocation's finaliser frees the memory.
        self.memory.free()
        # This process may have imported blocks of its own pool. Release those imports, too.
        self.process.part(PoolImports).tend()
