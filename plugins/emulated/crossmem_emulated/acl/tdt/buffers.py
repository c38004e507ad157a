# SPDX-License-Identifier: Apache-2.0
"""The buffers that queues hand over. A buffer is memory with a length and user data."""

import ctypes
import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.blocks import allocate_block, release_unused, show_block
from crossmem_emulated.acl.tdt.elements import Header
from crossmem_emulated.acl.tdt.pools import ALLOC, check_processor, tables_of
from crossmem_emulated.acl.tdt.programs import read, write
from crossmem_emulated.acl.tdt.state import Block, Buffer, Processor

__all__ = ["adopt", "check_unwritten", "digest_of", "find_buffer", "find_head", "forget"]

_TYPES: Final = frozenset({0, 1})
_LARGEST_NBYTES: Final = 4 << 30
_VISIBLE_USER_NBYTES: Final = 96


def find_buffer(process: AclProcess, handle: int) -> Buffer:
    """Return the buffer that a handle names. Refuse an invalid handle."""
    if not handle:
        raise Refused(Code.INVALID_PARAM, "the buffer is null")
    check_processor(process, lacking=(Processor.HOST,))
    buffer = process.tdt.buffers.get(handle)
    if buffer is None:
        if handle in process.tdt.handed_over:
            text, rule = f"the buffer {handle:#x} was handed over to a queue", "ACL-B15"
        else:
            text, rule = f"the handle {handle:#x} is unknown, or its buffer was freed", "ACL-B9"
        raise Refused(Code.RT_PARAM_INVALID, text, rule)
    return buffer


def find_head(process: AclProcess, handle: int) -> Buffer:
    """Return the buffer that a handle names. Refuse a buffer that is not the head of its chain."""
    buffer = find_buffer(process, handle)
    if buffer.chain[0] is not buffer:
        text = f"the buffer {handle:#x} belongs to the chain of {buffer.chain[0].handle:#x}"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-B14")
    return buffer


def adopt(process: AclProcess, headers: Sequence[tuple[Header, Block]]) -> int:
    """Make a chain of new buffers, one for each header. Return the handle of the head."""
    chain: list[Buffer] = []
    for header, block in headers:
        buffer = Buffer(next(process.handles), header.number, block, header.length, chain=chain)
        buffer.user[: len(header.user)] = header.user
        buffer.is_user_set = bool(header.is_user_set)
        block.headers += 1
        show_block(process, block)
        chain.append(buffer)
        process.tdt.buffers[buffer.handle] = buffer
    return chain[0].handle


def forget(process: AclProcess, call: str, head: Buffer) -> None:
    """Remove the buffers of a chain from this process, after they were freed or handed over."""
    for buffer in head.chain:
        del process.tdt.buffers[buffer.handle]
        block = buffer.block
        block.headers -= 1
        if not block.headers and block.piece is not None:
            process.check_idle(call, block.piece.start, block.nbytes)
    with process.machine.transaction() as tables:
        release_unused(process, tables)


def digest_of(block: Block) -> bytes:
    """Return a digest of a block's data."""
    data = (ctypes.c_char * block.nbytes).from_address(block.pages.address)
    return hashlib.blake2b(data, digest_size=16).digest()


def check_unwritten(
    process: AclProcess, tables: sqlite3.Connection, call: str, head: Buffer
) -> None:
    """Record a violation if the data of a chain changed after the vendor's router had read it.

    All consumers of routed data share the data, so no consumer may write to the data.
    """
    for block in {one.block.number: one.block for one in head.chain}.values():
        query = "SELECT digest FROM acl_block WHERE number = ?"
        (digest,) = tables.execute(query, (block.number,)).fetchone()
        if digest is not None and digest != digest_of(block):
            process.violate(call, "ACL-Q28", "routed data was written, but its consumers share it")
            statement = "UPDATE acl_block SET digest = NULL WHERE number = ?"
            tables.execute(statement, (block.number,))


# One buffer ---------------------------------------------------------------------------------


@entry("tdt.alloc_buf", "kI", 0)
def _alloc_buf(process: AclProcess, size: int, kind: int) -> int:
    if kind not in _TYPES:
        raise Refused(Code.INVALID_PARAM, f"the type of a buffer must be 0 or 1, not {kind}")
    check_processor(process, lacking=(Processor.HOST,))
    if not 0 < size <= _LARGEST_NBYTES:
        text = f"the size must be 1 to {_LARGEST_NBYTES} bytes, not {size}"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-B3" if size else "ACL-B1")
    with tables_of(process) as (tables, pool):
        if not pool.attributes & ALLOC:
            raise Refused(Code.FAILURE, "this process lacks the right to allocate in its group")
        block = allocate_block(process, tables, (pool.number, pool.device), size)
        made = tables.execute(
            "INSERT INTO acl_mbuf (block, holder) VALUES (?, ?)",
            (block.number, process.machine.me(tables)),
        )
    return adopt(process, [(Header(int(made.lastrowid or 0), block.number, 0, b"", 0), block)])


@entry("tdt.free_buf", "k")
def _free_buf(process: AclProcess, handle: int) -> None:
    head = find_head(process, handle)
    with tables_of(process) as (tables, _):
        check_unwritten(process, tables, "tdt.free_buf", head)
        tables.executemany(
            "DELETE FROM acl_mbuf WHERE number = ?", [(one.number,) for one in head.chain]
        )
    forget(process, "tdt.free_buf", head)


@entry("tdt.get_buf_data", "k", 0, 0)
def _get_buf_data(process: AclProcess, handle: int) -> tuple[int, int]:
    block = find_buffer(process, handle).block
    assert block.piece is not None  # noqa: S101 - a buffer's block is mapped
    return block.piece.start, block.nbytes


@entry("tdt.set_buf_data_len", "kk")
def _set_buf_data_len(process: AclProcess, handle: int, length: int) -> None:
    buffer = find_buffer(process, handle)
    if not 0 < length <= buffer.block.nbytes:
        text = f"the length must be 1 to {buffer.block.nbytes} bytes, not {length}"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-B5")
    buffer.length = length


@entry("tdt.get_buf_data_len", "k", 0)
def _get_buf_data_len(process: AclProcess, handle: int) -> int:
    return find_buffer(process, handle).length


def _check_user_data(handle: int, pointer: int, size: int, offset: int) -> None:
    if not handle or not pointer:
        raise Refused(Code.INVALID_PARAM, "the buffer or the address is null")
    if size + offset > _VISIBLE_USER_NBYTES:
        text = f"{size} bytes at offset {offset} exceed {_VISIBLE_USER_NBYTES} bytes of user data"
        raise Refused(Code.INVALID_PARAM, text, "ACL-B7")


@entry("tdt.set_buf_user_data", "kkkk")
def _set_buf_user_data(
    process: AclProcess, handle: int, pointer: int, size: int, offset: int
) -> None:
    _check_user_data(handle, pointer, size, offset)
    buffer = find_buffer(process, handle)
    buffer.user[offset : offset + size] = read(process, pointer, size)
    buffer.is_user_set = True


@entry("tdt.get_buf_user_data", "kkkk")
def _get_buf_user_data(
    process: AclProcess, handle: int, pointer: int, size: int, offset: int
) -> None:
    _check_user_data(handle, pointer, size, offset)
    buffer = find_buffer(process, handle)
    if not buffer.is_user_set:
        text = "the user data was read, but was never set"
        process.violate("tdt.get_buf_user_data", "ACL-B7", text)
    write(process, pointer, bytes(buffer.user[offset : offset + size]))
