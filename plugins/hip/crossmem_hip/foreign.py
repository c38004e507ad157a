# SPDX-License-Identifier: Apache-2.0
"""Memory of other libraries: the vendor's information, and whether the memory can be shared.

Older runtimes do not report whether legacy IPC can carry an allocation. With such a runtime,
crossmem tries an export. It does so only at the adoption and not at an inspection, because some
releases never free memory that was exported.
"""

from typing import Any, Final

from crossmem.driver import Foreign
from crossmem.errors import UnsupportedError
from crossmem_hip.errors import INVALID_VALUE
from crossmem_hip.runtime import VIRTUAL, Vendor

__all__ = ["ADDED", "inspect", "inspect_mapping", "knows_mappings", "try_export"]

ADDED: Final = ("memGetAddressRange", "pointerGetAttributes")
"""The functions that a runtime needs to share other libraries' memory by legacy IPC."""

_UNIT_NBYTES: Final = 2 << 20
"""The size of a vendor block. The vendor puts allocations that are smaller than a block into
blocks, and shares only whole blocks."""

_NOT_FOUND: Final = 500
_UNKNOWN: Final = frozenset({INVALID_VALUE, 17, _NOT_FOUND})
_NOT_SUPPORTED: Final = 801
_UNKNOWN_ATTRIBUTE: Final = frozenset({INVALID_VALUE, _NOT_SUPPORTED})

_HOST: Final = 1
_DEVICE: Final = 2
_MANAGED: Final = 3
_MEMORY_TYPE: Final = 2
_BUFFER_ID: Final = 7
_IS_MANAGED: Final = 8
_IS_LEGACY_IPC_CAPABLE: Final = 10
_ALLOWED_HANDLE_TYPES: Final = 14
_MEMPOOL_HANDLE: Final = 17
_MAPPING_NBYTES: Final = 18
_MAPPING_BASE: Final = 19
_DESCRIPTOR: Final = 1

_NO_SUCH = "is not memory of the vendor's runtime in this process"
_IS_HOSTS = "is the host's memory"
_IS_MANAGED_WORDS = "is managed memory, which {carrier} cannot carry"
_IS_POOLED = "is from a stream-ordered pool, which {carrier} cannot carry"
_LEGACY: Final = "legacy IPC"
_EXPORTED_HANDLE: Final = "an exported handle"
_NOT_MAPPED = "was not mapped by the vendor's calls for virtual memory"
_NOT_EXPORTABLE = (
    "is virtual memory that was not created for export: its creator must request a file descriptor"
)
_BOUNDLESS = "is virtual memory, and this driver does not report where its mapping begins"
_NOT_CAPABLE = (
    "cannot be carried by legacy IPC: it is virtual (as in expandable segments), pooled, managed, "
    "imported, or host memory"
)


