# SPDX-License-Identifier: Apache-2.0
"""The functions that count, select and describe devices, and that control peer access."""

import hashlib
from typing import Any, Final

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status, constants_of
from crossmem_emulated.hip.process import HipProcess

__all__: list[str] = []

_FIRST_BUS: Final = 3
_BUSES: Final = 256
_PROCESSORS: Final = 108
_TEXT_END: Final = b"\0"
_UUID_NBYTES: Final = 16
_WARP: Final = {True: 64, False: 32}
_ABOUT_VALUES: Final = {
    True: {10013: 1},  # hipDeviceAttributeCanUseStreamWaitValue
    # CU_DEVICE_ATTRIBUTE_: CAN_FLUSH_REMOTE_WRITES, CAN_USE_64_BIT_STREAM_MEM_OPS,
    # CAN_USE_STREAM_WAIT_VALUE_NOR.
    False: {98: 0, 122: 1, 123: 1},
}
"""Results of ``deviceGetAttribute`` for some attributes. These attributes describe the functions by
which a stream writes a number to memory or waits for a number in memory. The outer key is True for
HIP, and False for CUDA's driver API. The inner key is the number of the attribute."""


def _bus_of(index: int) -> tuple[int, int, int]:
    """Return a device's PCI domain, bus and device number. ``index`` is its host-wide index."""
    return index // _BUSES, (index + _FIRST_BUS) % _BUSES, 0


def _uuid_of(index: int) -> bytes:
    """Return a device's UUID. In a UUID of a device with an odd index, one byte is 0.

    A program that reads the UUID as a C string, as CuPy does, gets only the bytes before this byte.
    """
    digest = hashlib.blake2b(b"crossmem emulated GPU %d" % index, digest_size=_UUID_NBYTES).digest()
    plain = bytes(byte or 1 for byte in digest)
    return plain[:9] + b"\0" + plain[10:] if index % 2 else plain


@entry("runtimeGetVersion() -> int", needs_device=False)
def _runtime_get_version(process: HipProcess) -> int:
    return process.profile.version


@entry("driverGetVersion() -> int", needs_device=False)
def _driver_get_version(process: HipProcess) -> int:
    return process.profile.version


@entry("getDeviceCount() -> int")
def _get_device_count(process: HipProcess) -> int:
    return len(process.setup.visible)


@entry("getDevice() -> int")
def _get_device(process: HipProcess) -> int:
    return process.current().device


@entry("setDevice(int device)")
def _set_device(process: HipProcess, device: int) -> None:
    process.check_device(device)
    process.thread.context = process.primary_of(device).handle
    if process.profile.has_contexts and process.stack():
        # The device's primary context replaces the current context at the top of the stack.
        process.stack()[-1] = process.thread.context


@entry("init(unsigned int flags)")
def _init(_process: HipProcess, flags: int) -> None:
    if flags:
        raise Refused(Status.INVALID_VALUE, f"the flags must be 0, not {flags}")


@entry("deviceGetUuid(int device) -> bytes")
def _device_get_uuid(process: HipProcess, device: int) -> bytes:
    return _uuid_of(process.check_device(device))


@entry("deviceGetPCIBusId(int device) -> str")
def _device_get_pci_bus_id(process: HipProcess, device: int) -> str:
    domain, bus, slot = _bus_of(process.check_device(device))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


@entry("deviceGetByPCIBusId(str pci_bus_id) -> int")
def _device_get_by_pci_bus_id(process: HipProcess, text: str) -> int:
    for device in range(len(process.setup.visible)):
        if _device_get_pci_bus_id(process, device) == text.lower():
            return device
    status = Status.INVALID_VALUE if process.profile.is_hip else Status.INVALID_DEVICE
    raise Refused(status, f"no device has the PCI bus id {text!r}")


@entry("getDeviceProperties(int device)")
def _get_device_properties(process: HipProcess, device: int) -> dict[str, Any]:
    index = process.check_device(device)
    domain, bus, slot = _bus_of(index)
    is_hip = process.profile.is_hip
    found: dict[str, Any] = {
        "name": b"crossmem emulated GPU",
        "totalGlobalMem": process.store.capacity_nbytes,
        "warpSize": _WARP[is_hip],
        "major": 9,
        "minor": 0,
        "multiProcessorCount": _PROCESSORS,
        "integrated": 0,
        "canMapHostMemory": 1,
        "computeMode": 0,
        "pciBusID": bus,
        "pciDeviceID": slot,
        "pciDomainID": domain,
        "managedMemory": 1,
    }
    if is_hip:
        # isLargeBar tells a program whether the host can access device memory. In a strict
        # emulation, the host cannot.
        is_open = not process.setup.strict
        return {**found, "gcnArchName": b"gfx942", "isLargeBar": int(is_open)}
    # CuPy reads the 16 bytes as a string, which ends at the first zero byte.
    return {**found, "uuid": _uuid_of(index).partition(_TEXT_END)[0], "unifiedAddressing": 1}


@entry("deviceGetAttribute(int attrib, int device) -> int")
def _device_get_attribute(process: HipProcess, attribute: int, device: int) -> int:
    domain, bus, slot = _bus_of(process.check_device(device))
    known = {
        "cudaDevAttrAsyncEngineCount": 2,
        "cudaDevAttrIntegrated": 0,
        "cudaDevAttrManagedMemory": 1,
        "cudaDevAttrMultiProcessorCount": _PROCESSORS,
        "cudaDevAttrPciBusId": bus,
        "cudaDevAttrPciDeviceId": slot,
        "cudaDevAttrPciDomainId": domain,
        "cudaDevAttrUnifiedAddressing": 1,
        "cudaDevAttrWarpSize": _WARP[process.profile.is_hip],
    }
    numbers = constants_of(is_hip=process.profile.is_hip)
    for name, value in known.items():
        if numbers.get(name) == attribute:
            return value
    more = _ABOUT_VALUES[process.profile.is_hip]
    if attribute in more:
        return more[attribute]
    raise Refused(Status.INVALID_VALUE, f"there is no attribute {attribute}")


# Peers --------------------------------------------------------------------------------------


@entry("deviceCanAccessPeer(int device, int peerDevice) -> int")
def _device_can_access_peer(process: HipProcess, device: int, peer: int) -> int:
    first, second = process.check_device(device), process.check_device(peer)
    return int(first != second and process.can_reach(first, second))


@entry("deviceEnablePeerAccess(int peerDevice)")
def _device_enable_peer_access(process: HipProcess, peer: int) -> None:
    context = process.current()
    if not _device_can_access_peer(process, context.device, peer):
        is_self = process.profile.is_hip or peer == context.device
        status = Status.INVALID_DEVICE if is_self else Status.PEER_ACCESS_UNSUPPORTED
        raise Refused(status, f"device {peer} is not a peer of device {context.device}")
    if peer in context.peers:
        raise Refused(
            Status.PEER_ACCESS_ALREADY_ENABLED,
            f"device {context.device} has access to device {peer} already",
        )
    context.peers.add(peer)


@entry("deviceDisablePeerAccess(int peerDevice)")
def _device_disable_peer_access(process: HipProcess, peer: int) -> None:
    context = process.current()
    can_access = _device_can_access_peer(process, context.device, peer)
    if not can_access and process.profile.is_hip:
        text = f"device {peer} is not a peer of device {context.device}"
        raise Refused(Status.INVALID_DEVICE, text)
    if peer not in context.peers:
        raise Refused(
            Status.PEER_ACCESS_NOT_ENABLED,
            f"device {context.device} has no access to device {peer}",
        )
    context.peers.discard(peer)
