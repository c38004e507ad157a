# SPDX-License-Identifier: Apache-2.0
"""The functions that create, release, export and import physical memory.

Programs map physical memory at reserved addresses. CuPy lacks these functions, so the emulation
chooses their signatures: each field of a vendor's struct is a separate argument.
"""

import os
from dataclasses import dataclass
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.addresses import BLOCK_NBYTES
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import LARGEST_NBYTES, Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.pages import Pages

__all__ = [
    "NO_HANDLE",
    "ON_DEVICE",
    "PINNED",
    "Physical",
    "check_virtual",
    "drop",
    "find_physical",
    "granularity_of",
]

ON_DEVICE: Final = 1
"""The location type of a device. No other type is emulated."""

PINNED: Final = 1
_UNCACHED: Final = 0x40000000
NO_HANDLE: Final = 0
_DESCRIPTOR: Final = 1
_HANDLE_TYPES: Final = frozenset({NO_HANDLE, _DESCRIPTOR})
_OPTIONS: Final = frozenset({0, 1})
_RECOMMENDED: Final = 1


@dataclass(slots=True, eq=False)
class Physical:
    """Physical memory that this process created or imported.

    Parameters
    ----------
    handle
        The program's handle of the memory.
    pages
        The memory.
    kind
        The requested type of the memory. For imported memory, ``PINNED``.
    handle_type
        The type of the handles by which the memory is exported. Memory with the type ``NO_HANDLE``
        cannot be exported.
    is_imported
        Whether the memory was imported, from another process or this one.
    references
        Number of calls that created, imported or retained the memory, less the number of releases.
    mappings
        Number of the memory's mappings in this process.
    """

    handle: int
    pages: Pages
    kind: int
    handle_type: int
    is_imported: bool
    references: int = 1
    mappings: int = 0


def check_virtual(process: HipProcess) -> None:
    """Refuse the call if the emulated edition does not support the functions for virtual memory."""
    if not process.profile.has_virtual:
        raise Refused(Status.NOT_SUPPORTED, "this edition has no virtual memory")


def granularity_of(process: HipProcess) -> int:
    """Return the granularity, in bytes. Sizes and addresses of mappings are multiples of it."""
    return memory.PAGE_NBYTES if process.profile.is_hip else BLOCK_NBYTES


def find_physical(process: HipProcess, handle: int) -> Physical:
    """Return the memory that a handle names. Refuse an invalid handle."""
    found: Physical | None = process.physical.get(handle)
    if found is None or not found.references:
        raise Refused(Status.INVALID_VALUE, f"there is no handle {handle:#x}", "HIP-V6")
    return found


def drop(process: HipProcess, physical: Physical) -> None:
    """Release memory that has neither references nor mappings.

    If references are left, do nothing. If only mappings are left, and the memory was imported,
    close the memory's descriptor.
    """
    if physical.references:
        return
    if physical.is_imported:
        # The descriptor belongs to the handle. A mapping alone needs no descriptor.
        process.store.close_descriptor(physical.pages)
    if not physical.mappings:
        del process.physical[physical.handle]
        process.store.release(physical.pages)


def _enter(
    process: HipProcess, pages: Pages, kind: int, handle_type: int, *, is_imported: bool
) -> int:
    made = Physical(next(process.handles), pages, kind, handle_type, is_imported)
    process.physical[made.handle] = made
    return made.handle


def _check_properties(
    process: HipProcess, kind: int, handle_type: int, location_type: int, device: int
) -> int:
    """Refuse invalid properties of memory. Return the device's index among the host's devices."""
    is_known = kind == PINNED or (kind == _UNCACHED and process.profile.has_uncached)
    if not is_known or location_type != ON_DEVICE:
        text = f"there is no memory of type {kind} at a location of type {location_type}"
        raise Refused(Status.INVALID_VALUE, text, "HIP-V1")
    if not 0 <= device < len(process.setup.visible):
        raise Refused(process.profile.no_such_device, f"there is no device {device}", "HIP-V1")
    if handle_type not in _HANDLE_TYPES:
        # The refused call breaks no rule: a program may request a type to find out whether the
        # runtime supports the type.
        raise Refused(Status.NOT_SUPPORTED, f"there are no handles of type {handle_type}")
    return process.setup.visible[device]


@entry(
    "memGetAllocationGranularity(int type, int handleType, int locationType, int locationId, "
    "int option) -> size_t"
)
def _mem_get_allocation_granularity(
    process: HipProcess, kind: int, handle_type: int, location_type: int, device: int, option: int
) -> int:
    check_virtual(process)
    _check_properties(process, kind, handle_type, location_type, device)
    if option not in _OPTIONS:
        raise Refused(Status.INVALID_VALUE, f"there is no option {option}", "HIP-V1")
    return BLOCK_NBYTES if option == _RECOMMENDED else granularity_of(process)


