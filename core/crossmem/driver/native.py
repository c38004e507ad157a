# SPDX-License-Identifier: Apache-2.0
"""The search for vendors' libraries in a fixed order, and calls of their functions with ctypes.

ctypes releases the GIL during a call, so a library call that takes seconds blocks no other thread.
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
    """Return the paths and names to load, in order.

    First come the paths of copies that the process has loaded. Then come the names without a
    folder; the loader searches its own folders for them. Last come the paths in ``folders``.

    If the process has loaded a copy already, it must call that copy, because another copy does not
    know the memory that the process has allocated.

    Parameters
    ----------
    names
        File names, the newest version first.
    folders
        The folders to search after the loader has failed for all names.
    stem
        The common start of the file names of all versions, such as ``"libm.so"``.
    maps
        The process's memory map, as in ``/proc/self/maps``.
    """
    loaded = (
        f"/{path}"
        for line, _, path in (entry.partition("/") for entry in maps.splitlines())
        # An executable mapping shows that the library is loaded. A program that only reads the file
        # may also map the file, but that mapping is not executable.
        if PurePath(path).name.startswith(stem) and "x" in line.split()[_PERMISSIONS]
    )
    elsewhere = (str(PurePath(folder, name)) for folder in folders for name in names)
    return tuple(dict.fromkeys((*loaded, *names, *elsewhere)))


class LibraryNotFoundError(OSError):
    """No copy of a vendor's library can be loaded.

    Parameters
    ----------
    tried
        Each path that was tried, with its error.
    """

    def __init__(self, message: str, tried: Sequence[str]) -> None:
        super().__init__(message)
        self.tried = tuple(tried)

    @property
    def details(self) -> str:
        """A text with one line for each path that was tried: the path and its error."""
        return "\n".join(self.tried)


def open_library(names: Sequence[str], folders: Sequence[str], stem: str) -> ctypes.CDLL:
    """Load the first of the `candidates` that can be loaded.

    Raises
    ------
    LibraryNotFoundError
        No candidate can be loaded.
    """
    tried = []
    for path in candidates(names, folders, stem, _MAPS.read_text("utf-8", "surrogateescape")):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            # The loader's text begins with the name of the faulty file: this path, or a dependency
            # of the library. Only this path is removed, so the reason names a missing dependency.
            reason = str(error).removeprefix(f"{path}: ")
            if reason.startswith("cannot open shared object file: No such"):
                reason = "no such file" if "/" in path else "not on the library search path"
            tried.append(f"{path}: {reason}")
    msg = f"no {stem} can be loaded"
    raise LibraryNotFoundError(msg, tried)


# Calls ------------------------------------------------------------------------------------


class Parameter:
    """One or several parameters of a C function.

    Attributes
    ----------
    kinds
        The C types of these parameters.
    takes
        Number of arguments of :meth:`Functions.call` that these parameters use.
    """

    kinds: tuple[Any, ...]
    takes = 1

    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        """Return the C arguments. ``given`` yields the arguments of :meth:`Functions.call`."""
        raise NotImplementedError


class In(Parameter):
    """An argument that is passed unchanged.

    Parameters
    ----------
    kind
        A ctypes type, or another type with a method ``from_param``.
    """

    def __init__(self, kind: Any) -> None:
        self.kinds = (kind,)

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        return (next(given),)


class Fixed(Parameter):
    """A parameter whose argument is the same in every call."""

    takes = 0

    def __init__(self, kind: Any, value: Any) -> None:
        self.kinds = (kind,)
        self._value = value

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        return (self._value,)


class Value(Parameter):
    """A structure that is passed by value. The caller passes the structure's bytes."""

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
    fields
        Names of the fields that the caller's arguments set, in the order of the arguments. The
        other fields are 0.
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
    """A sequence, passed as two arguments: the address of the first element, and the length.

    Parameters
    ----------
    kind
        Type of an element: a number or a structure. The caller passes each structure as a tuple of
        its fields.
    """

    def __init__(self, kind: Any) -> None:
        self.kinds = (ctypes.POINTER(kind), ctypes.c_size_t)
        self._kind = kind

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        elements = next(given)
        return (self._kind * len(elements))(*elements), len(elements)


def _plain(cell: Any) -> Any:
    """Return the Python value of a ctypes object. A null pointer, which is None in ctypes, is 0."""
    return cell.value or 0


class Out(Parameter):
    """The address to which the C function writes a result.

    :meth:`Functions.call` takes no argument for this parameter, and returns the result.

    Parameters
    ----------
    convert
        Converts the ctypes object to the returned value.
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
    restype
        Type of the return value. The default is the type of a result code.
    """

    def __init__(self, symbol: str, *parameters: Parameter, restype: Any = ctypes.c_int) -> None:
        self.symbol = symbol
        self.parameters = parameters
        self.restype = restype
        self.takes = sum(one.takes for one in parameters)


class Functions:
    """Functions of a library, each bound at its first use.

    Parameters
    ----------
    prototypes
        The C functions. The key is the name that :meth:`call` takes.
    """

    def __init__(self, library: ctypes.CDLL, prototypes: Mapping[str, Prototype]) -> None:
        self._library = library
        self._prototypes = prototypes
        self._bound: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        prototype = self._prototypes.get(name)
        return prototype is not None and hasattr(self._library, prototype.symbol)

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call a function. Return its output parameters, followed by its return value.

        Raises
        ------
        TypeError
            The arguments are too many or too few.
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
            # Each evaluation of ``library[symbol]`` makes a new function object. Attribute access
            # would return one object for all prototypes of a symbol. They would then have the same
            # types.
            function = self._library[prototype.symbol]
            function.restype = prototype.restype
            function.argtypes = tuple(kind for one in prototype.parameters for kind in one.kinds)
            self._bound[name] = function
        return function
