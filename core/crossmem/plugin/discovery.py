# SPDX-License-Identifier: Apache-2.0
"""The discovery of plugins. A faulty plugin does not affect the other plugins."""

import importlib
import importlib.metadata
import inspect
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint

import pluggy
from pluggy import HookImpl

from crossmem.errors import ConfigurationError
from crossmem.guards import clause, shorten
from crossmem.plugin import hookspecs
from crossmem.plugin.backend import Backend
from crossmem.plugin.hookspecs import FindRuntime
from crossmem.plugin.markers import API_VERSION, PROJECT_NAME
from crossmem.plugin.offers import PLUGIN_FAULTS, Offer, PluginFailure, PluginInfo, conflict
from crossmem.settings import VARIABLES
from crossmem.signals import raise_if_of_handler

__all__ = ["Catalog"]

_log = logging.getLogger(__name__)


class Catalog:
    """The plugins of one registry, with their faults and the backends that the plugins offer.

    Parameters
    ----------
    find_runtime
        The argument for the hook ``crossmem_backends``.
    """

    def __init__(self, find_runtime: FindRuntime) -> None:
        self.manager = pluggy.PluginManager(PROJECT_NAME)
        self.manager.add_hookspecs(hookspecs)
        self.plugins: dict[str, PluginInfo] = {}
        self.failures: list[PluginFailure] = []
        self.disabled: list[PluginInfo] = []
        self.offers: dict[str, list[Offer]] = {}
        self._find_runtime = find_runtime

    def discover(
        self,
        entry_points: Iterable[EntryPoint] | None,
        *,
        modules: Iterable[str],
        disabled: Iterable[str],
    ) -> None:
        """Load every plugin that is not disabled, and record a failure for each faulty plugin.

        This method does not use pluggy's own loader, which stops at the first plugin that raises.

        Parameters
        ----------
        entry_points
            The entry points of plugins; None: those of the installed distributions.
        modules
            Names of further modules that are plugins.
        disabled
            The plugins to leave out. Each item is a plugin's name, or ``distribution:plugin``.
        """
        blocked = {_normalized(name) for name in disabled}
        found = list(self._installed() if entry_points is None else entry_points)
        # Entry points come in the order of sys.path. This order depends on the installation, so the
        # plugins are sorted.
        plugins = [(_describe(point), point) for point in found]
        for info, point in sorted(plugins, key=lambda one: (one[0].distribution, one[0].plugin)):
            if blocked.isdisjoint({_normalized(info.plugin), _normalized(info.qualified)}):
                self._load(info, point)
            else:
                self.disabled.append(info)
        for module in modules:
            info = PluginInfo(module)
            if _normalized(module) in blocked:
                self.disabled.append(info)
            else:
                self._load(info, EntryPoint(module, module, PROJECT_NAME))
        for failure in self.conflicts():
            _log.warning("plugin %s", failure)

    def check_runtimes(self, runtimes: Mapping[str, str]) -> None:
        """Raise ``ConfigurationError`` if no plugin offers a backend with the requested runtime.

        Parameters
        ----------
        runtimes
            The requested runtimes. The key is the name of the backend.
        """
        for name, runtime in runtimes.items():
            offers = self.offers.get(name, ())
            known = sorted({one for offer in offers for one in offer.backend.runtimes})
            if runtime in known:
                continue
            if offers:
                msg = f"backend {shorten(name, 40)} has no runtime {shorten(runtime, 40)}"
                hint = f"its runtimes: {clause(', '.join(known) or 'none')}"
            else:
                msg = f"no plugin offers the backend {shorten(name)}"
                hint = f"known backends: {clause(', '.join(sorted(self.offers)) or 'none')}"
            raise ConfigurationError(f"{VARIABLES['runtimes']}: {msg}", hint=hint, backend=name)

    def add(self, plugin: object, info: PluginInfo) -> None:
        """Register a plugin and its backends. If this method raises, it has changed nothing."""
        if inspect.isclass(plugin):
            msg = f"{plugin.__qualname__} is a class; name a module or an instance"
            raise ConfigurationError(msg)
        if self.manager.get_name(plugin) is not None:
            return  # The plugin is registered already: two entry points may name one plugin.
        if self.manager.has_plugin(info.qualified):
            msg = f"there is already a plugin named {shorten(info.qualified)}"
            raise ConfigurationError(msg)
        try:
            self.manager.register(plugin, info.qualified)
            self._check_hooks(plugin)
            backends = self._backends_of(plugin)
        except BaseException:
            if self.manager.get_name(plugin) is not None:
                self.manager.unregister(plugin)
            raise
        self.plugins[info.qualified] = info
        for backend in backends:
            problem = ""
            if backend.api_version != API_VERSION:
                problem = (
                    f"written for version {backend.api_version!r} of the plugin interface; this "
                    f"crossmem supports version {API_VERSION}"
                )
                self._fail(info, f"backend {backend.name!r} is {problem}")
            offer = Offer(backend, info, problem=problem)
            self.offers.setdefault(backend.name, []).append(offer)

    def remove(self, name: str) -> None:
        """Remove a plugin and its backends."""
        self.manager.unregister(name=name)
        info = self.plugins.pop(name)
        for backend, offers in list(self.offers.items()):
            offers[:] = [offer for offer in offers if offer.info != info]
            if not offers:
                del self.offers[backend]

    def implementations(self, hook: str) -> list[HookImpl]:
        """Return the implementations of a hook, in the order in which crossmem calls them."""
        return list(reversed(getattr(self.manager.hook, hook).get_hookimpls()))

    def contenders(self, backend: str) -> list[Offer]:
        """Return the faultless offers of the backend with this name."""
        return [offer for offer in self.offers.get(backend, ()) if not offer.problem]

    def conflicts(self) -> list[PluginFailure]:
        """If a backend has several faultless offers, return a failure for each of these offers."""
        return [
            PluginFailure(
                offer.info.plugin,
                offer.info.distribution,
                offer.info.version,
                f"backend {name!r} is {conflict(offers)}",
            )
            for name in sorted(self.offers)
            if len(offers := self.contenders(name)) > 1
            for offer in offers
        ]

    def _load(self, info: PluginInfo, point: EntryPoint) -> None:
        try:
            self.add(point.load(), info)
        except PLUGIN_FAULTS as error:
            self._fail(info, error)

    def _fail(self, info: PluginInfo, error: BaseException | str) -> None:
        if isinstance(error, BaseException):
            raise_if_of_handler(error)
        words = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self.failures.append(PluginFailure(info.plugin, info.distribution, info.version, words))
        _log.warning("plugin %s: %s", info, words)
        if isinstance(error, BaseException):
            _log.debug("plugin %s failed here:", info, exc_info=error)

    def _installed(self) -> Iterable[EntryPoint]:
        try:
            return importlib.metadata.entry_points(group=PROJECT_NAME)
        except PLUGIN_FAULTS as error:
            raise_if_of_handler(error)
            # entry_points() fails if any distribution has broken metadata, even a distribution
            # without plugins. The slower search leaves out only the broken distributions.
            return self._installed_one_by_one()

    def _installed_one_by_one(self) -> Iterator[EntryPoint]:
        seen = set()
        for distribution in importlib.metadata.distributions():
            name = version = ""
            try:
                name, version = distribution.name or "", distribution.version
                if _normalized(name) in seen:
                    continue  # a distribution earlier on sys.path hides this one
                seen.add(_normalized(name))
                points = distribution.entry_points.select(group=PROJECT_NAME)
            except PLUGIN_FAULTS as error:
                self._fail(PluginInfo("(entry points)", name, version), error)
            else:
                yield from points

    def _check_hooks(self, plugin: object) -> None:
        """Raise ``ConfigurationError`` if a plugin has an unknown hook or a hook wrapper."""
        for caller in self.manager.get_hookcallers(plugin) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is not plugin:
                    continue
                if not caller.has_spec() and not impl.optionalhook:
                    known = ", ".join(name for name in hookspecs.__all__ if name.islower())
                    msg = f"the plugin has an unknown hook, {caller.name}; known hooks: {known}"
                    raise ConfigurationError(msg)
                if impl.wrapper or impl.hookwrapper:
                    msg = f"the hook {caller.name} is a wrapper; crossmem does not support wrappers"
                    raise ConfigurationError(msg)

    def _backends_of(self, plugin: object) -> list[Backend]:
        backends: list[Backend] = []
        for impl in self.implementations("crossmem_backends"):
            if impl.plugin is plugin:
                arguments = [self._find_runtime for _ in impl.argnames]
                answer = impl.function(*arguments)
                backends.extend(_checked(answer))
        return backends


def _checked(answer: object) -> list[Backend]:
    backends = []
    for backend in answer if isinstance(answer, Iterable) else [answer]:
        if not isinstance(backend, Backend):
            msg = f"crossmem_backends returned {shorten(backend)}, not a crossmem.plugin.Backend"
            raise ConfigurationError(msg)
        backends.append(backend)
    return backends


def _describe(point: EntryPoint) -> PluginInfo:
    """Return the description of an entry point's plugin.

    If the distribution's metadata is broken, the description does not name the distribution.
    """
    try:
        if point.dist is not None:
            return PluginInfo(point.name, point.dist.name or "", point.dist.version or "")
    except PLUGIN_FAULTS:
        _log.debug("no metadata for entry point %s", point.name, exc_info=True)
    return PluginInfo(point.name)


def _normalized(name: str) -> str:
    """Return a name in the normal form of packaging: Acme_HIP and acme-hip have the same form."""
    return re.sub(r"[-_.]+", "-", name).lower()
