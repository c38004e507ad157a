# SPDX-License-Identifier: Apache-2.0
"""From C's conventions to those of the emulation: results through pointers, codes as results."""

from collections.abc import Callable
from typing import Any, Final

from crossmem_emulated.hip import Runtime

__all__ = ["INVALID_VALUE", "Converter", "Function"]

INVALID_VALUE: Final = 1
Function = Callable[..., Any]


class Converter:
    """Makes functions for C of the entries of a runtime.

    Parameters
    ----------
    ffi
        cffi's object with the declarations.
    runtime
        The emulation.
    """

    def __init__(self, ffi: Any, runtime: Runtime) -> None:
        self.ffi = ffi
        self.runtime = runtime

    def call(self, name: str, *arguments: Any) -> tuple[int, Any]:
        """Call an entry: code, and result where that is 0."""
        return self.runtime.call(name, *arguments)

    def null(self, name: str) -> int:
        """Answer a call that was given no place for its result."""
        return self.runtime.refuse(name, INVALID_VALUE)

    def plain(self, name: str, *more: Any) -> Function:
        """Return a function without a result; what follows the arguments can be given here."""

        def function(*arguments: Any) -> int:
            return self.runtime.call(name, *arguments, *more)[0]

        return function

    def into(self, name: str) -> Function:
        """Return a function whose first argument says where its result goes."""

        def function(place: Any, *arguments: Any) -> int:
            if not place:
                return self.null(name)
            status, value = self.runtime.call(name, *arguments)
            if not status:
                place[0] = value
            return status

        return function

    def into_last(self, name: str) -> Function:
        """Return a function whose last argument says where its result goes."""
        first = self.into(name)

        def function(*arguments: Any) -> int:
            status: int = first(arguments[-1], *arguments[:-1])
            return status

        return function

    def pair(self, name: str) -> Function:
        """Return a function with two results, which come first."""

        def function(one: Any, other: Any, *arguments: Any) -> int:
            if not one or not other:
                return self.null(name)
            status, values = self.runtime.call(name, *arguments)
            if not status:
                one[0], other[0] = values
            return status

        return function