@entry(
    "memCreate(size_t size, int type, int handleType, int locationType, int locationId, "
    "unsigned long long flags) -> unsigned long long"
)
def _mem_create(  # noqa: PLR0917
    process: HipProcess,
    size: int,
    kind: int,
    handle_type: int,
    location_type: int,
    device: int,
    flags: int,
) -> int:
    check_virtual(process)
    if not size or flags:
        raise Refused(
            Status.INVALID_VALUE, f"cannot create {size} bytes with flags {flags}", "HIP-V1"
        )
    index = _check_properties(process, kind, handle_type, location_type, device)
    if size % granularity_of(process):
        text = f"{size} bytes are not a multiple of {granularity_of(process)}"
        raise Refused(Status.INVALID_VALUE, text, "HIP-V1")
    if size > LARGEST_NBYTES:
        raise Refused(Status.OUT_OF_MEMORY, f"the device has no room for {size} bytes")
    pages = process.store.allocate(index, size, is_labelled=True)
    return _enter(process, pages, kind, handle_type, is_imported=False)


@entry("memRelease(unsigned long long handle)")
def _mem_release(process: HipProcess, handle: int) -> None:
    check_virtual(process)
    physical = find_physical(process, handle)
    physical.references -= 1
    drop(process, physical)


@entry("memRetainAllocationHandle(intptr_t ptr) -> unsigned long long")
def _mem_retain_allocation_handle(process: HipProcess, pointer: int) -> int:
    check_virtual(process)
    for piece in process.space.overlapping(pointer, 1):
        if piece.origin is Origin.VIRTUAL:
            physical: Physical = piece.source.physical
            physical.references += 1
            return physical.handle
        # Before ROCm 7.14, AMD's library crashed if the address belonged to an allocation. The
        # emulation refuses the call instead.
        raise Refused(
            Status.INVALID_VALUE,
            f"the memory at {pointer:#x} was made by {piece.origin}",
            "HIP-V11",
        )
    raise Refused(Status.INVALID_VALUE, f"nothing is mapped at {pointer:#x}")


@entry("memGetAllocationPropertiesFromHandle(unsigned long long handle)")
def _mem_get_allocation_properties_from_handle(
    process: HipProcess, handle: int
) -> tuple[int, int, int, int]:
    check_virtual(process)
    physical = find_physical(process, handle)
    device = process.ordinal_of(physical.pages.device)
    return physical.kind, physical.handle_type, ON_DEVICE, -1 if device is None else device


# Between processes ----------------------------------------------------------------------------


@entry(
    "memExportToShareableHandle(unsigned long long handle, int handleType, "
    "unsigned long long flags) -> int"
)
def _mem_export_to_shareable_handle(
    process: HipProcess, handle: int, handle_type: int, flags: int
) -> int:
    check_virtual(process)
    physical = find_physical(process, handle)
    if flags or handle_type == NO_HANDLE or handle_type != physical.handle_type:
        text = (
            f"cannot export memory of handle type {physical.handle_type} with handle type "
            f"{handle_type} and flags {flags}: the types must be equal and not 0; flags must be 0"
        )
        raise Refused(Status.INVALID_VALUE, text, "HIP-V7")
    if physical.pages.descriptor is None:
        # The release of the last reference closed the descriptor, but a mapping kept the memory. A
        # later memRetainAllocationHandle() opens no new descriptor.
        raise Refused(
            Status.NOT_SUPPORTED,
            f"{handle:#x} was imported, released and retained again, and has no descriptor",
        )
    return os.dup(physical.pages.descriptor)


@entry("memImportFromShareableHandle(int fd, int handleType) -> unsigned long long")
def _mem_import_from_shareable_handle(
    process: HipProcess, descriptor: int, handle_type: int
) -> int:
    check_virtual(process)
    if handle_type != _DESCRIPTOR:
        raise Refused(
            Status.INVALID_VALUE, f"the handle type must be 1, not {handle_type}", "HIP-V8"
        )
    if process.profile.takes_descriptors and not descriptor:
        raise Refused(Status.INVALID_VALUE, "descriptor 0 is refused", "HIP-V8")
    if descriptor < 0:
        text = f"{descriptor} is not a descriptor"
        raise Refused(process.profile.not_descriptor, text, "HIP-V8")
    pages = process.store.receive(descriptor)
    if pages is None:
        text = f"descriptor {descriptor} refers to no device memory of this host"
        raise Refused(process.profile.not_descriptor, text, "HIP-V8")
    if process.ordinal_of(pages.device) is None:
        process.store.release(pages)
        raise Refused(Status.NOT_SUPPORTED, "the memory's device is not visible here")
    # NVIDIA's library does not export imported memory.
    handle_type = _DESCRIPTOR if process.profile.is_hip else NO_HANDLE
    return _enter(process, pages, PINNED, handle_type, is_imported=True)
