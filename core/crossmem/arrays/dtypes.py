# SPDX-License-Identifier: Apache-2.0
"""Types of elements: one description for NumPy, CuPy, PyTorch and DLPack.

Each dtype has exactly one name. A message with an array contains the name of the array's dtype as
text. There are three kinds of names::

    float32, bfloat16, float8_e4m3fn ...    the frameworks' common names, in native byte order
    >f4, |S5, <U3, <M8[ns], |V16            NumPy's type strings, for dtypes that only NumPy has
    [8,[["a",0,"int32"],["b",4,"int16"]]]   JSON for a struct: the itemsize of the struct, and the
                                            name, offset and dtype of each field. If a field is a
                                            sub-array, its shape follows its dtype. Gaps between
                                            fields are allowed

The parser checks all sizes, and never runs the text as code. So the text may be untrusted.
"""

import json
import math
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from crossmem.arrays.dtype import DType, Field
from crossmem.errors import ConfigurationError, UnsupportedError
from crossmem.guards import clause, shorten

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "MAX_FIELDS",
    "MAX_ITEMSIZE",
    "MAX_NESTING",
    "MAX_TEXT",
    "dtype_of",
    "from_text",
    "to_numpy",
    "to_torch",
]

MAX_ITEMSIZE: Final = 2**31 - 1
"""The largest number of bytes of one element. NumPy has the same limit."""

MAX_FIELDS: Final = 512
"""The largest number of fields of one struct. A field that is a struct counts as one field."""

MAX_NESTING: Final = 8
"""The largest number of levels of nested structs, including the outermost struct."""

MAX_TEXT: Final = 16384
"""The largest number of characters of a dtype's text, including the texts of nested structs."""

_MAX_FIELD_DIMENSIONS: Final = 32

_NATIVE: Final = "<" if sys.byteorder == "little" else ">"


def _common() -> Iterable[DType]:
    """Yield the dtypes that have common names, with the type codes of DLPack 1.1."""
    yield DType("bool", 1, (6, 8, 1), "|b1")
    for kind, name, code in (("i", "int", 0), ("u", "uint", 1)):
        yield DType(f"{name}8", 1, (code, 8, 1), f"|{kind}1")
        for size in (2, 4, 8):
            bits = size * 8
            yield DType(f"{name}{bits}", size, (code, bits, 1), f"{_NATIVE}{kind}{size}")
    for kind, name, code, sizes in (("f", "float", 2, (2, 4, 8)), ("c", "complex", 5, (8, 16))):
        for size in sizes:
            bits = size * 8
            yield DType(f"{name}{bits}", size, (code, bits, 1), f"{_NATIVE}{kind}{size}")
    # A long double of C has different formats on different machines, so it has no DLPack code.
    yield DType("float128", 16, None, f"{_NATIVE}f16")
    yield DType("complex256", 32, None, f"{_NATIVE}c32")
    yield DType("bfloat16", 2, (4, 16, 1), None)
    yield DType("complex32", 4, (5, 32, 1), None)
    yield DType("float8_e4m3fn", 1, (10, 8, 1), None)
    yield DType("float8_e4m3fnuz", 1, (11, 8, 1), None)
    yield DType("float8_e5m2", 1, (12, 8, 1), None)
    yield DType("float8_e5m2fnuz", 1, (13, 8, 1), None)
    yield DType("float8_e8m0fnu", 1, (14, 8, 1), None)


_COMMON: Final = {dtype.name: dtype for dtype in _common()}
_BY_KIND: Final = {dtype.typestr[1:]: dtype for dtype in _COMMON.values() if dtype.typestr}

_TYPESTR: Final = re.compile(
    r"(?P<order>[<>|=]?)"
    r"(?:(?P<number>[biufc][0-9]{1,2})"
    r"|(?P<bytes>[SUV])(?P<length>[0-9]{1,10})"
    r"|(?P<time>[mM])8(?:\[(?P<count>[0-9]{0,10})(?P<unit>[YMWDhms]|[munpfa]s)\])?)"
)


