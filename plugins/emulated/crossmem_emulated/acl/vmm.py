# SPDX-License-Identifier: Apache-2.0
"""Physical memory, reserved addresses, and mappings."""

from dataclasses import dataclass
from typing import Any, Final

from crossmem_emulated import memory
from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import (
    GRANULARITY_1G_NBYTES,
    GRANULARITY_NBYTES,
    LARGEST_NBYTES,
    Attribute,
    Code,
)
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.addresses import Piece, Region
from crossmem_emulated.pages import HOST, DeviceFullError, Pages

__all__ = [
    "Physical",
    "check_newer",
    "check_vmm",
    "find_mapping",
    "find_physical",
    "has_small_pages",
    "map_physical",
    "reserve",
]

_ON_HOST: Final = 0
_ON_DEVICE: Final = 1
_ON_NUMA_NODE: Final = 4
_HOST_ATTRIBUTES: Final = range(Attribute.DDR_MEM_HUGE, Attribute.DDR_MEM_NORMAL + 1)
_HOST_P2P_ATTRIBUTES: Final = range(Attribute.DDR_MEM_P2P_HUGE, Attribute.DDR_MEM_P2P_NORMAL + 1)
_HUGE1G: Final = frozenset(
    {Attribute.HBM_MEM_HUGE1G, Attribute.MEM_HUGE1G, Attribute.MEM_P2P_HUGE1G}
)
_NORMAL: Final = frozenset(
    {
        Attribute.DDR_MEM_NORMAL,
        Attribute.DDR_MEM_P2P_NORMAL,
        Attribute.MEM_NORMAL,
        Attribute.MEM_P2P_NORMAL,
    }
)
_EXPECTED_ADDRESSES: Final = range(16 << 40, 24 << 40)


@dataclass(slots=True, eq=False)
class Physical:
    """Physical memory that this process allocated or imported, with its handle.

    Parameters
    ----------
    handle
        The handle by which the program names the memory.
    device
        Host-wide index of the device for which the memory was allocated or imported, or ``HOST``.
    attribute
        Type of the memory, an :class:`Attribute`.
    pages
        The memory.
    origin
        How the memory was made: ``PHYSICAL`` (allocated) or ``IMPORTED``.
    references
        Number of allocations, imports, retains and mappings that were not released.
    mappings
        Number of current mappings.
    share
        Identifier of the memory's shareable handle; None if the memory was not exported.
    imported_share
        Identifier of the shareable handle by which the memory was imported; None if this process
        allocated the memory.
    """

    handle: int
    device: int
    attribute: int
    pages: Pages
    origin: Origin
    references: int = 1
    mappings: int = 0
    share: int | None = None
    imported_share: int | None = None

    def forget_share(self, process: AclProcess) -> None:
        """Delete the memory's shareable handle, if there is one."""
        if self.share is not None:
            with process.machine.transaction() as tables:
                tables.execute("DELETE FROM acl_share WHERE number = ?", (self.share,))
            self.share = None


def check_vmm(process: AclProcess) -> None:
    """Refuse the call if the product has no functions for physical memory."""
    if not process.profile.vmm:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this product has no virtual memory management")


def check_newer(process: AclProcess) -> None:
    """Refuse the call if the edition is older than the called function."""
    check_vmm(process)
    if not process.profile.newer:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this edition does not have the function")


def find_physical(process: AclProcess, handle: int) -> Physical:
    """Return the physical memory of a handle, or refuse the call."""
    if not handle:
        raise Refused(Code.INVALID_PARAM, "the handle is null")
    found: Physical | None = process.physical.get(handle)
    if found is None:
        raise Refused(Code.RT_INVALID_HANDLE, f"there is no handle {handle:#x}", "ACL-X5")
    return found


def _check_properties(process: AclProcess, prop: dict[str, Any]) -> tuple[int, int]:
    """Return the device and the attribute that the properties name.

    The device is a host-wide index, or ``HOST``. Refuse properties that the product does not
    offer (ACL-E3).
    """
    location = prop.get("location", {})
    if not isinstance(location, dict):
        raise TypeError("the location must be a dict")
    kind, place = location.get("type", 0), location.get("id", 0)
    attribute = prop.get("memAttr", 0)
    wrong = None
    if prop.get("handleType", 0) or prop.get("allocationType", 0):
        wrong = "handleType and allocationType must be 0"
    elif kind not in {_ON_HOST, _ON_DEVICE, _ON_NUMA_NODE}:
        wrong = f"memory cannot be at a location of type {kind}"
    elif attribute not in process.profile.attributes:
        wrong = f"this product has no memory of attribute {attribute}"
    elif kind == _ON_DEVICE and (
        attribute in _HOST_ATTRIBUTES or attribute in _HOST_P2P_ATTRIBUTES
    ):
        wrong = f"attribute {attribute} is for memory of the host"
    if wrong is not None:
        raise Refused(Code.INVALID_PARAM, wrong, "ACL-E3")
    if prop.get("reserve", 0):
        raise Refused(Code.RT_PARAM_INVALID, "reserve must be 0", "ACL-E3")
    if kind == _ON_DEVICE:
        return process.check_device(place), attribute
    if place or kind == _ON_NUMA_NODE:
        text = "the id of a location on the host must be 0, and NUMA nodes are not emulated"
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
    return HOST, attribute


