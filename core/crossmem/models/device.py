# SPDX-License-Identifier: Apache-2.0
"""What a backend says about one of its devices."""

from typing import Annotated

from pydantic import Field

from crossmem.models.base import FrozenModel

__all__ = ["DeviceInfo"]


class DeviceInfo(FrozenModel):
    """One device that this process can see.

    The ordinal is local to this process: visible-device masks renumber it. The identity is the
    same in every process of this host, so handles name devices by identity (law C24).
    """

    ordinal: Annotated[int, Field(ge=0, le=65535)]
    """Number of the device in this process."""

    identity: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
    """UUID where the vendor has one, else the PCI bus id where that is unambiguous."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    """Name for people."""

    total_nbytes: Annotated[int, Field(ge=0)] | None
    """Memory of the device in bytes; None where a vendor tells that only of an opened device."""
