# SPDX-License-Identifier: Apache-2.0
"""Writes a tree as JSON, with numbers in place of arrays, and reads such JSON.

============== ==================================================================================
in JSON        means
============== ==================================================================================
null, true, 1  None, True, 1
1.5, "text"    a finite float, a str that is valid Unicode
[...]          a list
{"a": n}       the array with the number n
{"t": [...]}   a tuple
{"d": [...]}   a dict: a list of pairs
{"o": [p, a]}  an OrderedDict: its pairs, then the name and value of its ``_metadata``, if any
{"c": [...]}   a dataclass: name of its class, then pairs of field and value
{"n": [...]}   a named tuple: name of its class, then values
{"b": "..."}   bytes, in base64
{"u": "..."}   the base64 text of a str that is not valid Unicode, such as some file names
{"f": "nan"}   a float that is not finite
{"z": [r, i]}  a complex number, its parts as strings
{"s": [d, b]}  a NumPy scalar: its dtype (``str`` or ``bytes`` for strings) and its bytes
{"i": [n, x]}  a mutable container that occurs again: its number, then its JSON
============== ==================================================================================

Mutable containers are numbered from 0, in the order in which their JSON is finished. The module
``classes`` describes the lookup of classes.
"""

import math
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, NamedTuple

from crossmem.arrays import dtype_of, from_text, to_numpy
from crossmem.arrays.libraries import require, used
from crossmem.errors import ConfigurationError, CrossmemError, InvalidHandleError, UnsupportedError
from crossmem.guards import clause, shorten
from crossmem.trees.classes import make_dataclass, make_named_tuple, name_of, refuse_more, values_of
from crossmem.trees.counting import MAX_VALUES

__all__ = ["FORMS", "MAX_DEPTH", "read", "to_base64", "write"]

MAX_DEPTH: Final = 32
"""The largest depth of nested containers."""
_MAX_INTEGER_BITS: Final = 4096
"""The largest number of bits of an integer. The JSON parser takes long for larger integers."""
_MAX_COLLISIONS: Final = 256
"""The largest number of hash collisions in one dict. n collisions cost time in proportion to n²."""

AddArray = Callable[[Any, Callable[[], str]], "int | None"]
"""Returns an array's number, else None. The callable argument returns the name of the value."""


def write(value: Any, add_array: AddArray) -> Any:
    """Return a value as JSON values.

    Raises
    ------
    UnsupportedError
        The value contains something other than containers, arrays and plain values.
    ConfigurationError
        The depth, the number of values or an integer is too large. A cycle counts as too deep.
    """
    return _Writer(add_array).write(value, ())


