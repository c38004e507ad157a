# SPDX-License-Identifier: Apache-2.0
"""Checks whether a graph is being captured, because calls of crossmem would break the capture."""

from typing import Final

from crossmem.errors import BusyError
from crossmem_hip.errors import CAPTURE, CAPTURE_HINT
from crossmem_hip.runtime import Vendor

__all__ = ["refuse_capture"]

_DEFAULT_STREAM: Final = 0


def refuse_capture(vendor: Vendor) -> None:
    """Raise if a stream is being captured. The check does not affect the capture.

    The check sees the default stream, every stream that waits for the default stream, and the
    streams that CuPy or PyTorch use in this thread. It misses captures on other streams. With CuPy
    for ROCm, or a runtime without ``streamIsCapturing``, it misses every capture. If a missed
    capture forbids the next call of crossmem, the vendor refuses the call, and the capture is lost.

    Raises
    ------
    BusyError
        A stream is being captured.
    DriverError
        The vendor refused the query for another reason.
    """
    if not vendor.has("streamIsCapturing"):
        return
    for stream in (_DEFAULT_STREAM, *vendor.streams()):
        try:
            is_capturing = vendor.rt.streamIsCapturing(stream)
        except vendor.error as error:
            # While a stream that waits for the default stream is captured, the vendor refuses the
            # query of the default stream.
            if getattr(error, "status", None) not in CAPTURE:
                raise vendor.refusal("streamIsCapturing", error) from error
            is_capturing = True
        except RuntimeError:
            # CuPy raises RuntimeError if the capture is already lost. CuPy for ROCm does not offer
            # this function, and always raises RuntimeError.
            is_capturing = False
        if is_capturing:
            raise BusyError(
                "a stream is being captured into a graph, and this call would break the capture",
                hint=CAPTURE_HINT,
                backend=vendor.family.backend,
            )
