# SPDX-License-Identifier: Apache-2.0
"""What CuPy does not offer, from the vendor's library that it has loaded.

Nothing is looked for: it has to be the very copy that CuPy calls, because another one does not know
its allocations.
"""

import ctypes
from pathlib import Path
from typing import Any, Final, cast

from crossmem_hip.family import Family
from crossmem_hip.runtime import Runtime

__all__ = ["CupyRuntime", "extend", "loaded_library"]

_SUCCESS: Final = 0
_NO_CONTEXT: Final = 201
_MAPS: Final = Path("/proc/self/maps")
_HIP_LIBRARY: Final = "libamdhip64.so"
_CUDA_LIBRARY: Final = "libcuda.so.1"
_ADDRESS_RANGE: Final = {True: "hipMemGetAddressRange", False: "cuMemGetAddressRange_v2"}
_POINTER_ATTRIBUTE: Final = {True: "hipPointerGetAttribute", False: "cuPointerGetAttribute"}


class CupyRuntime:
    """CuPy's runtime with functions added, in its shape: what fails raises ``CUDARuntimeError``.

    Parameters
    ----------
    module
        CuPy's runtime.
    library
        The vendor's library, as ctypes opens it.
    is_hip
        Whether it is AMD's.
    """

    def __init__(self, module: Any, library: Any, *, is_hip: bool) -> None:
        self._module = module
        self._address_range = getattr(library, _ADDRESS_RANGE[is_hip])
        self._address_range.restype = ctypes.c_int
        self._address_range.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._attribute = getattr(library, _POINTER_ATTRIBUTE[is_hip])
        self._attribute.restype = ctypes.c_int
        self._attribute.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def memGetAddressRange(self, pointer: int) -> tuple[int, int]:
        """Return where the allocation around an address begins, and its size in bytes."""
        base, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
        self._check(self._address_range, ctypes.byref(base), ctypes.byref(nbytes), pointer)
        return base.value or 0, nbytes.value

    def pointerGetAttribute(self, attribute: int, pointer: int) -> int:
        """Return one thing that the vendor knows of an address."""
        # The vendors write one, four or eight bytes.
        value = ctypes.c_uint64(0)
        self._check(self._attribute, ctypes.byref(value), attribute, pointer)
        return value.value

    def _check(self, function: Any, *arguments: Any) -> None:
        code = function(*arguments)
        if code == _NO_CONTEXT:
            # The driver wants a context in this thread; asking the runtime for something makes it.
            self._module.memGetInfo()
            code = function(*arguments)
        if code != _SUCCESS:
            raise self._module.CUDARuntimeError(code)


def extend(family: Family, module: Runtime) -> Runtime:
    """Return CuPy's runtime with what it lacks, or as it is where the library is not loaded."""
    name = loaded_library(_MAPS.read_text("utf-8")) if family.is_hip else _CUDA_LIBRARY
    try:
        library = ctypes.CDLL(name) if name else None
        if library is None:
            return module
        return cast("Runtime", CupyRuntime(module, library, is_hip=family.is_hip))
    except (OSError, AttributeError):
        return module


def loaded_library(maps: str) -> str | None:
    """Return the path of AMD's library in a process's memory map, None where it has none."""
    for line in maps.splitlines():
        path = line.partition("/")[2]
        if _HIP_LIBRARY in Path(path).name:
            return f"/{path}"
    return None
