# SPDX-License-Identifier: Apache-2.0
"""The layout of an array in memory: element type, shape, strides and offset."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from crossmem.arrays.dtype import DType
from crossmem.errors import ConfigurationError, InvalidSizeError, UnsupportedError
from crossmem.guards import clause, shorten

__all__ = ["MAX_DIMENSIONS", "Layout"]

MAX_DIMENSIONS: Final = 64
"""The largest number of dimensions of an array, as in NumPy."""

_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, init=False)
class Layout:
    """The positions of an array's elements, relative to the start of some memory.

    Strides may be zero, negative, or smaller than an element, so elements may share bytes. All
    numbers, and all sizes and offsets derived from them, fit into signed 64-bit integers.

    Parameters
    ----------
    dtype
        Type of the elements.
    shape
        Sizes of the dimensions, which may be zero. One dimension may be given as a single number.
    strides
        Bytes from one element to the next in each dimension; None for C order without gaps.
    offset
        Bytes from the start of the memory to the element whose indices are all 0.

    Raises
    ------
    InvalidSizeError
        A number does not fit into 64 bits, or a size or the offset is negative.
    ConfigurationError
        Shape, strides or offset are not integers, shape and strides differ in length, or there are
        more than 64 dimensions.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    nbytes: int = field(compare=False, repr=False)
    """Number of elements times the itemsize: the size of a copy without gaps."""

    extent: tuple[int, int] | None = field(compare=False, repr=False)
    """Offsets of the lowest byte that the elements cover, and of the byte after the highest one.
    None if the array has no elements."""

    is_contiguous: bool = field(compare=False, repr=False)
    """Whether the elements lie in C order without gaps."""

    def __init__(
        self,
        dtype: DType,
        shape: Iterable[int] | int,
        strides: Iterable[int] | None = None,
        offset: int = 0,
    ) -> None:
        sizes = _integers("shape", shape)
        if len(sizes) > MAX_DIMENSIONS:
            msg = f"an array has at most {MAX_DIMENSIONS} dimensions, not {len(sizes)}"
            raise ConfigurationError(msg)
        if type(offset) is not int:
            (offset,) = _integers("offset", (offset,))
        if strides is None:
            steps, whole = _dense(sizes, dtype.itemsize)
            before, after = 0, whole
        else:
            steps = _integers("strides", strides)
            before, after, whole = _span(sizes, steps, dtype.itemsize)
        if whole > _MAX:
            what = f"shape {shorten(sizes)} and dtype {clause(dtype.name, 40)}"
            msg = f"the size of an array of {what} exceeds 64 bits"
            raise InvalidSizeError(msg)
        empty = 0 in sizes
        put = object.__setattr__
        put(self, "dtype", dtype)
        put(self, "shape", sizes)
        put(self, "strides", steps)
        put(self, "nbytes", 0 if empty else whole)
        put(self, "is_contiguous", strides is None or empty or _is_dense(self))
        self._place(offset, offset - before, offset + after)

    def at(self, offset: int) -> "Layout":
        """Return a copy of this layout with the given offset.

        Raises
        ------
        InvalidSizeError
            A number does not fit into 64 bits, or the offset is negative.
        """
        low, high = self.extent or (self.offset, self.offset)
        moved = object.__new__(Layout)
        put = object.__setattr__
        put(moved, "dtype", self.dtype)
        put(moved, "shape", self.shape)
        put(moved, "strides", self.strides)
        put(moved, "nbytes", self.nbytes)
        put(moved, "is_contiguous", self.is_contiguous)
        moved._place(offset, low - self.offset + offset, high - self.offset + offset)
        return moved

    def _place(self, offset: int, low: int, high: int) -> None:
        if offset < 0 or low < -_MAX or high > _MAX:
            msg = f"offset {shorten(offset, 60)} puts an array out of bounds"
            hint = "an offset must be 0 or more, and the offsets of all bytes must fit into 64 bits"
            raise InvalidSizeError(msg, hint=hint)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "extent", None if 0 in self.shape else (low, high))

    def check(self, limit_nbytes: int) -> None:
        """Refuse an array that does not fit into memory of ``limit_nbytes`` bytes.

        Raises
        ------
        InvalidSizeError
            The array covers bytes outside the memory, or is empty and begins past the end of the
            memory.
        """
        if self.extent is None:
            if self.offset <= limit_nbytes:
                return
            end = f"past the end of memory of {limit_nbytes} bytes"
            msg = f"an empty array begins at byte {self.offset}, {end}"
            raise InvalidSizeError(msg, details=repr(self))
        low, high = self.extent
        if low >= 0 and high <= limit_nbytes:
            return
        outside = []
        if low < 0:
            outside.append(f"{-low} bytes before the memory")
        if high > limit_nbytes:
            outside.append(f"{high - max(limit_nbytes, low)} bytes after the memory")
        msg = (
            f"an array covers bytes [{low}, {high}) of memory of {limit_nbytes} bytes: "
            f"{' and '.join(outside)}"
        )
        raise InvalidSizeError(msg, details=repr(self))

    def element_strides(self, *, negative: bool = True) -> tuple[int, ...]:
        """Return the strides in elements, as DLPack and PyTorch count them.

        A stride has no meaning if its dimension has fewer than two elements or the array is empty.
        If such a stride is not a multiple of the itemsize, or is negative although ``negative`` is
        False, the result contains 1 in its place.

        Parameters
        ----------
        negative
            Whether negative strides are allowed. PyTorch has no negative strides.

        Raises
        ------
        UnsupportedError
            A stride that has a meaning is not a multiple of the itemsize, or is negative although
            ``negative`` is False.
        """
        itemsize = self.dtype.itemsize
        steps = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            count, rest = divmod(stride, itemsize)
            if rest or (count < 0 and not negative):
                if size > 1 and self.nbytes:
                    why = f"is not a multiple of {itemsize}" if rest else "is negative"
                    what = f"strides {shorten(self.strides)} of {clause(self.dtype.name, 40)}"
                    msg = f"{what}: {stride} {why}"
                    raise UnsupportedError(msg, hint="use NumPy, or copy the array first")
                count = 1
            steps.append(count)
        return tuple(steps)


