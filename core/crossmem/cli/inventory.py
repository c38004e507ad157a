# SPDX-License-Identifier: Apache-2.0
"""The findings of ``crossmem devices``."""

import crossmem
from crossmem.cli.neighbours import look_at_barriers
from crossmem.cli.problems import reason_and_hint
from crossmem.cli.reports import BackendReport, DeviceReport, DevicesReport, PluginReport
from crossmem.plugin import Registry, explain
from crossmem.plugin.offers import PLUGIN_FAULTS
from crossmem.sharing.base.process import current

__all__ = ["take_inventory"]


def take_inventory(*, verbose: bool = False) -> DevicesReport:
    """Return the usable devices, and the backends and plugins that are not usable.

    If ``verbose``, the report also says how accesses to shared words are ordered: in this process,
    and between this process and each exporter that has a socket in the run directory.

    Raises
    ------
    ConfigurationError
        A setting in the environment is invalid.
    """
    process = current()
    registry = process.registry
    explanation = explain(None, process.settings, registry)
    choice = explanation.choice
    default = str(choice.spec) if choice else None
    found = crossmem.devices()
    usable = {one.backend for one in found}
    unusable = [name for name in registry.names() if name not in usable]
    return DevicesReport(
        barrier=look_at_barriers(process.settings.run_dir) if verbose else None,
        version=crossmem.__version__,
        default=default,
        default_reason=f"chosen by {choice.source}" if choice else explanation.problem,
        devices=tuple(
            DeviceReport(
                device=one.name,
                backend=one.backend,
                ordinal=one.ordinal,
                identity=one.identity,
                name=one.info.name,
                total_nbytes=one.info.total_nbytes,
                is_default=one.name == default,
                capabilities=one.capabilities,
            )
            for one in found
        ),
        unusable=tuple(_unusable(registry, name) for name in unusable),
        failed_plugins=tuple(
            PluginReport(
                plugin=one.plugin,
                distribution=one.distribution,
                version=one.version,
                error=one.error,
            )
            for one in registry.failures
        ),
        disabled_plugins=tuple(
            PluginReport(
                plugin=one.plugin,
                distribution=one.distribution,
                version=one.version,
                error="disabled by CROSSMEM_DISABLE_PLUGINS",
            )
            for one in registry.disabled
        ),
    )


def _unusable(registry: Registry, name: str) -> BackendReport:
    """Return the report on a backend that has no device."""
    availability = registry.availability(name)
    try:
        backend = registry.backend(name)
        if availability.state == "available":
            # The backend's probe succeeded, but crossmem.devices() found no device of the backend.
            # device() raises the error that occurred when the driver was loaded, or when the driver
            # listed its devices.
            crossmem.device(name)
    except PLUGIN_FAULTS as error:
        reason, hint = reason_and_hint(error)
        details = getattr(error, "details", "")
        return BackendReport(
            backend=name, state="unusable", reason=reason, hint=hint, details=details
        )
    return BackendReport(
        backend=name,
        state="not_installed" if availability.state == "not_installed" else "unusable",
        reason=availability.reason or "it has no device",
        hint=backend.install_hint,
        details=availability.details,
    )
