# SPDX-License-Identifier: Apache-2.0
"""The address and layout of an array, as its library reports them."""

from typing import Literal, NamedTuple

from crossmem.arrays.layout import Layout

__all__ = ["ArrayInfo", "Kind"]

Kind = Literal["numpy", "cupy", "torch"]
"""The library that an array belongs to."""


class ArrayInfo(NamedTuple):
    """The address and layout of an array.

    Parameters
    ----------
    kind
        The array's library.
    pointer
        Address of the element whose indices are all 0. For an empty array, the address that the
        library reports.
    layout
        The layout of the elements relative to ``pointer``. Its offset is 0.
    device
        Name of the crossmem device, such as ``"cuda:0"``; None for host memory.
    """

    kind: Kind
    pointer: int
    layout: Layout
    device: str | None
