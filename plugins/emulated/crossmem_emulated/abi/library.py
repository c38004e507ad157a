# SPDX-License-Identifier: Apache-2.0
"""What a vendor's package says of its library: files, C declarations, and where Python begins."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final, Protocol

from crossmem.errors import BackendNotFoundError, ConfigurationError
from crossmem.guards import shorten

__all__ = ["LIBRARIES", "TYPES", "Binding", "Library", "Prototype", "library_named"]

TYPES: Final = "crossmem_types"
"""Module, in the folder of a built library, that has its declarations for cffi."""

_CUDA_HINT: Final = (
    "only crossmem's own calls can run on an emulated CUDA: "
    "crossmem.device('cuda:0', runtime='emulated')"
)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_PROTOTYPE: Final = re.compile(r"(?P<result>[\w ]+?[ *]+)(?P<name>\w+)\((?P<parameters>[^()]*)\)")
_PARAMETER_NAME: Final = re.compile(r"(\w+)\s*(?:\[\w*\])?$")


@dataclass(frozen=True, slots=True)
class Prototype:
    """One C function.

    Parameters
    ----------
    result
        C type of the result.
    name
        Its name.
    parameters
        C text between the brackets.
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
        """Return what is called for each C function, by its name; what is missing is refused.

        A function is given what cffi makes of the C arguments, and returns what cffi can turn
        into the C result. What it raises becomes the vendor's unknown error, with a log.
        """
        ...

    def refuse(self, name: str) -> Any:
        """Return what a function answers that is not emulated; the caller logs it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One shared library of a vendor.

    Parameters
    ----------
    name
        Name of the emulation, such as ``"hip"``.
    sonames
        Names that programs were linked with, the newest first. Each is a file of its own, because
        the name tells for which edition a program was made.
    links
        Further names under which the newest is found.
    types
        C declarations of types: typedefs, structures and enumerations.
    prototypes
        C declarations of functions, each ``result name(type name, ...);``. A parameter that is a
        pointer to a function needs a typedef.
    code
        C definitions of functions that need no emulation. They are exported as the others are.
    node
        Version of the symbols, empty where they have none.
    nodes
        Version of single symbols that have another one, by the function's name.
    unknown
        What a function answers where the emulation itself fails: the vendor's "unknown error".
    ended
        What it answers where the Python of the process has ended already.
    profiles
        Editions of the vendor's rules that there are.
    profile_field
        Field of :class:`~crossmem_emulated.options.Options` that chooses one.
    entry_of
        Gives the name, by which the emulation knows a function, for the name in C; None where
        nothing that it does can be made to fail.
    bind
        Makes the Python side. It is given the ``FFI`` object with all declarations, and the name
        of the file that the program loaded.
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
    bind: Callable[[Any, str], Binding]

    def functions(self) -> list[Prototype]:
        """Return what is declared, in that order."""
        return _parse(self.prototypes)

    def check_profile(self, name: str) -> None:
        """Raise where there is no such edition of the rules.

        Raises
        ------
        ConfigurationError
            It names those that there are.
        """
        if name not in self.profiles:
            known = ", ".join(self.profiles)
            raise ConfigurationError(
                f"{self.name} has no profile {shorten(name, 50)}; there are: {known}"
            )

    def with_prototypes(self, more: str) -> "Library":
        """Return a library that has more functions."""
        return replace(self, prototypes=self.prototypes + more)

    def exports(self) -> list[str]:
        """Return the names of all functions that the library has."""
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
"""Module whose ``LIBRARY`` describes the library, by the emulation's name."""


def library_named(name: str) -> Library:
    """Return a library.

    Raises
    ------
    BackendNotFoundError
        There is none of that name. The message lists those that there are.
    """
    if name not in LIBRARIES:
        raise BackendNotFoundError(
            f"no emulated library for {shorten(name)}; there are: {', '.join(LIBRARIES)}",
            hint=_CUDA_HINT if name == "cuda" else None,
            backend=name,
        )
    library: Library = import_module(LIBRARIES[name]).LIBRARY
    return library
