# SPDX-License-Identifier: Apache-2.0
"""The plugin interface for backends, runtimes and observers.

Plugin authors need :data:`hookimpl`, :class:`Backend` and :class:`Availability`. The module
:mod:`crossmem.plugin.hookspecs` describes the hooks.
"""

import typing

from crossmem import lazy
from crossmem.plugin.backend import Availability, AvailabilityState, Backend
from crossmem.plugin.hookspecs import FindRuntime
from crossmem.plugin.markers import API_VERSION, PROJECT_NAME, hookimpl
from crossmem.plugin.offers import PluginFailure, PluginInfo
from crossmem.plugin.registry import Registry

if typing.TYPE_CHECKING:
    from crossmem.plugin.emulation import Breach, Emulation, EmulationReport, EmulationRequest
    from crossmem.plugin.selection import (
        Candidate,
        Choice,
        DeviceSpec,
        Explanation,
        Source,
        choose,
        explain,
    )
else:
    # A process that only imports memory uses none of these names. So each of the two modules is
    # imported at the first use of one of its names.
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "crossmem.plugin.emulation": (
                "Breach",
                "Emulation",
                "EmulationReport",
                "EmulationRequest",
            ),
            "crossmem.plugin.selection": (
                "Candidate",
                "Choice",
                "DeviceSpec",
                "Explanation",
                "Source",
                "choose",
                "explain",
            ),
        },
    )

__all__ = [
    "API_VERSION",
    "PROJECT_NAME",
    "Availability",
    "AvailabilityState",
    "Backend",
    "Breach",
    "Candidate",
    "Choice",
    "DeviceSpec",
    "Emulation",
    "EmulationReport",
    "EmulationRequest",
    "Explanation",
    "FindRuntime",
    "PluginFailure",
    "PluginInfo",
    "Registry",
    "Source",
    "choose",
    "explain",
    "hookimpl",
]
