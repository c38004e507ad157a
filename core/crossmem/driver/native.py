# SPDX-License-Identifier: Apache-2.0
"""Vendors' libraries: found in a fixed order, and called through ctypes by a table of prototypes.

ctypes lets other threads run during a call, so an open that waits for seconds stops nobody.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from typing_extensions import override

__all__ = [
    "Array",
    "Fixed",
    "Functions",
    "In",
    "Out",
    "Parameter",
    "Prototype",
    "Struct",
    "Value",
    "candidates",
    "open_library",
]

_MAPS: Final = Path("/proc/self/maps")
_PERMISSIONS: Final = 1


# Search -----------------------------------------------------------------------------------


def candidates(
    names: Sequence[str], folders: Sequence[str], stem: str, maps: str
) -> tuple[str, ...]:
    """Return what to load, in order: the copy that is loaded, the loader's choice, the folders.

    A process that already has a copy must call that one, because another one does not know its
    memory.

    Parameters
    ----------
    names
        File names, the newest version first.
    folders
        Where to look for each name after the loader was asked for all of them.
    stem
        How the file names of all versions begin, such as ``"libm.so"``.
    maps
        The process's memory map, as in ``/proc/self/maps``.
    """
    loaded = (
        f"/{path}"
        for line, _, path in (entry.partition("/") for entry in maps.splitlines())
        # A file that is only read is mapped too, but never to be executed.
        if PurePath(path).name.startswith(stem) and "x" in line.split()[_PERMISSIONS]
    )
    elsewhere = (str(PurePath(folder, name)) for folder in folders for name in names)
    return tuple(dict.fromkeys((*loaded, *names, *elsewhere)))


class LibraryNotFoundError(OSError):
    """No copy of a vendor's library can be loaded.

    Parameters
    ----------
    message
        Which library.
    tried
        Each path that was tried, and what is wrong with it.
    """

    def __init__(self, message: str, tried: Sequence[str]) -> None:
        super().__init__(message)
        self.tried = tuple(tried)

    @property
    def details(self) -> str:
        """What was tried, one path a line."""
        return "\n".join(self.tried)


def open_library(names: Sequence[str], folders: Sequence[str], stem: str) -> ctypes.CDLL:
    """Load the first of the `candidates` that can be loaded.

    Raises
    ------
    LibraryNotFoundError
        None can.
    """
    tried = []
    for path in candidates(names, folders, stem, _MAPS.read_text("utf-8", "surrogateescape")):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            # The loader names the file that it misses, which may be one that a library needs.
            reason = str(error).removeprefix(f"{path}: ")
            if reason.startswith("cannot open shared object file: No such"):
                reason = "no such file" if "/" in path else "not on the library search path"
            tried.append(f"{path}: {reason}")
    msg = f"no {stem} can be loaded"
    raise LibraryNotFoundError(msg, tried)


# Calls ------------------------------------------------------------------------------------


class Parameter:
    """What one or several parameters of a C function are made of.

    Attributes
    ----------
    kinds
        Their types.
    takes
        How many arguments of the call it uses.
    """

    kinds: tuple[Any, ...]
    takes = 1

    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        """Return what C gets, taking arguments of the call."""
        raise NotImplementedError


class In(Parameter):
    """An argument that is passed as it is.

    Parameters
    ----------
    kind
        A type of ctypes, or another one with a method ``from_param``.
    """

    def __init__(self, kind: Any) -> None:
        self.kinds = (kind,)

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        return (next(given),)


class Fixed(Parameter):
    """A parameter that is the same in every call.

    Parameters
    ----------
    kind
        Its type.
    value
        What is passed.
    """

    takes = 0

    def __init__(self, kind: Any, value: Any) -> None:
        self.kinds = (kind,)
        self._value = value

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        return (self._value,)


class Value(Parameter):
    """A structure that is passed by value, of which its bytes are given.

    Parameters
    ----------
    kind
        Its type.
    """

    def __init__(self, kind: type[ctypes.Structure]) -> None:
        self.kinds = (kind,)
        self._kind = kind

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        return (self._kind.from_buffer_copy(next(given)),)


class Struct(Parameter):
    """The address of a structure.

    Parameters
    ----------
    kind
        Its type.
    fields
        Names of the fields that arguments of the call fill, in their order; the others are 0.
    """

    def __init__(self, kind: type[ctypes.Structure], *fields: str) -> None:
        self.kinds = (ctypes.POINTER(kind),)
        self.takes = len(fields)
        self._kind = kind
        self._fields = fields

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        return (ctypes.byref(self._kind(**{name: next(given) for name in self._fields})),)


class Array(Parameter):
    """A sequence, passed as the address of its first element and its length.

    Parameters
    ----------
    kind
        Type of an element: a number, or a structure, for which a tuple of its fields is given.
    """

    def __init__(self, kind: Any) -> None:
        self.kinds = (ctypes.POINTER(kind), ctypes.c_size_t)
        self._kind = kind

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        elements = next(given)
        return (self._kind * len(elements))(*elements), len(elements)


def _plain(cell: Any) -> Any:
    """Return a result as Python has it; ctypes has None for the address 0."""
    return cell.value or 0


class Out(Parameter):
    """The address of a place for a result, which the call returns and does not take.

    Parameters
    ----------
    kind
        Type of the result.
    convert
        Makes what the call returns of it.
    """

    takes = 0

    def __init__(self, kind: Any, convert: Callable[[Any], Any] = _plain) -> None:
        self.kinds = (ctypes.POINTER(kind),)
        self.kind = kind
        self.convert = convert


class Prototype:
    """A C function.

    Parameters
    ----------
    symbol
        Its name in the library.
    parameters
        What it takes, in C's order.
    restype
        Type of what it returns: a result code, where nothing else is said.
    """

    def __init__(self, symbol: str, *parameters: Parameter, restype: Any = ctypes.c_int) -> None:
        self.symbol = symbol
        self.parameters = parameters
        self.restype = restype
        self.takes = sum(one.takes for one in parameters)


class Functions:
    """Functions of a library, each bound when it is first used.

    Parameters
    ----------
    library
        The library.
    prototypes
        What can be called, by the names that callers use.
    """

    def __init__(self, library: ctypes.CDLL, prototypes: Mapping[str, Prototype]) -> None:
        self._library = library
        self._prototypes = prototypes
        self._bound: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        prototype = self._prototypes.get(name)
        return prototype is not None and hasattr(self._library, prototype.symbol)

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call a function; return what it gives through parameters and, last, what it returns.

        Raises
        ------
        TypeError
            Where the arguments are too many or too few.
        """
        prototype = self._prototypes[name]
        if len(arguments) != prototype.takes:
            msg = f"{name} takes {prototype.takes} arguments, not {len(arguments)}"
            raise TypeError(msg)
        given = iter(arguments)
        passed: list[Any] = []
        results: list[tuple[Out, Any]] = []
        for one in prototype.parameters:
            if isinstance(one, Out):
                cell = one.kind()
                results.append((one, cell))
                passed.append(ctypes.byref(cell))
            else:
                passed.extend(one.passed(given))
        code = self._function(name)(*passed)
        return *(one.convert(cell) for one, cell in results), code

    def _function(self, name: str) -> Any:
        function = self._bound.get(name)
        if function is None:
            prototype = self._prototypes[name]
            # An object of its own: as an attribute, it would be shared with other prototypes.
            function = self._library[prototype.symbol]
            function.restype = prototype.restype
            function.argtypes = tuple(kind for one in prototype.parameters for kind in one.kinds)
            self._bound[name] = function
        return function
