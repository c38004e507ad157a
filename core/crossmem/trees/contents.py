# SPDX-License-Identifier: Apache-2.0
"""The arrays of a tree that this process shares. This process can read and update the arrays."""

from typing import Any, Final, cast

from crossmem.arrays import ArrayInfo
from crossmem.arrays.adapters import describe
from crossmem.errors import ConfigurationError
from crossmem.guards import clause
from crossmem.trees.aliasing import Copy, copy_all
from crossmem.trees.building import maker_of_rows
from crossmem.trees.leaves import Leaf
from crossmem.trees.matching import match, refuse_unwritable
from crossmem.trees.message import Message
from crossmem.trees.nodes import read
from crossmem.trees.pool_blocks import Exportable

__all__ = ["Contents"]

_READ_STEP: Final = 1 << 16
"""The largest number of bytes that Linux maps when a read causes a page fault."""


class Contents:
    """The arrays in the memory of a shared tree.

    Parameters
    ----------
    leaves
        The arrays of the tree, in the order of their numbers in the message.
    copies
        The memory to which arrays were copied. The key is the index of the memory's handle in the
        message.
    """

    __slots__ = ("_arrays", "_copies", "_message", "_pointers")

    def __init__(
        self,
        message: Message,
        leaves: list[Leaf],
        copies: dict[int, Exportable],
    ) -> None:
        self._message = message
        self._arrays = [
            # The original of a copied array is not kept, because only the copy is shared.
            None if row.handle in copies else leaf.value
            for row, leaf in zip(message.rows, leaves, strict=True)
        ]
        self._pointers = [leaf.found.pointer for leaf in leaves]
        """The addresses at which the arrays were shared. :meth:`overwrite` compares them with the
        arrays' current addresses, because a program can give a tensor of PyTorch other memory."""
        self._copies = copies

    def tree(self) -> Any:
        """Return the tree with the arrays in shared memory."""
        return read(self._message.tree, self._shared_arrays())

    def overwrite(self, tree: Any) -> None:
        """Copy the arrays of another tree into the shared memory.

        Raises
        ------
        ConfigurationError
            The trees differ, not only in the elements of their arrays. Or a shared array cannot be
            overwritten. No array was changed.
        UnsupportedError
            Something in the other tree cannot be shared. No array was changed.
        """
        matches = list(match(self._message, tree, "update"))
        arrays = self._shared_arrays()
        copies = []
        for number, row, leaf, where in matches:
            target = arrays[number]
            if leaf.found.kind != row.kind:
                place = clause(where, 60)
                msg = f"{place} is an array of {leaf.found.kind}; the shared array is of {row.kind}"
                raise ConfigurationError(msg, operation="update")
            if target is not leaf.value:
                name = f"the array that is shared as {clause(where, 50)}"
                refuse_unwritable(name, target, row.kind, row.layout, "update")
            to = describe(target)
            assert to is not None  # noqa: S101 - the target was shared
            if to.pointer != self._pointers[number]:
                msg = f"the array that is shared as {clause(where, 50)} has got other memory"
                hint = "write into the array; do not assign tensor.data: readers lack its memory"
                raise ConfigurationError(msg, operation="update", hint=hint)
            copies.append(Copy(where, target, to, leaf.value, leaf.found))
        copy_all(copies, "update")

    def _shared_arrays(self) -> list[Any]:
        """Return the arrays in the shared memory.

        For each array that was copied, the first call makes a new array in the memory of the copy.
        The new array keeps this memory in use, even after the tree was closed. The new array can
        also be shared again.
        """
        copies, rows = self._copies, self._message.rows
        if copies:
            make = maker_of_rows(copies)
            arrays = self._arrays.copy()
            for number, row in enumerate(rows):
                if row.handle in copies:
                    arrays[number] = made = make(row, row.kind)
                    self._pointers[number] = cast("ArrayInfo", describe(made)).pointer
                    if row.layout.extent is not None and row.layout.is_contiguous:
                        _map_pages(copies[row.handle], *row.layout.extent)
            self._arrays, self._copies = arrays, {}
        return self._arrays


def _map_pages(memory: Exportable, low: int, high: int) -> None:
    """Map the pages of a copy in this process, so that later reads cause no page faults.

    A copy that was written through a descriptor has no mapped page yet.
    """
    if memory.device.capabilities.host_visible:
        memory.view()[low:high:_READ_STEP].tobytes()
