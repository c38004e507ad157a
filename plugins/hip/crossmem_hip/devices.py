# SPDX-License-Identifier: Apache-2.0
"""The visible devices of this process. A device has the same identity in all processes."""

from collections import Counter
from typing import Any, Final
from uuid import UUID

from crossmem.errors import BackendUnavailableError, ConfigurationError
from crossmem.guards import shorten
from crossmem.models import DeviceInfo
from crossmem_hip.errors import INSUFFICIENT_DRIVER, INVALID_DEVICE, NO_DEVICE
from crossmem_hip.family import Family
from crossmem_hip.runtime import Vendor

__all__ = ["find_devices"]

_UUID_NBYTES: Final = 16


def find_devices(vendor: Vendor) -> tuple[DeviceInfo, ...]:
    """Return the devices in the order of their ordinals, without creating a context.

    Raises
    ------
    BackendUnavailableError
        There is no device, or no driver.
    ConfigurationError
        Two devices have the same identity.
    DriverError
        The runtime refused a query for another reason.
    """
    found = tuple(_info_of(vendor, ordinal) for ordinal in range(_count(vendor)))
    counted = Counter(one.identity for one in found)
    for one in found:
        if counted[one.identity] > 1:
            raise ConfigurationError(
                f"several devices have the identity {shorten(one.identity, 60)}, so a handle "
                "cannot name one of them; the partitions of a GPU have the same identity",
                hint="turn off the partitions of the GPU",
                backend=vendor.family.backend,
            )
    return found


def _count(vendor: Vendor) -> int:
    family = vendor.family
    try:
        count = vendor.rt.getDeviceCount()
    except vendor.error as error:
        status: int = error.status  # type: ignore[attr-defined]
        refusal = vendor.refusal("getDeviceCount", error)
        # ROCm 5 returns "invalid device" if there is no device.
        if status not in {INSUFFICIENT_DRIVER, NO_DEVICE, INVALID_DEVICE}:
            raise refusal from error
        is_driver = status == INSUFFICIENT_DRIVER
        raise BackendUnavailableError(
            f"{family.vendor}'s runtime finds no {'driver' if is_driver else 'device'}: "
            f"{str(refusal).splitlines()[-1]}",
            hint=family.install_hint if is_driver else _where_to_look(family),
            backend=family.backend,
        ) from error
    if not count:
        raise BackendUnavailableError(
            f"{family.vendor}'s runtime finds no device",
            hint=_where_to_look(family),
            backend=family.backend,
        )
    return count


def _where_to_look(family: Family) -> str:
    return f"run {family.tool}, and check {' and '.join(family.masks)}"


def _info_of(vendor: Vendor, ordinal: int) -> DeviceInfo:
    with vendor.calling("getDeviceProperties"):
        properties = vendor.rt.getDeviceProperties(ordinal)
    name = properties.get("name", b"")
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return DeviceInfo(
        ordinal=ordinal,
        identity=_uuid_of(vendor, ordinal, properties) or _bus_id(vendor, ordinal),
        name=text.strip("\0 ") or f"{vendor.family.vendor} GPU",
        total_nbytes=properties.get("totalGlobalMem"),
    )


def _uuid_of(vendor: Vendor, ordinal: int, properties: dict[str, Any]) -> str | None:
    """Return a device's UUID in the format of the vendor's tool, or None if it is not known."""
    # CuPy reports no UUID for AMD. So that processes with and without CuPy agree, all processes
    # identify AMD's devices by their bus ids.
    if vendor.family.is_hip:
        return None
    # The properties also contain the UUID. But CuPy and ctypes return only the bytes before its
    # first zero byte. If the UUID has no zero byte, CuPy may also return bytes that follow the
    # UUID. So deviceGetUuid is preferred.
    uuid = properties.get("uuid")
    if vendor.has("deviceGetUuid"):
        with vendor.calling("deviceGetUuid"):
            uuid = vendor.rt.deviceGetUuid(ordinal)
    if not isinstance(uuid, bytes) or len(uuid) < _UUID_NBYTES or not any(uuid):
        return None
    return f"GPU-{UUID(bytes=uuid[:_UUID_NBYTES])}"


def _bus_id(vendor: Vendor, ordinal: int) -> str:
    with vendor.calling("deviceGetPCIBusId"):
        return f"pci:{vendor.rt.deviceGetPCIBusId(ordinal).strip(chr(0)).lower()}"
