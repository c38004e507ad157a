# SPDX-License-Identifier: Apache-2.0
"""Imports NumPy, PyTorch and CuPy, each at its first use."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from crossmem.errors import UnsupportedError
from crossmem.forks import PLUGINS
from crossmem.guards import clause

__all__ = ["on_use", "require", "used"]

_PACKAGES: Final = {
    "numpy": "numpy",
    "torch": "torch",
    "cupy": "the CuPy package for your CUDA or ROCm",
}


def require(name: str) -> Any:
    """Return a library's module, and import it if necessary.

    Raises
    ------
    UnsupportedError
        The library is not installed, or its import fails.
    """
    module = _known.get(name)
    if module is not None:
        return module
    try:
        with PLUGINS:
            module = import_module(name)
    except ImportError as error:
        msg = f"{name} cannot be imported here: {clause(str(error))}"
        raise UnsupportedError(msg, hint=f"install {_PACKAGES[name]}") from error
    _known[name] = module
    for tell in _listeners:
        tell(name)
    return module


def on_use(tell: Callable[[str], None]) -> None:
    """Register a function that learns the names of the libraries that this process uses.

    Before :func:`require` returns a library's module for the first time, it calls the function with
    the library's name. If :func:`require` has returned modules before the registration, ``on_use``
    calls the function for each of these libraries at once.
    """
    _listeners.append(tell)
    # The loop runs over a copy, because another thread may add a library during the loop.
    for name in list(_known):
        tell(name)


def used(name: str) -> Any:
    """Return a library's module if this process has imported the library, else None.

    If the result is None, the process has no arrays of this library.
    """
    module = sys.modules.get(name)
    if name in _known:
        return module
    # Another thread may be importing the library, which can take seconds. Until the import is
    # complete, ``_initializing`` is true, and the process has no arrays of the library.
    is_half = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_half else module


_known: dict[str, Any] = {}
_listeners: list[Callable[[str], None]] = []
