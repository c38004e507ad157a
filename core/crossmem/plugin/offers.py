# SPDX-License-Identifier: Apache-2.0
"""The offer of a backend by one plugin: the backend's probe, runtimes and loaded drivers."""

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
from crossmem.signals import raise_if_of_handler

__all__ = ["PLUGIN_FAULTS", "Offer", "PluginFailure", "PluginInfo", "conflict"]

_log = logging.getLogger(__name__)

PLUGIN_FAULTS: Final = (Exception, SystemExit)
"""The exceptions that crossmem catches when a plugin raises them. ``SystemExit`` is one of them,
because a plugin's module may call ``sys.exit`` during its import."""

_WORDS: Final = {"not_installed": "is not installed", "unusable": "cannot be used here"}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that was found.

    Parameters
    ----------
    plugin
        Name of the plugin's entry point, or of the module in ``CROSSMEM_PLUGINS``, or the argument
        ``name`` of :meth:`Registry.register`.
    distribution, version
        The installed distribution that contains the plugin, and its version. Empty if the
        distribution's metadata is broken, or if the plugin is not an entry point.
    """

    plugin: str
    distribution: str = ""
    version: str = ""

    @property
    def qualified(self) -> str:
        """A unique name, in the form of an item of ``CROSSMEM_DISABLE_PLUGINS``."""
        return f"{self.distribution}:{self.plugin}" if self.distribution else self.plugin

    @override
    def __str__(self) -> str:
        return f"{self.qualified} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A fault of a plugin.

    Parameters
    ----------
    plugin, distribution, version
        As in :class:`PluginInfo`. If a distribution's entry points cannot be read, ``plugin`` is
        ``"(entry points)"``.
    error
        The fault, as text.
    """

    plugin: str
    distribution: str
    version: str
    error: str

    @override
    def __str__(self) -> str:
        return f"{PluginInfo(self.plugin, self.distribution, self.version)}: {self.error}"


class Offer:
    """The offer of a backend by one plugin, and the state of the backend in this process.

    Parameters
    ----------
    problem
        A fault that makes the backend unusable regardless of the probe, such as a wrong version of
        the plugin interface; else empty.
    """

    def __init__(self, backend: Backend, info: PluginInfo, *, problem: str = "") -> None:
        self.backend = backend
        self.info = info
        self.problem = problem
        # The lock is reentrant, because a signal handler may request a device while the interrupted
        # thread loads the driver.
        self._lock = threading.RLock()
        self._availability: Availability | None = None
        self._drivers: dict[str | None, Driver] = {}

    @property
    def loaded(self) -> bool:
        """Whether a driver is loaded."""
        return bool(self._drivers)

    def availability(self) -> Availability:
        """Return the result of the probe, which runs once."""
        with self._lock:
            return self._probed()

    def require(self, runtime: str | None) -> None:
        """Raise if the backend does not have the given runtime.

        If ``runtime`` is None, call the probe; raise if the backend is unusable on this machine.
        If a runtime is named, the probe is not called; see :meth:`Registry.require`.
        """
        with self._lock:
            self._require(runtime)

    def driver(
        self, runtime: str | None, wrappers: Callable[[], Iterable[Callable[[Driver], Driver]]]
    ) -> Driver:
        """Return the driver for a runtime.

        The first call loads the driver and passes it through the functions of ``wrappers()``.
        """
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
        """Replace the lock, which another thread may have held at the fork, and drop the drivers.

        Returns
        -------
        list
            The parent's drivers. The child loads new drivers if it may use the backends.
        """
        self._lock = threading.RLock()
        inherited, self._drivers = list(self._drivers.values()), {}
        return inherited

    def _probed(self) -> Availability:
        if self._availability is None:
            # A plugin may return any value, despite the annotation of Backend.probe.
            answer: object
            try:
                answer = self.backend.probe()
            except PLUGIN_FAULTS as error:
                raise_if_of_handler(error)
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
                allowed = f"it has only {choices}" if choices else "it has no choice of runtimes"
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
            raise_if_of_handler(error)
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
                f"interface, not {DRIVER_API_VERSION}"
            )
        elif (name := getattr(driver, "backend", None)) != backend.name:
            fault = f"its driver is for the backend {shorten(name)}"
        else:
            return driver
        msg = f"{which} of plugin {clause(str(self.info), 40)} cannot be used: {clause(fault, 80)}"
        raise BackendUnavailableError(msg, details=fault, backend=backend.name)


def conflict(offers: Iterable[Offer]) -> str:
    """Return a text that names the plugins of ``offers``. All of them offer the same backend."""
    plugins = sorted(str(offer.info) for offer in offers)
    return f"offered {len(plugins)} times: by {', '.join(plugins)}"
