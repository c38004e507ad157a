# SPDX-License-Identifier: Apache-2.0
"""How backends, runtimes and observers plug into crossmem.

Plugin authors need :data:`hookimpl`, :class:`Backend` and :class:`Availability`; the hooks are
described in :mod:`crossmem.plugin.hookspecs`.
"""

from crossmem.plugin.backend import Availability, AvailabilityState, Backend
from crossmem.plugin.emulation import Breach, Emulation, EmulationReport, EmulationRequest
from crossmem.plugin.hookspecs import FindRuntime
from crossmem.plugin.markers import API_VERSION, PROJECT_NAME, hookimpl
from crossmem.plugin.offers import PluginFailure, PluginInfo
from crossmem.plugin.registry import Registry
from crossmem.plugin.selection import (
    Candidate,
    Choice,
    DeviceSpec,
    Explanation,
    Source,
    choose,
    explain,
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
