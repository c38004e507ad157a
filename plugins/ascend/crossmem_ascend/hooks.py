# SPDX-License-Identifier: Apache-2.0
"""What the plugin registers; nothing of the vendor's is imported before a driver is asked for."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from crossmem.plugin.backend import Availability, Backend
from crossmem.plugin.hookspecs import FindRuntime
from crossmem.plugin.markers import hookimpl

if TYPE_CHECKING:
    from crossmem.driver import Driver
    from crossmem_ascend.runtime import Acl

__all__ = ["crossmem_backends"]

_PYACL: Final = "pyacl"
_DEVICE_FILES: Final = "davinci[0-9]*"
_DEV: Final = Path("/dev")


def _probe() -> Availability:
    if "acl" not in sys.modules and find_spec("acl") is None:
        return Availability("not_installed", "there is no pyACL (the module acl)")
    if not any(_DEV.glob(_DEVICE_FILES)):
        return Availability(
            "unusable", f"there is no device: no file matches {_DEV / _DEVICE_FILES}"
        )
    return Availability("available")


def _load(find_runtime: FindRuntime, runtime: str | None) -> "Driver":
    # Imported here because discovery, which every process does, must stay cheap.
    from crossmem_ascend.driver import AscendDriver  # noqa: PLC0415
    from crossmem_ascend.pyacl import import_pyacl  # noqa: PLC0415

    if runtime is None or runtime == _PYACL:
        return AscendDriver(import_pyacl())
    return AscendDriver(cast("Acl", find_runtime("ascend", runtime)))


@hookimpl
def crossmem_backends(find_runtime: FindRuntime) -> tuple[Backend, ...]:
    """Offer the NPUs of this machine, or an emulation of them where it is named."""
    return (
        Backend(
            name="ascend",
            summary="Memory of Ascend NPUs, through CANN",
            api_version=1,
            probe=_probe,
            load=partial(_load, find_runtime),
            priority=20,
            install_hint="install CANN and its driver, and run `source set_env.sh` of its "
            "toolkit, so that Python can `import acl`",
            runtimes=(_PYACL, "emulated"),
        ),
    )
