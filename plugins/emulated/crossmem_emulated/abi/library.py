# SPDX-License-Identifier: Apache-2.0
"""The classes by which the packages ``ascend`` and ``hip`` describe their shared libraries."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final, Protocol

from crossmem.errors import BackendNotFoundError, ConfigurationError
from crossmem.guards import shorten

__all__ = ["LIBRARIES", "TYPES", "Binding", "Library", "Prototype", "library_named"]

TYPES: Final = "crossmem_types"
"""Name of a module in the folder of a built library. It contains the declarations for cffi."""

_CUDA_HINT: Final = (
    "only crossmem's own calls can run on an emulated CUDA: "
    "crossmem.device('cuda:0', runtime='emulated')"
)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_PROTOTYPE: Final = re.compile(r"(?P<result>[\w ]+?[ *]+)(?P<name>\w+)\((?P<parameters>[^()]*)\)")
_PARAMETER_NAME: Final = re.compile(r"(\w+)\s*(?:\[\w*\])?$")


@dataclass(frozen=True, slots=True)
class Prototype:
    """The declaration of one C function.

    Parameters
    ----------
    result
        C type of the result.
    name
        The function's name.
    parameters
        C text of the parameters, without the parentheses.
    """

    result: str
    name: str
    parameters: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        if self.parameters == "void":
            return ()
        found = []
        for text in self.parameters.split(","):
            match = _PARAMETER_NAME.search(text.strip())
            assert match is not None, self  # noqa: S101 - our own declarations
            found.append(match.group(1))
        return tuple(found)


class Binding(Protocol):
    """The Python side of a library in one process."""

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the Python function that implements each C function. The key is the C name.

        A C function without an entry has no effect, and only its first call is logged. If the C
        function returns a number, the number is the result of :meth:`refuse`. If the C function
        returns a pointer, the pointer is null.

        A Python function gets cffi's objects for the C arguments, and cffi converts the result of
        the Python function. If the Python function raises, the exception is logged, and the C
        function returns the vendor's unknown error. A C function that does not return error codes
        returns 0 in this case.
        """
        ...

    def refuse(self, name: str) -> Any:
        """Return the result of the unsupported C function ``name``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One shared library of a vendor.

    Parameters
    ----------
    name
        Name of the emulation, such as ``"hip"``.
    sonames
        Sonames with which programs were linked, the newest first. The soname says for which edition
        of the library a program was made. So each soname has a file of its own, and ``bind`` gets
        the soname of the file that the program loaded.
    links
        Names of symbolic links to the file of the first soname.
    types
        C declarations of types: typedefs, structures and enumerations.
    prototypes
        C declarations of functions. Each declaration has the form ``result name(type name, ...);``.
        A parameter that is a pointer to a function needs a typedef.
    code
        C definitions of functions that need no emulation. The library exports them, too.
    node
        Version of the symbols that ``nodes`` does not list; empty if those have no version.
    nodes
        Versions of symbols. The key is the function's name.
    unknown
        The error code of a function if the emulation itself fails: the vendor's "unknown error".
    ended
        The error code of a function that is called after the process's Python has ended.
    profiles
        The editions of the vendor's rules.
    profile_field
        Field of :class:`~crossmem_emulated.options.Options` that chooses the edition.
    entry_of
        A function that takes the name of a C function, and returns the emulation's name for this
        function. The result is None if no fault can be injected into the C function.
    fault_hint
        The hint of the error that a user gets who requests a fault in a wrong syntax. The hint
        gives an example of a fault, and says what the fault does.
    bind
        A function that makes the binding. Its arguments are the ``FFI`` object with all
        declarations, and the name of the file that the program loaded.
    """

    name: str
    sonames: tuple[str, ...]
    links: tuple[str, ...] = ()
    types: str
    prototypes: str
    code: str = ""
    node: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    unknown: int
    ended: int
    profiles: tuple[str, ...]
    profile_field: str
    entry_of: Callable[[str], str | None]
    fault_hint: str
    bind: Callable[[Any, str], Binding]

    def functions(self) -> list[Prototype]:
        """Return the declared functions, in order."""
        return _parse(self.prototypes)

    def check_profile(self, name: str) -> None:
        """Raise if the vendor's rules have no edition ``name``.

        Raises
        ------
        ConfigurationError
            The rules have no such edition. The message names the existing editions.
        """
        if name not in self.profiles:
            known = ", ".join(self.profiles)
            raise ConfigurationError(
                f"{self.name} has no profile {shorten(name, 50)}; there are: {known}"
            )

    def with_prototypes(self, more: str) -> "Library":
        """Return a copy of this library with additional prototypes."""
        return replace(self, prototypes=self.prototypes + more)

    def exports(self) -> list[str]:
        """Return the names of all functions that the library exports."""
        defined = re.findall(r"^EXPORTED [\w ]+?[ *]+(\w+)\(", self.code, re.MULTILINE)
        return [one.name for one in self.functions()] + defined


def _parse(text: str) -> list[Prototype]:
    statements = (" ".join(one.split()) for one in _COMMENT.sub("", text).split(";"))
    found = []
    for statement in filter(None, statements):
        match = _PROTOTYPE.fullmatch(statement)
        assert match is not None, statement  # noqa: S101 - our own declarations
        found.append(Prototype(match["result"].strip(), match["name"], match["parameters"].strip()))
    return found


LIBRARIES: Final[Mapping[str, str]] = {
    "ascend": "crossmem_emulated.abi.ascend",
    "hip": "crossmem_emulated.abi.hip",
}
"""The modules whose ``LIBRARY`` describes an emulated library. The key is the emulation's name."""


def library_named(name: str) -> Library:
    """Return the library of an emulation.

    Raises
    ------
    BackendNotFoundError
        No emulated library has that name. The message lists the existing names.
    """
    if name not in LIBRARIES:
        raise BackendNotFoundError(
            f"no emulated library for {shorten(name)}; there are: {', '.join(LIBRARIES)}",
            hint=_CUDA_HINT if name == "cuda" else None,
            backend=name,
        )
    library: Library = import_module(LIBRARIES[name]).LIBRARY
    return library
