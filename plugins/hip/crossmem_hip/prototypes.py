# SPDX-License-Identifier: Apache-2.0
"""Tables with the prototypes of the vendors' C functions.

Each key of these tables is the function's name in ``cupy.cuda.runtime``. If CuPy lacks the
function, the key is a name in the same style. The prototypes follow ``hip/hip_runtime_api.h`` of
HIP 5.2.3, 6.4.3 and 10.0, and ``cuda_runtime_api.h``, ``driver_types.h`` and ``cuda.h`` of CUDA
13.5.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from crossmem.driver.native import Array, Fixed, In, Out, Parameter, Prototype, Struct, Value
from crossmem_hip.family import Family

__all__ = ["CUDA_DRIVER", "CUDA_RUNTIME", "HIP", "PointerAttributes", "hip_prototypes"]

_HANDLE_NBYTES: Final = 64
_BUS_ID_NBYTES: Final = 64
_RESERVED_NBYTES: Final = 4096
"""Number of spare bytes after the declared fields of a structure. The vendor's structure may have
more fields than this module declares, and the vendor's function writes all of them. In every
release, the declared fields and the spare bytes together are at least as long as the vendor's
structure."""

_MANAGED: Final = 3
_KINDS_OF_ROCM_5: Final = {0: 1, 1: 2, 2: 10, 3: 11, 4: _MANAGED}
"""Maps the number of a memory type in ROCm 5 to the number that this type has since ROCm 6."""

_FD_BY_VALUE: Final = 70_100_000
"""The first HIP version whose ``memImportFromShareableHandle`` takes the file descriptor itself.
Earlier versions take a pointer to the descriptor. If they get the descriptor itself, they use it as
an address. Sources: ROCm/rocm-systems #759, which changed AMD's ``rocdevice.cpp``; PyTorch's
``CUDASymmetricMemory.cu``, which passes a pointer before ROCm 7.1 and the descriptor since ROCm
7.1; and kvcache-ai/Mooncake #1550, which reports tests with ROCm 7.0, 7.1 and 7.2."""

_CAPTURE_ACTIVE: Final = 1


# Structures -------------------------------------------------------------------------------


class _Handle(ctypes.Structure):
    """``hipIpcMemHandle_t``, ``hipIpcEventHandle_t`` and CUDA's equivalents."""

    _fields_ = (("reserved", ctypes.c_char * _HANDLE_NBYTES),)


class _Properties(ctypes.Structure):
    """The beginning of ``cudaDeviceProp``, and of ``hipDeviceProp_t`` since ROCm 6."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("uuid", ctypes.c_char * 16),
        ("luid", ctypes.c_char * 8),
        ("luidDeviceNodeMask", ctypes.c_uint),
        ("totalGlobalMem", ctypes.c_size_t),
        ("rest", ctypes.c_char * _RESERVED_NBYTES),
    )


class _PropertiesOfRocm5(ctypes.Structure):
    """The beginning of ``hipDeviceProp_t`` before ROCm 6."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("totalGlobalMem", ctypes.c_size_t),
        ("rest", ctypes.c_char * _RESERVED_NBYTES),
    )


class _Attributes(ctypes.Structure):
    """``hipPointerAttribute_t``. ``cudaPointerAttributes`` has the same first four fields."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("devicePointer", ctypes.c_void_p),
        ("hostPointer", ctypes.c_void_p),
        ("isManaged", ctypes.c_int),
        ("allocationFlags", ctypes.c_uint),
        ("rest", ctypes.c_char * _RESERVED_NBYTES),
    )


class _AllocationProp(ctypes.Structure):
    """``CUmemAllocationProp``, and ``hipMemAllocationProp`` since ROCm 6."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("requestedHandleType", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32HandleMetaData", ctypes.c_void_p),
        ("allocFlags", ctypes.c_uint8 * 8),
    )


class _Location(ctypes.Structure):
    """``hipMemLocation`` and ``CUmemLocation``."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AccessDesc(ctypes.Structure):
    """``hipMemAccessDesc`` and ``CUmemAccessDesc``."""

    _fields_ = (
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("flags", ctypes.c_int),
    )


class _Descriptor(ctypes.Structure):
    """A file descriptor that a function takes by address."""

    _fields_ = (("fd", ctypes.c_int),)


# Results ----------------------------------------------------------------------------------


class PointerAttributes(NamedTuple):
    """The fields of CuPy's ``PointerAttributes``."""

    type: int
    device: int
    devicePointer: int  # noqa: N815 - CuPy's name
    hostPointer: int  # noqa: N815 - CuPy's name


def _attributes_of_cuda(found: _Attributes) -> PointerAttributes:
    return PointerAttributes(
        found.type, found.device, found.devicePointer or 0, found.hostPointer or 0
    )


def _attributes_of_hip(found: _Attributes) -> PointerAttributes:
    attributes = _attributes_of_cuda(found)
    return attributes._replace(type=_MANAGED) if found.isManaged else attributes


def _attributes_of_rocm_5(found: _Attributes) -> PointerAttributes:
    attributes = _attributes_of_hip(found)
    if found.isManaged:
        return attributes
    return attributes._replace(type=_KINDS_OF_ROCM_5.get(attributes.type, attributes.type))