def has_small_pages(index: int, attribute: int) -> bool:
    """Whether physical memory has small pages, which have the system's page size.

    Physical memory of a device never has small pages. Memory from ``aclrtMalloc`` can have them.
    """
    return index == HOST and attribute in _NORMAL


def _granularity(index: int, attribute: int) -> int:
    if attribute in _HUGE1G:
        return GRANULARITY_1G_NBYTES
    return memory.PAGE_NBYTES if has_small_pages(index, attribute) else GRANULARITY_NBYTES


@entry("rt.mem_get_allocation_granularity", "di", 0)
def _mem_get_allocation_granularity(process: AclProcess, prop: dict[str, Any], option: int) -> int:
    check_vmm(process)
    if option not in {0, 1}:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, f"there is no option {option}")
    return _granularity(*_check_properties(process, prop))


@entry("rt.malloc_physical", "kdK", 0)
def _malloc_physical(process: AclProcess, size: int, prop: dict[str, Any], flags: int) -> int:
    check_vmm(process)
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    if not size or flags:
        raise Refused(Code.INVALID_PARAM, "the size is 0, or the flags are not 0", "ACL-E3")
    index, attribute = _check_properties(process, prop)
    granularity = _granularity(index, attribute)
    if size > LARGEST_NBYTES:
        raise _no_room(index, size)
    if granularity == GRANULARITY_1G_NBYTES:
        size = -(-size // granularity) * granularity
    if size % granularity:
        is_v2 = not process.profile.is_documented and process.profile.generation == 2  # noqa: PLR2004
        code = Code.RT_DRV_INTERNAL_ERROR if is_v2 else Code.RT_PARAM_INVALID
        raise Refused(code, f"{size} bytes are not a multiple of {granularity}", "ACL-E2")
    try:
        pages = process.store.allocate(index, size)
    except DeviceFullError:
        raise _no_room(index, size) from None
    made = Physical(next(process.handles), index, attribute, pages, Origin.PHYSICAL)
    process.physical[made.handle] = made
    return made.handle


def _no_room(index: int, size: int) -> Refused:
    place = "host" if index == HOST else "device"
    return Refused(Code.RT_MEMORY_ALLOCATION, f"the {place} has no room for {size} bytes")


@entry("rt.free_physical", "k")
def _free_physical(process: AclProcess, handle: int) -> None:
    check_vmm(process)
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    if handle and handle not in process.physical and process.profile.is_documented:
        raise Refused(
            Code.RT_PARAM_INVALID, f"{handle:#x} was freed, or never was a handle", "ACL-E6"
        )
    physical = find_physical(process, handle)
    if physical.references <= physical.mappings:
        raise Refused(
            Code.RT_PARAM_INVALID, f"{handle:#x} was freed; only its mappings remain", "ACL-E6"
        )
    _drop_reference(process, physical)


def _drop_reference(process: AclProcess, physical: Physical) -> None:
    physical.references -= 1
    if not physical.references:
        del process.physical[physical.handle]
        physical.forget_share(process)
        process.store.release(physical.pages)


# Addresses --------------------------------------------------------------------------------


@entry("rt.reserve_mem_address", "kkkK", 0)
def _reserve_mem_address(
    process: AclProcess, size: int, alignment: int, expected: int, flags: int
) -> int:
    check_vmm(process)
    process.check_opened("ACL-E1b", Code.RT_INVALID_HANDLE)
    if not size or flags not in {0, 1}:
        raise Refused(Code.INVALID_PARAM, f"size {size} or flags {flags} are invalid")
    if size > LARGEST_NBYTES:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"there are no addresses for {size} bytes")
    if alignment:
        raise Refused(Code.RT_PARAM_INVALID, "the alignment must be 0")
    unit = GRANULARITY_1G_NBYTES if size > GRANULARITY_1G_NBYTES else GRANULARITY_NBYTES
    if expected and (
        process.profile.generation == 3  # noqa: PLR2004
        or expected not in _EXPECTED_ADDRESSES
        or expected % unit
    ):
        raise Refused(Code.RT_PARAM_INVALID, f"addresses cannot be reserved at {expected:#x}")
    return reserve(process, -(-size // GRANULARITY_NBYTES) * GRANULARITY_NBYTES, expected)


def reserve(process: AclProcess, nbytes: int, expected: int) -> int:
    """Reserve addresses for the program, and return the first address.

    If ``expected`` is not 0, the result is ``expected``.
    """
    try:
        return process.space.reserve(nbytes, is_reservation=True, at=expected).start
    except memory.SystemCallError as error:
        raise Refused(
            Code.RT_DRV_INTERNAL_ERROR, f"cannot reserve the addresses: {error}"
        ) from None


@entry("rt.release_mem_address", "k")
def _release_mem_address(process: AclProcess, pointer: int) -> None:
    check_vmm(process)
    process.check_opened("ACL-E1b", Code.RT_INVALID_HANDLE)
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    region = process.space.regions.get(pointer)
    if region is None or not region.is_reservation:
        raise Refused(Code.RT_PARAM_INVALID, f"{pointer:#x} was not reserved", "ACL-X4")
    if process.space.overlapping(region.start, region.nbytes):
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"{pointer:#x} has mappings", "ACL-E12")
    process.space.release(region)


@entry("rt.map_mem", "kkkkK")
def _map_mem(
    process: AclProcess, pointer: int, size: int, offset: int, handle: int, flags: int
) -> None:
    physical = map_physical(process, (pointer, size), offset, handle, flags)
    process.accesses[pointer] = {physical.device}


def map_physical(
    process: AclProcess, extent: tuple[int, int], offset: int, handle: int, flags: int
) -> Physical:
    """Map physical memory, and return the memory.

    No device can access the mapping until the program or the caller sets the access. ``extent`` is
    the mapping's address and size in bytes.
    """
    check_vmm(process)
    pointer, size = extent
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    if not pointer or not handle or not size or flags:
        raise Refused(Code.INVALID_PARAM, "an argument is null, or the flags are not 0")
    if offset:
        raise Refused(Code.RT_PARAM_INVALID, f"the offset must be 0, not {offset}", "ACL-E7")
    physical = find_physical(process, handle)
    _check_size(process, size, physical)
    region = _check_place(process, pointer, size)
    _check_company(process, region, physical)
    is_small = has_small_pages(physical.pages.device, physical.attribute)
    pages, origin = physical.pages, physical.origin
    process.space.attach(
        Piece(pointer, size, region, pages, 0, origin, physical, is_small=is_small)
    )
    region.device = physical.device
    physical.references += 1
    physical.mappings += 1
    process.accesses[pointer] = set()
    return physical


def _check_size(process: AclProcess, size: int, physical: Physical) -> None:
    if size == physical.pages.nbytes:
        return
    text = f"the size is {size}, but the handle's memory has {physical.pages.nbytes} bytes"
    if process.profile.is_documented:
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-E8")
    if size > physical.pages.nbytes:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E8")
    process.violate("rt.map_mem", "ACL-E8", text)


def _check_place(process: AclProcess, pointer: int, size: int) -> Region:
    region = process.space.region_of(pointer)
    text = f"{size} bytes at {pointer:#x} "
    if region is None or not region.is_reservation:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text + "are not reserved", "ACL-E9")
    if pointer % GRANULARITY_NBYTES or size % GRANULARITY_NBYTES:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text + "are not aligned", "ACL-E9")
    if pointer + size > region.start + region.nbytes:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text + "exceed the reservation", "ACL-E9")
    if process.space.overlapping(pointer, size):
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text + "are mapped already", "ACL-E10")
    return region


