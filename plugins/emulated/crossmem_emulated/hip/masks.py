# SPDX-License-Identifier: Apache-2.0
"""Which devices the environment shows to a process, and under which numbers (HIP-E14)."""

from collections.abc import Mapping, Sequence

__all__ = ["visible_devices"]


def visible_devices(devices: int, environ: Mapping[str, str], *, is_hip: bool) -> tuple[int, ...]:
    """Return the host-wide index of each visible device, by its number in this process.

    Parameters
    ----------
    devices
        How many the host has.
    environ
        The variables.
    is_hip
        Whether AMD's variables count too: ``ROCR_VISIBLE_DEVICES`` first, and among what that
        leaves ``HIP_VISIBLE_DEVICES``, or ``CUDA_VISIBLE_DEVICES`` where that is not set.
    """
    found: Sequence[int] = range(devices)
    if is_hip:
        found = _masked(found, environ.get("ROCR_VISIBLE_DEVICES"))
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if is_hip:
        mask = environ.get("HIP_VISIBLE_DEVICES", mask)
    return tuple(_masked(found, mask))


def _masked(devices: Sequence[int], mask: str | None) -> Sequence[int]:
    """Return what a mask leaves, in its order.

    What follows the first entry that is no device, or one for the second time, is ignored.
    """
    if mask is None:
        return devices
    found: list[int] = []
    for entry in mask.split(","):
        text = entry.strip()
        if not text.isdecimal() or int(text) >= len(devices) or devices[int(text)] in found:
            break
        found.append(devices[int(text)])
    return found