def _properties_of_hip(found: _Properties | _PropertiesOfRocm5) -> dict[str, Any]:
    # The UUID is omitted because CuPy omits it: a device must have the same identity in a process
    # with CuPy and in a process without CuPy.
    return {"name": found.name, "totalGlobalMem": found.totalGlobalMem}


def _properties_of_cuda(found: _Properties) -> dict[str, Any]:
    # ctypes cuts the UUID at its first zero byte, as CuPy does.
    return {"name": found.name, "totalGlobalMem": found.totalGlobalMem, "uuid": found.uuid}


def _fields_of(found: _AllocationProp) -> tuple[int, int, int, int]:
    return found.type, found.requestedHandleType, found.location_type, found.location_id


def _is_active(found: ctypes.c_int) -> bool:
    return found.value == _CAPTURE_ACTIVE


# Functions --------------------------------------------------------------------------------

_INT: Final = In(ctypes.c_int)
_UINT: Final = In(ctypes.c_uint)
_SIZE: Final = In(ctypes.c_size_t)
_ULONGLONG: Final = In(ctypes.c_ulonglong)
_POINTER: Final = In(ctypes.c_void_p)
"""An address, or a handle of the vendor. Both have the same width."""

_INT_OUT: Final = Out(ctypes.c_int)
_SIZE_OUT: Final = Out(ctypes.c_size_t)
_POINTER_OUT: Final = Out(ctypes.c_void_p)
_HANDLE: Final = Value(_Handle)
_HANDLE_OUT: Final = Out(_Handle, bytes)
_PROP: Final = Struct(
    _AllocationProp, "type", "requestedHandleType", "location_type", "location_id"
)

_Table = Mapping[str, tuple[Parameter, ...]]

_RUNTIME: Final[_Table] = {
    "deviceCanAccessPeer": (_INT_OUT, _INT, _INT),
    "deviceEnablePeerAccess": (_INT, Fixed(ctypes.c_uint, 0)),
    "deviceGetPCIBusId": (
        Out(ctypes.c_char * _BUS_ID_NBYTES, lambda found: found.value.decode()),
        Fixed(ctypes.c_int, _BUS_ID_NBYTES),
        _INT,
    ),
    "deviceSynchronize": (),
    "eventCreateWithFlags": (_POINTER_OUT, _UINT),
    "eventDestroy": (_POINTER,),
    "eventQuery": (_POINTER,),
    "eventRecord": (_POINTER, _POINTER),
    "eventSynchronize": (_POINTER,),
    "free": (_POINTER,),
    "getDevice": (_INT_OUT,),
    "getDeviceCount": (_INT_OUT,),
    "getLastError": (),
    "hostRegister": (_POINTER, _SIZE, _UINT),
    "hostUnregister": (_POINTER,),
    "ipcCloseMemHandle": (_POINTER,),
    "ipcGetEventHandle": (_HANDLE_OUT, _POINTER),
    "ipcGetMemHandle": (_HANDLE_OUT, _POINTER),
    "ipcOpenEventHandle": (_POINTER_OUT, _HANDLE),
    "ipcOpenMemHandle": (_POINTER_OUT, _HANDLE, _UINT),
    "malloc": (_POINTER_OUT, _SIZE),
    "memGetInfo": (_SIZE_OUT, _SIZE_OUT),
    "memcpy": (_POINTER, _POINTER, _SIZE, _INT),
    "memcpyAsync": (_POINTER, _POINTER, _SIZE, _INT, _POINTER),
    "runtimeGetVersion": (_INT_OUT,),
    "setDevice": (_INT,),
    "streamCreateWithFlags": (_POINTER_OUT, _UINT),
    "streamDestroy": (_POINTER,),
    "streamIsCapturing": (_POINTER, Out(ctypes.c_int, _is_active)),
    "streamSynchronize": (_POINTER,),
    "streamWaitEvent": (_POINTER, _POINTER, _UINT),
}
"""Functions of both vendors' runtime libraries."""

_KNOWLEDGE: Final[_Table] = {
    # CUDA's runtime library has this function, too, but knows fewer attributes.
    "deviceGetAttribute": (_INT_OUT, _INT, _INT),
    "deviceGetUuid": (Out(ctypes.c_char * 16, lambda found: found.raw), _INT),
    "memGetAddressRange": (_POINTER_OUT, _SIZE_OUT, _POINTER),
    # The vendors write one, four or eight bytes into this buffer, depending on the attribute.
    "pointerGetAttribute": (Out(ctypes.c_uint64), _INT, _POINTER),
}
"""Functions of AMD's runtime library and of NVIDIA's driver library."""

_DEVICE_POINTER: Final = (_POINTER_OUT, _POINTER, _UINT)
_WORD: Final = (_POINTER, _POINTER, In(ctypes.c_uint64), _UINT)
"""The parameters of the functions by which a stream writes a word or waits for a word: the stream,
the address at which devices access the word, a value, and flags."""
_EVERY_BIT: Final = Fixed(ctypes.c_uint64, (1 << 64) - 1)
"""The mask with which a waiting stream compares every bit of the word. Only AMD's function takes a
mask."""

