# SPDX-License-Identifier: Apache-2.0
"""The numbers of HIP's and CUDA's headers that the emulation uses, and the exception classes."""

from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar, Final

from typing_extensions import override

from crossmem_emulated.hip.errors import ERRORS

__all__ = [
    "CONSTANTS",
    "HANDLE_NBYTES",
    "LARGEST_NBYTES",
    "CUDARuntimeError",
    "HipBuildRuntimeError",
    "Kind",
    "MemoryType",
    "Status",
    "constants_of",
]

HANDLE_NBYTES: Final = 64
LARGEST_NBYTES: Final = 1 << 46
"""Requests for more bytes of memory are refused."""


class Status(IntEnum):
    """The result codes of functions. The numbers are the same in HIP and CUDA."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    INVALID_PITCH_VALUE = 12
    INVALID_DEVICE_POINTER = 17
    INVALID_MEMCPY_DIRECTION = 21
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    INVALID_CONTEXT = 201
    MAP_FAILED = 205
    UNSUPPORTED_LIMIT = 215
    CONTEXT_ALREADY_IN_USE = 216
    PEER_ACCESS_UNSUPPORTED = 217
    OPERATING_SYSTEM = 304
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    NOT_FOUND = 500
    NOT_READY = 600
    PEER_ACCESS_ALREADY_ENABLED = 704
    PEER_ACCESS_NOT_ENABLED = 705
    HOST_MEMORY_ALREADY_REGISTERED = 712
    HOST_MEMORY_NOT_REGISTERED = 713
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    CAPTURE_UNSUPPORTED = 900
    CAPTURE_INVALIDATED = 901
    CAPTURE_IMPLICIT = 906
    UNKNOWN = 999


class Kind(IntEnum):
    """Direction of a copy."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4
    DEVICE_TO_DEVICE_NO_CU = 1024
    """A copy from device to device without compute units. Only AMD has this kind, since ROCm 6."""


class MemoryType(IntEnum):
    """The type of the memory at an address."""

    UNREGISTERED = 0
    HOST = 1
    DEVICE = 2
    MANAGED = 3


