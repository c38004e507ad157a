# SPDX-License-Identifier: Apache-2.0
"""How, and in which order, the objects of tests end."""

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
"""Each class of objects, with the method that ends an object. Objects of earlier classes end first.
A module that uses a further class inserts it."""
