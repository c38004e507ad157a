# SPDX-License-Identifier: Apache-2.0
"""Every hook that a plugin can implement.

After a driver is loaded, crossmem calls the driver directly, without hooks.

A plugin is a module or an instance of a class. Its functions or methods implement some of the
hooks. crossmem finds the plugin through an entry point in the group ``crossmem``, through the
variable ``CROSSMEM_PLUGINS``, or through a call of :meth:`Registry.register`. The plugin marks each
function with :data:`crossmem.plugin.hookimpl`. A function may leave out parameters that it does not
need. Rules for all hooks:

- The import of a plugin's module must not import a vendor's package, load a vendor's library or
  touch a device, because a process that uses one backend imports the modules of all plugins.
- If a hook raises, crossmem records or logs the exception with the plugin's name, and still calls
  the other plugins.
- crossmem refuses pluggy's hook wrappers, because a wrapper sees the results of other plugins.
- If a marked function does not have the name of a hook, the whole plugin fails. The mark
  ``@hookimpl(optionalhook=True)`` permits other names.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from crossmem.models import Event
from crossmem.plugin.backend import Backend
from crossmem.plugin.markers import hookspec

if TYPE_CHECKING:
    from crossmem.plugin.emulation import Emulation, EmulationRequest

__all__ = [
    "FindRuntime",
    "crossmem_backends",
    "crossmem_emulate",
    "crossmem_event",
    "crossmem_runtime",
]

FindRuntime = Callable[[str, str], object]
"""``find_runtime(api, name)``: asks the plugins for a runtime; see :func:`crossmem_runtime`."""


@hookspec
def crossmem_backends(find_runtime: FindRuntime) -> Iterable[Backend]:
    """Return the backends that this plugin offers.

    When: during discovery, which the first use of any backend starts, or in the call of
    :meth:`Registry.register` that adds the plugin.
    How often: once per process, and again in two cases: in a child that was forked during
    discovery, and after a discovery that failed because ``CROSSMEM_RUNTIME`` is invalid.
    Thread: the thread that starts discovery or calls ``register``. Other threads that need a
    backend wait for the end of discovery.
    Must not: import a vendor's package, load a library, touch a device, call crossmem or call
    ``find_runtime``. This hook only describes backends. :attr:`Backend.probe` examines the machine,
    and :attr:`Backend.load` makes the driver.

    Parameters
    ----------
    find_runtime
        For use in :attr:`Backend.load` only. ``find_runtime(api, name)`` returns the first answer
        of a plugin to ``crossmem_runtime(api, name)``. If no plugin answers, ``find_runtime``
        raises the error of a plugin that has the runtime but cannot use it. If there is no such
        error, ``find_runtime`` raises :class:`crossmem.BackendUnavailableError`.

    Returns
    -------
    Iterable[Backend]
        The backends, in any order. Their names must be unique among all plugins. If two plugins
        offer the same name, crossmem refuses the name until one of the plugins is disabled.

    Raises
    ------
    Exception
        During discovery, crossmem records the exception as this plugin's failure. During a call of
        ``register``, the call fails. In both cases, crossmem does not use the plugin.

    Notes
    -----
    Since 0.1.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def crossmem_runtime(api: str, name: str) -> object | None:
    """Return a vendor binding, for a backend that can use several bindings.

    When: during the load of a backend's driver, if that backend calls ``find_runtime``.
    How often: at most once per process for each backend and runtime, but once more after each
    failed load.
    Thread: the first thread that uses the backend; other threads that use the backend wait.
    Must not: return a binding for an unknown name, return a runtime that was not requested, or
    return an emulation whose name does not say that it is an emulation.

    crossmem calls one plugin after the other, until an answer is not None. The order is:

    1. the plugins that were passed to :meth:`Registry.register`, the last one first
    2. the plugins in ``CROSSMEM_PLUGINS``, the last one first
    3. the plugins of entry points, sorted by distribution and name, the last one first

    ``@hookimpl(tryfirst=True)`` and ``trylast=True`` change the order.

    Parameters
    ----------
    api
        The vendor interface that the binding must have, such as ``"hip"`` or ``"ascend"``.
    name
        The requested runtime, such as ``"emulated"``.

    Returns
    -------
    object or None
        The binding, with the vendor's own interface. It belongs to the driver that requested it.
        None if this plugin has no such runtime.

    Raises
    ------
    CrossmemError
        This plugin has the runtime but cannot use it in this process. Later plugins are still
        called. If no plugin answers, the caller that requested the device gets the first such
        error.

    Notes
    -----
    Since 0.1.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def crossmem_emulate(api: str, request: "EmulationRequest") -> "Emulation | None":
    """Prepare an emulation of a vendor's library for a program that does not use crossmem.

    When: before ``crossmem emulate`` or ``crossmem bench`` starts a program on the emulation, and
    before ``crossmem emulate --print-env`` prints the environment.
    How often: once for each emulation.
    Thread: the main thread of the command.
    Must not: start the program, or change this process's environment.

    As for :func:`crossmem_runtime`, the first answer that is not None is used.

    Parameters
    ----------
    api
        The vendor interface, such as ``"hip"`` or ``"ascend"``.
    request
        The requested emulation.

    Returns
    -------
    Emulation or None
        The environment that the program needs to find the emulation. None if this plugin does not
        emulate the vendor interface.

    Raises
    ------
    BackendNotFoundError
        This plugin does not emulate the interface. A plugin may raise this error instead of
        returning None, to list the interfaces that it emulates. Users see the error only if no
        plugin has the emulation.
    CrossmemError
        This plugin has the emulation but cannot run it, for example because the machine has no
        compiler.

    Notes
    -----
    Since 0.1.
    """
    raise NotImplementedError


@hookspec
def crossmem_event(event: Event) -> None:
    """Observe an event of this process, such as an allocation, an import or the end of a lease.

    When: right after the event, so an observer cannot prevent the event.
    How often: once for each event of this process. There is no event if the process makes a slice
    of a handle, or imports memory again before it has closed the first import.
    Thread: for an action of the application, the thread that calls crossmem. For an action of
    another process, such as the end of a lease, the lease server's thread or a thread that calls
    crossmem. For a deferred free, the thread that frees the memory. Several threads may call the
    hook at once.
    Must not: block, wait for another process, call crossmem, or raise. While an observer runs on
    the lease server's thread, importers get no reply. An observer that calls crossmem may deadlock,
    because its thread may hold locks of crossmem.

    Parameters
    ----------
    event
        The event, immutable. It contains no secret and no handle.

    Raises
    ------
    Exception
        crossmem logs the exception with the plugin's name, and still calls the other observers.

    Notes
    -----
    Without an observer, events cost almost nothing. Since 0.1.
    """
    raise NotImplementedError
