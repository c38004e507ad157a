# SPDX-License-Identifier: Apache-2.0
"""Descriptions of arrays and tensors in shared memory, for NumPy, CuPy and PyTorch."""

from crossmem.arrays.array_info import ArrayInfo, Kind
from crossmem.arrays.dtype import DType, Field
from crossmem.arrays.dtypes import dtype_of, from_text, to_numpy, to_torch
from crossmem.arrays.layout import MAX_DIMENSIONS, Layout

__all__ = [
    "MAX_DIMENSIONS",
    "ArrayInfo",
    "DType",
    "Field",
    "Kind",
    "Layout",
    "dtype_of",
    "from_text",
    "to_numpy",
    "to_torch",
]
