# SPDX-License-Identifier: Apache-2.0
"""Functions for access to mappings, for physical memory's handles, and for reserved addresses."""

from typing import Any, Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import GRANULARITY_1G_NBYTES, LARGEST_NBYTES, Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.vmm import (
    check_newer,
    check_vmm,
    find_mapping,
    find_physical,
    map_physical,
    reserve,
)
from crossmem_emulated.pages import HOST

__all__: list[str] = []

_ON_HOST, _ON_DEVICE = range(2)
_READ_WRITE: Final = 3
_UNCACHED_ADDRESSES: Final = range(40 << 40, 224 << 40)


@entry("c.mem_map_no_access", "kkkkK")
def _mem_map_no_access(
    process: AclProcess, pointer: int, size: int, offset: int, handle: int, flags: int
) -> None:
    check_newer(process)
    map_physical(process, (pointer, size), offset, handle, flags)


def _place(process: AclProcess, number: int, kind: int) -> int:
    """Return the host-wide index of a location's device, or ``HOST`` if the location is the host.

    ``number`` is the device's number in the driver, independent of ASCEND_RT_VISIBLE_DEVICES.
    The host's number is 0. ``kind`` is the type of the location: 0 for the host, 1 for a device.
    """
    if kind == _ON_HOST and not number:
        return HOST
    if kind != _ON_DEVICE:
        raise Refused(
            Code.RT_PARAM_INVALID, f"there is no location {number} of type {kind}", "ACL-E34"
        )
    if process.ordinal_of(number) is None:
        text = f"this process does not see the driver's device {number}"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E34")
    return number


@entry("c.mem_set_access", "kko")
def _mem_set_access(
    process: AclProcess, pointer: int, size: int, wanted: list[tuple[int, int, int]]
) -> None:
    """Set the access to a mapping.

    Each entry of ``wanted`` has the access flags, and a location's number and type.
    """
    check_newer(process)
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    if not pointer or not wanted:
        raise Refused(
            Code.RT_PARAM_INVALID, "the address is null, or no location is named", "ACL-E34"
        )
    piece = find_mapping(process, pointer)
    if size != piece.nbytes:
        text = f"the size must be the mapping's {piece.nbytes} bytes, not {size}"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-E34")
    for access, number, kind in wanted:
        if access != _READ_WRITE:
            raise Refused(
                Code.RT_FEATURE_NOT_SUPPORT, f"the access must be 3 (read and write), not {access}"
            )
        # If a later entry is refused, the access of the earlier entries stays set.
        process.accesses[pointer].add(_place(process, number, kind))


@entry("c.mem_get_access", "kIi", 0)
def _mem_get_access(process: AclProcess, pointer: int, number: int, kind: int) -> int:
    check_newer(process)
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    piece = find_mapping(process, pointer)
    return _READ_WRITE if _place(process, number, kind) in process.accesses[piece.start] else 0


@entry("c.mem_retain_allocation_handle", "k", 0)
def _mem_retain_allocation_handle(process: AclProcess, pointer: int) -> int:
    check_vmm(process)
    if not process.profile.retains:
        raise Refused(
            Code.RT_FEATURE_NOT_SUPPORT, "this driver does not return the handles of mappings"
        )
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    physical = find_mapping(process, pointer).source
    physical.references += 1
    handle: int = physical.handle
    return handle


@entry("c.mem_get_allocation_properties_from_handle", "k", None)
def _mem_get_allocation_properties_from_handle(process: AclProcess, handle: int) -> dict[str, Any]:
    check_newer(process)
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    physical = find_physical(process, handle)
    is_host = physical.device == HOST
    number = 0 if is_host else process.ordinal_of(physical.device)
    return {
        "handleType": 0,
        "allocationType": 0,
        "memAttr": int(physical.attribute),
        "location": {"id": number, "type": _ON_HOST if is_host else _ON_DEVICE},
        "reserve": 0,
    }


@entry("c.reserve_mem_address_no_uc_memory", "kkkK", 0)
def _reserve_mem_address_no_uc_memory(
    process: AclProcess, size: int, alignment: int, expected: int, flags: int
) -> int:
    check_vmm(process)
    if not process.profile.fabric:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this product does not have the function")
    process.check_opened("ACL-E1b", Code.RT_INVALID_HANDLE)
    if not size or flags not in {0, 1}:
        raise Refused(Code.INVALID_PARAM, f"size {size} or flags {flags} are invalid")
    if alignment or size % GRANULARITY_1G_NBYTES or size > LARGEST_NBYTES:
        raise Refused(Code.RT_PARAM_INVALID, f"size {size} or alignment {alignment} is invalid")
    if expected and (expected not in _UNCACHED_ADDRESSES or expected % GRANULARITY_1G_NBYTES):
        raise Refused(Code.RT_PARAM_INVALID, f"addresses cannot be reserved at {expected:#x}")
    return reserve(process, size, expected)
