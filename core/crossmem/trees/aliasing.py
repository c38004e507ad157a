# SPDX-License-Identifier: Apache-2.0
"""Copies between the arrays of two trees. The arrays may share memory with each other."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from crossmem.arrays.adapters import ADAPTERS
from crossmem.arrays.array_info import ArrayInfo
from crossmem.arrays.libraries import require
from crossmem.errors import ConfigurationError
from crossmem.guards import clause
from crossmem.trees.matching import Operation

__all__ = ["Copy", "copy_all"]


class Copy(NamedTuple):
    """A copy from an array of one tree to the array at the same path of another tree.

    Parameters
    ----------
    where
        The path, for error messages.
    target, source
        The arrays.
    to, origin
        The addresses and layouts of ``target`` and ``source``.
    """

    where: str
    target: Any
    to: ArrayInfo
    source: Any
    origin: ArrayInfo


def copy_all(copies: Sequence[Copy], operation: Operation) -> None:
    """Make copies as if all sources were read before the first target is written.

    Raises
    ------
    ConfigurationError
        One target is at two paths of its tree, and the sources at these paths differ. Then nothing
        is copied.
    """
    _refuse_two_contents(copies, operation)
    ranges = _Ranges(copies)
    jobs = [
        (one.to.kind, one.target, _duplicate(one) if ranges.overlap(one) else one.source)
        for one in copies
        # If target and source are the same array, the application has written in place, and nothing
        # is left to copy.
        if one.target is not one.source
    ]
    for kind, target, source in jobs:
        ADAPTERS[kind].copy_to(target, source)


def _refuse_two_contents(copies: Sequence[Copy], operation: Operation) -> None:
    seen: dict[tuple[object, ...], Copy] = {}
    for one in copies:
        if one.to.layout.extent is None:
            continue
        first = seen.setdefault(_key(one.to), one)
        if first is one or _key(first.origin) == _key(one.origin) or _may_be_equal(first, one):
            continue
        msg = f"{clause(first.where, 60)} and {clause(one.where, 60)} are one array, "
        if operation == "update":
            msg += "but the new arrays differ"
            hint = "pass equal arrays at both places, or share a tree with a separate array at each"
        else:
            msg += "but the shared arrays differ"
            hint = "pass a tree with a separate array at each of these places"
        raise ConfigurationError(msg, operation=operation, hint=hint)


def _key(array: ArrayInfo) -> tuple[object, ...]:
    layout = array.layout
    return array.pointer, layout.dtype.name, layout.shape, layout.strides


def _may_be_equal(first: Copy, second: Copy) -> bool:
    """Return whether two sources may have equal bytes.

    Sources of different libraries are not compared; for such sources, the result is True.
    """
    one, other, kind = first.source, second.source, first.origin.kind
    if kind != second.origin.kind:
        return True
    if kind == "torch":
        torch = require("torch")
        parts = [
            array.detach().contiguous().reshape(-1).view(torch.uint8) for array in (one, other)
        ]
        return bool(torch.equal(*parts))
    numpy = require("numpy")
    if kind == "cupy":
        one, other = one.get(), other.get()
    parts = [numpy.ascontiguousarray(array).reshape(-1).view("uint8") for array in (one, other)]
    return bool(numpy.array_equal(*parts))


def _duplicate(one: Copy) -> Any:
    """Return a copy of a source, in new memory."""
    if one.origin.kind == "numpy":
        return one.source.copy()
    if one.origin.kind == "torch":
        return one.source.detach().clone()
    with one.source.device:
        made = require("cupy").empty(one.source.shape, one.source.dtype)
    ADAPTERS["cupy"].copy_to(made, one.source)
    return made


class _Ranges:
    """The address ranges of all targets. Overlapping ranges are merged."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in sorted(_bounds(one.to) for one in copies if one.to.layout.extent):
            if self._highs and low < self._highs[-1]:
                self._highs[-1] = max(high, self._highs[-1])
            else:
                self._lows.append(low)
                self._highs.append(high)

    def overlap(self, one: Copy) -> bool:
        """Return whether the copies could overwrite the source of ``one`` before it is read."""
        if one.origin.layout.extent is None or _key(one.to) == _key(one.origin):
            return False
        low, high = _bounds(one.origin)
        # The last range that begins before the end of the source.
        at = bisect_right(self._lows, high - 1) - 1
        return at >= 0 and self._highs[at] > low


def _bounds(array: ArrayInfo) -> tuple[int, int]:
    low, high = array.layout.extent or (0, 0)
    return array.pointer + low, array.pointer + high