_CUDA: Final[Mapping[int, tuple[str, str]]] = {
    0: ("cudaSuccess", "no error"),
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    3: ("cudaErrorInitializationError", "initialization error"),
    12: ("cudaErrorInvalidPitchValue", "invalid pitch argument"),
    17: ("cudaErrorInvalidDevicePointer", "invalid device pointer"),
    21: ("cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"),
    35: (
        "cudaErrorInsufficientDriver",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    46: (
        "cudaErrorDevicesUnavailable",
        "CUDA-capable device(s) is/are busy or unavailable",
    ),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    201: ("cudaErrorDeviceUninitialized", "invalid device context"),
    205: ("cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"),
    206: ("cudaErrorUnmapBufferObjectFailed", "unmapping of buffer object failed"),
    208: ("cudaErrorAlreadyMapped", "resource already mapped"),
    215: ("cudaErrorUnsupportedLimit", "limit is not supported on this architecture"),
    216: (
        "cudaErrorDeviceAlreadyInUse",
        "exclusive-thread device already in use by a different thread",
    ),
    217: (
        "cudaErrorPeerAccessUnsupported",
        "peer access is not supported between these two devices",
    ),
    304: (
        "cudaErrorOperatingSystem",
        "OS call failed or operation not supported on this OS",
    ),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    401: (
        "cudaErrorIllegalState",
        "the operation cannot be performed in the present state",
    ),
    500: ("cudaErrorSymbolNotFound", "named symbol not found"),
    600: ("cudaErrorNotReady", "device not ready"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    704: ("cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
    705: ("cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"),
    709: ("cudaErrorContextIsDestroyed", "context is destroyed"),
    711: ("cudaErrorTooManyPeers", "peer mapping resources exhausted"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    800: ("cudaErrorNotPermitted", "operation not permitted"),
    801: ("cudaErrorNotSupported", "operation not supported"),
    900: (
        "cudaErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing",
    ),
    901: (
        "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
    ),
    906: (
        "cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
    999: ("cudaErrorUnknown", "unknown error"),
}


class CUDARuntimeError(RuntimeError):
    """A function failed in the emulation of CuPy for CUDA.

    CuPy's own class has the same name and interface.

    Parameters
    ----------
    status
        The error code that the vendor's function returned.
    """

    _texts: ClassVar[Mapping[int, tuple[str, str]]] = _CUDA
    _other: ClassVar = ("unrecognized error code", "unrecognized error code")

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__("{}: {}".format(*self._texts.get(status, self._other)))

    @override
    def __reduce__(self) -> tuple[type["CUDARuntimeError"], tuple[int]]:
        return type(self), (self.status,)


class HipBuildRuntimeError(CUDARuntimeError):
    """A function failed in the emulation of CuPy for ROCm.

    CuPy's own class for ROCm has the name ``CUDARuntimeError``, too.
    """

    _texts = ERRORS
    _other = ("hipErrorUnknown", "unknown error")


CONSTANTS: Final[Mapping[str, int]] = {
    "cudaCpuDeviceId": -1,
    "cudaDevAttrAsyncEngineCount": 40,
    "cudaDevAttrIntegrated": 18,
    "cudaDevAttrManagedMemory": 83,
    "cudaDevAttrMultiProcessorCount": 16,
    "cudaDevAttrPciBusId": 33,
    "cudaDevAttrPciDeviceId": 34,
    "cudaDevAttrPciDomainId": 50,
    "cudaDevAttrUnifiedAddressing": 41,
    "cudaDevAttrWarpSize": 10,
    "cudaInvalidDeviceId": -2,
    # ROCm 5 has the number 0 for this flag, but CuPy uses 1 with every release.
    "cudaIpcMemLazyEnablePeerAccess": 1,
    "cudaMemAttachGlobal": 1,
    "cudaMemAttachHost": 2,
    "cudaMemAttachSingle": 4,
    "cudaMemHandleTypeNone": 0,
    "cudaMemHandleTypePosixFileDescriptor": 1,
    "eventBlockingSync": 1,
    "eventDefault": 0,
    "eventDisableTiming": 2,
    "eventInterprocess": 4,
    "hostAllocDefault": 0,
    "hostAllocMapped": 2,
    "hostAllocPortable": 1,
    "hostAllocWriteCombined": 4,
    "memcpyDefault": 4,
    "memcpyDeviceToDevice": 3,
    "memcpyDeviceToHost": 2,
    "memcpyHostToDevice": 1,
    "memcpyHostToHost": 0,
    "memoryTypeDevice": 2,
    "memoryTypeHost": 1,
    "memoryTypeManaged": 3,
    "memoryTypeUnregistered": 0,
    "streamCaptureModeGlobal": 0,
    "streamCaptureModeRelaxed": 2,
    "streamCaptureModeThreadLocal": 1,
    "streamCaptureStatusActive": 1,
    "streamCaptureStatusInvalidated": 2,
    "streamCaptureStatusNone": 0,
    "streamDefault": 0,
    "streamLegacy": 1,
    "streamNonBlocking": 1,
    "streamPerThread": 2,
}
"""Maps each constant's name to its value in CuPy's module ``cupy.cuda.runtime`` for CUDA."""

_ATTRIBUTES_OF_ROCM: Final[Mapping[str, int]] = {
    "cudaDevAttrIntegrated": 25,
    "cudaDevAttrManagedMemory": 47,
    "cudaDevAttrMultiProcessorCount": 14,
    "cudaDevAttrPciBusId": 21,
    "cudaDevAttrPciDeviceId": 22,
    "cudaDevAttrWarpSize": 9,
}
"""All device attributes that CuPy for ROCm names, with their numbers."""


def constants_of(*, is_hip: bool) -> dict[str, int]:
    """Return the constants of CuPy's module, in its build for ROCm (``is_hip``) or for CUDA."""
    if not is_hip:
        return dict(CONSTANTS)
    common = {name: one for name, one in CONSTANTS.items() if "DevAttr" not in name}
    return {**common, **_ATTRIBUTES_OF_ROCM}
