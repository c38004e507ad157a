# SPDX-License-Identifier: Apache-2.0
"""Virtual memory: reserved addresses, mappings at them, and the devices' access to mappings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.addresses import Piece
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.physical import (
    ON_DEVICE,
    Physical,
    check_virtual,
    drop,
    find_physical,
    granularity_of,
)
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import check_idle, check_safe

__all__ = ["ACCESS", "READ", "READ_WRITE", "Mapping", "access_of"]

READ: Final = 1
READ_WRITE: Final = 3
ACCESS: Final = frozenset({0, READ, READ_WRITE})
"""The possible values of a device's access to a mapping. The value 0 means no access."""


@dataclass(slots=True, eq=False)
class Mapping:
    """Physical memory that is mapped at reserved addresses.

    Parameters
    ----------
    physical
        The memory.
    access
        Each key is a device's number in this process. The value is the device's access. A device
        without an entry has no access.
    """

    physical: Physical
    access: dict[int, int] = field(default_factory=dict)


def access_of(piece: Piece, device: int) -> int:
    """Return a device's access to mapped memory: 0, ``READ`` or ``READ_WRITE``."""
    mapping: Mapping = piece.source
    return mapping.access.get(device, 0)


# Addresses ------------------------------------------------------------------------------------


@entry(
    "memAddressReserve(size_t size, size_t alignment, intptr_t addr, "
    "unsigned long long flags) -> intptr_t"
)
def _mem_address_reserve(
    process: HipProcess, size: int, alignment: int, wish: int, flags: int
) -> int:
    check_virtual(process)
    if not size or flags or size % memory.PAGE_NBYTES or wish % memory.PAGE_NBYTES:
        text = f"{size} bytes at {wish:#x} with flags {flags} cannot be reserved"
        raise Refused(Status.INVALID_VALUE, text, "HIP-V2")
    if alignment & (alignment - 1):
        raise Refused(
            Status.INVALID_VALUE, f"the alignment {alignment} is not a power of 2", "HIP-V2"
        )
    unit = max(alignment, granularity_of(process))
    reserve = process.space.reserve
    if wish and not wish % unit:
        try:
            return reserve(size, is_reservation=True, at=wish).start
        except memory.SystemCallError:
            # The requested address is only a hint.
            pass
    return reserve(size, is_reservation=True, alignment=unit).start


@entry("memAddressFree(intptr_t ptr, size_t size)")
def _mem_address_free(process: HipProcess, pointer: int, size: int) -> None:
    check_virtual(process)
    region = process.space.regions.get(pointer)
    if region is None or not region.is_reservation or region.nbytes != size:
        text = f"{size} bytes at {pointer:#x} were not reserved"
        raise Refused(Status.INVALID_VALUE, text, "HIP-V4")
    if process.space.overlapping(pointer, size):
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} has mappings", "HIP-V4")
    process.space.release(region)


@entry(
    "memMap(intptr_t ptr, size_t size, size_t offset, unsigned long long handle, "
    "unsigned long long flags)"
)
def _mem_map(
    process: HipProcess, pointer: int, size: int, offset: int, handle: int, flags: int
) -> None:
    check_virtual(process)
    unit, place = granularity_of(process), f"{size} bytes at {pointer:#x}"
    too_far = Status.INVALID_VALUE if process.profile.is_hip else Status.NOT_SUPPORTED
    if not pointer or not size or offset or flags:
        text = f"{place} cannot be mapped with offset {offset} and flags {flags}"
        is_far = pointer and size and offset and not flags
        raise Refused(too_far if is_far else Status.INVALID_VALUE, text, "HIP-V3")
    physical = find_physical(process, handle)
    region = process.space.region_of(pointer)
    wrong = None
    if region is None or not region.is_reservation:
        wrong = "are not reserved"
    elif pointer % unit or size % unit:
        wrong = f"are not aligned to {unit}"
    elif pointer + size > region.start + region.nbytes:
        wrong = "end after the reserved addresses"
    elif process.space.overlapping(pointer, size):
        wrong = "are mapped already"
    elif size > physical.pages.nbytes:
        text = f"{place} are more than the {physical.pages.nbytes} bytes of the memory"
        raise Refused(too_far, text, "HIP-V3")
    if wrong is not None or region is None:
        raise Refused(Status.INVALID_VALUE, f"{place} {wrong}", "HIP-V3")
    mapping = Mapping(physical)
    process.space.attach(Piece(pointer, size, region, physical.pages, 0, Origin.VIRTUAL, mapping))
    physical.mappings += 1


