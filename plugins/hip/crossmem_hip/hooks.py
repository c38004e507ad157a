# SPDX-License-Identifier: Apache-2.0
"""The hooks of the plugin.

Importing this module loads neither CuPy nor a vendor's library. They are loaded when crossmem
probes a backend or loads its driver.
"""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from crossmem.driver.native import LibraryNotFoundError
from crossmem.errors import BackendUnavailableError, CrossmemError
from crossmem.forks import PLUGINS
from crossmem.guards import clause
from crossmem.plugin.backend import Availability, Backend
from crossmem.plugin.hookspecs import FindRuntime
from crossmem.plugin.markers import hookimpl
from crossmem_hip.family import FAMILIES, Family

if TYPE_CHECKING:
    from crossmem.driver import Driver
    from crossmem_hip.runtime import Runtime

__all__ = ["crossmem_backends"]

_CUPY: Final = "cupy"
_CTYPES: Final = "ctypes"
_PACKAGE: Final = "cupy_backends"
_DEV: Final = Path("/dev")


def _probe(family: Family) -> Availability:
    fault, details = _fault_of_both(family)
    if fault:
        is_absent = find_spec(_PACKAGE) is None
        return Availability("not_installed" if is_absent else "unusable", fault, details)
    if not any(_DEV.glob(family.device_files)) and not _has_devices(family):
        return Availability(
            "unusable",
            f"no {family.vendor} GPU found: no file {_DEV / family.device_files}, "
            f"and {family.function('getDeviceCount')} finds none",
        )
    return Availability("available")


def _has_devices(family: Family) -> bool:
    """Whether the runtime finds devices.

    Some systems, and the emulations, have devices without device files.
    """
    with PLUGINS:
        from crossmem_hip.cupy import import_cupy  # noqa: PLC0415
        from crossmem_hip.library import open_runtime  # noqa: PLC0415

    try:
        found = open_runtime(family) if _fault_of_cupy(family) else import_cupy(family)
        return found.getDeviceCount() > 0
    except (CrossmemError, RuntimeError):
        return False


def _fault_of_both(family: Family) -> tuple[str, str]:
    """Return the faults of CuPy and of the vendor's library, and the paths that were tried.

    Both texts are empty if CuPy or the library can be used.
    """
    if not (fault := _fault_of_cupy(family)):
        return "", ""
    with PLUGINS:
        from crossmem_hip.search import runtime_library  # noqa: PLC0415

    try:
        runtime_library(family)
    except LibraryNotFoundError as error:
        return f"{fault}, and {error}", error.details
    return "", ""


def _fault_of_cupy(family: Family) -> str:
    if find_spec(_PACKAGE) is None:
        return "CuPy is not installed"
    # Discovery imports this module in every process that uses crossmem. To keep this import fast,
    # the other modules of this package are imported inside functions.
    with PLUGINS:
        from crossmem_hip.cupy import fault_of  # noqa: PLC0415

    return fault_of(family)


def _load(family: Family, find_runtime: FindRuntime, runtime: str | None) -> "Driver":
    with PLUGINS:
        from crossmem_hip.cupy import current_streams, import_cupy  # noqa: PLC0415
        from crossmem_hip.driver import GpuDriver  # noqa: PLC0415
        from crossmem_hip.library import extend, open_runtime  # noqa: PLC0415

    if runtime is None:
        fault, details = _fault_of_both(family)
        if fault:
            raise BackendUnavailableError(
                clause(fault, 200),
                hint=family.install_hint,
                details=details,
                backend=family.backend,
            )
        runtime = _CTYPES if _fault_of_cupy(family) else _CUPY
    if runtime == _CUPY:
        return GpuDriver(family, extend(family, import_cupy(family)), current_streams)
    if runtime == _CTYPES:
        return GpuDriver(family, open_runtime(family), current_streams)
    found = cast("Runtime", find_runtime(family.backend, runtime))
    return GpuDriver(family, found, is_emulated=True)


@hookimpl
def crossmem_backends(find_runtime: FindRuntime) -> tuple[Backend, ...]:
    """Offer the GPUs of this machine, or an emulation of GPUs if the caller names it."""
    return tuple(
        Backend(
            name=family.backend,
            summary=f"Memory of {family.vendor} GPUs, through CuPy or {family.library}",
            api_version=1,
            probe=partial(_probe, family),
            load=partial(_load, family, find_runtime),
            priority=30,
            install_hint=family.install_hint,
            runtimes=(_CUPY, _CTYPES, "emulated"),
        )
        for family in FAMILIES
    )
