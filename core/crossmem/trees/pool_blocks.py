# SPDX-License-Identifier: Apache-2.0
"""Takes blocks of pools for new arrays. Refuses arrays in memory that a forked child lacks."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from crossmem.errors import (
    BusyError,
    ConfigurationError,
    ForkedProcessError,
    InvalidSizeError,
    UnsupportedError,
)
from crossmem.guards import clause, shorten
from crossmem.sharing.base.memory import Memory, is_block, leave_to_views
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.pools.block import Block
from crossmem.sharing.pools.pool import Pool
from crossmem.sharing.queues.buffer import SharedBuffer

__all__ = [
    "Exportable",
    "check_pool",
    "let_go",
    "refuse_pool_elsewhere",
    "refuse_unmapped",
    "take_block",
]

Exportable = Allocation | Block
"""Memory that this process owns and can export."""

_DROP_HINT: Final = "make a pool with larger blocks, or leave out pool="


def check_pool(pool: object, device: object, operation: str) -> None:
    """Refuse a value that is not a pool, and a pool together with a device.

    Raises
    ------
    ConfigurationError
        The value is neither a pool nor None, or a device was given with a pool.
    """
    if pool is None:
        return
    if not isinstance(pool, Pool):
        msg = f"pool must be a crossmem.Pool or None, not {shorten(pool)}"
        raise ConfigurationError(msg, operation=operation)
    if device is not None:
        msg = f"device and pool exclude each other: this pool has memory of {pool.device.name}"
        raise ConfigurationError(msg, operation=operation, hint="leave out device=")


def take_block(pool: Pool, nbytes: int, what: str, operation: str, timeout: float = 0.0) -> Block:
    """Return a block that is freed when no array refers to the block any more.

    Raises
    ------
    InvalidSizeError
        The blocks of the pool are smaller than ``nbytes``.
    OutOfMemoryError
        No block became free in time.
    """
    if nbytes > pool.block_nbytes:
        msg = f"{what} {nbytes} bytes, and a block of the pool has {pool.block_nbytes}"
        raise InvalidSizeError(msg, operation=operation, hint=_DROP_HINT)
    block = pool.allocate(nbytes, timeout=timeout)
    leave_to_views(block)
    return block


def refuse_pool_elsewhere(pool: Pool, where: str, home: str) -> None:
    """Refuse a pool that is not on ``home``, the device to which an array must be copied.

    Raises
    ------
    UnsupportedError
        The pool is on another device.
    """
    if pool.device.name != home:
        place = clause(where, 60)
        msg = f"{place} must be copied to {home}, but the pool has memory of {pool.device.name}"
        raise UnsupportedError(msg, operation="share", hint=f"use a pool of {home}")


def let_go(memory: Exportable) -> None:
    """Free memory that a tree owns.

    If arrays in the memory outlive the tree, the memory is freed when the last of these arrays has
    ended. Until then, the handles of the memory stay valid, because other trees and messages may
    contain them.
    """
    with suppress(BusyError):
        memory.free()


def refuse_unmapped(pointer: int, nbytes: int, where: Callable[[], str]) -> None:
    """In a forked child, refuse an array in a block of a pool or in a buffer of a queue.

    This memory was mapped in the parent at the fork. It is not mapped in the child.

    Raises
    ------
    ForkedProcessError
        The array lies in such memory.
    """
    memory = cast("Memory | None", current().arrays.find_inherited(pointer, nbytes))
    if memory is not None and is_block(memory):
        place = "a block of a pool, which a forked child does not have"
        if isinstance(memory, SharedBuffer):
            place = "a buffer of a queue that the parent process opened"
        msg = f"{clause(where(), 60)} lies in {place}"
        hint = "attach the block or open the queue in the child, or start the child with spawn"
        raise ForkedProcessError(msg, hint=hint, operation="share")
