# SPDX-License-Identifier: Apache-2.0
"""The hooks of the plugin. Drivers and emulations are imported only when a program needs them."""

import os
import sys
from typing import TYPE_CHECKING

from crossmem.forks import PLUGINS
from crossmem.plugin.backend import Availability, Backend
from crossmem.plugin.markers import hookimpl

if TYPE_CHECKING:
    from crossmem.driver import Driver
    from crossmem.plugin import Emulation, EmulationRequest

__all__ = ["crossmem_backends", "crossmem_emulate", "crossmem_runtime"]


def _probe() -> Availability:
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        reason = "the backend needs Linux and a Python with os.memfd_create, to share memory"
        return Availability("unusable", reason)
    # Every process that uses crossmem imports this module, and most processes need no emulation. So
    # the modules of the drivers and emulations are imported only inside functions.
    with PLUGINS:
        from crossmem_emulated.memory import creation_flags  # noqa: PLC0415

    try:
        creation_flags()
    except OSError as error:
        return Availability("unusable", f"memfd_create failed: {error.strerror}")
    return Availability("available")


def _load_emulated(_runtime: str | None) -> "Driver":
    with PLUGINS:
        from crossmem_emulated.driver import EmulatedDriver  # noqa: PLC0415
        from crossmem_emulated.options import Options  # noqa: PLC0415

    return EmulatedDriver(Options.from_environ(os.environ))


def _load_host(_runtime: str | None) -> "Driver":
    with PLUGINS:
        from crossmem.driver.memory import Limits  # noqa: PLC0415
        from crossmem_emulated.host import HostDriver  # noqa: PLC0415

    return HostDriver(Limits())


@hookimpl
def crossmem_runtime(api: str, name: str) -> object | None:
    """Offer emulations of the vendors' runtimes to drivers that request runtime ``emulated``."""
    if name != "emulated" or api not in {"ascend", "hip", "cuda"}:
        return None
    with PLUGINS:
        from crossmem_emulated.options import Options  # noqa: PLC0415

    options = Options.from_environ(os.environ)
    if api == "ascend":
        with PLUGINS:
            from crossmem_emulated.acl import Acl  # noqa: PLC0415

        return Acl(options.acl_profile, options.strict, options=options)
    with PLUGINS:
        from crossmem_emulated.hip import Runtime  # noqa: PLC0415

    profile = "cuda" if api == "cuda" else options.hip_profile
    return Runtime(profile, options.strict, options=options, is_cupy=False)


@hookimpl
def crossmem_emulate(api: str, request: "EmulationRequest") -> "Emulation":
    """Offer emulations of the vendors' libraries to programs that do not use crossmem."""
    with PLUGINS:
        from crossmem_emulated.abi.session import prepare  # noqa: PLC0415

    return prepare(api, request)


@hookimpl
def crossmem_backends() -> tuple[Backend, ...]:
    """Offer host memory and simulated devices. crossmem uses them only if the caller names them."""
    return (
        Backend(
            name="host",
            summary="Host memory of Linux, shared through sealed memfds",
            api_version=1,
            probe=_probe,
            load=_load_host,
        ),
        Backend(
            name="emulated",
            summary="Simulated devices with a fixed capacity, in host memory",
            api_version=1,
            probe=_probe,
            load=_load_emulated,
        ),
    )
