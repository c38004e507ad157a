# SPDX-License-Identifier: Apache-2.0
"""Which objects are arrays, of which library, and where each of them lies."""

from typing import Any, Final

from crossmem.arrays import Found, Kind, Layout, cupy_arrays, numpy_arrays, torch_tensors
from crossmem.arrays.libraries import used

__all__ = ["copy_to", "describe", "empty"]

_CLASSES: Final[dict[Kind, str]] = {"torch": "Tensor", "numpy": "ndarray", "cupy": "ndarray"}
_ADAPTERS: Final[dict[Kind, Any]] = {
    "torch": torch_tensors,
    "numpy": numpy_arrays,
    "cupy": cupy_arrays,
}


def describe(value: Any) -> Found | None:
    """Say where an array or tensor lies; None for what is neither.

    Raises
    ------
    UnsupportedError
        Where it is one whose elements cannot be shared.
    """
    kind = type(value)
    adapter = _found.get(kind) or _find_adapter(kind)
    if adapter is None:
        return None
    found: Found = adapter.describe(value)
    return found


def _find_adapter(kind: type) -> Any:
    for library, name in _CLASSES.items():
        module = used(library)
        if module is not None and issubclass(kind, getattr(module, name)):
            _found[kind] = _ADAPTERS[library]
            return _ADAPTERS[library]
    return None


_found: dict[type, Any] = {}
"""Adapters of the classes that were seen."""


def empty(kind: Kind, layout: Layout) -> Any:
    """Return an array without elements."""
    return _ADAPTERS[kind].empty(layout)


def copy_to(kind: Kind, target: Any, source: Any) -> None:
    """Overwrite an array with another one of the same library, shape and dtype."""
    _ADAPTERS[kind].copy_to(target, source)
