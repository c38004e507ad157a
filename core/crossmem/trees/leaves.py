# SPDX-License-Identifier: Apache-2.0
"""The arrays and tensors of a tree, with their descriptions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from crossmem.arrays import ArrayInfo, Layout
from crossmem.arrays.adapters import describe
from crossmem.errors import ConfigurationError, UnsupportedError
from crossmem.guards import clause
from crossmem.models import ShareableHandle
from crossmem.trees.nodes import write
from crossmem.trees.pool_blocks import Exportable, refuse_unmapped

__all__ = ["Leaf", "Place", "collect"]


class Leaf(NamedTuple):
    """An array or tensor of the tree.

    Parameters
    ----------
    value
        The array or tensor.
    found
        The library, address, layout and device of the array.
    where
        A function that returns the array's path in the tree. Only error messages need the path.
    """

    value: Any
    found: ArrayInfo
    where: Callable[[], str]

    @property
    def bounds(self) -> tuple[int, int]:
        """The address of the first byte of the elements, and the address after their last byte.

        The array must have elements.
        """
        low, high = self.found.layout.extent or (0, 0)
        return self.found.pointer + low, self.found.pointer + high

    def place(
        self, handle: ShareableHandle, origin: int, copy: Exportable | None = None
    ) -> "Place":
        """Return the array's place in the memory of a handle.

        ``origin`` is the address at which this memory begins in this process.
        """
        return Place(handle, self.found.layout.at(self.found.pointer - origin), copy)


class Place(NamedTuple):
    """The place at which other processes find an array.

    Parameters
    ----------
    handle
        The handle of the memory that contains the array.
    layout
        The array's layout in the memory of ``handle``. The layout's offset counts from the start of
        this memory.
    copy
        The allocation or block that the array was copied to; None if the array is shared in place.
    """

    handle: ShareableHandle
    layout: Layout
    copy: Exportable | None


def collect(tree: Any) -> tuple[Any, list[Leaf]]:
    """Return a tree as JSON values, and the list of its arrays.

    The JSON values contain a number in place of each array: the array's position in the list. An
    array that occurs twice has one number.

    Raises
    ------
    UnsupportedError
        Something in the tree cannot be shared; the message names it.
    ConfigurationError
        The tree contains itself, or is nested too deep. Other causes are too many values and a huge
        integer.
    ForkedProcessError
        An array lies in a block of a pool of the parent process.
    """
    leaves: list[Leaf] = []
    numbers: dict[int, int] = {}

    def add(value: Any, where: Callable[[], str]) -> int | None:
        number = numbers.get(id(value))
        if number is None:
            try:
                found = describe(value)
            except (ConfigurationError, UnsupportedError) as error:
                reason = clause(error.message)
                msg = f"{where()} cannot be shared: {reason}"
                details = "" if reason == error.message else error.message
                raise UnsupportedError(
                    msg, operation="share", hint=error.hint, details=details
                ) from error
            if found is None:
                return None
            if found.layout.extent is not None:
                low, high = found.layout.extent
                refuse_unmapped(found.pointer + low, high - low, where)
            number = numbers[id(value)] = len(leaves)
            leaves.append(Leaf(value, found, where))
        return number

    return write(tree, add), leaves
