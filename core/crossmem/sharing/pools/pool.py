# SPDX-License-Identifier: Apache-2.0
"""Pools: an importer leases a pool once, and then attaches its blocks without a message."""

import time
from typing import Any, ClassVar, Final

from typing_extensions import override

from crossmem.control.arenas import Arena
from crossmem.control.records import Allow
from crossmem.control.segments import BLOCKS_AT, SLOTS
from crossmem.errors import ConfigurationError, InvalidSizeError, OutOfMemoryError, UnsupportedError
from crossmem.guards import check_choice, check_integer, check_size, check_wait, shorten
from crossmem.models import Access
from crossmem.models.block_handle import BLOCK_ALIGNMENT
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.ending import Endable
from crossmem.sharing.base.process import Process, drain
from crossmem.sharing.exporter.allocation import allocate, record_of
from crossmem.sharing.exporter.pool_report import PoolStats, stats_of
from crossmem.sharing.exporter.report import ExportInfo, blocks_of
from crossmem.sharing.pools.block import Block, name_pids
from crossmem.sharing.pools.block_record import BlockRecord
from crossmem.sharing.pools.record import PoolRecord

__all__ = ["Pool", "make_pool"]

_new: Final = object.__new__
_DEVICE_ALIGNMENT: Final = 512
_MAX_BLOCKS: Final = SLOTS - BLOCKS_AT


class Pool(Endable):
    """Memory that is divided into blocks of one size. Made by :meth:`crossmem.Device.pool`.

    A ``with`` statement closes the pool at the end of its block.

    Attributes
    ----------
    device
        The device that holds the memory.
    block_nbytes
        Capacity of each block, in bytes.
    blocks
        Number of blocks.
    allow, access
        The processes that may import the blocks, and their access.
    """

    __slots__ = ("access", "allow", "block_nbytes", "blocks", "device")

    _ended_by: ClassVar = "close"

    _record: PoolRecord | None

    def __init__(self, record: PoolRecord) -> None:
        self._process = record.process
        self.device = record.device
        self.block_nbytes = record.stride
        self.blocks = record.arena.blocks
        self.allow = record.allow
        self.access = record.access
        # This statement comes last: from here on, the finaliser of this object closes the pool.
        self._record = record

    @override
    def __repr__(self) -> str:
        what = f"{self.blocks} blocks of {self.block_nbytes} bytes on {self.device.name}"
        record = self._record
        if record is None:
            return f"<Pool of {what}, closed>"
        return f"<Pool {record.number} of {what}, {record.arena.live} live>"

    def allocate(self, nbytes: int | None = None, *, timeout: float | None = 0.0) -> Block:
        """Return a free block. Its contents are undefined.

        Parameters
        ----------
        nbytes
            Requested bytes; None: the capacity of a block.
        timeout
            Time limit of the wait for a free block, in seconds. 0: do not wait. None:
            ``CROSSMEM_TIMEOUT``.

        Raises
        ------
        InvalidSizeError, ConfigurationError
            ``nbytes`` is not an integer from 1 to ``block_nbytes``. Or ``timeout`` is not a time
            limit.
        OutOfMemoryError
            No block became free in time. The message names processes that hold freed blocks.
        ClosedError, ForkedProcessError
            The pool was closed, or a forked child made this call.
        """
        pool, process = self._record, self._process
        if pool is None or process.is_inherited or process.is_closed:
            raise self._ended()
        limit = self.block_nbytes
        size = limit if nbytes is None else check_size("nbytes", nbytes, limit=limit)
        if type(timeout) is not float or timeout != 0.0:
            timeout = check_wait(timeout, default_s=self._process.settings.timeout_s)
        arena = pool.arena
        # Attributes are set here, because constructors would take a third of the time of this call.
        record = _new(BlockRecord)
        record.is_done = False
        record.pool = pool
        record.arena = arena
        record.generation = 0
        record.handle = None
        block = _new(Block)
        block._process = process
        block.device = self.device
        block.nbytes = size
        block.readonly = False
        block._usage = pool.usage
        block._anchor = None
        block._is_lent = False
        block._is_left = False
        free, base, stride = arena.free, pool.base, pool.stride
        while True:
            # One step: no signal handler and no other thread runs from this check to the return.
            # After the return, the finaliser of the block object frees the block.
            if free and not arena.is_closing:
                index = free[-1]
                del free[-1]
                record.index = index
                block._pointer = base + index * stride
                block._record = record
                return block
            self._wait_for_block(arena, timeout)

    def _wait_for_block(self, arena: Arena, timeout_s: float) -> None:
        """Return when a block is free. Raise at the end of the timeout, or if the pool closes."""
        if not arena.is_closing and arena.refill():
            return
        # This call frees the blocks whose objects were dropped.
        drain().drain(patient=True)
        arena.reclaim(all_of_them=True)
        arena.tell()
        end = time.monotonic() + timeout_s
        while not arena.free or arena.is_closing:
            if arena.is_closing:
                raise self._ended()
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise self._out_of_blocks(arena)
            arena.wait(left_s)
            arena.reclaim(all_of_them=True)
            arena.tell()

    def _out_of_blocks(self, arena: Arena) -> OutOfMemoryError:
        streamed = list(arena.streamed)
        waiting = [one for one in arena.held if one not in streamed]
        text = "none of them was freed"
        if waiting:
            names = name_pids(arena.holders(waiting), len({*waiting} & {*arena.in_messages()}))
            text = f"{len(waiting)} were freed and are held by {names}"
        elif streamed:
            text = f"{len(streamed)} were freed, and work on their streams still runs"
        return OutOfMemoryError(
            f"all {self.blocks} blocks of the pool are in use; {text}",
            hint="free a block, let other processes unmap blocks, or wait for one with timeout=",
            operation="allocate",
            backend=self.device.backend,
            device=self.device.identity,
        )

    def stats(self) -> PoolStats:
        """Return the number of blocks in each state, and the holders of blocks.

        Raises
        ------
        ClosedError, ForkedProcessError
            The pool was closed, or a forked child made this call.
        BusyError
            The process cannot wait for the device's work now, for example during a capture.
        DriverError
            The kernel refuses the barrier.
        """
        drain()
        pool = self._record
        if pool is None or not self._process.is_usable:
            raise self._ended()
        return stats_of(pool.arena)

    def exports(self) -> list[ExportInfo]:
        """Return the exported blocks and their holders, in the order of the blocks.

        Each handle names the whole capacity of its block. The ``since`` of a process's lease is the
        time at which the process leased the pool.

        Raises
        ------
        ClosedError, ForkedProcessError
            The pool was closed, or a forked child made this call.
        """
        drain()
        pool = self._record
        if pool is None or not self._process.is_usable:
            raise self._ended()
        return blocks_of(pool.arena, self._process.identity.pid)

    def close(self) -> None:
        """Close the pool, which then allocates no more blocks. A second call does nothing.

        Live blocks stay valid. The memory is freed when the last block is freed and the last
        importer has released the pool. An importer releases the pool less than a second after it
        has released its last block.
        """
        self._end()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "a Pool stays in its process; send the handles of its blocks"
        raise UnsupportedError(msg)


