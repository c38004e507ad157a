# SPDX-License-Identifier: Apache-2.0
"""References to the data of buffers, and chains of buffers."""

from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.buffers import adopt, find_buffer, find_head
from crossmem_emulated.acl.tdt.elements import Header
from crossmem_emulated.acl.tdt.pools import tables_of
from crossmem_emulated.acl.tdt.state import Block

__all__: list[str] = []

_LONGEST: Final = 128


@entry("tdt.copy_buf_ref", "k", 0)
def _copy_buf_ref(process: AclProcess, handle: int) -> int:
    head = find_head(process, handle)
    headers: list[tuple[Header, Block]] = []
    with tables_of(process) as (tables, _):
        for one in head.chain:
            made = tables.execute(
                "INSERT INTO acl_mbuf (block, holder) VALUES (?, ?)",
                (one.block.number, process.machine.me(tables)),
            )
            number, user = int(made.lastrowid or 0), bytes(one.user)
            header = Header(number, one.block.number, one.length, user, one.is_user_set)
            headers.append((header, one.block))
    return adopt(process, headers)


@entry("tdt.append_buf_chain", "kk")
def _append_buf_chain(process: AclProcess, handle: int, other_handle: int) -> None:
    if not handle or not other_handle:
        raise Refused(Code.INVALID_PARAM, "a buffer is null")
    first, second = find_buffer(process, handle), find_buffer(process, other_handle)
    if first is second:
        text = "a buffer cannot be appended to itself"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-B10")
    if first.chain[0] is not first or second.chain[0] is not second:
        raise Refused(Code.RT_PARAM_INVALID, "both buffers must be heads of chains", "ACL-B11")
    if len(first.chain) + len(second.chain) > _LONGEST:
        raise Refused(Code.RT_OVER_LIMIT, f"a chain has at most {_LONGEST} buffers")
    first.chain += second.chain
    for buffer in second.chain:
        buffer.chain = first.chain


@entry("tdt.get_buf_chain_num", "k", 0)
def _get_buf_chain_num(process: AclProcess, handle: int) -> int:
    return len(find_head(process, handle).chain)


@entry("tdt.get_buf_from_chain", "kI", 0)
def _get_buf_from_chain(process: AclProcess, handle: int, index: int) -> int:
    chain = find_head(process, handle).chain
    if index >= _LONGEST:
        text = f"the index must be below {_LONGEST}, not {index}"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-B13")
    if index >= len(chain):
        text = f"the chain has {len(chain)} buffers, none at {index}"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-B13")
    return chain[index].handle