def dtype_of(value: object) -> DType:
    """Return the dtype that a value names.

    Parameters
    ----------
    value
        A :class:`DType`; a common name, type string or JSON text; a dtype or scalar type of NumPy,
        CuPy or ml_dtypes; or a dtype of PyTorch. The call imports none of these libraries.

    Raises
    ------
    ConfigurationError
        The value does not name a dtype.
    UnsupportedError
        The dtype has elements that cannot be shared, such as Python objects.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        return _COMMON.get(value) or _parse(value)
    # A value can be a dtype of PyTorch or NumPy only if the library was imported. If another thread
    # is importing the library, the module may still lack its classes.
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if hasattr(torch, "dtype") and isinstance(value, torch.dtype):
        return _from_torch(value)
    if hasattr(numpy, "generic"):
        if isinstance(value, type) and issubclass(value, numpy.generic):
            value = numpy.dtype(value)
        if isinstance(value, numpy.dtype):
            return _from_numpy(value)
    msg = f"{shorten(value)} is not a dtype"
    raise ConfigurationError(msg, hint='pass a name such as "float32", or a framework\'s dtype')


@lru_cache(maxsize=256)
def from_text(text: str) -> DType:
    """Return the dtype whose name is ``text``.

    Raises
    ------
    ConfigurationError
        No dtype has exactly that name.
    """
    dtype = dtype_of(text)
    if dtype.name != text:
        msg = f"the name of this dtype is {shorten(dtype.name, 60)}, not {shorten(text, 60)}"
        raise ConfigurationError(msg)
    return dtype


def to_numpy(dtype: DType) -> "np.dtype[Any]":
    """Return the NumPy dtype. CuPy uses the same dtypes.

    Raises
    ------
    UnsupportedError
        Neither NumPy nor ml_dtypes has this dtype in this process.
    """
    # A program can change a struct dtype of NumPy in place, so each caller gets a new dtype.
    return _struct_to_numpy(dtype) if dtype.fields else _plain_to_numpy(dtype)


def _struct_to_numpy(dtype: DType) -> "np.dtype[Any]":
    import numpy as np

    formats: list[object] = []
    for one in dtype.fields:
        base = to_numpy(one.dtype)
        formats.append((base, one.shape) if one.shape else base)
    struct: np.dtype[Any] = np.dtype(
        {
            "names": [one.name for one in dtype.fields],
            "formats": formats,
            "offsets": [one.offset for one in dtype.fields],
            "itemsize": dtype.itemsize,
        }
    )
    return struct


@lru_cache(maxsize=256)
def _plain_to_numpy(dtype: DType) -> "np.dtype[Any]":
    import numpy as np

    if dtype.typestr is not None:
        try:
            return np.dtype(dtype.typestr)
        except TypeError as error:
            msg = f"NumPy has no dtype {dtype.name} on this machine"
            raise UnsupportedError(msg) from error
    try:
        import ml_dtypes
    except ImportError as error:
        msg = f"NumPy has no dtype {dtype.name} without ml_dtypes"
        raise UnsupportedError(msg, hint="install ml_dtypes") from error
    scalar = getattr(ml_dtypes, dtype.name, None)
    if scalar is None:
        msg = f"neither NumPy nor ml_dtypes {ml_dtypes.__version__} has the dtype {dtype.name}"
        raise UnsupportedError(msg, hint="install a newer ml_dtypes, or use PyTorch")
    found: np.dtype[Any] = np.dtype(scalar)
    return found


@lru_cache(maxsize=256)
def to_torch(dtype: DType) -> Any:
    """Return the PyTorch dtype.

    Raises
    ------
    UnsupportedError
        PyTorch has no such dtype.
    """
    import torch

    found = getattr(torch, dtype.name, None) if dtype.name in _COMMON else None
    if not isinstance(found, torch.dtype):
        msg = f"PyTorch {torch.__version__} has no dtype {clause(dtype.name, 60)}"
        raise UnsupportedError(msg, hint="share this data as a NumPy array")
    return found


@lru_cache(maxsize=256)
def _from_torch(value: object) -> DType:
    dtype = _COMMON.get(str(value).removeprefix("torch."))
    if dtype is None:
        msg = f"dtype {value} cannot be shared: crossmem does not support its elements"
        raise UnsupportedError(msg, hint="share a view or a copy with another dtype")
    return dtype


@lru_cache(maxsize=256)
def _from_numpy(value: "np.dtype[Any]", depth: int = 0) -> DType:
    if value.hasobject:
        msg = (
            f"{shorten(value)} holds Python objects, whose addresses are valid in one process only"
        )
        raise UnsupportedError(
            msg,
            hint="share a dict or list that contains arrays of numbers; it can also contain "
            "strings, lists and other dicts",
        )
    if value.isbuiltin == 2:  # noqa: PLR2004 - registered by another library, such as ml_dtypes
        if value.isnative and value.name in _COMMON:
            return _COMMON[value.name]
    elif value.kind == "V" and value.names is not None and value.fields is not None:
        _refuse_nesting(depth)
        fields = []
        for name in value.names:
            inner, offset, *title = value.fields[name]
            if title:
                what = f"field {shorten(name, 60)} of {shorten(value, 80)}"
                msg = f"{what} has a title; titles cannot be shared"
                raise UnsupportedError(msg)
            fields.append(Field(name, offset, _from_numpy(inner.base, depth + 1), inner.shape))
        return _struct(value.itemsize, fields)
    elif value.names is None and value.subdtype is None:
        return _parse(value.str)
    msg = f"elements of the NumPy dtype {shorten(value)} cannot be shared"
    raise UnsupportedError(msg)


def _parse(text: str) -> DType:
    if len(text) > MAX_TEXT:
        msg = f"the text of a dtype has at most {MAX_TEXT} characters, not {len(text)}"
        raise ConfigurationError(msg)
    if text.startswith("["):
        try:
            parts = json.loads(text)
        except (ValueError, RecursionError) as error:
            msg = f"{shorten(text)} is not a dtype: it is not valid JSON"
            raise ConfigurationError(msg) from error
        return _parse_struct(parts, 0)
    match = _TYPESTR.fullmatch(text)
    if match is None:
        msg = f"{shorten(text)} is not a dtype"
        raise ConfigurationError(msg, hint='pass a name such as "float32" or ">f4"')
    swapped = match["order"] not in {"", "|", "=", _NATIVE}
    if match["number"]:
        native = _BY_KIND.get(match["number"])
        if native is None:
            msg = f"{shorten(text)} is not a dtype: no numeric dtype has this size"
            raise ConfigurationError(msg)
        if not swapped or native.itemsize == 1:
            return native
        name = match["order"] + match["number"]
        return DType(name, native.itemsize, None, name)
    order = match["order"] if swapped else _NATIVE
    if match["time"]:
        name = order + match["time"] + "8"
        if match["unit"]:
            count = int(match["count"] or 1)
            _check(text, "the count of units", count, lowest=1)
            name += f"[{'' if count == 1 else count}{match['unit']}]"
        return DType(name, 8, None, name)
    length = int(match["length"])
    if match["bytes"] == "U":
        itemsize = length * 4
    else:
        itemsize, order = length, "|"
    _check(text, "the itemsize", itemsize, lowest=1)
    name = f"{order}{match['bytes']}{length}"
    return DType(name, itemsize, None, name)


def _parse_struct(parts: object, depth: int) -> DType:
    _refuse_nesting(depth)
    match parts:
        case [int(itemsize), list(rows)] if len(rows) <= MAX_FIELDS:
            return _struct(itemsize, [_parse_field(row, depth) for row in rows])
    msg = f"{shorten(parts)} is not a struct: it must be [itemsize, [field, ...]]"
    raise ConfigurationError(msg, hint=f"a struct has at most {MAX_FIELDS} fields")


def _parse_field(row: object, depth: int) -> Field:
    match row:
        case [str(name), int(offset), inner, *rest]:
            # A nested struct must be a JSON list, not a string that contains such a list. dtype_of
            # would parse the string from depth 0 again, so the string would evade MAX_NESTING.
            if isinstance(inner, str) and not inner.startswith("["):
                dtype = dtype_of(inner)
            else:
                dtype = _parse_struct(inner, depth + 1)
            match rest:
                case []:
                    return Field(name, offset, dtype, ())
                case [list(shape)] if shape:
                    return Field(name, offset, dtype, tuple(shape))
    forms = "[name, offset, dtype] or [name, offset, dtype, shape]"
    msg = f"{shorten(row)} is not a field: it must be {forms}"
    raise ConfigurationError(msg)


def _struct(itemsize: int, fields: list[Field]) -> DType:
    """Check the bounds of a struct, and return its dtype."""
    if not 1 <= len(fields) <= MAX_FIELDS:
        msg = f"a struct must have 1 to {MAX_FIELDS} fields, not {len(fields)}"
        raise ConfigurationError(msg)
    names = [one.name for one in fields]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"two fields of a struct have the name {shorten(twice, 60)}; names must be distinct"
        raise ConfigurationError(msg)
    _check("a struct", "the itemsize", itemsize, lowest=1)
    for one in fields:
        what = f"field {shorten(one.name, 60)}"
        _check(what, "the offset", one.offset)
        if len(one.shape) > _MAX_FIELD_DIMENSIONS:
            msg = f"{what} has {len(one.shape)} dimensions, more than {_MAX_FIELD_DIMENSIONS}"
            raise ConfigurationError(msg)
        for size in one.shape:
            _check(what, "a size", size)
        _check(
            what, "its size in bytes", math.prod(max(n, 1) for n in one.shape) * one.dtype.itemsize
        )
        end = one.offset + math.prod(one.shape) * one.dtype.itemsize
        if end > itemsize:
            msg = f"{what} ends at byte {end} of a struct of {itemsize} bytes"
            raise ConfigurationError(msg)
    # Each field can be a struct whose own text has almost MAX_TEXT characters. Without this check,
    # the joined text could have millions of characters before it is refused.
    if sum(len(one.name) + len(one.dtype.name) for one in fields) > MAX_TEXT:
        msg = f"the text of a struct has at most {MAX_TEXT} characters"
        raise ConfigurationError(msg)
    name = json.dumps([itemsize, [_row(one) for one in fields]], separators=(",", ":"))
    if len(name) > MAX_TEXT:
        msg = f"the text of a struct has at most {MAX_TEXT} characters, not {len(name)}"
        raise ConfigurationError(msg)
    return DType(name, itemsize, None, f"|V{itemsize}", tuple(fields))


def _row(one: Field) -> list[object]:
    inner = json.loads(one.dtype.name) if one.dtype.fields else one.dtype.name
    return [one.name, one.offset, inner, *([one.shape] if one.shape else ())]


def _refuse_nesting(depth: int) -> None:
    if depth >= MAX_NESTING:
        msg = f"structs are nested more than {MAX_NESTING} levels deep"
        raise ConfigurationError(msg)


def _check(what: str, name: str, value: object, *, lowest: int = 0) -> None:
    if type(value) is not int or not lowest <= value <= MAX_ITEMSIZE:
        shown = f"{name} is {shorten(value, 60)}"
        msg = f"{clause(what, 70)}: {shown}; {lowest} to {MAX_ITEMSIZE} is allowed"
        raise ConfigurationError(msg)