def _is_dense(layout: Layout) -> bool:
    step = layout.dtype.itemsize
    for size, stride in zip(reversed(layout.shape), reversed(layout.strides), strict=True):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True


def _integers(name: str, values: object) -> tuple[int, ...]:
    """Return one or several integers as a tuple of ``int``. NumPy's integers are allowed, too."""
    if type(values) is tuple:
        found = values
    else:
        found = tuple(values) if isinstance(values, Iterable) else (values,)
    for value in found:
        if type(value) is not int:
            break
    else:
        return found
    exact = []
    for value in found:
        index = getattr(value, "__index__", None)
        if index is None or isinstance(value, bool):
            msg = f"{name} must be integers, not {shorten(value)}"
            raise ConfigurationError(msg)
        exact.append(int(index()))
    return tuple(exact)


def _dense(sizes: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], int]:
    """Return the strides of C order without gaps, and the size in bytes.

    A dimension of size 0 counts as 1, so the limit of 64 bits still applies to the other sizes.
    """
    step = itemsize
    steps = []
    for size in reversed(sizes):
        steps.append(step)
        if size > 1:
            step *= size
        elif size < 0:
            msg = f"shape is {shorten(sizes)}; no size may be negative"
            raise InvalidSizeError(msg)
    steps.reverse()
    return tuple(steps), step


def _span(sizes: tuple[int, ...], steps: tuple[int, ...], itemsize: int) -> tuple[int, int, int]:
    """Return three sizes of an array with strides, in bytes: ``before``, ``after``, ``whole``.

    The array covers ``before`` bytes in front of the element whose indices are all 0, and ``after``
    bytes from the start of this element on. ``whole`` is the number of elements times the itemsize.
    A dimension of size 0 counts as 1.
    """
    if len(steps) != len(sizes):
        msg = f"strides {shorten(steps, 80)} do not match shape {shorten(sizes, 80)}"
        raise ConfigurationError(msg)
    before, after, whole = 0, itemsize, itemsize
    for size, step in zip(sizes, steps, strict=True):
        if not -_MAX <= step <= _MAX:
            msg = f"strides are {shorten(steps)}; each must fit into 64 bits"
            raise InvalidSizeError(msg)
        if size > 1:
            whole *= size
            if step < 0:
                before -= (size - 1) * step
            else:
                after += (size - 1) * step
        elif size < 0:
            msg = f"shape is {shorten(sizes)}; no size may be negative"
            raise InvalidSizeError(msg)
    return before, after, whole