def _whole_mappings(process: HipProcess, pointer: int, size: int, rule: str) -> list[Piece]:
    """Return the mappings in a range. Refuse a range that does not consist of whole mappings."""
    pieces = process.space.overlapping(pointer, size) if pointer and size else []
    ends = [pointer, *(one.start + one.nbytes for one in pieces)]
    is_filled = [one.start for one in pieces] == ends[:-1] and ends[-1] == pointer + size
    if not pieces or not is_filled:
        text = f"{size} bytes at {pointer:#x} do not consist of whole mappings"
        raise Refused(Status.INVALID_VALUE, text, rule)
    if any(one.origin is not Origin.VIRTUAL for one in pieces):
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} was not mapped", rule)
    return pieces


def _is_empty(process: HipProcess, pointer: int, size: int) -> bool:
    """Return whether all addresses of a range are reserved, and nothing is mapped at them."""
    region = process.space.region_of(pointer) if size else None
    return (
        region is not None
        and region.is_reservation
        and pointer + size <= region.start + region.nbytes
        and not process.space.overlapping(pointer, size)
    )


@entry("memUnmap(intptr_t ptr, size_t size)")
def _mem_unmap(process: HipProcess, pointer: int, size: int) -> None:
    check_virtual(process)
    check_safe(process)
    if not process.profile.is_hip and _is_empty(process, pointer, size):
        process.violate("memUnmap", "HIP-V4", f"nothing is mapped at {pointer:#x}")
        return
    for piece in _whole_mappings(process, pointer, size, "HIP-V4"):
        check_idle(process, "memUnmap", piece.start, piece.nbytes)
        process.space.detach(piece)
        physical: Physical = piece.source.physical
        physical.mappings -= 1
        drop(process, physical)


# Access ---------------------------------------------------------------------------------------


def _check_location(process: HipProcess, location_type: int, device: int) -> int:
    """Return the index that a location's device has on the host. Refuse an invalid location."""
    if location_type != ON_DEVICE:
        text = f"there is no location of type {location_type}"
        raise Refused(Status.INVALID_VALUE, text, "HIP-V5")
    if not 0 <= device < len(process.setup.visible):
        status = Status.INVALID_VALUE if process.profile.is_hip else Status.INVALID_DEVICE
        raise Refused(status, f"there is no device {device}", "HIP-V5")
    return process.setup.visible[device]


@entry("memSetAccess(intptr_t ptr, size_t size, access)")
def _mem_set_access(
    process: HipProcess, pointer: int, size: int, access: Iterable[tuple[int, int, int]]
) -> None:
    check_virtual(process)
    check_safe(process)
    wanted: dict[int, int] = {}
    indexes: set[int] = set()
    for location_type, device, flags in access:
        indexes.add(_check_location(process, location_type, device))
        if flags not in ACCESS:
            raise Refused(Status.INVALID_VALUE, f"{flags} is not a valid access", "HIP-V5")
        wanted[device] = flags
    if not wanted:
        raise Refused(Status.INVALID_VALUE, "no device is named", "HIP-V5")
    pieces = _whole_mappings(process, pointer, size, "HIP-V5")
    for piece in pieces:
        if not all(process.can_reach(one, piece.pages.device) for one in indexes):
            status = Status.INVALID_VALUE if process.profile.is_hip else Status.INVALID_DEVICE
            raise Refused(status, f"a device cannot reach the memory at {pointer:#x}")
    for piece in pieces:
        piece.source.access.update(wanted)


@entry("memGetAccess(int locationType, int locationId, intptr_t ptr) -> unsigned long long")
def _mem_get_access(process: HipProcess, location_type: int, device: int, pointer: int) -> int:
    check_virtual(process)
    _check_location(process, location_type, device)
    for piece in process.space.overlapping(pointer, 1):
        if piece.origin is Origin.VIRTUAL:
            return access_of(piece, device)
    raise Refused(Status.INVALID_VALUE, f"nothing is mapped at {pointer:#x}", "HIP-V5")
