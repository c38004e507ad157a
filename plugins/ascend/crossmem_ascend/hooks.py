# SPDX-License-Identifier: Apache-2.0
"""The hook of the plugin. The backend's probe may open CANN's library, but never imports pyACL."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from crossmem.driver.native import LibraryNotFoundError
from crossmem.errors import BackendUnavailableError
from crossmem.forks import PLUGINS
from crossmem.guards import clause
from crossmem.plugin.backend import Availability, Backend
from crossmem.plugin.hookspecs import FindRuntime
from crossmem.plugin.markers import hookimpl
from crossmem_ascend.pyacl import INSTALL_HINT

if TYPE_CHECKING:
    from crossmem.driver import Driver
    from crossmem_ascend.runtime import Acl

__all__ = ["crossmem_backends"]

_PYACL: Final = "pyacl"
_CTYPES: Final = "ctypes"
_DEVICE_FILES: Final = "davinci[0-9]*"
_DEV: Final = Path("/dev")


def _probe() -> Availability:
    fault, details = _fault_of_both()
    if fault:
        return Availability("not_installed", fault, details)
    if not any(_DEV.glob(_DEVICE_FILES)) and not _has_devices():
        return Availability(
            "unusable",
            f"no NPU found: no file {_DEV / _DEVICE_FILES}, and aclrtGetDeviceCount finds none",
        )
    return Availability("available")


def _has_devices() -> bool:
    """Whether ACL finds devices. The emulation has devices without device files.

    aclrtGetDeviceCount works without aclInit and without a context, so the probe needs neither.
    """
    with PLUGINS:
        from crossmem_ascend.library import open_acl  # noqa: PLC0415

    try:
        acl = cast("Acl", sys.modules["acl"]) if "acl" in sys.modules else open_acl()
        count, code = acl.rt.get_device_count()
    except (BackendUnavailableError, AttributeError):
        return False
    return code == 0 and count > 0


def _fault_of_both() -> tuple[str, str]:
    """Return the fault and the searched paths, if neither pyACL nor CANN's library was found.

    If pyACL or the library was found, both texts are empty.
    """
    if "acl" in sys.modules or find_spec("acl") is not None:
        return "", ""
    # Each process that uses any backend imports this module. To keep this import fast, the modules
    # of the driver and of the library are imported inside functions.
    with PLUGINS:
        from crossmem_ascend.library import acl_library  # noqa: PLC0415

    try:
        acl_library()
    except LibraryNotFoundError as error:
        return f"pyACL (module acl) is not installed, and {error}", error.details
    return "", ""


def _load(find_runtime: FindRuntime, runtime: str | None) -> "Driver":
    with PLUGINS:
        from crossmem_ascend.driver import AscendDriver  # noqa: PLC0415
        from crossmem_ascend.library import open_acl  # noqa: PLC0415
        from crossmem_ascend.pyacl import import_pyacl  # noqa: PLC0415

    if runtime is None:
        return AscendDriver(_find_acl())
    if runtime == _PYACL:
        return AscendDriver(import_pyacl())
    if runtime == _CTYPES:
        return AscendDriver(open_acl())
    return AscendDriver(cast("Acl", find_runtime("ascend", runtime)))


def _find_acl() -> "Acl":
    """Return pyACL or, if pyACL cannot be imported, CANN's library.

    If both fail, the error names both faults.
    """
    with PLUGINS:
        from crossmem_ascend.library import open_acl  # noqa: PLC0415
        from crossmem_ascend.pyacl import import_pyacl  # noqa: PLC0415

    try:
        return import_pyacl()
    except BackendUnavailableError as first:
        try:
            return open_acl()
        except BackendUnavailableError as error:
            message = f"{clause(first.message, 90)}, and {clause(error.message, 90)}"
            raise BackendUnavailableError(
                message, hint=first.hint, details=error.details, backend=first.backend
            ) from first


@hookimpl
def crossmem_backends(find_runtime: FindRuntime) -> tuple[Backend, ...]:
    """Offer the NPUs of this machine, or emulated NPUs for the runtime ``emulated``."""
    return (
        Backend(
            name="ascend",
            summary="Memory of Ascend NPUs, through CANN",
            api_version=1,
            probe=_probe,
            load=partial(_load, find_runtime),
            priority=20,
            install_hint=INSTALL_HINT,
            runtimes=(_PYACL, _CTYPES, "emulated"),
        ),
    )