def make_pool(
    process: Process,
    device: LocalDevice,
    block_nbytes: object,
    blocks: object,
    allow: Allow | None,
    access: Access,
) -> Pool:
    """Make a pool; see :meth:`crossmem.Device.pool`."""
    check_choice("access", access, ("rw", "ro"), "pool")
    if allow is not None and not isinstance(allow, Allow):
        msg = f"allow must be a crossmem.Allow or None, not {shorten(allow)}"
        raise ConfigurationError(msg, operation="pool")
    limit = device.capabilities.max_allocation_nbytes
    size = check_size("block_nbytes", block_nbytes, limit=limit)
    try:
        count = check_integer("blocks", blocks)
    except InvalidSizeError:
        count = 0
    if not 0 < count <= _MAX_BLOCKS:
        msg = f"blocks is {shorten(blocks)}; it must be an integer from 1 to {_MAX_BLOCKS}"
        raise InvalidSizeError(msg, operation="pool")
    alignment = BLOCK_ALIGNMENT if device.capabilities.host_visible else _DEVICE_ALIGNMENT
    stride = -(-size // alignment) * alignment
    memory = allocate(process, device, stride * count)
    try:
        return Pool(PoolRecord(memory, stride, allow, access))
    except BaseException:
        if process.server is not None:
            process.server.leases.pools.close(record_of(memory).number)
        memory.free()
        raise
