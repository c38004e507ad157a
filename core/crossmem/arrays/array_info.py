# SPDX-License-Identifier: Apache-2.0
"""Where an array of some library lies, as the library says."""

from typing import Literal, NamedTuple

from crossmem.arrays.layout import Layout

__all__ = ["ArrayInfo", "Kind"]

Kind = Literal["numpy", "cupy", "torch"]
"""The library that an array belongs to."""


class ArrayInfo(NamedTuple):
    """Where an array lies.

    Parameters
    ----------
    kind
        Its library.
    pointer
        Address of the element with all indices 0; what the library says where there is none.
    layout
        How the elements lie around that address; its offset is 0.
    device
        ``backend:ordinal`` as crossmem counts devices; None for memory of the host.
    """

    kind: Kind
    pointer: int
    layout: Layout
    device: str | None
