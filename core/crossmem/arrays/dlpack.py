# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules for memory that crossmem holds, in the form of DLPack 1.1.

A consumer frees what it got by calling a C function, the deleter: from any thread, with or
without the GIL, while an exception is on its way, and even after the interpreter has ended. No
callback of ctypes may be called like that: it loses an exception that is on its way, and the
owner with it. So NumPy makes each capsule, for a tiny array whose base keeps the owner, and its
deleter and its capsule's destructor see to all of that in C. What the capsule says of the array
is then overwritten with what it is to say, field by field of the published structs.
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
"""Memory of the host; its device id is 0."""

CUDA: Final = 2

ROCM: Final = 10
"""What CuPy and PyTorch call memory of AMD's GPUs."""

EXT_DEV: Final = 12
"""Memory of Ascend NPUs: what torch_npu 2.14 makes, and besides 1 all that it takes.

Seen in its source (torch_npu/csrc/aten/common/DLConvertor.cpp) and in the machine code of its
wheel. Importing it replaces ``torch.from_dlpack``, which then asks for capsules without a version
first, for objects on other devices too. It leaves ``byte_offset`` aside, and knows no float8.
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
    """What NumPy takes for an array of two equal bytes, and keeps as long as the capsule lasts.

    Bytes that do not follow each other have strides, for which the capsule then has room too:
    NumPy 2.1 leaves out those of C order.
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

    The capsule keeps the owner until it is dropped unused or, once a consumer took what is in it,
    until the consumer frees that. Where the interpreter has ended by then, nothing happens.

    Parameters
    ----------
    pointer
        Address of the memory, to which the layout is relative.
    layout
        The array. It is not checked against the memory's size here.
    device
        DLPack's device type and id.
    owner
        What keeps the memory.
    readonly
        Whether the consumer must not write. It is told so; not all of them heed it.
    max_version
        The newest version that the consumer understands, as it says itself. From (1, 0) on the
        capsule is a versioned one, else an unversioned one.

    Raises
    ------
    BufferError
        Where DLPack cannot express the dtype or the strides; where the memory is read-only and
        the consumer asks for an unversioned capsule, which cannot say so.
    UnsupportedError
        Where NumPy, which makes the capsules, is missing or older than 2.1.
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
        # The codes of small floats are of 1.1; consumers may look at the first number only.
        managed.major, managed.minor = 1, 1
        managed.flags = _READ_ONLY if readonly else 0
        tensor = managed.tensor
    else:
        capsule = array.__dlpack__()
        tensor = _Unversioned.from_address(_pointer_of(capsule, b"dltensor")).tensor
    # Consumers leave byte_offset aside, so the address includes it; it stays 0.
    tensor.data = pointer + layout.offset if layout.nbytes else None
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits, tensor.lanes = layout.dtype.dlpack
    for axis, (size, step) in enumerate(zip(layout.shape, strides, strict=True)):
        tensor.shape[axis] = size
        tensor.strides[axis] = step
    return capsule


def check_stream(device_type: int, stream: object) -> bool:
    """Return whether a producer must wait for its device before it hands out a capsule.

    crossmem does not know on which streams others wrote the memory. So where anything must be
    waited for, it is all that the device has to do; then every stream sees what was written.

    Parameters
    ----------
    device_type
        DLPack's device type.
    stream
        What the consumer passed to ``__dlpack__``: None for the default stream, -1 where nothing
        is to be waited for, else the number of the stream on which it will work.

    Raises
    ------
    ConfigurationError
        Where there is no such stream: for memory of the host any but None; 0 on CUDA, where it
        could be either of two default streams; 1 and 2 on ROCm, which has no such numbers.
    """
    if device_type == CPU:
        if stream is not None:
            msg = f"stream is {shorten(stream)}; host memory has no streams, so it must be None"
            raise ConfigurationError(msg)
        return False
    if stream is None:
        return True
    refused = {CUDA: {0}, CUDA_MANAGED: {0}, ROCM: {1, 2}}.get(device_type, set())
    # No TypeError: PyTorch would take it for a producer without a stream, and ask without one.
    if type(stream) is not int or stream < -1 or stream in refused:
        numbers = " and ".join(str(number) for number in sorted(refused)) or "none"
        msg = (
            f"stream is {shorten(stream, 60)}; it must be None, -1 or the number of a stream; "
            f"device type {device_type} excludes {numbers}"
        )
        raise ConfigurationError(msg, hint="pass 1 for CUDA's default stream, 0 for ROCm's")
    return stream != -1
