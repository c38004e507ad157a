# SPDX-License-Identifier: Apache-2.0
"""Captures of streams.

On a real device, a captured stream records its work in a graph instead of executing the work. The
emulation discards this work, because it launches no graphs. A call that waits for captured work
breaks the capture.
"""

import threading
from typing import Final

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import CAPTURE_MODES, Capture, find_stream, is_capture_in_way

__all__: list[str] = []

_LACKS: Final = "{} is not supported in ROCm"
_NONE, _ACTIVE, _INVALIDATED = range(3)


@entry(
    "streamBeginCapture(intptr_t stream, int mode=streamCaptureModeRelaxed)",
    hip_lacks=_LACKS.format("streamBeginCapture"),
)
def _stream_begin_capture(process: HipProcess, handle: int, mode: int) -> None:
    stream = find_stream(process, handle)
    if stream.is_legacy:
        raise Refused(Status.CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured", "HIP-X6")
    if stream.capture is not None or mode not in CAPTURE_MODES:
        raise Refused(
            Status.INVALID_VALUE,
            f"the stream is captured already, or there is no mode {mode}",
            "HIP-X6",
        )
    number, graph = next(process.captures), next(process.handles)
    stream.capture = Capture(mode, threading.get_ident(), number, graph)


@entry("streamEndCapture(intptr_t stream) -> intptr_t", hip_lacks=_LACKS.format("streamEndCapture"))
def _stream_end_capture(process: HipProcess, handle: int) -> int:
    stream = find_stream(process, handle)
    capture, stream.capture = stream.capture, None
    if capture is None:
        raise Refused(Status.ILLEGAL_STATE, "the stream is not captured", "HIP-X6")
    if capture.is_broken:
        raise Refused(Status.CAPTURE_INVALIDATED, "the capture was broken by an earlier call")
    process.graphs[capture.graph] = None
    return capture.graph


@entry("streamIsCapturing(intptr_t stream) -> bool", hip_lacks=_LACKS.format("streamIsCapturing"))
def _stream_is_capturing(process: HipProcess, handle: int) -> bool:
    capture = _capture_of(process, handle)
    if capture is not None and capture.is_broken:
        # CuPy raises an error with this text.
        raise RuntimeError(
            "the stream was capturing, but an error has invalidated the capture sequence"
        )
    return capture is not None


def _capture_of(process: HipProcess, handle: int) -> Capture | None:
    stream = find_stream(process, handle)
    if stream.is_legacy and is_capture_in_way(process, stream.device):
        # The query does not break the capture. Refusing the query is not recorded as a violation.
        raise Refused(
            Status.CAPTURE_IMPLICIT, "the legacy stream waits for a stream that is captured"
        )
    return stream.capture


@entry("streamGetCaptureInfo(intptr_t stream)")
def _stream_get_capture_info(process: HipProcess, handle: int) -> tuple[int, int, int]:
    """Return a capture's status, number and graph.

    Number and graph are 0 if there is no capture, or if the capture was broken.
    """
    capture = _capture_of(process, handle)
    if capture is None:
        return _NONE, 0, 0
    if capture.is_broken:
        return _INVALIDATED, 0, 0
    return _ACTIVE, capture.number, capture.graph


@entry("graphDestroy(intptr_t graph)")
def _graph_destroy(process: HipProcess, graph: int) -> None:
    if graph not in process.graphs:
        raise Refused(Status.INVALID_VALUE, f"there is no graph {graph:#x}", "HIP-X3")
    del process.graphs[graph]


@entry("threadExchangeStreamCaptureMode(int mode) -> int")
def _thread_exchange_stream_capture_mode(process: HipProcess, mode: int) -> int:
    """Set this thread's capture mode, and return the old mode.

    Some captures forbid this thread to call functions that may wait for a device. The mode decides
    which captures do so.
    """
    if mode not in CAPTURE_MODES:
        raise Refused(Status.INVALID_VALUE, f"there is no mode {mode}", "HIP-X6")
    before: int = getattr(process.thread, "capture_mode", 0)
    process.thread.capture_mode = mode
    return before
