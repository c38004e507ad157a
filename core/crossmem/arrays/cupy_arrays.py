# SPDX-License-Identifier: Apache-2.0
"""Arrays of CuPy in device memory that others keep."""

from collections.abc import Callable
from typing import Any

from crossmem.arrays.array_info import ArrayInfo
from crossmem.arrays.dtypes import dtype_of, to_numpy
from crossmem.arrays.layout import Layout
from crossmem.arrays.libraries import require

__all__ = ["backend", "classes", "copy_to", "describe", "empty", "maker", "memory_pointer"]


def classes(cupy: Any) -> tuple[type, ...]:
    """Return the classes whose objects are their elements and nothing more."""
    return (cupy.ndarray,)


def backend() -> str:
    """Return the backend whose devices the installed CuPy was built for."""
    return "hip" if require("cupy").cuda.runtime.is_hip else "cuda"


def memory_pointer(pointer: int, nbytes: int, owner: object, ordinal: int) -> Any:
    """Return what CuPy takes for memory that it did not allocate. It keeps the owner."""
    cuda = require("cupy").cuda
    return cuda.MemoryPointer(cuda.UnownedMemory(pointer, nbytes, owner, ordinal), 0)


def maker(pointer: int, nbytes: int, owner: object, ordinal: int) -> Callable[[Layout], Any]:
    """Return a function that makes arrays in device memory, each of which keeps the owner."""
    cupy = require("cupy")
    base = memory_pointer(pointer, nbytes, owner, ordinal)

    def make(layout: Layout) -> Any:
        dtype = to_numpy(layout.dtype)
        with cupy.cuda.Device(ordinal):
            return cupy.ndarray(
                layout.shape, dtype, memptr=base + layout.offset, strides=layout.strides
            )

    return make


def empty(layout: Layout) -> Any:
    """Return an array without elements: it needs no memory."""
    return require("cupy").empty(layout.shape, to_numpy(layout.dtype))


def describe(array: Any) -> ArrayInfo:
    """Say where an array lies.

    Raises
    ------
    UnsupportedError
        Where its elements cannot be shared.
    """
    layout = Layout(dtype_of(array.dtype), array.shape, array.strides)
    return ArrayInfo("cupy", array.data.ptr, layout, f"{backend()}:{array.device.id}")


def copy_to(target: Any, source: Any) -> None:
    """Overwrite an array with another one of the same shape and dtype."""
    # In the stream that earlier work on the target is in, whatever device is the current one.
    with target.device:
        target[...] = source
        if target.device != source.device:
            # The source is unmapped after the work of its own device, which this is not.
            require("cupy").cuda.get_current_stream().synchronize()