class _Writer:
    def __init__(self, add_array: AddArray) -> None:
        self._add_array = add_array
        self._values = 0
        self._ended: dict[int, tuple[Any, int, Any]] = {}
        """Each finished mutable container, with its number and its node in the JSON. The key is the
        container's ``id()``."""

    def write(self, value: Any, path: tuple[Any, ...]) -> Any:
        kind = type(value)
        if kind in _THEMSELVES:
            return value
        write_plain = _PLAIN.get(kind)
        if write_plain is not None:
            return write_plain(value, path)
        number = self._add_array(value, lambda: _name(path))
        if number is not None:
            return {"a": number}
        numpy = used("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return _write_scalar(value, numpy)
        if len(path) >= MAX_DEPTH:
            msg = f"{_name(path)} is nested more than {MAX_DEPTH} levels deep, or contains itself"
            raise ConfigurationError(msg, operation="share")
        write_container = _CONTAINERS.get(kind)
        if write_container is not None:
            node = write_container(self, value, path)
        else:
            node = self._write_object(value, kind, path)
        if not _can_be_changed(node):
            return node
        # A repeated container is written and counted in full each time. So a few bytes of an
        # untrusted message cannot expand to many values.
        _, number, first = self._ended.setdefault(id(value), (value, len(self._ended), node))
        return node if first is node else {"i": [number, first]}

    def _write_object(self, value: Any, kind: type, path: tuple[Any, ...]) -> Any:
        if is_dataclass(kind):
            name = name_of(kind, lambda: _name(path))
            return {"c": [name, self.pairs(values_of(value, lambda: _name(path)), path)]}
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            name = name_of(kind, lambda: _name(path))
            refuse_more(value, lambda: _name(path))
            return {"n": [name, self.values(value, path)]}
        kind_name = clause(f"{kind.__module__}.{kind.__qualname__}", 100)
        msg = f"{_name(path)} is a {kind_name}, which cannot be shared"
        raise UnsupportedError(
            msg,
            operation="share",
            hint="share arrays, plain values, and dicts, lists, tuples and dataclasses of these",
        )

    def _count(self, values: Any, path: tuple[Any, ...]) -> None:
        self._values += len(values)
        if self._values > MAX_VALUES:
            msg = f"{_name(path)} brings the tree to more than {MAX_VALUES} values"
            hint = "a container that occurs twice counts twice; put numbers into an array"
            raise ConfigurationError(msg, operation="share", hint=hint)

    def values(self, values: Any, path: tuple[Any, ...]) -> list[Any]:
        self._count(values, path)
        return [self.write(one, (*path, i)) for i, one in enumerate(values)]

    def pairs(self, items: Any, path: tuple[Any, ...]) -> list[Any]:
        self._count(items, path)
        return [
            [self.write(key, (*path, "key")), self.write(one, (*path, key))] for key, one in items
        ]


def _write_scalar(value: Any, numpy: Any) -> Any:
    # NumPy drops the trailing NUL characters of strings in arrays, so strings are sent as bytes.
    if isinstance(value, numpy.bytes_):
        return {"s": ["bytes", to_base64(bytes(value))]}
    if isinstance(value, numpy.str_):
        return {"s": ["str", to_base64(value.encode(errors="surrogatepass"))]}
    return {"s": [dtype_of(value.dtype).name, to_base64(value.tobytes())]}


def _can_be_changed(node: Any) -> bool:
    """Whether a node describes a mutable container.

    If such a container occurs twice in a tree, the reader puts one object in both places.
    """
    return type(node) is list or not node.keys().isdisjoint(_CHANGEABLE)


# The functions take the writer as an argument. A writer with a table of its bound methods would be
# a reference cycle, which keeps the arrays alive until the garbage collector runs.
_CONTAINERS: Final[dict[type, Callable[[_Writer, Any, tuple[Any, ...]], Any]]] = {
    list: lambda writer, value, path: writer.values(value, path),
    tuple: lambda writer, value, path: {"t": writer.values(value, path)},
    dict: lambda writer, value, path: {"d": writer.pairs(value.items(), path)},
    OrderedDict: lambda writer, value, path: {
        "o": [writer.pairs(value.items(), path), writer.pairs(_attributes(value), path)]
    },
}


def _attributes(value: OrderedDict[Any, Any]) -> list[tuple[str, Any]]:
    """Return ``_metadata``, in which PyTorch's state dicts keep the versions of the modules."""
    return [(name, one) for name, one in vars(value).items() if name == "_metadata"]


def _write_integer(value: int, path: tuple[Any, ...]) -> Any:
    if value.bit_length() > _MAX_INTEGER_BITS:
        msg = f"{_name(path)} is an integer of more than {_MAX_INTEGER_BITS} bits"
        raise ConfigurationError(msg, operation="share")
    return value


def _write_text(value: str, _path: tuple[Any, ...]) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"u": to_base64(value.encode(errors="surrogatepass"))}
    return value


def _write_float(value: float, _path: tuple[Any, ...]) -> Any:
    return value if math.isfinite(value) else {"f": repr(value)}


def to_base64(data: bytes) -> str:
    """Return bytes as base64 text."""
    return b64encode(data).decode("ascii")


_THEMSELVES: Final = frozenset({type(None), bool})
_PLAIN: Final[dict[type, Callable[[Any, tuple[Any, ...]], Any]]] = {
    int: _write_integer,
    str: _write_text,
    float: _write_float,
    bytes: lambda value, _path: {"b": to_base64(value)},
    complex: lambda value, _path: {"z": [repr(value.real), repr(value.imag)]},
}


def _name(path: tuple[Any, ...]) -> str:
    """Return the name of a part of the shared tree: an expression such as ``x['a'][0]``."""
    return clause("x" + "".join(f"[{shorten(step, 50)}]" for step in path), 60)


_WRONG: Final = (
    ArithmeticError,
    AttributeError,
    CrossmemError,
    LookupError,
    SystemError,
    TypeError,
    ValueError,
)
"""Exceptions that an invalid node causes. NumPy raises SystemError for an invalid code point."""


class _Known(NamedTuple):
    """The state of a reader: the arrays, and all finished mutable containers with their nodes."""

    arrays: Sequence[Any]
    ended: list[tuple[Any, Any]]


def read(node: Any, arrays: Sequence[Any]) -> Any:
    """Return the value of a node, with arrays in place of their numbers.

    Raises
    ------
    InvalidHandleError
        The node is invalid.
    UnsupportedError
        A class, a library or a dtype is missing in this process.
    """
    try:
        return _read(node, _Known(arrays, []), 0)
    except (InvalidHandleError, UnsupportedError):
        raise
    except _WRONG as error:
        msg = f"these bytes are not a shared tree: {shorten(error)}"
        raise InvalidHandleError(msg, operation="receive") from error