def _check_company(process: AclProcess, region: Region, physical: Physical) -> None:
    if region.device not in {None, physical.device}:
        has_mappings = bool(process.space.overlapping(region.start, region.nbytes))
        raise Refused(
            Code.RT_DRV_INTERNAL_ERROR,
            f"the addresses are bound to device {region.device}",
            "ACL-E11" if has_mappings else "ACL-E14c",
        )
    origins = {one.origin for one in process.space.overlapping(region.start, region.nbytes)}
    if origins - {physical.origin}:
        text = "one reservation cannot contain both allocated and imported memory"
        if process.profile.is_documented:
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E11")
        process.violate("rt.map_mem", "ACL-E11", text)


@entry("rt.unmap_mem", "k")
def _unmap_mem(process: AclProcess, pointer: int) -> None:
    check_vmm(process)
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    piece = find_mapping(process, pointer)
    if piece.keys:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"{pointer:#x} is exported by key", "ACL-E26")
    process.check_idle("rt.unmap_mem", piece.start, piece.nbytes)
    process.space.detach(piece)
    del process.accesses[pointer]
    physical: Physical = piece.source
    physical.mappings -= 1
    _drop_reference(process, physical)


def find_mapping(process: AclProcess, pointer: int) -> Piece:
    """Return the mapping that begins at an address, or refuse the call (ACL-E13)."""
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    piece = process.space.pieces.get(pointer)
    if piece is None or piece.origin not in {Origin.PHYSICAL, Origin.IMPORTED}:
        is_v3 = process.profile.generation == 3  # noqa: PLR2004
        misaligned = is_v3 and pointer % GRANULARITY_NBYTES
        raise Refused(
            Code.RT_PARAM_INVALID if misaligned else Code.RT_DRV_INTERNAL_ERROR,
            f"{pointer:#x} is not the first address of a mapping",
            "ACL-E13",
        )
    return piece
