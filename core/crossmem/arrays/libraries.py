# SPDX-License-Identifier: Apache-2.0
"""The array libraries: none is imported before it is asked for."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from crossmem.errors import UnsupportedError
from crossmem.guards import clause

__all__ = ["on_use", "require", "used"]

_PACKAGES: Final = {"numpy": "numpy", "torch": "torch", "cupy": "the CuPy of your CUDA or ROCm"}


def require(name: str) -> Any:
    """Return a library, importing it where that was not done yet.

    Raises
    ------
    UnsupportedError
        Where it is not installed, or cannot be imported.
    """
    module = _known.get(name)
    if module is not None:
        return module
    try:
        module = import_module(name)
    except ImportError as error:
        msg = f"{name} cannot be imported here: {clause(str(error))}"
        raise UnsupportedError(msg, hint=f"install {_PACKAGES[name]}") from error
    _known[name] = module
    for tell in _listeners:
        tell(name)
    return module


def on_use(tell: Callable[[str], None]) -> None:
    """Have a function called with the name of each library, as soon as it is used here."""
    _listeners.append(tell)
    # A copy: other threads may be using more of them.
    for name in list(_known):
        tell(name)


def used(name: str) -> Any:
    """Return a library that somebody imported, None where nobody did: nothing is its object."""
    module = sys.modules.get(name)
    if name in _known:
        return module
    # While a thread imports it, which can take seconds, the others see it without its classes, and
    # have no object of it yet. This is what the import system itself looks at.
    is_half = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_half else module


_known: dict[str, Any] = {}
_listeners: list[Callable[[str], None]] = []
