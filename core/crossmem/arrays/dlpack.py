# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules for memory of crossmem, with the structs of DLPack 1.1.

A consumer releases a tensor by calling its deleter, a C function. The consumer may call the deleter
on any thread, without the GIL, while an exception is propagating, and even after the interpreter
has ended. A ctypes callback does not handle all these cases: if it runs while an exception is
propagating, it loses the exception and does not release the memory. NumPy's deleter is C code that
handles all these cases. Therefore NumPy makes each capsule from a tiny array, and this array keeps
alive the object that owns the memory. This module then overwrites the capsule's description of the
array.
"""

import ctypes
from typing import Any, Final

from crossmem.arrays.layout import Layout
from crossmem.errors import ConfigurationError, UnsupportedError
from crossmem.guards import clause, shorten

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_MANAGED",
    "EXT_DEV",
    "ROCM",
    "check_stream",
    "make_capsule",
]

CPU: Final = 1
"""DLPack's device type of host memory. The device id of host memory is 0."""

CUDA: Final = 2

ROCM: Final = 10
"""DLPack's device type of AMD GPUs. CuPy and PyTorch use this device type."""

EXT_DEV: Final = 12
"""DLPack's device type of Ascend NPUs. torch_npu 2.14 accepts only this type and :data:`CPU`.

``import torch_npu`` replaces ``torch.from_dlpack``. The replacement first requests a capsule
without a version, even if the object is not on an NPU. The replacement ignores ``byte_offset``, and
does not know float8. Sources: torch_npu/csrc/aten/common/DLConvertor.cpp, and the machine code of
the wheel.
"""

CUDA_MANAGED: Final = 13

_READ_ONLY: Final = 1


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Unversioned(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = (
        ("tensor", _Tensor),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer_of.restype = ctypes.c_void_p

_BYTE: Final = ctypes.c_ubyte()


class _Base:
    """An object from which NumPy makes a tiny array. The array keeps this object alive.

    NumPy 2.1 leaves the strides of contiguous arrays out of a capsule. The tiny array has two
    elements and a stride of 0. So it is not contiguous, and its capsule has room for strides. If
    ``ndim`` is 0, the array has one element, and its capsule needs no strides.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: object, ndim: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (ctypes.addressof(_BYTE), False),
            "shape": (2, *(1,) * (ndim - 1)) if ndim else (),
            "strides": (0,) * ndim,
        }


def make_capsule(
    pointer: int,
    layout: Layout,
    *,
    device: tuple[int, int],
    owner: object,
    readonly: bool,
    max_version: tuple[int, int] | None,
) -> Any:
    """Return a DLPack capsule for an array in memory that stays valid as long as ``owner`` lives.

    An unused capsule keeps ``owner`` alive until the capsule is dropped. A tensor that a consumer
    took keeps ``owner`` alive until the consumer releases the tensor. A release after the end of
    the interpreter does nothing.

    Parameters
    ----------
    pointer
        Address of the memory. The layout's offset counts from this address.
    layout
        The array's dtype, shape, strides and offset. This function does not check whether the
        memory contains all elements.
    device
        DLPack's device type and id.
    owner
        The object that keeps the memory valid.
    readonly
        Whether the capsule says that the consumer must not write. Some consumers write anyway.
    max_version
        The newest version of DLPack that the consumer accepts, None if the consumer does not say.
        From (1, 0) on, the capsule has a version.

    Raises
    ------
    BufferError
        DLPack cannot express the dtype or the strides. Also raised if the memory is read-only and
        the consumer requests an unversioned capsule, which has no read-only flag.
    UnsupportedError
        NumPy, which makes the capsules, is missing. Also raised if NumPy is older than 2.1 and the
        consumer requests a versioned capsule.
    """
    versioned = max_version is not None and tuple(max_version) >= (1, 0)
    if readonly and not versioned:
        msg = "the memory is read-only, and the requested DLPack version has no read-only flag"
        raise BufferError(msg)
    if layout.dtype.dlpack is None:
        msg = f"DLPack has no type for elements of {clause(layout.dtype.name, 60)}"
        raise BufferError(msg)
    try:
        strides = layout.element_strides()
    except UnsupportedError as error:
        raise BufferError(str(error)) from error
    try:
        import numpy as np
    except ImportError as error:
        msg = "DLPack capsules need NumPy, which cannot be imported here"
        raise UnsupportedError(msg, hint="install numpy>=2.1") from error
    array = np.asarray(_Base(owner, len(layout.shape)))
    capsule: Any
    if versioned:
        try:
            capsule = array.__dlpack__(max_version=(1, 0))
        except TypeError as error:
            msg = f"DLPack capsules need NumPy 2.1 or newer, not {np.__version__}"
            raise UnsupportedError(msg, hint="install numpy>=2.1") from error
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        # The type codes of float8 need DLPack 1.1. Consumers that know only 1.0 accept a capsule of
        # 1.1, too: versions with the same major number are compatible.
        managed.major, managed.minor = 1, 1
        managed.flags = _READ_ONLY if readonly else 0
        tensor = managed.tensor
    else:
        capsule = array.__dlpack__()
        tensor = _Unversioned.from_address(_pointer_of(capsule, b"dltensor")).tensor
    # Some consumers ignore byte_offset. So data includes the offset, and byte_offset stays 0.
    tensor.data = pointer + layout.offset if layout.nbytes else None
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits, tensor.lanes = layout.dtype.dlpack
    for axis, (size, step) in enumerate(zip(layout.shape, strides, strict=True)):
        tensor.shape[axis] = size
        tensor.strides[axis] = step
    return capsule


def check_stream(device_type: int, stream: object) -> bool:
    """Check the stream of a consumer. Return True if the caller must wait for the memory's device.

    crossmem does not know on which streams other code wrote the memory. So the caller waits for all
    work of the device. After this wait, every stream sees the written data.

    Parameters
    ----------
    device_type
        DLPack's device type.
    stream
        The argument ``stream`` of ``__dlpack__``: None for the default stream, -1 for no wait, or
        the number of the stream on which the consumer will work.

    Raises
    ------
    ConfigurationError
        The stream is not valid. For host memory, only None is valid. DLPack forbids streams 1 and 2
        of ROCm, and stream 0 of CUDA.
    """
    if device_type == CPU:
        if stream is not None:
            msg = f"stream must be None for host memory, not {shorten(stream)}"
            raise ConfigurationError(msg)
        return False
    if stream is None:
        return True
    refused = {CUDA: {0}, CUDA_MANAGED: {0}, ROCM: {1, 2}}.get(device_type, set())
    # The error is not a TypeError: after a TypeError, PyTorch repeats the call without a stream.
    if type(stream) is not int or stream < -1 or stream in refused:
        numbers = " or ".join(str(number) for number in sorted(refused))
        msg = f"stream is {shorten(stream, 60)}; it must be None, -1 or the number of a stream"
        if refused:
            msg += f", but not {numbers} for DLPack's device type {device_type}"
        raise ConfigurationError(msg, hint="pass 1 for CUDA's default stream, 0 for ROCm's")
    return stream != -1
