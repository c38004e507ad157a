# SPDX-License-Identifier: Apache-2.0
"""The type of an array's elements."""

from dataclasses import dataclass, field

from typing_extensions import override

__all__ = ["DType", "Field"]


@dataclass(frozen=True, slots=True)
class DType:
    """The type of an array's elements. Types with the same name are equal.

    Made by :func:`crossmem.arrays.dtypes.dtype_of` and ``from_text``.
    """

    name: str
    """One of three kinds of text: a common name, a type string of NumPy, or JSON.

    See :mod:`crossmem.arrays.dtypes`.
    """

    itemsize: int = field(compare=False)
    """Size of one element, in bytes."""

    dlpack: tuple[int, int, int] | None = field(compare=False)
    """DLPack's type code, bits and lanes; None if DLPack has no such type."""

    typestr: str | None = field(compare=False)
    """NumPy's type string, or None if NumPy has no such dtype. The string for a struct contains the
    struct's size, but not the struct's fields."""

    fields: "tuple[Field, ...]" = field(default=(), compare=False)
    """Fields of a struct, in order."""

    @override
    def __repr__(self) -> str:
        return f"DType({self.name!r})"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    name: str

    offset: int
    """Offset in the struct, in bytes."""

    dtype: DType

    shape: tuple[int, ...]
    """Shape of the field if it is a sub-array, else an empty tuple."""
