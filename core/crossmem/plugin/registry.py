# SPDX-License-Identifier: Apache-2.0
"""The registry of plugins: their backends, the availability of the backends, and the drivers."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from crossmem.driver import Driver
from crossmem.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    BusyError,
    ConfigurationError,
    CrossmemError,
)
from crossmem.forks import PLUGINS
from crossmem.guards import clause, shorten
from crossmem.locks import LockOrderError, forbidden_ranks
from crossmem.models import Event
from crossmem.plugin.backend import Availability, Backend
from crossmem.plugin.offers import PLUGIN_FAULTS, Offer, PluginFailure, PluginInfo, conflict
from crossmem.settings import VARIABLES, Settings
from crossmem.signals import raise_if_of_handler

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from crossmem.plugin.discovery import Catalog
    from crossmem.plugin.emulation import Emulation, EmulationRequest

__all__ = ["Registry"]

_log = logging.getLogger(__name__)

_DISABLE = VARIABLES["disabled_plugins"]


class Registry:
    """The plugins of one process, their backends and their loaded drivers.

    The first call that needs plugins discovers them. The first request for a driver loads it. Any
    thread may call any method.

    Parameters
    ----------
    settings
        Only ``plugins``, ``disabled_plugins`` and ``runtimes`` are used. None: the defaults.
    entry_points
        The entry points of plugins; None: the installed ones.
    """

    observed: bool
    """Whether a plugin observes events. If false, a caller may skip creating an event."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        entry_points: "Iterable[EntryPoint] | None" = None,
    ) -> None:
        self._settings = settings or Settings()
        self._runtimes = dict(self._settings.runtimes)
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._lock = threading.RLock()
        self._discovering = False
        self._catalog: Catalog | None = None
        self._wrappers: tuple[Callable[[Driver], Driver], ...] = ()
        self._observers: tuple[tuple[str, Callable[..., object], bool], ...] = ()
        self.observed = False

    @property
    def plugins(self) -> tuple[PluginInfo, ...]:
        """The plugins that were loaded."""
        return tuple(self._discovered().plugins.values())

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """The faults of plugins: import errors, bad hooks, wrong versions, duplicate names."""
        catalog = self._discovered()
        return (*catalog.failures, *catalog.conflicts())

    @property
    def disabled(self) -> tuple[PluginInfo, ...]:
        """The plugins that were found but not loaded, because a setting disables them."""
        return tuple(self._discovered().disabled)

    def register(self, plugin: object, *, name: str) -> None:
        """Add a plugin to this process, such as an observer of the process's events.

        Parameters
        ----------
        plugin
            A module or an instance with hook implementations.
        name
            A name for :meth:`unregister` and for messages.

        Raises
        ------
        ConfigurationError
            The name is taken, or the plugin or a hook is invalid. Then nothing is registered.
        """
        with PLUGINS, self._lock:
            catalog = self._discovered()
            try:
                catalog.add(plugin, PluginInfo(name))
            except CrossmemError:
                raise
            except Exception as error:
                raise_if_of_handler(error)
                msg = f"plugin {shorten(name, 60)} cannot be registered: {clause(str(error), 100)}"
                raise ConfigurationError(msg) from error
            self._observe(catalog)

    def unregister(self, name: str) -> None:
        """Remove a plugin that :meth:`register` added. Its drivers stay in use.

        Raises
        ------
        ConfigurationError
            There is no plugin with that name.
        """
        with PLUGINS, self._lock:
            catalog = self._discovered()
            if name not in catalog.plugins:
                msg = f"no plugin is named {shorten(name)}"
                raise ConfigurationError(msg)
            catalog.remove(name)
            self._observe(catalog)

    def _discovered(self) -> "Catalog":
        if (catalog := self._catalog) is not None:
            return catalog
        with PLUGINS, self._lock:
            if self._catalog is None:
                if self._discovering:
                    msg = "a plugin used crossmem while plugins were being discovered"
                    raise ConfigurationError(msg)
                self._discovering = True
                try:
                    # This import comes late, because importlib.metadata is slow to import.
                    from crossmem.plugin.discovery import Catalog  # noqa: PLC0415

                    catalog = Catalog(self.runtime)
                    catalog.discover(
                        self._entry_points,
                        modules=self._settings.plugins,
                        disabled=self._settings.disabled_plugins,
                    )
                finally:
                    self._discovering = False
                catalog.check_runtimes(self._runtimes)
                self._observe(catalog)
                # A child that was forked before this statement discovers the plugins itself.
                self._catalog = catalog
            return self._catalog

    # -- backends -----------------------------------------------------------------------------

    def runtime_of(self, name: str) -> str | None:
        """Return the runtime that ``CROSSMEM_RUNTIME`` names for a backend, or None.

        Raises
        ------
        ConfigurationError
            The setting names a backend or a runtime that no plugin offers.
        """
        if self._runtimes:
            self._discovered()
        return self._runtimes.get(name)

    def names(self) -> tuple[str, ...]:
        """Return every backend name that any plugin offers, usable or not."""
        return tuple(sorted(self._discovered().offers))

    def backends(self) -> tuple[Backend, ...]:
        """Return the backends that have exactly one offer without faults, sorted by name."""
        catalog = self._discovered()
        found = ((name, catalog.contenders(name)) for name in self.names())
        return tuple(offers[0].backend for _, offers in found if len(offers) == 1)

    def offered_by(self, name: str) -> tuple[PluginInfo, ...]:
        """Return the plugins that offer a backend name: none, one, or several in conflict."""
        return tuple(offer.info for offer in self._discovered().offers.get(name, ()))

    def backend(self, name: str) -> Backend:
        """Return the backend with that name, usable or not.

        Raises
        ------
        BackendNotFoundError
            No plugin offers the backend. The details list plugins that failed or are disabled.
        BackendUnavailableError
            Several plugins offer the name, or the backend needs another version of the interface.
        """
        return self._offer(name).backend

    def availability(self, name: str) -> Availability:
        """Return the availability of a backend.

        If ``CROSSMEM_RUNTIME`` names a runtime of the backend, the probe is not called, and the
        state is ``"available"``.

        Raises
        ------
        BackendNotFoundError
            No plugin offers the backend.
        """
        try:
            offer = self._offer(name)
        except BackendUnavailableError as error:
            return Availability("unusable", clause(error.message), error.details)
        return Availability("available") if self.runtime_of(name) else offer.availability()

    def require(self, name: str, *, runtime: str | None = None) -> Backend:
        """Return a backend, or raise an error that says why the backend is unusable.

        If a runtime is named, the probe is not called, because the runtime may be an emulation that
        needs no vendor library. Loading the driver shows whether the runtime works.

        Raises
        ------
        BackendNotFoundError
            No plugin offers the backend.
        BackendUnavailableError
            The backend is unusable on this machine, or :meth:`backend` raises this error.
        ConfigurationError
            The backend has no runtime with that name.
        """
        offer = self._offer(name)
        offer.require(runtime or self.runtime_of(name))
        return offer.backend

    def driver(self, name: str, *, runtime: str | None = None) -> Driver:
        """Return the driver of a backend. The first call loads the driver.

        Parameters
        ----------
        name
            Name of the backend.
        runtime
            The runtime of the backend; None: the runtime that :meth:`runtime_of` returns. A
            registry has one driver for each pair of a backend and a runtime.

        Raises
        ------
        BackendNotFoundError, ConfigurationError
            As for :meth:`require`.
        BackendUnavailableError
            Loading the driver fails, or :meth:`require` raises this error. Each call tries again.
        """
        return self._offer(name).driver(runtime or self.runtime_of(name), lambda: self._wrappers)

    def adapt(self, wrapper: Callable[[Driver], Driver]) -> None:
        """Call ``wrapper`` with each driver that is loaded, and use the result as the driver.

        For tests and tracing. If there are several wrappers, the last one is the outermost.

        Raises
        ------
        BusyError
            A driver was loaded before this call, so the wrapper cannot apply to it.
        """
        with PLUGINS, self._lock:
            offers = [offer for all_ in self._discovered().offers.values() for offer in all_]
            if loaded := sorted(offer.backend.name for offer in offers if offer.loaded):
                msg = f"drivers are in use already: {clause(', '.join(loaded))}"
                raise BusyError(msg, hint="call adapt() before the first use of a device")
            self._wrappers = (*self._wrappers, wrapper)

    def runtime(self, api: str, name: str) -> object:
        """Return the first answer of a plugin to ``crossmem_runtime(api, name)``.

        Raises
        ------
        CrossmemError
            No plugin answers. If a plugin raised a CrossmemError, this method raises that error.
            Otherwise, it raises a BackendUnavailableError.
        """
        what = f"runtime {shorten(name, 30)} of {shorten(api, 30)}"
        return self._first("crossmem_runtime", what, {"api": api, "name": name})

    def emulation(self, api: str, request: "EmulationRequest") -> "Emulation":
        """Return the first answer of a plugin to ``crossmem_emulate(api, request)``.

        Raises
        ------
        CrossmemError
            No plugin answers, or the answer is not an ``Emulation``. A BackendNotFoundError of a
            plugin is raised only if no plugin raises a CrossmemError of another type.
        """
        with PLUGINS:
            from crossmem.plugin.emulation import Emulation  # noqa: PLC0415 - needed only here
        what, known = f"an emulation of {shorten(api, 40)}", {"api": api, "request": request}
        answer = self._first("crossmem_emulate", what, known)
        if isinstance(answer, Emulation):
            return answer
        msg = f"a plugin returned {shorten(answer)} for {what}"
        raise BackendUnavailableError(msg, backend=api)

    def _first(self, hook: str, what: str, known: Mapping[str, object]) -> object:
        """Return the first answer of a plugin to a hook, or raise the most helpful error."""
        catalog = self._discovered()
        faults: list[BaseException] = []
        for impl in catalog.implementations(hook):
            try:
                answer = impl.function(*(known[argument] for argument in impl.argnames))
            except PLUGIN_FAULTS as error:
                raise_if_of_handler(error)
                # A wrong request is not a fault of the plugin, so no warning is logged.
                is_request = isinstance(error, BackendNotFoundError | ConfigurationError)
                level = logging.DEBUG if is_request else logging.WARNING
                _log.log(level, "plugin %s: %s: %s", impl.plugin_name, what, error)
                faults.append(error)
                continue
            if answer is not None:
                return answer
        # A plugin that lacks ``api`` may raise BackendNotFoundError. Any other error says more.
        for fault in sorted(faults, key=lambda one: isinstance(one, BackendNotFoundError)):
            if isinstance(fault, CrossmemError):
                raise fault
        tried = [f"{type(fault).__name__}: {fault}" for fault in faults]
        raise BackendUnavailableError(
            f"no plugin provides {what}" + (f": {clause(tried[0], 80)}" if tried else ""),
            hint=self._where_to_look(),
            details="\n".join((*tried, *self._left_out())),
            backend=str(known["api"]),
        ) from (faults[0] if faults else None)

    def _offer(self, name: str) -> Offer:
        catalog = self._discovered()
        contenders = catalog.contenders(name)
        if len(contenders) == 1:
            return contenders[0]
        offers = catalog.offers.get(name)
        if contenders:
            blocks = " or ".join(sorted(offer.info.qualified for offer in contenders))
            msg = f"backend {name!r} is {clause(conflict(contenders))}"
            hint = f"set {_DISABLE} to the unwanted plugin: {clause(blocks)}"
        elif offers:
            msg = f"backend {name!r} of plugin {offers[0].info} is {offers[0].problem}"
            hint = "install matching versions of crossmem and of the plugin"
        else:
            # This import comes late, because only this error needs difflib.
            import difflib  # noqa: PLC0415

            known = clause(", ".join(sorted(catalog.offers)) or "none", 100)
            close = difflib.get_close_matches(name, catalog.offers, n=1)
            raise BackendNotFoundError(
                f"no plugin offers the backend {shorten(name, 40)}; there are: {known}",
                hint=f"did you mean {close[0]!r}?" if close else self._where_to_look(),
                details="\n".join(self._left_out()),
                backend=name,
            )
        raise BackendUnavailableError(clause(msg, 200), hint=hint, backend=name)

    def _where_to_look(self) -> str | None:
        """Return a hint about failed and disabled plugins; None if there are no such plugins."""
        return "`crossmem devices` lists failed and disabled plugins" if self._left_out() else None

    def _left_out(self) -> list[str]:
        """Return a line for each plugin that failed or is disabled."""
        catalog = self._discovered()
        failed = [f"failed: {one}" for one in catalog.failures]
        return failed + [f"disabled by {_DISABLE}: {one}" for one in catalog.disabled]

    def emit(self, event: Event) -> None:
        """Send an event to every observer. An observer's exception is logged, not raised.

        This method takes no lock. It need not discover plugins: no event precedes the discovery.
        """
        if held := forbidden_ranks():
            msg = f"an observer is called while a lock is held: {', '.join(held)}"
            raise LockOrderError(msg)
        for name, function, takes_event in self._observers:
            try:
                function(*((event,) if takes_event else ()))
            except PLUGIN_FAULTS as error:
                raise_if_of_handler(error)
                _log.exception("plugin %s raised while it observed %s", name, event.kind)

    def _observe(self, catalog: "Catalog") -> None:
        self._observers = tuple(
            (impl.plugin_name, impl.function, "event" in impl.argnames)
            for impl in catalog.implementations("crossmem_event")
        )
        self.observed = bool(self._observers)

    def after_fork_in_child(self) -> list[Driver]:
        """Drop the drivers that the parent had loaded, and return them.

        The child keeps the plugins and the results of probes. This method replaces the locks,
        because threads of the parent may have held them at the fork.
        """
        self._lock = threading.RLock()
        self._discovering = False
        if self._catalog is None:
            return []
        offers = [offer for all_ in self._catalog.offers.values() for offer in all_]
        return [driver for offer in offers for driver in offer.after_fork_in_child()]