def _read(node: Any, known: _Known, depth: int) -> Any:
    if type(node) is dict:
        ((tag, content),) = node.items()
        if tag == "a":
            if type(content) is not int or content < 0:
                msg = f"an array cannot have the number {shorten(content)}"
                raise ValueError(msg)
            return known.arrays[content]
        if tag == "i":
            return _read_again(content, known)
        form = FORMS.get(tag)
        if form is None:
            return _READERS[tag](content)
        inner, beside = form.split(content)
        inner = (_read_pairs if form.has_keys else _read_all)(inner, known, depth + 1)
        if form.has_attributes:
            # Containers are numbered in the order in which they finish. So the reader keeps the
            # writer's order: first the content, then the attributes.
            beside = _read_pairs(beside, known, depth + 1)
        made = form.make(inner, beside)
        if tag in _CHANGEABLE:
            known.ended.append((node, made))
        return made
    if type(node) is list:
        made = _read_all(node, known, depth + 1)
        known.ended.append((node, made))
        return made
    return node


def _read_again(content: Any, known: _Known) -> Any:
    number, node = content
    if type(number) is not int or number < 0 or known.ended[number][0] != node:
        msg = f"reference {shorten(number)} does not name an earlier container"
        raise ValueError(msg)
    return known.ended[number][1]


def _read_all(nodes: Any, known: _Known, depth: int) -> list[Any]:
    _check_list(nodes, depth)
    return [_read(one, known, depth) for one in nodes]


def _check_list(nodes: Any, depth: int) -> None:
    if type(nodes) is not list or depth > MAX_DEPTH + 1:
        msg = f"a list is missing, or nested more than {MAX_DEPTH} levels deep"
        raise ValueError(msg)


def _read_pairs(nodes: Any, known: _Known, depth: int) -> list[tuple[Any, Any]]:
    _check_list(nodes, depth)
    pairs = []
    for pair in nodes:
        _check_list(pair, depth)
        key, value = pair
        # A string is its own node. Most keys are strings, so this test saves most calls of _read().
        found = key if type(key) is str else _read(key, known, depth)
        pairs.append((found, _read(value, known, depth)))
    if len(pairs) > _MAX_COLLISIONS:
        # An attacker can choose integers that all have the same hash. The insertion of 16 MiB of
        # such integers into a dict could take hours.
        hashes = {hash(key) for key, _ in pairs}
        if len(pairs) - len(hashes) > _MAX_COLLISIONS:
            msg = f"more than {_MAX_COLLISIONS} keys have colliding hashes"
            raise ValueError(msg)
    return pairs


def _make_ordered(
    pairs: list[tuple[Any, Any]], attributes: list[tuple[Any, Any]]
) -> OrderedDict[Any, Any]:
    made = OrderedDict(pairs)
    for name, value in attributes:
        if name != "_metadata":
            msg = f"an OrderedDict has the attribute {shorten(name)}"
            raise ValueError(msg)
        vars(made)[name] = value
    return made


class _Form(NamedTuple):
    """The JSON of one kind of container: the content, and perhaps an additional part.

    Parameters
    ----------
    make
        A function that makes the container from the content and the additional part.
    has_keys
        Whether the content consists of pairs of key and value. Otherwise, it consists of values.
    is_named
        Whether the additional part is the name of the class, which comes before the content.
    has_attributes
        Whether the additional part consists of attributes, which come after the content.
    """

    make: Callable[[list[Any], Any], Any]
    has_keys: bool = False
    is_named: bool = False
    has_attributes: bool = False

    def split(self, content: Any) -> tuple[Any, Any]:
        """Return the content of a container, and the additional part or None."""
        beside = None
        if self.is_named:
            beside, content = content
        elif self.has_attributes:
            content, beside = content
        return content, beside


FORMS: Final = {
    "t": _Form(lambda values, _: tuple(values)),
    "d": _Form(lambda pairs, _: dict(pairs), has_keys=True),
    "o": _Form(_make_ordered, has_keys=True, has_attributes=True),
    "c": _Form(make_dataclass, has_keys=True, is_named=True),
    "n": _Form(make_named_tuple, is_named=True),
}

_CHANGEABLE: Final = frozenset({"c", "d", "o"})
"""The tags of mutable containers. A list has no tag and is mutable, too."""


def _read_float(content: Any) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]


def _read_complex(content: Any) -> complex:
    real, imaginary = content
    return complex(float(real), float(imaginary))


def _read_scalar(content: Any) -> Any:
    name, data = content
    blob, numpy = b64decode(data, validate=True), require("numpy")
    if name == "bytes":
        return numpy.bytes_(blob)
    if name == "str":
        return numpy.str_(blob.decode(errors="surrogatepass"))
    dtype = from_text(name)
    if len(blob) != dtype.itemsize:
        msg = f"a scalar of {shorten(name, 40)} has {len(blob)} bytes"
        raise ValueError(msg)
    return numpy.frombuffer(blob, to_numpy(dtype))[0]


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "b": lambda content: b64decode(content, validate=True),
    "f": _read_float,
    "u": lambda content: b64decode(content, validate=True).decode(errors="surrogatepass"),
    "z": _read_complex,
    "s": _read_scalar,
}
