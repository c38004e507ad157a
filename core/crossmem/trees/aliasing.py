# SPDX-License-Identifier: Apache-2.0
"""Copies between the arrays of two trees, if arrays of one tree share memory with others."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from crossmem.arrays.adapters import ADAPTERS
from crossmem.arrays.array_info import ArrayInfo
from crossmem.arrays.libraries import require
from crossmem.errors import ConfigurationError, UnsupportedError
from crossmem.guards import clause
from crossmem.trees.matching import Operation

__all__ = ["Copy", "copy_all"]

_MOST_WORK: Final = 10_000
"""A limit for NumPy's search for an element that two arrays share."""


class Copy(NamedTuple):
    """A copy from an array of one tree to the array at the same place of another tree.

    Parameters
    ----------
    where
        The name of the place in errors.
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
        Targets share memory, and their sources neither share memory in the same way nor, for equal
        targets, have equal contents. Nothing was copied then.
    """
    targets = _Targets(copies)
    for first, second in targets.pairs():
        if not _are_alike(first, second):
            msg = (
                f"{clause(first.where, 60)} and {clause(second.where, 60)} share memory, and "
                f"{'the new arrays' if operation == 'update' else 'the shared arrays'} do not"
            )
            hint = "use arrays that share memory in the same way, or arrays that share none"
            raise ConfigurationError(msg, operation=operation, hint=hint)
    jobs = []
    for one in copies:
        if one.target is one.source:
            # The application has written in place.
            continue
        source = one.source
        if any(not other.to == one.to == one.origin for other in targets.overlapping(one.origin)):
            # A copy would overwrite this source before or while it is read.
            source = source.detach().clone() if one.to.kind == "torch" else source.copy()
        jobs.append((one.to.kind, one.target, source))
    for kind, target, source in jobs:
        ADAPTERS[kind].copy_to(target, source)


class _Targets:
    """The targets of copies, by address."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        found = [one for one in copies if one.to.layout.extent is not None]
        self._copies = sorted(found, key=lambda one: _bounds(one.to)[0])
        self._lows = [_bounds(one.to)[0] for one in self._copies]
        self._highest = list(accumulate((_bounds(one.to)[1] for one in self._copies), max))
        """For each target, the largest end of this target and the targets before it."""

    def pairs(self) -> Iterator[tuple[Copy, Copy]]:
        """Yield each pair of targets that share an element."""
        for number, one in enumerate(self._copies):
            high = _bounds(one.to)[1]
            for other in self._copies[number + 1 :]:
                if _bounds(other.to)[0] >= high:
                    break
                if _share(one.to, other.to):
                    yield one, other

    def overlapping(self, array: ArrayInfo) -> Iterator[Copy]:
        """Yield the targets that share an element with an array."""
        if array.layout.extent is None:
            return
        low, high = _bounds(array)
        for number in range(bisect_left(self._lows, high) - 1, -1, -1):
            if self._highest[number] <= low:
                return
            if _share(array, self._copies[number].to):
                yield self._copies[number]


def _bounds(array: ArrayInfo) -> tuple[int, int]:
    low, high = array.layout.extent or (0, 0)
    return array.pointer + low, array.pointer + high


def _share(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Return whether two arrays share an element's bytes."""
    (low, high), (start, end) = _bounds(one), _bounds(other)
    if one.device != other.device or low >= end or start >= high:
        return False
    if one.layout.is_contiguous and other.layout.is_contiguous:
        return True
    if (one.pointer, one.layout.strides) == (other.pointer, other.layout.strides):
        return True
    # The elements of one array can lie between those of the other, such as even and odd rows.
    try:
        numpy = require("numpy")
    except UnsupportedError:
        return False
    try:
        return bool(numpy.shares_memory(_Shape(one), _Shape(other), max_work=_MOST_WORK))
    except numpy.exceptions.TooHardError:
        return True


class _Shape:
    """An array of bytes with the layout of another array. Its contents are not read."""

    def __init__(self, array: ArrayInfo) -> None:
        layout, itemsize = array.layout, array.layout.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (array.pointer, True),
            "shape": (*layout.shape, itemsize),
            "strides": (*layout.strides, 1),
            "typestr": "|u1",
        }


def _are_alike(first: Copy, second: Copy) -> bool:
    """Return whether the sources of two copies share memory as the targets do."""
    mine, theirs = first.origin, second.origin
    if mine.device != theirs.device:
        return False
    if (first.to.pointer, first.to.layout) == (second.to.pointer, second.to.layout):
        are_same = (mine.pointer, mine.layout.strides) == (theirs.pointer, theirs.layout.strides)
        return are_same or _are_equal(first, second)
    return (
        theirs.pointer - mine.pointer == second.to.pointer - first.to.pointer
        and mine.layout.strides == first.to.layout.strides
        and theirs.layout.strides == second.to.layout.strides
    )


def _are_equal(first: Copy, second: Copy) -> bool:
    """Return whether the sources of two copies have equal contents."""
    one, other = first.source, second.source
    if first.origin.kind == "torch":
        return bool(require("torch").equal(one, other))
    if first.origin.kind == "numpy":
        return bool(one.tobytes() == other.tobytes())
    return bool((one == other).all())
