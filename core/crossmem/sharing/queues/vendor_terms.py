# SPDX-License-Identifier: Apache-2.0
"""The declared sizes and rules of a vendor's queue, and the errors for missing features."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from crossmem.errors import UnsupportedError
from crossmem.sharing.base.devices import LocalDevice

__all__ = ["VendorTerms", "refuse", "refuse_features"]

_OWN: Final = (
    "crossmem's own queues have this feature: leave out mechanism=, or use crossmem.device('host')"
)


class VendorTerms(NamedTuple):
    """The declared sizes and rules of a vendor's queue."""

    depth: int
    nbytes: int
    waits: bool
    """Whether a put waits for room."""


def refuse(device: LocalDevice, what: str, hint: str = _OWN) -> UnsupportedError:
    """Return the error for a feature that the vendor's queues do not offer."""
    msg = f"queues of mechanism {device.mechanism!r} have no {what} (capability vendor_queues)"
    return UnsupportedError(msg, hint=hint, backend=device.backend, device=device.identity)


def refuse_features(device: LocalDevice, asked: Mapping[str, bool]) -> None:
    """Refuse arguments that ask for more than the vendor offers.

    Parameters
    ----------
    asked
        For each feature's name, whether the caller asks for the feature.

    Raises
    ------
    UnsupportedError
        The caller asks for one or more features. The message names the first of them.
    """
    for name, is_asked in asked.items():
        if is_asked:
            raise refuse(device, name)
