# SPDX-License-Identifier: Apache-2.0
"""Whether this thread is recording a graph, which the calls of crossmem would break."""

from typing import Final

from crossmem.errors import BusyError
from crossmem_hip.errors import CAPTURE, CAPTURE_HINT
from crossmem_hip.runtime import Vendor

__all__ = ["refuse_capture"]

_DEFAULT_STREAM: Final = 0


def refuse_capture(vendor: Vendor) -> None:
    """Raise where a stream is being captured; the capture goes on as if nothing had been asked.

    Seen are the default stream, every stream that waits for it, and those that CuPy or PyTorch use
    in this thread. A capture on another stream cannot be seen, nor one by a CuPy without
    ``streamIsCapturing``: there the vendor refuses, and its capture is lost.

    Raises
    ------
    BusyError
        With what to do.
    DriverError
        Where the vendor refused the question for another reason.
    """
    if not vendor.has("streamIsCapturing"):
        return
    for stream in (_DEFAULT_STREAM, *vendor.streams()):
        try:
            is_capturing = vendor.rt.streamIsCapturing(stream)
        except vendor.error as error:
            # Asked about the default stream, the vendor refuses while a stream is captured that
            # waits for it.
            if getattr(error, "status", None) not in CAPTURE:
                raise vendor.refusal("streamIsCapturing", error) from error
            is_capturing = True
        except RuntimeError:
            # CuPy's own words for "this ROCm cannot tell", or for a capture that is lost already.
            is_capturing = False
        if is_capturing:
            raise BusyError(
                "a stream is being captured into a graph, which this would break",
                hint=CAPTURE_HINT,
                backend=vendor.family.backend,
            )
