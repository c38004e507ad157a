# SPDX-License-Identifier: Apache-2.0
"""A backend as one plugin offers it: its probe, its runtimes and its loaded drivers."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import override

from crossmem.driver import DRIVER_API_VERSION, Driver
from crossmem.errors import BackendUnavailableError, ConfigurationError, CrossmemError
from crossmem.guards import clause, shorten
from crossmem.plugin.backend import Availability, Backend

__all__ = ["PLUGIN_FAULTS", "Offer", "PluginFailure", "PluginInfo", "conflict"]

_log = logging.getLogger(__name__)

PLUGIN_FAULTS: Final = (Exception, SystemExit)
"""What foreign code may raise without stopping others: also ``sys.exit`` while it is imported."""

_WORDS: Final = {"not_installed": "is not installed", "unusable": "cannot be used here"}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that was found.

    Parameters
    ----------
    plugin
        Name of its entry point, or of the module in ``CROSSMEM_PLUGINS``.
    distribution, version
        The installed distribution that has it; empty for a module.
    """

    plugin: str
    distribution: str = ""
    version: str = ""

    @property
    def qualified(self) -> str:
        """Name that no other plugin has, as ``CROSSMEM_DISABLE_PLUGINS`` takes it."""
        return f"{self.distribution}:{self.plugin}" if self.distribution else self.plugin

    @override
    def __str__(self) -> str:
        return f"{self.qualified} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """Something wrong with a plugin.

    Parameters
    ----------
    plugin, distribution, version
        As in :class:`PluginInfo`.
    error
        What went wrong, in words.
    """

    plugin: str
    distribution: str
    version: str
    error: str

    @override
    def __str__(self) -> str:
        return f"{PluginInfo(self.plugin, self.distribution, self.version)}: {self.error}"


class Offer:
    """A backend as one plugin offers it, and what this process did with it.

    Parameters
    ----------
    backend
        What the plugin described.
    info
        The plugin.
    problem
        Why it must not be used whatever its probe says; empty where there is no such reason.
    """

    def __init__(self, backend: Backend, info: PluginInfo, *, problem: str = "") -> None:
        self.backend = backend
        self.info = info
        self.problem = problem
        # Reentrant: a signal handler may ask for a device while its thread loads the driver.
        self._lock = threading.RLock()
        self._availability: Availability | None = None
        self._drivers: dict[str | None, Driver] = {}

    @property
    def loaded(self) -> bool:
        """Whether a driver is in use."""
        return bool(self._drivers)

    def availability(self) -> Availability:
        """Return what the probe says, probing only once."""
        with self._lock:
            return self._probed()

    def require(self, runtime: str | None) -> None:
        """Raise where the backend cannot be used here, or does not have that runtime.

        A runtime that is named is not probed for: whether a vendor's library is missing says
        nothing about an emulation of it. Loading the driver finds out.
        """
        with self._lock:
            self._require(runtime)

    def driver(
        self, runtime: str | None, wrappers: Callable[[], Iterable[Callable[[Driver], Driver]]]
    ) -> Driver:
        """Return the driver for a runtime, loading and wrapping it at the first call."""
        driver = self._drivers.get(runtime)
        if driver is None:
            with self._lock:
                driver = self._drivers.get(runtime)
                if driver is None:
                    self._require(runtime)
                    driver = self._load(runtime)
                    for wrap in wrappers():
                        driver = wrap(driver)
                    driver = self._drivers.setdefault(runtime, driver)
        return driver

    def after_fork_in_child(self) -> list[Driver]:
        """Replace the lock, which a thread of the parent may hold for ever, and forget drivers.

        Returns
        -------
        list
            The parent's drivers. The child loads its own where it may.
        """
        self._lock = threading.RLock()
        inherited, self._drivers = list(self._drivers.values()), {}
        return inherited

    def _probed(self) -> Availability:
        if self._availability is None:
            # What comes from a plugin is checked, whatever its annotations say.
            answer: object
            try:
                answer = self.backend.probe()
            except PLUGIN_FAULTS as error:
                _log.debug("probe of %s failed", self.backend.name, exc_info=True)
                words = f"its probe raised {type(error).__name__}: {error}"
                answer = Availability("unusable", words)
            if not isinstance(answer, Availability):
                answer = Availability(
                    "unusable",
                    f"its probe returned {shorten(answer)}, which is not an Availability",
                )
            reason = clause(answer.reason)
            if reason != answer.reason:
                details = "\n".join(filter(None, (answer.reason, answer.details)))
                answer = replace(answer, reason=reason, details=details)
            self._availability = answer
        return self._availability

    def _require(self, runtime: str | None) -> None:
        backend = self.backend
        if runtime is not None:
            if runtime not in backend.runtimes:
                choices = ", ".join(map(repr, backend.runtimes))
                allowed = f"known are {choices}" if choices else "it has no choice of runtimes"
                msg = f"backend {backend.name!r} has no runtime {shorten(runtime, 40)}"
                raise ConfigurationError(f"{msg}; {clause(allowed, 90)}", backend=backend.name)
        elif not (availability := self._probed()).available:
            msg = f"backend {backend.name!r} {_WORDS[availability.state]}: {availability.reason}"
            raise BackendUnavailableError(
                msg,
                hint=backend.install_hint and clause(backend.install_hint, 200),
                details=availability.details,
                backend=backend.name,
            )

    def _load(self, runtime: str | None) -> Driver:
        backend = self.backend
        which = f"backend {backend.name!r}" + (
            f" with runtime {shorten(runtime, 40)}" if runtime else ""
        )
        driver: object
        try:
            driver = backend.load(runtime)
        except CrossmemError:
            raise
        except PLUGIN_FAULTS as error:
            fault = f"{type(error).__name__}: {error}"
            raise BackendUnavailableError(
                f"{which} cannot be loaded: {clause(fault, 100)}",
                hint=backend.install_hint and clause(backend.install_hint, 200),
                details=fault,
                backend=backend.name,
            ) from error
        if not isinstance(driver, Driver):
            fault = f"{shorten(driver, 45)} is not a crossmem.driver.Driver"
        elif driver.api_version != DRIVER_API_VERSION:
            fault = (
                f"its driver has version {shorten(driver.api_version, 10)} of the driver "
                f"interface, this crossmem {DRIVER_API_VERSION}"
            )
        elif driver.backend != backend.name:
            fault = f"its driver has the name {shorten(driver.backend)}"
        else:
            return driver
        msg = f"{which} of plugin {clause(str(self.info), 40)} cannot be used: {clause(fault, 80)}"
        raise BackendUnavailableError(msg, details=fault, backend=backend.name)


def conflict(offers: Iterable[Offer]) -> str:
    """Say in words which plugins offer the same name."""
    plugins = sorted(str(offer.info) for offer in offers)
    return f"offered {len(plugins)} times: by {', '.join(plugins)}"
