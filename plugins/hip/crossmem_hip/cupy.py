# SPDX-License-Identifier: Apache-2.0
"""The import of CuPy's runtime, whose interface :mod:`crossmem_hip.runtime` describes.

Only the module of CuPy's runtime is imported. This takes a few milliseconds and needs no NumPy.
``import cupy`` takes half a second.
"""

import sys
from importlib import import_module
from typing import Final, cast

from crossmem.errors import BackendUnavailableError
from crossmem.guards import clause
from crossmem_hip.family import Family
from crossmem_hip.runtime import Runtime

__all__ = ["RUNTIME", "current_streams", "fault_of", "import_cupy"]

RUNTIME: Final = "cupy_backends.cuda.api.runtime"
"""The module behind ``cupy.cuda.runtime``."""

_STREAMS: Final = "cupy.cuda.stream"
_NOT_FOUND: Final = "cannot open shared object file"
"""The text that follows the name of a missing library in the loader's message."""


def fault_of(family: Family) -> str:
    """Import CuPy's runtime. Return the fault that prevents its use, or an empty text."""
    try:
        module = import_module(RUNTIME)
    except ImportError as error:
        missing, _, rest = str(error).partition(": ")
        if rest.startswith(_NOT_FOUND):
            return f"CuPy cannot load {clause(missing)}"
        return f"CuPy cannot be imported: {clause(str(error))}"
    is_hip = getattr(module, "is_hip", None)
    if is_hip is None:
        return clause(f"{module!r} is not CuPy's runtime: it lacks is_hip")
    if is_hip != family.is_hip:
        return f"the installed CuPy is for {'AMD' if is_hip else 'NVIDIA'}"
    return ""


def import_cupy(family: Family) -> Runtime:
    """Return CuPy's runtime.

    Raises
    ------
    BackendUnavailableError
        CuPy is not installed, its libraries are not found, or CuPy is for the other vendor.
    """
    if fault := fault_of(family):
        raise BackendUnavailableError(fault, hint=family.install_hint, backend=family.backend)
    return cast("Runtime", import_module(RUNTIME))


def current_streams() -> tuple[int, ...]:
    """Return the streams that CuPy and PyTorch use in this thread, without the default stream 0.

    The function imports neither library. The result contains no stream of a library that is not
    imported. While another thread imports a library, the library may lack the functions that this
    function calls. In this case, the result contains no stream of the library either.
    """
    found = []
    if current := getattr(sys.modules.get(_STREAMS), "get_current_stream", None):
        found.append(int(current().ptr))
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    if cuda is not None and is_initialized is not None and is_initialized():
        found.append(int(cuda.current_stream().cuda_stream))
    return tuple(one for one in found if one)
