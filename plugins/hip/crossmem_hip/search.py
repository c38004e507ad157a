# SPDX-License-Identifier: Apache-2.0
"""The search for the vendors' libraries."""

import ctypes
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from crossmem.driver.native import open_library
from crossmem_hip.family import Family

__all__ = ["cuda_driver", "cuda_folders", "hip_folders", "library_of", "runtime_library"]

_HIP: Final = "libamdhip64.so"
_HIP_NAMES: Final = (f"{_HIP}.7", f"{_HIP}.6", f"{_HIP}.5", _HIP)
_CUDA: Final = "libcudart.so"
_CUDA_NAMES: Final = (f"{_CUDA}.13", f"{_CUDA}.12", f"{_CUDA}.11.0", _CUDA)
_CUDA_DRIVER: Final = "libcuda.so"

_WHEELS: Final = "nvidia"
_IN_WHEELS: Final = ("cu13/lib", "cuda_runtime/lib")
"""The folders in the package ``nvidia`` that can contain the library. The wheel
``nvidia-cuda-runtime`` uses the first one. Its predecessors, such as ``nvidia-cuda-runtime-cu12``,
use the second one."""


def runtime_library(family: Family) -> ctypes.CDLL:
    """Load the vendor's library whose functions ``cupy.cuda.runtime`` wraps.

    Raises
    ------
    LibraryNotFoundError
        No copy of the library can be loaded.
    """
    if family.is_hip:
        return open_library(_HIP_NAMES, hip_folders(os.environ), _HIP)
    return open_library(_CUDA_NAMES, cuda_folders(os.environ), _CUDA)


def cuda_driver() -> ctypes.CDLL | None:
    """Load NVIDIA's driver library; return None if it cannot be loaded."""
    try:
        return open_library((f"{_CUDA_DRIVER}.1",), (), _CUDA_DRIVER)
    except OSError:
        return None


def library_of(module: Any) -> ctypes.CDLL | None:
    """Return a ctypes object with which a program can call the vendor's library of a module.

    If the module has no file, return None.

    The module is linked with one copy of the library. Another copy would not know the module's
    allocations. Therefore the ctypes object opens the module's own file. The loader looks for a
    function in the module, and then in the libraries with which the module is linked.
    """
    path = getattr(module, "__file__", None)
    return ctypes.CDLL(path) if path else None


def hip_folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders in which ROCm's libraries may be installed."""
    roots = [environ[name] for name in ("ROCM_PATH", "ROCM_HOME") if environ.get(name)]
    return tuple(f"{root}/lib" for root in (*roots, "/opt/rocm"))


def cuda_folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders in which a toolkit or wheel may have installed CUDA's libraries."""
    roots = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    wheels = find_spec(_WHEELS)
    found = (wheels and wheels.submodule_search_locations) or ()
    return (
        *(f"{root}/{lib}" for root in roots for lib in ("lib64", "lib")),
        *(str(Path(folder, lib)) for folder in found for lib in _IN_WHEELS),
        "/usr/local/cuda/lib64",
    )
