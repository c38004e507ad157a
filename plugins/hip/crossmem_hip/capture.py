# SPDX-License-Identifier: Apache-2.0
"""Checks whether a graph is being captured, because calls of crossmem would break the capture."""

from typing import Final

from crossmem.errors import BusyError
from crossmem_hip.errors import CAPTURE, CAPTURE_HINT
from crossmem_hip.runtime import Vendor

__all__ = ["refuse_capture", "refuse_captured"]

_DEFAULT_STREAM: Final = 0
_BREAKS: Final = "this call would break the capture"
_RECORDED: Final = "the graph would record or refuse this call"


def refuse_capture(vendor: Vendor) -> None:
    """Raise if a stream is being captured. The check does not affect the capture.

    The check sees the default stream, every stream that waits for the default stream, and the
    streams that CuPy or PyTorch use in this thread. It misses captures on other streams. With CuPy
    for ROCm, or a runtime without ``streamIsCapturing``, it misses every capture. After the check,
    the caller makes a call of the vendor. If a missed capture forbids this call, the vendor refuses
    the call, and the capture is lost.

    Raises
    ------
    BusyError
        A stream is being captured.
    DriverError
        The vendor refused the query for another reason.
    """
    for stream in (_DEFAULT_STREAM, *vendor.streams()):
        _refuse(vendor, stream, "a stream is being captured into a graph", _BREAKS)


def refuse_captured(vendor: Vendor, stream: int) -> None:
    """Raise if the stream is a CUDA stream that is being captured.

    The check does not affect the capture.

    If a call names a stream that is being captured, CUDA does not execute the call, but records it
    in a graph. Only a launch of the graph executes the call, and the program may launch the graph
    several times or not at all. AMD's
    streams are not checked: for a destroyed stream, ``hipStreamIsCapturing`` of ROCm 7 reads freed
    memory.

    Raises
    ------
    BusyError
        The stream is being captured.
    DriverError
        The vendor refused the query for another reason.
    """
    if not vendor.family.is_hip:
        _refuse(vendor, stream, "the stream is being captured into a graph", _RECORDED)


def _refuse(vendor: Vendor, stream: int, what: str, why: str) -> None:
    if not vendor.has("streamIsCapturing"):
        return
    try:
        is_capturing = vendor.rt.streamIsCapturing(stream)
    except vendor.error as error:
        # Some streams wait for the default stream. While such a stream is being captured, the
        # vendor refuses the query of the default stream.
        if getattr(error, "status", None) not in CAPTURE:
            raise vendor.refusal("streamIsCapturing", error) from error
        is_capturing = True
    except RuntimeError:
        # CuPy raises RuntimeError if the capture is already lost. In CuPy for ROCm, each call of
        # ``streamIsCapturing`` raises RuntimeError.
        is_capturing = False
    if is_capturing:
        raise BusyError(f"{what}, and {why}", hint=CAPTURE_HINT, backend=vendor.family.backend)
