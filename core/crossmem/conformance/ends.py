# SPDX-License-Identifier: Apache-2.0
"""The methods that end the objects of tests, in the order in which the kit calls them."""

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
"""Classes, each with the name of the method that ends its objects. Objects of the first class end
first. Other modules of the kit insert further classes."""
