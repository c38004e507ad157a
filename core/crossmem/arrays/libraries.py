# SPDX-License-Identifier: Apache-2.0
"""The array libraries: none is imported before it is asked for."""

import sys
from importlib import import_module
from typing import Any, Final

from crossmem.errors import UnsupportedError

__all__ = ["require", "used"]

_PACKAGES: Final = {"numpy": "numpy", "torch": "torch", "cupy": "the CuPy of your CUDA or ROCm"}


def require(name: str) -> Any:
    """Return a library, importing it where that was not done yet.

    Raises
    ------
    UnsupportedError
        Where it is not installed, or cannot be imported.
    """
    module = sys.modules.get(name)
    if module is not None:
        return module
    try:
        return import_module(name)
    except ImportError as error:
        msg = f"{name} cannot be imported here: {error}"
        raise UnsupportedError(msg, hint=f"install {_PACKAGES[name]}") from error


def used(name: str) -> Any:
    """Return a library that somebody imported, None where nobody did: nothing is its object."""
    return sys.modules.get(name)
