# SPDX-License-Identifier: Apache-2.0
"""The functions that return or set the attributes of an address.

CuPy has only ``pointerGetAttributes``. C programs also call the other functions.
"""

from enum import IntEnum
from typing import Final

from crossmem_emulated.addresses import Piece
from crossmem_emulated.hip.blocks import HostBlock, find_host_block
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import MemoryType, Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import HipProcess

__all__ = ["PointerAttributes"]


class Attribute(IntEnum):
    """The emulated attributes of an address. Their numbers are the same in HIP and CUDA."""

    MEMORY_TYPE = 2
    SYNC_MEMOPS = 6
    BUFFER_ID = 7
    IS_MANAGED = 8
    DEVICE_ORDINAL = 9
    IS_LEGACY_IPC_CAPABLE = 10
    RANGE_START_ADDR = 11
    RANGE_SIZE = 12
    MAPPED = 13
    ALLOWED_HANDLE_TYPES = 14
    MEMPOOL_HANDLE = 17
    MAPPING_SIZE = 18
    MAPPING_BASE_ADDR = 19


_CUDA_ONLY: Final = frozenset({Attribute.MAPPING_SIZE, Attribute.MAPPING_BASE_ADDR})


_BEFORE_6: Final = {
    MemoryType.UNREGISTERED: -1,
    MemoryType.HOST: 0,
    MemoryType.DEVICE: 1,
    MemoryType.MANAGED: 4,
}
"""The number of each memory type in ROCm 5; -1 for unregistered memory, which has no number."""


def _owner_of(process: HipProcess, pointer: int) -> Piece | HostBlock | None:
    """Return the memory that contains an address, or None.

    Opening a handle maps whole pages, which may contain neighbours of the exported allocation. For
    an address in these neighbours, the result is None.
    """
    for piece in process.space.overlapping(pointer, 1):
        if piece.origin is not Origin.IPC:
            return piece
        opened = piece.source
        if opened.pointer <= pointer < opened.pointer + opened.nbytes:
            return piece
    return find_host_block(process, pointer)


def _range_of(owner: Piece | HostBlock) -> tuple[int, int]:
    if isinstance(owner, Piece) and owner.origin is Origin.VIRTUAL:
        # The range is the whole reservation, as in NVIDIA's library, even if only a part is mapped.
        return owner.region.start, owner.region.nbytes
    if isinstance(owner, Piece) and owner.origin is Origin.IPC:
        return owner.source.pointer, owner.source.nbytes
    return owner.start, owner.nbytes


def _type_of(owner: Piece | HostBlock) -> MemoryType:
    return owner.kind if isinstance(owner, HostBlock) else MemoryType.DEVICE


def _device_of(process: HipProcess, owner: Piece | HostBlock) -> int:
    """Return the device that the memory's attributes report, as a number of this process.

    For imported memory, this is the device that was current when this process last opened the
    handle. For pinned host memory, it is the current device. For other memory, it is the memory's
    device, or -1 if this process does not see that device.
    """
    if isinstance(owner, Piece) and owner.origin is Origin.IPC:
        device: int = owner.source.device
        return device
    if owner.pages is None:
        return process.current().device
    ordinal = process.ordinal_of(owner.pages.device)
    return -1 if ordinal is None else ordinal


@entry("memGetAddressRange(intptr_t ptr)")
def _mem_get_address_range(process: HipProcess, pointer: int) -> tuple[int, int]:
    owner = _owner_of(process, pointer)
    if owner is None:
        raise Refused(Status.NOT_FOUND, f"{pointer:#x} is in no allocation")
    return _range_of(owner)


