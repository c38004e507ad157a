# SPDX-License-Identifier: Apache-2.0
"""Pairs the arrays at equal paths of two trees, and refuses arrays that cannot be overwritten."""

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
"""For each operation, the argument by which the application passes its tree. Errors name this
argument."""


class Match(NamedTuple):
    """A shared array, and the array at the same path of the application's tree.

    Parameters
    ----------
    number, row
        Number and description of the shared array in the message.
    leaf
        The array of the application's tree. Shape and dtype are those of the shared array.
    where
        The path, for error messages.
    """

    number: int
    row: Row
    leaf: Leaf
    where: str


def match(message: Message, tree: Any, operation: Operation) -> Iterator[Match]:
    """Yield each shared array with the array at the same path of the application's tree.

    Readers keep the plain values that they received, because an update changes only arrays. So in
    an update, the plain values of both trees must be equal.

    Raises
    ------
    ConfigurationError
        The trees differ in a container, a shape, a dtype or, for an update, a plain value. The
        error names the path.
    UnsupportedError
        Something in the application's tree cannot be shared.
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
    """Refuse an array that cannot be overwritten. ``name`` is its name in the error.

    Raises
    ------
    ConfigurationError
        The array cannot be overwritten. The message says why.
    """
    obstacle = None
    if kind == "numpy" and not array.flags.writeable:
        obstacle = "it is read-only"
    elif layout.nbytes and any(map(_repeats, layout.shape, layout.strides)):
        obstacle = (
            f"with strides {shorten(layout.strides, 40)}, several indices refer to one element"
        )
    elif kind == "torch" and array.is_inference() and not _infers():
        obstacle = "a PyTorch inference tensor can only be written in inference mode"
    if obstacle is not None:
        msg = f"{name} cannot be overwritten: {obstacle}"
        raise ConfigurationError(msg, operation=operation)


def _infers() -> bool:
    return bool(require("torch").is_inference_mode_enabled())


def _repeats(size: int, step: int) -> bool:
    return size > 1 and step == 0
