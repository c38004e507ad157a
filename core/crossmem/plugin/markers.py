# SPDX-License-Identifier: Apache-2.0
"""Names that a plugin and crossmem must agree on."""

from typing import Final

import pluggy

__all__ = ["API_VERSION", "PROJECT_NAME", "hookimpl", "hookspec"]

PROJECT_NAME: Final = "crossmem"
"""Name of the entry-point group of all plugins, and name of the project in pluggy's markers."""

API_VERSION: Final = 1
"""Version of the plugin interface: of the hooks and of :class:`crossmem.plugin.Backend`."""

hookspec: Final[pluggy.HookspecMarker] = pluggy.HookspecMarker(PROJECT_NAME)
"""Marks a hook that plugins may implement."""

hookimpl: Final[pluggy.HookimplMarker] = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a plugin's implementation of a hook."""
