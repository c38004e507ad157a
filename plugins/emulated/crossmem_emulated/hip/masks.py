# SPDX-License-Identifier: Apache-2.0
"""The visible devices of a process, and their numbers (HIP-E14)."""

from collections.abc import Mapping, Sequence

__all__ = ["visible_devices"]


def visible_devices(devices: int, environ: Mapping[str, str], *, is_hip: bool) -> tuple[int, ...]:
    """Return the visible devices' host-wide indices.

    The position of a device in the result is its number in this process.

    Parameters
    ----------
    devices
        Number of devices of the host.
    environ
        The environment variables.
    is_hip
        Whether the runtime is AMD's. AMD's runtime first applies ``ROCR_VISIBLE_DEVICES``, and then
        applies ``HIP_VISIBLE_DEVICES`` to the result. If ``HIP_VISIBLE_DEVICES`` is not set, AMD's
        runtime uses ``CUDA_VISIBLE_DEVICES`` instead. NVIDIA's runtime applies only
        ``CUDA_VISIBLE_DEVICES``.
    """
    found: Sequence[int] = range(devices)
    if is_hip:
        found = _masked(found, environ.get("ROCR_VISIBLE_DEVICES"))
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if is_hip:
        mask = environ.get("HIP_VISIBLE_DEVICES", mask)
    return tuple(_masked(found, mask))


def _masked(devices: Sequence[int], mask: str | None) -> Sequence[int]:
    """Return the devices that a mask selects, in the order of the mask.

    The first invalid or repeated entry of the mask and all later entries are ignored.
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
