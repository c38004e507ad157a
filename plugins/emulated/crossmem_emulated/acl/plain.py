# SPDX-License-Identifier: Apache-2.0
"""Device memory that ``rt.malloc`` and its variants allocate. Small allocations share pages."""

from dataclasses import dataclass, field
from typing import Any, Final

from crossmem_emulated import memory
from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import GRANULARITY_NBYTES, LARGEST_NBYTES, Attribute, Code
from crossmem_emulated.acl.process import AclProcess, Again
from crossmem_emulated.acl.release import drop_keys
from crossmem_emulated.addresses import Piece, Region
from crossmem_emulated.pages import DeviceFullError, Pages

__all__ = ["Slab", "check_attributes"]

_NORMAL_ONLY: Final = frozenset({2, 5})
_POLICY_MASK: Final = 0xFF
_READ_ONLY: Final = 0x100000
_LARGEST_SMALL_NBYTES: Final = 1 << 20
_SMALL_ALIGNMENT: Final = 512
_ATTRIBUTE_DEVICE: Final = 2
_IGNORED_ATTRIBUTES: Final = frozenset({1, 3})
"""The attributes of an allocation that the emulation ignores: 1 (the requesting module) and 3 (the
type of the addresses)."""


@dataclass(slots=True, eq=False)
class Slab:
    """Pages that small allocations share. Each new allocation gets the next unused part."""

    pages: Pages
    region: Region
    taken_nbytes: int = 0
    live: set[int] = field(default_factory=set)


def _allocate_pages(process: AclProcess, index: int, nbytes: int) -> Pages:
    try:
        return process.store.allocate(index, nbytes)
    except DeviceFullError:
        raise Refused(
            Code.RT_MEMORY_ALLOCATION, f"the device has no room for {nbytes} bytes"
        ) from None


def _new_slab(process: AclProcess, index: int) -> Slab:
    pages = _allocate_pages(process, index, GRANULARITY_NBYTES)
    try:
        region = process.space.reserve(GRANULARITY_NBYTES, is_reservation=False)
    except memory.SystemCallError:
        process.store.release(pages)
        raise
    process.space.show(pages.address, pages.nbytes, region.start)
    slab = Slab(pages, region)
    process.slabs.append(slab)
    return slab


def _malloc_small(process: AclProcess, index: int, nbytes: int) -> int:
    size = -(-nbytes // _SMALL_ALIGNMENT) * _SMALL_ALIGNMENT
    # If the size is a multiple of the page size, the allocation begins at a page boundary, so that
    # rt.ipc_mem_get_export_key can export it.
    unit = _SMALL_ALIGNMENT if nbytes % memory.PAGE_NBYTES else memory.PAGE_NBYTES
    for slab in process.slabs:
        first = -(-slab.taken_nbytes // unit) * unit
        if first + size <= slab.pages.nbytes and slab.pages.device == index:
            break
    else:
        slab, first = _new_slab(process, index), 0
    start: int = slab.region.start + first
    piece = Piece(
        start,
        size,
        slab.region,
        slab.pages,
        first,
        Origin.MALLOC,
        slab,
        is_small=True,
        is_part=True,
    )
    process.space.attach(piece)
    slab.taken_nbytes = first + size
    slab.live.add(start)
    return start


@entry("rt.malloc", "kI", 0)
def _malloc(process: AclProcess, size: int, policy: int) -> int:
    pointer = _allocate(process, size, policy)
    process.space.pieces[pointer].is_read_only = bool(policy & _READ_ONLY)
    return pointer


def _allocate(process: AclProcess, size: int, policy: int) -> int:
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
    except memory.SystemCallError:
        process.store.release(pages)
        raise
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


@entry("c.free_with_dev_sync", "k")
def _free_with_dev_sync(process: AclProcess, pointer: int) -> None:
    device = process.current().device
    if process.finish(*(one for one in process.streams.values() if one.device == device)):
        raise Again
    _free(process, pointer)


@entry("rt.get_mem_info", "i", 0, 0)
def _get_mem_info(process: AclProcess, attribute: int) -> tuple[int, int]:
    # Some types of physical memory have numbers above this bound. This function has no information
    # about these types.
    if not 0 <= attribute <= Attribute.HBM_MEM_P2P_HUGE1G:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no memory info for attribute {attribute}")
    index = process.visible[process.current().device]
    total = process.store.capacity_nbytes
    return total - process.store.used_nbytes(index), total


@entry("rt.malloc_with_cfg", "kId", 0)
def _malloc_with_cfg(process: AclProcess, size: int, policy: int, cfg: dict[str, Any]) -> int:
    check_attributes(process, cfg)
    return _malloc(process, size, policy)


def check_attributes(process: AclProcess, cfg: dict[str, Any]) -> None:
    """Refuse a configuration with an unknown attribute, or with a device that is not current."""
    for one in cfg.get("attrs", ()):
        kind, value = one["attr"], one["value"]
        if kind == _ATTRIBUTE_DEVICE:
            if value != process.current().device:
                text = f"device {value} is not the current device"
                raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
        elif kind not in _IGNORED_ATTRIBUTES:
            raise Refused(Code.RT_PARAM_INVALID, f"an allocation has no attribute {kind}")
