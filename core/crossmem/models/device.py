# SPDX-License-Identifier: Apache-2.0
"""A backend's description of one of its devices."""

from dataclasses import dataclass
from math import inf
from typing import Final

from crossmem.guards import check_fields, is_identity, is_within

__all__ = ["DeviceInfo"]

_MAX_ORDINAL: Final = 65535
_MAX_NAME: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device that this process can see.

    The ordinal is local to this process, because visible-device masks renumber the devices. The
    identity is the same in every process of this host, so handles name devices by identity (law
    C24).

    Raises
    ------
    ConfigurationError
        A field has the wrong type or is out of range.
    """

    ordinal: int
    """Number of the device in this process, from 0 to 65535."""

    identity: str
    """Unambiguous name of the device: its UUID. If the device has no UUID, the identity is the PCI
    bus id or another text. The identity has 1 to 128 printable ASCII characters without blanks."""

    name: str
    """Name to display, 1 to 256 characters."""

    total_nbytes: int | None
    """Memory of the device in bytes; None if the vendor reports it only for an opened device."""

    def __post_init__(self) -> None:
        check_fields(self, _RULES)


_RULES: Final = {
    "ordinal": (
        lambda value: is_within(value, 0, _MAX_ORDINAL),
        f"an integer from 0 to {_MAX_ORDINAL}",
    ),
    "identity": (is_identity, "1 to 128 printable ASCII characters without blanks"),
    "name": (
        lambda value: isinstance(value, str) and 0 < len(value) <= _MAX_NAME,
        f"a text of 1 to {_MAX_NAME} characters",
    ),
    "total_nbytes": (
        lambda value: value is None or is_within(value, 0, inf),
        "None or a number of bytes, at least 0",
    ),
}
