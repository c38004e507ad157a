# SPDX-License-Identifier: Apache-2.0
"""Makes the Python functions that implement C functions.

Each C function returns a code. It writes other results to addresses that the caller passes.
"""

from collections.abc import Callable
from typing import Any, Final

from crossmem_emulated.hip import Runtime

__all__ = ["INVALID_VALUE", "Converter", "Function"]

INVALID_VALUE: Final = 1
Function = Callable[..., Any]


class Converter:
    """Makes Python functions that take the arguments of C functions and call the emulation.

    Each method takes the name of the emulation's function.
    """

    def __init__(self, ffi: Any, runtime: Runtime) -> None:
        self.ffi = ffi
        self.runtime = runtime

    def call(self, name: str, *arguments: Any) -> tuple[int, Any]:
        """Call a function of the emulation. Return its code, and its result if the code is 0."""
        return self.runtime.call(name, *arguments)

    def null(self, name: str) -> int:
        """Refuse a call with a null pointer or another invalid argument, and return the code."""
        return self.runtime.refuse(name, INVALID_VALUE)

    def plain(self, name: str, *more: Any) -> Function:
        """Return a function that passes its arguments and ``more`` to the emulation.

        The function returns only the code.
        """

        def function(*arguments: Any) -> int:
            return self.runtime.call(name, *arguments, *more)[0]

        return function

    def into(self, name: str) -> Function:
        """Return a function whose first argument points to the place for the result."""

        def function(place: Any, *arguments: Any) -> int:
            if not place:
                return self.null(name)
            status, value = self.runtime.call(name, *arguments)
            if not status:
                place[0] = value
            return status

        return function

    def into_last(self, name: str) -> Function:
        """Return a function whose last argument points to the place for the result."""
        first = self.into(name)

        def function(*arguments: Any) -> int:
            status: int = first(arguments[-1], *arguments[:-1])
            return status

        return function

    def pair(self, name: str) -> Function:
        """Return a function whose first two arguments point to the places for two results."""

        def function(one: Any, other: Any, *arguments: Any) -> int:
            if not one or not other:
                return self.null(name)
            status, values = self.runtime.call(name, *arguments)
            if not status:
                one[0], other[0] = values
            return status

        return function