@entry("pointerGetAttribute(int attribute, intptr_t ptr) -> int")
def _pointer_get_attribute(process: HipProcess, attribute: int, pointer: int) -> int:
    is_known = attribute in set(Attribute)
    if not is_known or (attribute in _CUDA_ONLY and process.profile.is_hip):
        raise Refused(Status.INVALID_VALUE, f"there is no attribute {attribute}")
    owner = _owner_of(process, pointer)
    if owner is None:
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} is in no allocation")
    if attribute == Attribute.IS_LEGACY_IPC_CAPABLE and not process.profile.knows_exportable:
        raise Refused(Status.NOT_SUPPORTED, "this release cannot say whether memory is exportable")
    kind, (start, nbytes) = _type_of(owner), _range_of(owner)
    origin = owner.origin if isinstance(owner, Piece) else None
    handle_types = pool = 0
    if isinstance(owner, Piece) and origin is Origin.VIRTUAL:
        handle_types = owner.source.physical.handle_type
    if isinstance(owner, Piece) and origin is Origin.POOL:
        pool = owner.source.handle
    if isinstance(owner, Piece) and origin is Origin.IPC and owner.source.pool is not None:
        pool = owner.source.pool.handle
    if attribute == Attribute.MEMORY_TYPE and process.profile.is_hip:
        return _number_of(process, kind)
    return {
        # With CUDA, this attribute reports managed memory as device memory.
        Attribute.MEMORY_TYPE: min(kind, MemoryType.DEVICE),
        Attribute.SYNC_MEMOPS: int(owner.is_synchronous),
        Attribute.BUFFER_ID: owner.number,
        Attribute.IS_MANAGED: int(kind is MemoryType.MANAGED),
        Attribute.DEVICE_ORDINAL: _device_of(process, owner),
        Attribute.IS_LEGACY_IPC_CAPABLE: int(origin is Origin.MALLOC),
        Attribute.RANGE_START_ADDR: start,
        Attribute.RANGE_SIZE: nbytes,
        Attribute.MAPPED: 1,
        Attribute.ALLOWED_HANDLE_TYPES: handle_types,
        Attribute.MEMPOOL_HANDLE: pool,
        Attribute.MAPPING_SIZE: owner.nbytes,
        Attribute.MAPPING_BASE_ADDR: owner.start,
    }[Attribute(attribute)]


@entry("pointerSetAttribute(value, int attribute, intptr_t ptr)")
def _pointer_set_attribute(process: HipProcess, value: int, attribute: int, pointer: int) -> None:
    if attribute != Attribute.SYNC_MEMOPS or value not in {0, 1}:
        raise Refused(Status.INVALID_VALUE, f"attribute {attribute} cannot be set to {value}")
    owner = _owner_of(process, pointer)
    if owner is None:
        status = Status.INVALID_DEVICE_POINTER if pointer else Status.INVALID_VALUE
        raise Refused(status, f"{pointer:#x} is in no allocation")
    owner.is_synchronous = bool(value)


class PointerAttributes:
    """The attributes of an address, in the form of CuPy's class with this name.

    This class has two attributes that CuPy's class lacks. ``number`` is the vendor's own number of
    the memory type. ``allocationFlags`` contains the flags with which host memory was allocated or
    pinned.
    """

    __slots__ = ("allocationFlags", "device", "devicePointer", "hostPointer", "number", "type")

    def __init__(self, device: int, devicePointer: int, hostPointer: int, type: int = -1) -> None:  # noqa: A002, N803 - CuPy's names
        self.type = type
        self.device = device
        self.devicePointer = devicePointer
        self.hostPointer = hostPointer
        self.number = type
        self.allocationFlags = 0


def _number_of(process: HipProcess, kind: MemoryType) -> int:
    """Return the vendor's number of a memory type."""
    return _BEFORE_6[kind] if process.profile.has_old_numbers else int(kind)


def _described(
    process: HipProcess, kind: MemoryType, device: int, pointer: int, host: int
) -> PointerAttributes:
    # Since ROCm 6, AMD's numbers of memory types equal CUDA's. CuPy still translates AMD's numbers
    # as if they came from ROCm 5. So CuPy reports unregistered memory as host memory, and host
    # memory as device memory.
    is_shifted = process.profile.is_hip and not process.profile.has_old_numbers
    shown = kind + (is_shifted and kind < MemoryType.DEVICE)
    found = PointerAttributes(device, pointer, host, shown)
    found.number = _number_of(process, kind)
    return found


@entry("pointerGetAttributes(intptr_t ptr) -> PointerAttributes")
def _pointer_get_attributes(process: HipProcess, pointer: int) -> PointerAttributes:
    owner = _owner_of(process, pointer)
    if owner is None:
        # According to AMD's documents, the call refuses each address outside of allocations. The
        # releases since ROCm 6 accept such addresses, but some of these releases refuse null. The
        # profile "documented" accepts such addresses, too: a refusal would break CuPy, which makes
        # this call for each host array before it copies the array.
        if process.profile.is_before_6 or (process.profile.refuses_null and not pointer):
            raise Refused(Status.INVALID_VALUE, f"{pointer:#x} is in no allocation")
        host = 0 if process.profile.is_hip else pointer
        return _described(process, MemoryType.UNREGISTERED, -2, 0, host)
    kind, device = _type_of(owner), _device_of(process, owner)
    if not isinstance(owner, HostBlock):
        # In a thread without a context, NVIDIA's library reports 0 as the device address.
        is_known = process.profile.is_hip or process.has_thread_context
        return _described(process, kind, device, pointer if is_known else 0, 0)
    found = _described(process, kind, device, pointer, pointer)
    found.allocationFlags = owner.flags
    return found
