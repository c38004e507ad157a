# SPDX-License-Identifier: Apache-2.0
"""The adapter for NumPy, and NumPy arrays in memory that another object owns."""

from collections.abc import Callable
from typing import Any

from crossmem.arrays.array_info import ArrayInfo
from crossmem.arrays.dtypes import dtype_of, to_numpy
from crossmem.arrays.layout import Layout
from crossmem.arrays.libraries import require

__all__ = ["classes", "copy_to", "describe", "empty", "maker"]


def classes(numpy: Any) -> tuple[type, ...]:
    """Return the array classes that crossmem can share.

    Importers of a ``memmap`` get the elements, but not the memmap's file name, offset or mode.
    """
    return numpy.ndarray, numpy.memmap


def maker(view: memoryview) -> Callable[[Layout], Any]:
    """Return a function that makes arrays in a buffer. Each array keeps the buffer alive."""
    numpy = require("numpy")
    # An array in a memoryview refers to the object from which the memoryview was made. If this
    # object is writable, a user can make the array writable, even if the memoryview is read-only.
    # An array in a read-only array stays read-only. Therefore, new arrays get a read-only array as
    # their buffer if the memoryview is read-only.
    buffer = numpy.asarray(view) if view.readonly else view

    def make(layout: Layout) -> Any:
        dtype = to_numpy(layout.dtype)
        return numpy.ndarray(layout.shape, dtype, buffer, layout.offset, layout.strides)

    return make


def empty(layout: Layout) -> Any:
    """Return a new array for a layout without elements, such as one of shape ``(0, 3)``."""
    return require("numpy").empty(layout.shape, to_numpy(layout.dtype))


def describe(array: Any) -> ArrayInfo:
    """Return the address and layout of an array.

    Raises
    ------
    UnsupportedError
        The array's elements cannot be shared.
    """
    strides = None if array.flags.c_contiguous else array.strides
    layout = Layout(dtype_of(array.dtype), array.shape, strides)
    return ArrayInfo("numpy", array.__array_interface__["data"][0], layout, None)


def copy_to(target: Any, source: Any) -> None:
    """Overwrite an array with another array of the same shape and dtype."""
    target[...] = source
