# SPDX-License-Identifier: Apache-2.0
"""Functions whose names end in ``_spt``: their default stream belongs to the calling thread.

If a program is compiled for per-thread default streams, the vendor's headers replace the usual
names in the program's source by these names.
"""

from collections.abc import Mapping
from typing import Any, Final

from crossmem_emulated.abi.hip.convert import Converter, Function

__all__ = ["functions"]

_PER_THREAD: Final = 2
# The index of the stream among the arguments. The key is the C name without the suffix.
_PLACES: Final = {
    "hipMemcpyAsync": 4,
    "hipMemcpy2DAsync": 7,
    "hipMemcpy3DAsync": 1,
    "hipMemsetAsync": 3,
    "hipMemset2DAsync": 5,
    "hipMemset3DAsync": 3,
    "hipStreamQuery": 0,
    "hipStreamSynchronize": 0,
    "hipStreamWaitEvent": 0,
    "hipStreamGetFlags": 0,
    "hipStreamGetPriority": 0,
    "hipStreamAddCallback": 0,
    "hipLaunchHostFunc": 0,
    "hipStreamBeginCapture": 0,
    "hipStreamEndCapture": 0,
    "hipStreamIsCapturing": 0,
    "hipStreamGetCaptureInfo": 0,
    "hipStreamGetCaptureInfo_v2": 0,
    "hipEventRecord": 1,
}


def _with_own_stream(function: Function, place: int) -> Function:
    def with_own_stream(*arguments: Any) -> Any:
        listed = list(arguments)
        listed[place] = listed[place] or _PER_THREAD
        return function(*listed)

    return with_own_stream


def functions(convert: Converter, usual: Mapping[str, Function]) -> dict[str, Function]:
    """Return the functions of this module. The key is the name of the C function.

    ``usual`` maps the C names without the suffix ``_spt`` to their functions.
    """
    return {
        "hipMemcpy_spt": convert.plain("memcpy_spt"),
        "hipMemcpy2D_spt": convert.plain("memcpy2D_spt"),
        "hipMemcpy3D_spt": convert.plain("memcpy3D_spt"),
        "hipMemset_spt": convert.plain("memset_spt"),
        "hipMemset2D_spt": convert.plain("memset2D_spt"),
        **{f"{name}_spt": _with_own_stream(usual[name], place) for name, place in _PLACES.items()},
    }
