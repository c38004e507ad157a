# SPDX-License-Identifier: Apache-2.0
"""How the objects of tests end, by their class and in order."""

import crossmem

__all__ = ["ends"]

ends: list[tuple[type, str]] = [
    (crossmem.Timeline, "close"),
    (crossmem.Piece, "unmap"),
    (crossmem.AddressRange, "release"),
    (crossmem.Mapping, "unmap"),
    (crossmem.Import, "close"),
    (crossmem.Allocation, "free"),
    (crossmem.Block, "free"),
    (crossmem.Pool, "close"),
]
"""Class and method. Modules with further classes insert them."""
