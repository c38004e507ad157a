# SPDX-License-Identifier: Apache-2.0
"""Host memory that ACL allocates or that the program registers, and queries about an address."""

import ctypes
import mmap
from typing import Any, Final

from crossmem_emulated import memory
from crossmem_emulated.acl.addresses import device_of
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import GRANULARITY_NBYTES, LARGEST_NBYTES, Code
from crossmem_emulated.acl.plain import check_attributes
from crossmem_emulated.acl.process import AclProcess, Again
from crossmem_emulated.pages import HOST

__all__ = ["is_page_locked", "is_registered"]

_ON_HOST, _ON_DEVICE, _UNKNOWN = range(3)
_TYPES: Final = frozenset({0, 0x4, 0x8})
_MAPPED: Final = 0x2
_FLAGS: Final = 0x1000000E


@entry("rt.malloc_host", "k", 0)
def _malloc_host(process: AclProcess, size: int) -> int:
    process.current()
    if not size:
        raise Refused(Code.INVALID_PARAM, "the size is 0")
    if size > LARGEST_NBYTES:
        raise Refused(Code.RT_MEMORY_ALLOCATION, f"the host has no room for {size} bytes")
    try:
        block = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise Refused(Code.RT_MEMORY_ALLOCATION, f"the host has no room: {error}") from None
    pointer = ctypes.addressof(ctypes.c_char.from_buffer(block))
    process.host_blocks[pointer] = block
    return pointer


@entry("c.malloc_host_with_cfg", "Kd", 0)
def _malloc_host_with_cfg(process: AclProcess, size: int, cfg: dict[str, Any]) -> int:
    check_attributes(process, cfg)
    return _malloc_host(process, size)


@entry("rt.free_host", "k")
def _free_host(process: AclProcess, pointer: int) -> None:
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    block = process.host_blocks.get(pointer)
    if block is None:
        raise Refused(Code.RT_PARAM_INVALID, f"{pointer:#x} was not allocated", "ACL-X4")
    process.check_idle("rt.free_host", pointer, len(block))
    del process.host_blocks[pointer]


@entry("c.free_host_with_dev_sync", "k")
def _free_host_with_dev_sync(process: AclProcess, pointer: int) -> None:
    device = process.current().device
    if process.finish(*(one for one in process.streams.values() if one.device == device)):
        raise Again
    _free_host(process, pointer)


# Host memory of the program ---------------------------------------------------------------


def _register(process: AclProcess, pointer: int, size: int) -> None:
    if not pointer or not size:
        raise Refused(Code.INVALID_PARAM, f"address {pointer:#x} or size {size} is 0")
    process.current()
    for start, nbytes in process.registered.items():
        if start < pointer + size and pointer < start + nbytes:
            text = f"{nbytes} bytes at {start:#x} are registered already"
            raise Refused(Code.HOST_MEMORY_ALREADY_REGISTERED, text, "ACL-E41")
    process.registered[pointer] = size


@entry("rt.host_register", "kKI", 0)
def _host_register(process: AclProcess, pointer: int, size: int, kind: int) -> int:
    if kind not in _TYPES:
        raise Refused(Code.RT_PARAM_INVALID, f"a registration cannot have the type {kind}")
    _register(process, pointer, size)
    # The emulated devices use the host's addresses for this memory.
    return pointer


@entry("c.host_register_v2", "kKI")
def _host_register_v2(process: AclProcess, pointer: int, size: int, flags: int) -> None:
    if not flags or flags & ~_FLAGS:
        raise Refused(Code.RT_PARAM_INVALID, f"a registration cannot have the flags {flags:#x}")
    _register(process, pointer, size)


@entry("c.host_get_device_pointer", "kI", 0)
def _host_get_device_pointer(process: AclProcess, pointer: int, flags: int) -> int:
    if not pointer or flags:
        raise Refused(Code.INVALID_PARAM, "the address is null, or the flags are not 0")
    if is_registered(process, pointer):
        return pointer
    text = f"{pointer:#x} is not registered"
    raise Refused(Code.HOST_MEMORY_NOT_REGISTERED, text, "ACL-E41")


@entry("rt.host_unregister", "k")
def _host_unregister(process: AclProcess, pointer: int) -> None:
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    size = process.registered.get(pointer)
    if size is None:
        text = f"{pointer:#x} is not registered"
        raise Refused(Code.HOST_MEMORY_NOT_REGISTERED, text, "ACL-E41")
    process.check_idle("rt.host_unregister", pointer, size)
    del process.registered[pointer]


# Queries about addresses ------------------------------------------------------------------


@entry("rt.pointer_get_attributes", "k", 0)
def _pointer_get_attributes(process: AclProcess, pointer: int) -> dict[str, Any]:
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    number, kind, page_nbytes = 0, _UNKNOWN, memory.PAGE_NBYTES
    pieces = process.space.overlapping(pointer, 1)
    if pieces:
        index = device_of(pieces[0])
        number, kind = process.ordinal_of(index) or 0, _ON_HOST if index == HOST else _ON_DEVICE
        page_nbytes = memory.PAGE_NBYTES if pieces[0].is_small else GRANULARITY_NBYTES
    elif is_page_locked(process, pointer):
        kind = _ON_HOST
    return {"location": {"id": number, "type": kind}, "page_size": page_nbytes, "rsv": [0] * 4}


def is_registered(process: AclProcess, pointer: int) -> bool:
    """Whether an address is in host memory that the program registered for devices."""
    return any(one <= pointer < one + nbytes for one, nbytes in process.registered.items())


def is_page_locked(process: AclProcess, pointer: int) -> bool:
    """Whether host memory is page-locked: ACL allocated it, or the program registered it."""
    return _block_of(process, pointer) is not None or is_registered(process, pointer)


def _block_of(process: AclProcess, pointer: int) -> tuple[int, int] | None:
    for start, block in process.host_blocks.items():
        if start <= pointer < start + len(block):
            return start, len(block)
    return None


@entry("c.mem_get_address_range", "k", 0, 0)
def _mem_get_address_range(process: AclProcess, pointer: int) -> tuple[int, int]:
    if not process.profile.newer:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this edition does not have the function")
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    for piece in process.space.overlapping(pointer, 1):
        return piece.start, piece.nbytes
    block = _block_of(process, pointer)
    if block is None:
        raise Refused(Code.RT_PARAM_INVALID, f"{pointer:#x} is in no allocation", "ACL-X4")
    return block
