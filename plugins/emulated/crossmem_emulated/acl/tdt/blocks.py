# SPDX-License-Identifier: Apache-2.0
"""Blocks: allocations that contain the data of buffers.

Each process maps a block at the same address if the address is free there. The process that
allocated a block keeps it as long as a buffer of any process refers to the block. Each other
process keeps the block as long as one of its own buffers refers to the block.
"""

import os
import sqlite3
from contextlib import suppress
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.state import Block
from crossmem_emulated.addresses import Piece
from crossmem_emulated.pages import DeviceFullError, Pages

__all__ = ["allocate_block", "open_block", "release_unused", "show_block"]

_FIRST_ADDRESS: Final = 1 << 45
"""The first block's address. Programs and sanitizers rarely map memory in this area."""


def allocate_block(
    process: AclProcess, tables: sqlite3.Connection, pool: tuple[int, int], nbytes: int
) -> Block:
    """Allocate a block. ``pool`` is the pool's number, and the index of its device on the host."""
    number, device = pool
    span = -(-nbytes // memory.PAGE_NBYTES) * memory.PAGE_NBYTES
    try:
        pages = process.store.allocate(device, span, is_labelled=True)
    except DeviceFullError:
        text = f"the device has no room for {nbytes} bytes"
        raise Refused(Code.RT_MEMORY_ALLOCATION, text) from None
    (address,) = tables.execute(
        "SELECT COALESCE(MAX(address + span), ?) FROM acl_block", (_FIRST_ADDRESS,)
    ).fetchone()
    made = tables.execute(
        "INSERT INTO acl_block (pool, pages, nbytes, address, span) VALUES (?, ?, ?, ?, ?)",
        (number, pages.number, nbytes, address, span),
    )
    block = Block(int(made.lastrowid or 0), nbytes, address, span, pages, is_own=True)
    _hold(process, tables, block)
    return block


def open_block(process: AclProcess, tables: sqlite3.Connection, number: int) -> Block | None:
    """Return a block. If this process lacks the block, receive it from another process.

    Return None if no living process has the block.
    """
    block = process.tdt.blocks.get(number)
    if block is not None:
        return block
    nbytes, address, span = tables.execute(
        "SELECT nbytes, address, span FROM acl_block WHERE number = ?", (number,)
    ).fetchone()
    holders = tables.execute(
        "SELECT process, pid, descriptor FROM acl_block_holder "
        "JOIN process ON process.number = process WHERE block = ?",
        (number,),
    ).fetchall()
    for holder, pid, descriptor in holders:
        if not process.machine.lives(tables, holder):
            continue
        pages = _receive(process, pid, descriptor)
        if pages is not None:
            block = Block(number, nbytes, address, span, pages, is_own=False)
            _hold(process, tables, block)
            return block
    return None


def _receive(process: AclProcess, pid: int, descriptor: int) -> Pages | None:
    # The other process may end at any moment. Then its descriptors cannot be opened any more.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return process.store.receive(opened)
        finally:
            os.close(opened)
    return None


def _hold(process: AclProcess, tables: sqlite3.Connection, block: Block) -> None:
    tables.execute(
        "INSERT INTO acl_block_holder (block, process, descriptor) VALUES (?, ?, ?)",
        (block.number, process.machine.me(tables), block.pages.descriptor),
    )
    process.tdt.blocks[block.number] = block
    process.machine.undo(process.tdt.blocks.pop, block.number, None)


def show_block(process: AclProcess, block: Block) -> None:
    """Map a block for the program, if it is not mapped."""
    if block.piece is not None:
        return
    try:
        region = process.space.reserve(
            block.span, is_reservation=False, at=block.address, alignment=memory.PAGE_NBYTES
        )
    except memory.SystemCallError:
        # The program uses these addresses, or they are beyond the CPU's address range.
        region = process.space.reserve(
            block.span, is_reservation=False, alignment=memory.PAGE_NBYTES
        )
    block.piece = Piece(
        region.start,
        block.nbytes,
        region,
        block.pages,
        0,
        Origin.BUFFER,
        block,
        is_small=True,
        is_host_visible=True,
    )
    process.space.attach(block.piece)


def _hide(process: AclProcess, block: Block) -> None:
    if block.piece is not None:
        process.space.detach(block.piece)
        process.space.release(block.piece.region)
        block.piece = None


def release_unused(process: AclProcess, tables: sqlite3.Connection) -> None:
    """Unmap and release the blocks that this process need not keep.

    If this process allocated a block and has handed over all buffers of the block, this process
    keeps the block, so that other processes can open it. In this case, a strict emulation unmaps
    the block, so that an access by this process causes SIGSEGV.
    """
    unused = [one for one in process.tdt.blocks.values() if not one.headers]
    for block in unused:
        query = "SELECT number FROM acl_block WHERE number = ?"
        if block.is_own and tables.execute(query, (block.number,)).fetchone():
            if process.strict:
                _hide(process, block)
            continue
        _hide(process, block)
        del process.tdt.blocks[block.number]
        tables.execute(
            "DELETE FROM acl_block_holder WHERE block = ? AND process = ?",
            (block.number, process.machine.me(tables)),
        )
        process.store.release(block.pages)
