# SPDX-License-Identifier: Apache-2.0
"""What the plugin registers; nothing of a vendor's is imported before somebody asks."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from crossmem.plugin.backend import Availability, Backend
from crossmem.plugin.hookspecs import FindRuntime
from crossmem.plugin.markers import hookimpl
from crossmem_hip.family import FAMILIES, Family

if TYPE_CHECKING:
    from crossmem.driver import Driver
    from crossmem_hip.runtime import Runtime

__all__ = ["crossmem_backends"]

_CUPY: Final = "cupy"
_PACKAGE: Final = "cupy_backends"
_DEV: Final = Path("/dev")


def _probe(family: Family) -> Availability:
    if find_spec(_PACKAGE) is None:
        return Availability("not_installed", "there is no CuPy")
    # Imported here because discovery, which every process does, must stay cheap.
    from crossmem_hip.cupy import fault_of  # noqa: PLC0415

    if fault := fault_of(family):
        return Availability("unusable", fault)
    if not any(_DEV.glob(family.device_files)):
        return Availability(
            "unusable",
            f"there is no device of {family.vendor}: no file matches {_DEV / family.device_files}",
        )
    return Availability("available")


def _load(family: Family, find_runtime: FindRuntime, runtime: str | None) -> "Driver":
    from crossmem_hip.cupy import current_streams, import_cupy  # noqa: PLC0415
    from crossmem_hip.driver import GpuDriver  # noqa: PLC0415
    from crossmem_hip.library import extend  # noqa: PLC0415

    if runtime is None or runtime == _CUPY:
        return GpuDriver(family, extend(family, import_cupy(family)), current_streams)
    return GpuDriver(family, cast("Runtime", find_runtime(family.backend, runtime)))


@hookimpl
def crossmem_backends(find_runtime: FindRuntime) -> tuple[Backend, ...]:
    """Offer the GPUs of this machine, or an emulation of them where it is named."""
    return tuple(
        Backend(
            name=family.backend,
            summary=f"Memory of {family.vendor} GPUs, through CuPy",
            api_version=1,
            probe=partial(_probe, family),
            load=partial(_load, family, find_runtime),
            priority=30,
            install_hint=family.install_hint,
            runtimes=(_CUPY, "emulated"),
        )
        for family in FAMILIES
    )
