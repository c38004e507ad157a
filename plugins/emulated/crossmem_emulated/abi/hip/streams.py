# SPDX-License-Identifier: Apache-2.0
"""The Python side of HIP's functions for streams, captures and events."""

from typing import Any

from crossmem_emulated.abi.hip.convert import Converter, Function

__all__ = ["functions"]

_NOBODY = -1
_ACTIVE, _INVALIDATED = 1, 2


class _Streams:
    """Functions that need code of their own. The :class:`Converter` makes all other functions."""

    def __init__(self, convert: Converter) -> None:
        self._convert = convert
        self._call = convert.call

    def device(self, stream: int) -> int:
        status, device = self._call("streamGetDevice", stream)
        return _NOBODY if status else int(device)

    def add_callback(self, stream: int, callback: Any, data: Any, flags: int) -> int:
        if not callback:
            return self._convert.null("streamAddCallback")

        def run(handle: int, status: int, _argument: int) -> None:
            callback(handle, status, data)

        return self._call("streamAddCallback", stream, run, 0, flags)[0]

    def launch_host(self, stream: int, function: Any, data: Any) -> int:
        if not function:
            return self._convert.null("launchHostFunc")
        return self._call("launchHostFunc", stream, lambda _argument: function(data), 0)[0]

    def is_capturing(self, stream: int, place: Any) -> int:
        if not place:
            return self._convert.null("streamIsCapturing")
        try:
            status, is_active = self._call("streamIsCapturing", stream)
        except RuntimeError:
            # The capture is invalidated. The emulated function raises an exception, as the function
            # of CuPy does. HIP's C function succeeds, and writes the status "invalidated" to
            # ``place``.
            place[0] = _INVALIDATED
            return 0
        if not status:
            place[0] = _ACTIVE if is_active else 0
        return status

    def capture_info(self, stream: int, place: Any, *places: Any) -> int:
        """Write the status, number, graph, nodes and node count of a capture.

        ``place`` is the pointer for the status, and ``places`` are the other pointers. A pointer of
        ``places`` may be null or missing. If no capture is active, only the status is written.
        """
        if not place:
            return self._convert.null("streamGetCaptureInfo")
        status, found = self._call("streamGetCaptureInfo", stream)
        if not status:
            place[0], *values = found
            # A capture has no nodes in this emulation.
            wanted = zip(places, (*values, 0, 0), strict=False)
            for where, value in wanted if values[0] else ():
                if where:
                    where[0] = value
        return status

    def exchange_mode(self, place: Any) -> int:
        if not place:
            return self._convert.null("threadExchangeStreamCaptureMode")
        exchange = self._convert.into("threadExchangeStreamCaptureMode")
        return int(exchange(place, place[0]))

    def record(self, event: int, stream: int, _flags: int) -> int:
        return self._call("eventRecord", event, stream)[0]


def functions(convert: Converter) -> dict[str, Function]:
    """Return the functions of this module. The key is the name of the C function."""
    streams = _Streams(convert)
    into, into_last, plain = convert.into, convert.into_last, convert.plain
    return {
        "hipStreamCreate": into("streamCreate"),
        "hipStreamCreateWithFlags": into("streamCreateWithFlags"),
        "hipStreamCreateWithPriority": into("streamCreateWithPriority"),
        "hipStreamDestroy": plain("streamDestroy"),
        "hipStreamQuery": plain("streamQuery"),
        "hipStreamSynchronize": plain("streamSynchronize"),
        "hipStreamWaitEvent": plain("streamWaitEvent"),
        "hipStreamWriteValue32": plain("streamWriteValue32"),
        "hipStreamWriteValue64": plain("streamWriteValue64"),
        "hipStreamWaitValue32": plain("streamWaitValue32"),
        "hipStreamWaitValue64": plain("streamWaitValue64"),
        "hipStreamGetFlags": into_last("streamGetFlags"),
        "hipStreamGetPriority": into_last("streamGetPriority"),
        "hipStreamGetDevice": into_last("streamGetDevice"),
        "hipGetStreamDeviceId": streams.device,
        "hipStreamAddCallback": streams.add_callback,
        "hipLaunchHostFunc": streams.launch_host,
        "hipStreamBeginCapture": plain("streamBeginCapture"),
        "hipStreamEndCapture": into_last("streamEndCapture"),
        "hipStreamIsCapturing": streams.is_capturing,
        "hipStreamGetCaptureInfo": streams.capture_info,
        "hipStreamGetCaptureInfo_v2": streams.capture_info,
        "hipThreadExchangeStreamCaptureMode": streams.exchange_mode,
        "hipGraphDestroy": plain("graphDestroy"),
        "hipEventCreate": into("eventCreate"),
        "hipEventCreateWithFlags": into("eventCreateWithFlags"),
        "hipEventDestroy": plain("eventDestroy"),
        "hipEventRecord": plain("eventRecord"),
        "hipEventRecordWithFlags": streams.record,
        "hipEventQuery": plain("eventQuery"),
        "hipEventSynchronize": plain("eventSynchronize"),
        "hipEventElapsedTime": into("eventElapsedTime"),
    }
