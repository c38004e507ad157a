# SPDX-License-Identifier: Apache-2.0
"""Plain memory: of the device, where small requests share pages, and of the host."""

import ctypes
from dataclasses import dataclass, field
from typing import Any, Final

from crossmem_emulated import memory
from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import GRANULARITY_NBYTES, LARGEST_NBYTES, Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.release import drop_keys
from crossmem_emulated.addresses import Piece, Region
from crossmem_emulated.pages import NoRoomError, Pages

__all__ = ["Slab"]

_NORMAL_ONLY: Final = frozenset({2, 5})
_POLICY_MASK: Final = 0xFF
_LARGEST_SMALL_NBYTES: Final = 1 << 20
_SMALL_ALIGNMENT: Final = 512


@dataclass(slots=True, eq=False)
class Slab:
    """Pages from which small requests are served, one after the other."""

    pages: Pages
    region: Region
    taken_nbytes: int = 0
    live: set[int] = field(default_factory=set)


def _allocate_pages(process: AclProcess, index: int, nbytes: int) -> Pages:
    try:
        return process.store.allocate(index, nbytes)
    except NoRoomError:
        raise Refused(
            Code.RT_MEMORY_ALLOCATION, f"the device has no room for {nbytes} bytes"
        ) from None


def _new_slab(process: AclProcess, index: int) -> Slab:
    pages = _allocate_pages(process, index, GRANULARITY_NBYTES)
    try:
        region = process.space.reserve(GRANULARITY_NBYTES, is_reservation=False)
    except memory.SystemCallError as error:
        process.store.release(pages)
        raise Refused(Code.RT_MEMORY_ALLOCATION, str(error)) from None
    process.space.show(pages.address, pages.nbytes, region.start)
    slab = Slab(pages, region)
    process.slabs.append(slab)
    return slab


def _malloc_small(process: AclProcess, index: int, nbytes: int) -> int:
    size = -(-nbytes // _SMALL_ALIGNMENT) * _SMALL_ALIGNMENT
    for slab in process.slabs:
        fits = slab.taken_nbytes + size <= slab.pages.nbytes
        if fits and slab.pages.device == index:
            break
    else:
        slab = _new_slab(process, index)
    start: int = slab.region.start + slab.taken_nbytes
    piece = Piece(
        start,
        size,
        slab.region,
        slab.pages,
        slab.taken_nbytes,
        Origin.MALLOC,
        slab,
        is_small=True,
        is_part=True,
    )
    process.space.attach(piece)
    slab.taken_nbytes += size
    slab.live.add(start)
    return start


@entry("rt.malloc", "kI", 0)
def _malloc(process: AclProcess, size: int, policy: int) -> int:
    if not size:
        raise Refused(Code.INVALID_PARAM, "the size is 0")
    index = process.visible[process.current().device]
    if size > LARGEST_NBYTES:
        raise Refused(Code.RT_MEMORY_ALLOCATION, f"the device has no room for {size} bytes")
    is_normal = policy & _POLICY_MASK in _NORMAL_ONLY
    if size <= _LARGEST_SMALL_NBYTES and not policy & _POLICY_MASK:
        return _malloc_small(process, index, size)
    unit = memory.PAGE_NBYTES if is_normal else GRANULARITY_NBYTES
    nbytes = -(-size // unit) * unit
    pages = _allocate_pages(process, index, nbytes)
    try:
        region = process.space.reserve(nbytes, is_reservation=False)
        process.space.attach(
            Piece(region.start, nbytes, region, pages, 0, Origin.MALLOC, is_small=is_normal)
        )
    except memory.SystemCallError as error:
        process.store.release(pages)
        raise Refused(Code.RT_MEMORY_ALLOCATION, str(error)) from None
    return region.start


@entry("rt.malloc_align32", "kI", 0)
def _malloc_align32(process: AclProcess, size: int, policy: int) -> int:
    return _malloc(process, size, policy)


@entry("rt.malloc_cached", "kI", 0)
def _malloc_cached(process: AclProcess, size: int, policy: int) -> int:
    return _malloc(process, size, policy)


@entry("rt.free", "k")
def _free(process: AclProcess, pointer: int) -> None:
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    piece = process.space.pieces.get(pointer)
    if piece is None or piece.origin is not Origin.MALLOC:
        raise Refused(Code.RT_PARAM_INVALID, f"{pointer:#x} was not allocated", "ACL-X4")
    drop_keys(process, "rt.free", piece)
    process.check_idle("rt.free", piece.start, piece.nbytes)
    process.space.detach(piece)
    if piece.source is None:
        process.space.release(piece.region)
        process.store.release(piece.pages)
        return
    slab: Slab = piece.source
    slab.live.remove(pointer)
    if not slab.live:
        process.slabs.remove(slab)
        process.space.release(slab.region)
        process.store.release(slab.pages)


@entry("rt.get_mem_info", "i", 0, 0)
def _get_mem_info(process: AclProcess, attribute: int) -> tuple[int, int]:
    if not 0 <= attribute <= 5:  # noqa: PLR2004 - the attributes of memory before CANN 8.1
        raise Refused(Code.RT_PARAM_INVALID, f"there is no memory of attribute {attribute}")
    index = process.visible[process.current().device]
    total = process.store.capacity_nbytes
    return total - process.store.used_nbytes(index), total


@entry("rt.pointer_get_attributes", "k", 0)
def _pointer_get_attributes(process: AclProcess, pointer: int) -> dict[str, Any]:
    for piece in process.space.overlapping(pointer, 1):
        location = {"id": process.ordinal_of(piece.pages.device), "type": 1}
        page = memory.PAGE_NBYTES if piece.is_small else GRANULARITY_NBYTES
        return {"location": location, "page_size": page, "rsv": [0] * 4}
    is_host = any(one <= pointer < one + len(block) for one, block in process.host_blocks.items())
    kind = 0 if is_host else 2
    return {"location": {"id": 0, "type": kind}, "page_size": memory.PAGE_NBYTES, "rsv": [0] * 4}


@entry("rt.malloc_host", "k", 0)
def _malloc_host(process: AclProcess, size: int) -> int:
    process.current()
    if not size:
        raise Refused(Code.INVALID_PARAM, "the size is 0")
    if size > LARGEST_NBYTES:
        raise Refused(Code.RT_MEMORY_ALLOCATION, f"the host has no room for {size} bytes")
    block = ctypes.create_string_buffer(size)
    pointer = ctypes.addressof(block)
    process.host_blocks[pointer] = block
    return pointer


@entry("rt.free_host", "k")
def _free_host(process: AclProcess, pointer: int) -> None:
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    if process.host_blocks.pop(pointer, None) is None:
        raise Refused(Code.RT_PARAM_INVALID, f"{pointer:#x} was not allocated", "ACL-X4")