def inspect(vendor: Vendor, ordinal: int, pointer: int) -> Foreign:
    """Return the vendor's information about the memory at an address of the current device."""
    rt = vendor.rt
    asking = "pointerGetAttributes"
    try:
        attributes = _attributes(vendor, pointer)
        asking = "memGetAddressRange"
        base, nbytes = rt.memGetAddressRange(pointer)
    except vendor.error as error:
        if getattr(error, "status", None) not in _UNKNOWN:
            raise vendor.refusal(asking, error) from error
        return Foreign(obstacle=_NO_SUCH)
    obstacle = _why_of_no_device(vendor, ordinal, pointer, attributes, _LEGACY)
    obstacle = obstacle or _why_not_exported(vendor, base)
    first = base // _UNIT_NBYTES * _UNIT_NBYTES
    end = -(-(base + nbytes) // _UNIT_NBYTES) * _UNIT_NBYTES
    generation = _attribute(vendor, _BUFFER_ID, base) if obstacle is None else None
    return Foreign(base, nbytes, first, end - first, obstacle, generation)


def _attributes(vendor: Vendor, pointer: int) -> Any:
    """Return the runtime's attributes of an address.

    In a thread that has not used a device, CUDA reports no device address, because the thread has
    no context. A query of the free memory gives the thread the context of its current device.
    Unlike ``setDevice``, the query does not replace a context that the application has chosen.
    """
    found = vendor.rt.pointerGetAttributes(pointer)
    if found.devicePointer or vendor.family.is_hip or not vendor.has("memGetInfo"):
        return found
    with vendor.calling("memGetInfo"):
        vendor.rt.memGetInfo()
    return vendor.rt.pointerGetAttributes(pointer)


def _why_of_no_device(
    vendor: Vendor, ordinal: int, pointer: int, attributes: Any, carrier: str
) -> str | None:
    """Return a text that says why memory is not the device's unmanaged memory.

    Return None if the memory is the device's unmanaged memory.
    """
    if attributes.type == _MANAGED or _attribute(vendor, _IS_MANAGED, pointer):
        return _IS_MANAGED_WORDS.format(carrier=carrier)
    if not attributes.devicePointer:
        return _NO_SUCH
    if attributes.type != _DEVICE or _is_hosts(vendor, pointer):
        return _IS_HOSTS
    if attributes.device < 0:
        return "is memory of a device that this process does not see"
    if attributes.device != ordinal:
        return f"is memory of device {attributes.device}, not of this device"
    return None


def _is_hosts(vendor: Vendor, pointer: int) -> bool:
    """Whether memory that CuPy reports as device memory is pinned host memory.

    CuPy translates the numbers of memory types as if every release of ROCm had the numbers of
    ROCm 5. Since ROCm 6, host memory has the number that device memory had in ROCm 5.
    """
    if not vendor.family.is_hip or vendor.family.is_old(vendor.version):
        return False
    return _attribute(vendor, _MEMORY_TYPE, pointer) == _HOST


def try_export(vendor: Vendor, base: int) -> bytes:
    """Export memory if the vendor cannot report whether the memory is exportable.

    Return the vendor's handle, or empty bytes if no export was made.

    Raises
    ------
    UnsupportedError
        The vendor cannot export this memory. The message lists the possible reasons.
    CrossmemError
        The export failed with another error of the vendor.
    """
    if _attribute(vendor, _IS_LEGACY_IPC_CAPABLE, base) is not None:
        return b""
    try:
        return vendor.rt.ipcGetMemHandle(base)
    except vendor.error as error:
        refusal = vendor.refusal("ipcGetMemHandle", error)
        if getattr(error, "status", None) not in _UNKNOWN:
            raise refusal from error
        raise UnsupportedError(
            f"memory at {base:#x} {_NOT_CAPABLE}",
            hint="copy the contents to memory of device.allocate(), and export that memory",
            backend=vendor.family.backend,
        ) from refusal


def _why_not_exported(vendor: Vendor, base: int) -> str | None:
    """Return why legacy IPC cannot carry the memory at ``base``; None if no reason is known."""
    if _attribute(vendor, _IS_LEGACY_IPC_CAPABLE, base) != 0:
        return None
    is_pooled = not vendor.family.is_hip and _attribute(vendor, _MEMPOOL_HANDLE, base)
    return _IS_POOLED.format(carrier=_LEGACY) if is_pooled else _NOT_CAPABLE


def knows_mappings(vendor: Vendor) -> bool:
    """Whether the vendor reports where a mapping of virtual memory begins. AMD does not."""
    asked = ("pointerGetAttributes", "pointerGetAttribute", *VIRTUAL)
    return not vendor.family.is_hip and all(map(vendor.has, asked))


def inspect_mapping(vendor: Vendor, ordinal: int, pointer: int) -> Foreign:
    """Return the vendor's information about the mapping of virtual memory at an address.

    No call returns the size of the memory behind a handle, so the mapping is assumed to cover all
    of the memory.
    """
    try:
        attributes = _attributes(vendor, pointer)
    except vendor.error as error:
        if getattr(error, "status", None) not in _UNKNOWN:
            raise vendor.refusal("pointerGetAttributes", error) from error
        return Foreign(obstacle=_NO_SUCH)
    obstacle = _why_of_no_device(vendor, ordinal, pointer, attributes, _EXPORTED_HANDLE)
    if obstacle is None and _attribute(vendor, _MEMPOOL_HANDLE, pointer):
        obstacle = _IS_POOLED.format(carrier=_EXPORTED_HANDLE)
    if obstacle is None and _attribute(vendor, _IS_LEGACY_IPC_CAPABLE, pointer) != 0:
        obstacle = _NOT_MAPPED
    if obstacle is None and not (
        (_attribute(vendor, _ALLOWED_HANDLE_TYPES, pointer) or 0) & _DESCRIPTOR
    ):
        obstacle = _NOT_EXPORTABLE
    base = _attribute(vendor, _MAPPING_BASE, pointer)
    nbytes = _attribute(vendor, _MAPPING_NBYTES, pointer)
    if obstacle is None and not (base and nbytes):
        obstacle = _BOUNDLESS
    if obstacle is not None or base is None or nbytes is None:
        return Foreign(obstacle=obstacle)
    return Foreign(base, nbytes, base, nbytes, generation=_attribute(vendor, _BUFFER_ID, base))


def _attribute(vendor: Vendor, attribute: int, pointer: int) -> int | None:
    """Return an attribute, or None if this version of the vendor's library does not know it."""
    if not vendor.has("pointerGetAttribute"):
        return None
    try:
        return vendor.rt.pointerGetAttribute(attribute, pointer)
    except vendor.error as error:
        if getattr(error, "status", None) not in _UNKNOWN_ATTRIBUTE:
            raise vendor.refusal("pointerGetAttribute", error) from error
        return None