_VIRTUAL: Final[_Table] = {
    "memAddressFree": (_POINTER, _SIZE),
    "memAddressReserve": (_POINTER_OUT, _SIZE, _SIZE, _POINTER, _ULONGLONG),
    "memCreate": (_POINTER_OUT, _SIZE, _PROP, _ULONGLONG),
    "memExportToShareableHandle": (_INT_OUT, _POINTER, _INT, _ULONGLONG),
    "memGetAccess": (Out(ctypes.c_ulonglong), Struct(_Location, "type", "id"), _POINTER),
    "memGetAllocationGranularity": (_SIZE_OUT, _PROP, _INT),
    "memGetAllocationPropertiesFromHandle": (Out(_AllocationProp, _fields_of), _POINTER),
    "memImportFromShareableHandle": (_POINTER_OUT, _POINTER, _INT),
    "memMap": (_POINTER, _SIZE, _SIZE, _POINTER, _ULONGLONG),
    "memRelease": (_POINTER,),
    "memRetainAllocationHandle": (_POINTER_OUT, _POINTER),
    "memSetAccess": (_POINTER, _SIZE, Array(_AccessDesc)),
    "memUnmap": (_POINTER, _SIZE),
}
"""Functions for virtual memory, of AMD's runtime library and of NVIDIA's driver library."""


def _named(prefix: str, functions: _Table) -> dict[str, Prototype]:
    return {
        name: Prototype(f"{prefix}{name[0].upper()}{name[1:]}", *parameters)
        for name, parameters in functions.items()
    }


HIP: Final = {
    **_named("hip", _RUNTIME),
    **_named("hip", _KNOWLEDGE),
    "hostGetDevicePointer": Prototype("hipHostGetDevicePointer", *_DEVICE_POINTER),
    "streamWaitValue64": Prototype("hipStreamWaitValue64", *_WORD, _EVERY_BIT),
    "streamWriteValue64": Prototype("hipStreamWriteValue64", *_WORD),
    "getDeviceProperties": Prototype(
        "hipGetDevicePropertiesR0600", Out(_Properties, _properties_of_hip), _INT
    ),
    "pointerGetAttributes": Prototype(
        "hipPointerGetAttributes", Out(_Attributes, _attributes_of_hip), _POINTER
    ),
}
"""Functions of ``libamdhip64`` since ROCm 6, except the functions for virtual memory."""

_OF_ROCM_5: Final = {
    "getDeviceProperties": Prototype(
        "hipGetDeviceProperties", Out(_PropertiesOfRocm5, _properties_of_hip), _INT
    ),
    "pointerGetAttributes": Prototype(
        "hipPointerGetAttributes", Out(_Attributes, _attributes_of_rocm_5), _POINTER
    ),
}

_FD_BY_ADDRESS: Final = {
    "memImportFromShareableHandle": Prototype(
        "hipMemImportFromShareableHandle", _POINTER_OUT, Struct(_Descriptor, "fd"), _INT
    ),
}

CUDA_RUNTIME: Final = {
    **_named("cuda", _RUNTIME),
    "getDeviceProperties": Prototype(
        "cudaGetDeviceProperties", Out(_Properties, _properties_of_cuda), _INT
    ),
    "pointerGetAttributes": Prototype(
        "cudaPointerGetAttributes", Out(_Attributes, _attributes_of_cuda), _POINTER
    ),
}
"""Functions of ``libcudart``."""

CUDA_DRIVER: Final = {
    **_named("cu", _KNOWLEDGE),
    **_named("cu", _VIRTUAL),
    "memGetAddressRange": Prototype("cuMemGetAddressRange_v2", *_KNOWLEDGE["memGetAddressRange"]),
    "hostGetDevicePointer": Prototype("cuMemHostGetDevicePointer_v2", *_DEVICE_POINTER),
    # Version 2 exists since CUDA 11.4. It returns different UUIDs for two MIG devices of one GPU.
    "deviceGetUuid": Prototype("cuDeviceGetUuid_v2", *_KNOWLEDGE["deviceGetUuid"]),
    # Version 2 works without a special option of the kernel module. It exists since CUDA 11.7.
    "streamWaitValue64": Prototype("cuStreamWaitValue64_v2", *_WORD),
    "streamWriteValue64": Prototype("cuStreamWriteValue64_v2", *_WORD),
}
"""Functions of ``libcuda`` that CUDA's runtime library lacks or restricts."""


def hip_prototypes(family: Family, version: int) -> dict[str, Prototype]:
    """Return the prototypes of the functions of ``libamdhip64``.

    ``version`` is the library's own version number, such as 70051831 for 7.0. In ROCm 5,
    the functions for virtual memory use other structures, which this module does not declare. So
    the result for ROCm 5 lacks these functions.
    """
    if family.is_old(version):
        return {**HIP, **_OF_ROCM_5}
    found = {**HIP, **_named("hip", _VIRTUAL)}
    return found if version >= _FD_BY_VALUE else {**found, **_FD_BY_ADDRESS}
