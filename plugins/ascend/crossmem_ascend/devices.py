# SPDX-License-Identifier: Apache-2.0
"""The visible devices of this process, with identities that all processes of the host use."""

from collections.abc import Mapping
from typing import Final

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem.models import DeviceInfo
from crossmem_ascend.errors import BACKEND, SUCCESS
from crossmem_ascend.library import beside
from crossmem_ascend.runtime import Rt, Vendor

__all__ = ["MASK", "find_devices"]

MASK: Final = "ASCEND_RT_VISIBLE_DEVICES"


def find_devices(vendor: Vendor, environ: Mapping[str, str]) -> tuple[DeviceInfo, ...]:
    """Return the devices in the order of their ordinals, without opening any of them.

    Raises
    ------
    ConfigurationError
        A device has no UUID, and the mask does not identify it.
    """
    # Some editions of pyACL lack device_get_uuid. Then the UUID comes from libascendcl, so that the
    # device has the same identity as in a process that uses libascendcl without pyACL.
    uuids = vendor.rt if vendor.has("device_get_uuid") else beside(vendor.acl).rt
    count = vendor.value("rt.get_device_count", vendor.rt.get_device_count())
    soc_name = getattr(vendor.acl, "get_soc_name", None)
    name = (soc_name and soc_name()) or "Ascend NPU"
    return tuple(
        DeviceInfo(
            ordinal=ordinal,
            identity=_uuid_of(uuids, ordinal) or f"npu:{_physical_id(ordinal, environ)}",
            name=name,
            # The size stays unknown. The vendor reports the size only for an open device, and an
            # open device uses memory.
            total_nbytes=None,
        )
        for ordinal in range(count)
    )


def _uuid_of(rt: Rt, ordinal: int) -> str | None:
    """Return the identity that contains the device's UUID; None if the driver reports no UUID."""
    if not hasattr(rt, "device_get_uuid"):
        return None
    uuid, code = rt.device_get_uuid(ordinal)
    if code != SUCCESS or not any(uuid["bytes"]):
        return None
    # The vendor's bytes have C's type ``char``, which may be signed.
    return "npu:" + bytes(one & 0xFF for one in uuid["bytes"]).hex()


def _physical_id(ordinal: int, environ: Mapping[str, str]) -> int:
    """Return the number that the device would have without this process's mask."""
    mask = environ.get(MASK, "")
    if not mask:
        return ordinal
    try:
        return [int(one) for one in mask.split(",")][ordinal]
    except (ValueError, IndexError):
        raise ConfigurationError(
            f"{MASK} is {shorten(mask)}, which does not identify device {ordinal}, and the driver "
            "reports no UUID",
            hint="set the variable to numbers separated by commas, such as 0,1",
            backend=BACKEND,
        ) from None
