# SPDX-License-Identifier: Apache-2.0
"""The adapter for CuPy. It also makes CuPy arrays in memory that another object owns."""

from collections.abc import Callable
from typing import Any

from crossmem.arrays.array_info import ArrayInfo
from crossmem.arrays.dtypes import dtype_of, to_numpy
from crossmem.arrays.layout import Layout
from crossmem.arrays.libraries import require

__all__ = ["backend", "classes", "copy_to", "describe", "empty", "maker", "memory_pointer"]


def classes(cupy: Any) -> tuple[type, ...]:
    """Return the classes whose objects have no state besides their elements."""
    return (cupy.ndarray,)


def backend() -> str:
    """Return the backend for which the installed CuPy was built."""
    return "hip" if require("cupy").cuda.runtime.is_hip else "cuda"


def memory_pointer(pointer: int, nbytes: int, owner: object, ordinal: int) -> Any:
    """Return a CuPy pointer to memory at an address. The pointer keeps ``owner`` alive."""
    cuda = require("cupy").cuda
    return cuda.MemoryPointer(cuda.UnownedMemory(pointer, nbytes, owner, ordinal), 0)


def maker(pointer: int, nbytes: int, owner: object, ordinal: int) -> Callable[[Layout], Any]:
    """Return a function that makes arrays of given layouts in the memory at ``pointer``.

    Each array keeps ``owner`` alive.
    """
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
    """Return a new array of size 0, for a layout that has no elements."""
    return require("cupy").empty(layout.shape, to_numpy(layout.dtype))


def describe(array: Any) -> ArrayInfo:
    """Return the address, layout and device of an array.

    Raises
    ------
    UnsupportedError
        Elements of the array's dtype cannot be shared.
    """
    layout = Layout(dtype_of(array.dtype), array.shape, array.strides)
    return ArrayInfo("cupy", array.data.ptr, layout, f"{backend()}:{array.device.id}")


def copy_to(target: Any, source: Any) -> None:
    """Overwrite an array with another array of the same shape and dtype."""
    # The copy runs in the current stream of the target's device, after the stream's earlier work.
    with target.device:
        target[...] = source
        if target.device != source.device:
            # Before crossmem unmaps the source, it waits only for the source's own device. Without
            # the following call, the copy on the target's device could read unmapped memory.
            require("cupy").cuda.get_current_stream().synchronize()
