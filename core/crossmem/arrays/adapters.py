# SPDX-License-Identifier: Apache-2.0
"""An adapter for each array library, and a function that describes an array of any library."""

from typing import Any, Final, Protocol

from crossmem.arrays import cupy_arrays, numpy_arrays, torch_tensors
from crossmem.arrays.array_info import ArrayInfo
from crossmem.arrays.layout import Layout
from crossmem.arrays.libraries import require, used
from crossmem.errors import UnsupportedError
from crossmem.guards import clause

__all__ = ["ADAPTERS", "Adapter", "describe"]


class Adapter(Protocol):
    """The functions for arrays of one library.

    The functions that make arrays in shared memory have different arguments for each library, so
    they are not part of this protocol. ``sharing.base.views`` calls these functions.
    """

    def classes(self, library: Any, /) -> tuple[type, ...]:
        """Return the array classes that crossmem can share.

        The first class is the base class of the others. crossmem refuses subclasses of the first
        class that are not in the result.
        """

    def describe(self, array: Any, /) -> ArrayInfo:
        """Return the address and layout of an array. Its class is in the result of :meth:`classes`.

        Raises
        ------
        UnsupportedError
            The array's elements cannot be shared.
        """

    def empty(self, layout: Layout, /) -> Any:
        """Return a new array without elements, in private memory."""

    def copy_to(self, target: Any, source: Any, /) -> None:
        """Overwrite an array with another array of the same shape and dtype."""


ADAPTERS: Final[dict[str, Adapter]] = {
    "torch": torch_tensors,
    "numpy": numpy_arrays,
    "cupy": cupy_arrays,
}


def describe(value: Any) -> ArrayInfo | None:
    """Return the address and layout of an array or tensor; None for other values.

    Raises
    ------
    UnsupportedError
        The array cannot be shared, or its class may store data besides the elements.
    """
    kind = type(value)
    adapter = _found.get(kind) or _find_adapter(kind)
    return adapter.describe(value) if adapter is not None else None


def _find_adapter(kind: type) -> Adapter | None:
    for name, adapter in ADAPTERS.items():
        library = used(name)
        if library is not None and issubclass(kind, (classes := adapter.classes(library))[0]):
            if kind not in classes:
                msg = f"a {clause(kind.__name__)} may hold more than its elements"
                raise UnsupportedError(msg, hint="share the plain arrays in it")
            # This call runs the functions that on_use() has registered for the library's first use.
            require(name)
            _found[kind] = adapter
            return adapter
    return None


_found: dict[type, Adapter] = {}
"""The adapter for each class of arrays that was seen so far."""
