# SPDX-License-Identifier: Apache-2.0
"""Which arrays of a tree stand for those that were shared, and whether they can be overwritten."""

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from crossmem.arrays import Kind, Layout
from crossmem.arrays.libraries import require
from crossmem.errors import ConfigurationError
from crossmem.guards import clause, shorten
from crossmem.trees.leaves import Leaf, collect
from crossmem.trees.message import Message, Row
from crossmem.trees.pairing import pair_arrays

__all__ = ["Match", "match", "refuse_unwritable"]


Operation = Literal["receive", "update"]

_NAMES: Final = {"receive": "into", "update": "tree"}
"""What errors call the tree that is not the shared one: the argument of that operation."""


class Match(NamedTuple):
    """An array that was shared, and the array at the same place of another tree.

    Parameters
    ----------
    number, row
        The shared array, as the message has it.
    leaf
        The other array, of the same shape and dtype.
    where
        How an error names the place.
    """

    number: int
    row: Row
    leaf: Leaf
    where: str


def match(message: Message, tree: Any, operation: Operation) -> Iterator[Match]:
    """Yield all arrays of a shared tree, each with the one at the same place of another tree.

    An update must have the plain values that were shared: readers have them from the message.

    Raises
    ------
    ConfigurationError
        If the trees differ in a container, a shape or a dtype. The message names the place.
    UnsupportedError
        If something in the other tree cannot be shared.
    """
    nodes, leaves = collect(tree)
    for number, other, where in pair_arrays(message.tree, nodes, _NAMES[operation], operation):
        row, leaf = message.rows[number], leaves[other]
        mine, theirs = leaf.found.layout, row.layout
        if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            mine_shown, theirs_shown = (
                f"dtype {clause(one.dtype.name, 20)} and shape {shorten(one.shape, 28)}"
                for one in (mine, theirs)
            )
            msg = f"{clause(where, 40)} has {mine_shown}; the shared array has {theirs_shown}"
            raise ConfigurationError(msg, operation=operation)
        yield Match(number, row, leaf, where)


def refuse_unwritable(
    name: str, array: Any, kind: Kind, layout: Layout, operation: Operation
) -> None:
    """Refuse an array that cannot be overwritten.

    Parameters
    ----------
    name
        What the error calls it.
    array, kind, layout
        The array, its library, and its shape and strides.
    operation
        What would overwrite it.

    Raises
    ------
    ConfigurationError
        With the reason.
    """
    obstacle = None
    if kind == "numpy" and not array.flags.writeable:
        obstacle = "it is read-only"
    elif layout.nbytes and any(map(_repeats, layout.shape, layout.strides)):
        obstacle = f"strides {shorten(layout.strides, 40)} show elements in several places"
    elif kind == "torch" and array.is_inference() and not _infers():
        obstacle = "a PyTorch inference tensor can only be written in inference mode"
    if obstacle is not None:
        msg = f"{name} cannot be overwritten: {obstacle}"
        raise ConfigurationError(msg, operation=operation)


def _infers() -> bool:
    return bool(require("torch").is_inference_mode_enabled())


def _repeats(size: int, step: int) -> bool:
    return size > 1 and step == 0
