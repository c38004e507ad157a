# SPDX-License-Identifier: Apache-2.0
"""The devices that this process sees, and their lookup by name or identity."""

import logging
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

from typing_extensions import override

from crossmem.control.processes import lease_end
from crossmem.control.records import Allow
from crossmem.driver import Driver
from crossmem.errors import (
    BackendUnavailableError,
    BusyError,
    ConfigurationError,
    CrossmemError,
    DeviceNotFoundError,
    UnsupportedError,
)
from crossmem.forks import MODULES
from crossmem.guards import clause, shorten
from crossmem.models import Capabilities, DeviceInfo, ReadyHandle, ShareableHandle
from crossmem.plugin.offers import PLUGIN_FAULTS
from crossmem.sharing.base.deferred import StreamsWaitError
from crossmem.sharing.base.process import (
    Part,
    Process,
    drain,
    refuse_foreign,
    refuse_forked_backend,
)
from crossmem.sharing.base.streams import Landing
from crossmem.signals import raise_if_of_handler

__all__ = [
    "LocalDevice",
    "check_device",
    "find_by_identity",
    "find_device",
    "list_devices",
    "refuse_foreign_device",
    "runtime_in_use",
    "wait_for_work",
]

_log = logging.getLogger(__name__)


class LocalDevice:
    """The part of a device object that allocations and imports use.

    Applications use the subclass :class:`crossmem.Device`, which can allocate. The documentation of
    the subclass describes the attributes.
    """

    __slots__ = (
        "_process",
        "_siblings",
        "backend",
        "capabilities",
        "driver",
        "info",
        "mechanism",
        "ordinal",
        "runtime",
    )

    public: ClassVar["type[LocalDevice] | None"] = None
    """The class of all device objects. The module of :class:`crossmem.Device` sets it."""

    def __init__(
        self,
        process: Process,
        driver: Driver,
        info: DeviceInfo,
        runtime: str | None,
        mechanism: str | None = None,
    ) -> None:
        self._process = process
        self.backend = driver.backend
        self.driver = driver
        self.info = info
        self.ordinal = info.ordinal
        self.runtime = runtime
        self.capabilities: Capabilities = replace(
            driver.capabilities(info.ordinal, mechanism),
            lease_end=lease_end(),
        )
        self.mechanism = mechanism or self.capabilities.mechanisms[0]
        self._siblings = {self.mechanism: self}

    @property
    def name(self) -> str:
        """The name of the device in this process: ``backend:ordinal``."""
        return f"{self.backend}:{self.ordinal}"

    @property
    def identity(self) -> str:
        """The name of the device in every process of this host."""
        return self.info.identity

    @override
    def __repr__(self) -> str:
        return f"<Device {self.name} {self.info.name!r} {self.identity}>"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.backend, self.identity, self.runtime, self.mechanism)

    def for_mechanism(self, mechanism: str) -> Self:
        """Return the object of this device that uses a mechanism to share allocations.

        Parameters
        ----------
        mechanism
            A name from the tuple ``capabilities.mechanisms``.

        Returns
        -------
        Device
            The device has one object for each mechanism. The object has the mechanism's
            capabilities.

        Raises
        ------
        UnsupportedError
            The device does not have the mechanism (law C25).
        ForkedProcessError
            The device object belongs to a parent process.
        """
        if mechanism == self.mechanism:
            return self
        if mechanism not in self.capabilities.mechanisms:
            refuse_foreign(self._process, self)
            if (refusal := self.driver.refusal(self.ordinal, mechanism)) is not None:
                raise refusal
            known = ", ".join(self.capabilities.mechanisms)
            msg = f"{self.name} does not offer mechanism {shorten(mechanism, 40)}"
            msg = f"{msg}; it has: {clause(known, 80)}"
            raise UnsupportedError(msg, backend=self.backend, device=self.identity)
        refuse_foreign(self._process, self)
        found = self._siblings.get(mechanism)
        if found is None:
            made = type(self)(self._process, self.driver, self.info, self.runtime, mechanism)
            made._siblings = self._siblings
            # If two threads make the object at once, both return the object that was stored first.
            found = self._siblings.setdefault(mechanism, made)
        return cast("Self", found)

    def _landing_of(self, stream: Any) -> Landing:
        """Return an object that says whether the work issued on a stream is complete.

        Raises
        ------
        UnsupportedError
            The device has no streams.
        ConfigurationError
            The value is not a stream.
        """
        raise NotImplementedError

    def _ready_handle(self, base: ShareableHandle, stream: Any, allow: Allow | None) -> ReadyHandle:
        """Return a handle that says when the work that was issued on a stream is complete.

        The processes in ``allow`` can wait for that work; None: all processes of the same user.
        """
        raise NotImplementedError

    def _await_ready(self, ready: ReadyHandle, stream: Any, timeout: float | None) -> None:
        """Let a stream wait for the work of ``ready``. If ``stream`` is None, let the host wait."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for all work that this process has issued on the device."""
        refuse_foreign(self._process, self)
        self.driver.synchronize(self.ordinal)


class _DeviceTable(Part):
    """The known devices of each backend and runtime."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.found: dict[tuple[str, str | None], tuple[LocalDevice, ...]] = {}
        self.named: dict[tuple[str, str, int], LocalDevice] = {}
        """A cache of :func:`find_by_identity`. The key is the backend, the identity, and the number
        of entries in ``found``. A new entry in ``found`` may change the result of a search. But a
        new entry also changes the number, so later searches ignore older entries of the cache."""


def find_device(process: Process, spec: str | None, runtime: str | None) -> LocalDevice:
    """Return the device that ``spec`` names, or the default device; see :func:`crossmem.device`."""
    # This import comes late: a program that only attaches memory does not need the module.
    with MODULES:
        from crossmem.plugin.selection import choose  # noqa: PLC0415

    choice = choose(spec, process.settings, process.registry, runtime=runtime).spec
    found = _devices_of(process, choice.backend, runtime)
    for one in found:
        if one.ordinal == choice.ordinal:
            return one
    names = ", ".join(one.name for one in found) or "none"
    msg = f"backend {choice.backend!r} has no device {choice.ordinal}; it has: {clause(names, 100)}"
    raise DeviceNotFoundError(msg, backend=choice.backend)


def list_devices(process: Process) -> list[LocalDevice]:
    """Return the devices of all backends that this process can use."""
    found: list[LocalDevice] = []
    for backend in process.registry.names():
        if not process.registry.availability(backend).available:
            continue
        try:
            found.extend(_devices_of(process, backend, None))
        except PLUGIN_FAULTS as error:
            raise_if_of_handler(error)
            # A backend that fails to load must not hide the devices of other backends.
            _log.warning("backend %r has no devices: %s", backend, error)
            _log.debug("backend %r failed here:", backend, exc_info=True)
    return found


def refuse_foreign_device(device: LocalDevice) -> None:
    """Refuse a device object that this process cannot use.

    Raises
    ------
    ForkedProcessError
        The object belongs to a parent process.
    ClosedError
        This process is exiting.
    """
    refuse_foreign(device._process, device)


def check_device(device: object, operation: str = "import") -> None:
    """Refuse a value that cannot name a device.

    Raises
    ------
    ConfigurationError
        The value is neither a device nor a string nor None.
    """
    if device is not None and not isinstance(device, LocalDevice | str):
        msg = f"device must be a crossmem.Device, its name or None, not {shorten(device)}"
        raise ConfigurationError(msg, operation=operation)


def wait_for_work(device: LocalDevice) -> CrossmemError | None:
    """Wait for the device's running work, which may use memory that is about to be unmapped (C9).

    Returns
    -------
    CrossmemError or None
        The vendor's error, if the work failed. Failed work has ended, so the caller releases the
        memory and then raises this error.

    Raises
    ------
    BusyError
        A wait is impossible now, for example while a graph is captured. Also raised at exit, if a
        stream of this process still waits for another process.
    StreamsWaitError
        This thread does deferred work, which must not wait while a stream waits for a timeline.
    """
    deferred = device._process.deferred
    if deferred.draining and not deferred.may_wait(device.driver):
        msg = f"a stream of {device.name} waits for a timeline"
        raise StreamsWaitError(msg, backend=device.backend, device=device.identity)
    if device.driver in device._process.stuck:
        msg = f"a stream of {device.name} still waits for another process"
        raise BusyError(msg, backend=device.backend, device=device.identity)
    try:
        device.driver.synchronize(device.ordinal)
    except BusyError:
        raise
    except CrossmemError as error:
        return error
    return None


def _restore(backend: str, identity: str, runtime: str | None, mechanism: str) -> LocalDevice:
    """Return the device that a pickle names. Its ordinal may differ between processes (C24)."""
    found = _find(_devices_of(drain(), backend, runtime), backend, identity)
    return found.for_mechanism(mechanism)


def runtime_in_use(process: Process, backend: str) -> str | None:
    """Return the one runtime through which this process uses a backend.

    If the process uses no runtime of the backend, or several runtimes, the result is None. In that
    case, ``CROSSMEM_RUNTIME`` or the backend chooses the runtime.
    """
    used = {
        runtime for known, runtime in list(process.part(_DeviceTable).found) if known == backend
    }
    return used.pop() if len(used) == 1 else None


def find_by_identity(process: Process, backend: str, identity: str, target: object) -> LocalDevice:
    """Return the device that a handle names (law C24).

    If ``target`` is a device object of the backend, the search uses the runtime of ``target``. For
    any other target, the search uses the runtime that :func:`runtime_in_use` returns.

    Raises
    ------
    BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        The device is not visible in this process.
    """
    if isinstance(target, LocalDevice) and target.backend == backend:
        return _find(_devices_of(process, backend, target.runtime), backend, identity)
    table = process.part(_DeviceTable)
    device = table.named.get((backend, identity, len(table.found)))
    if device is None:
        runtime = runtime_in_use(process, backend)
        device = _find(_devices_of(process, backend, runtime), backend, identity)
        # The search may have added an entry to ``found``, so the key is made anew.
        table.named[backend, identity, len(table.found)] = device
    return device


def _find(found: tuple[LocalDevice, ...], backend: str, identity: str) -> LocalDevice:
    for one in found:
        if one.identity == identity:
            return one
    names = ", ".join(f"{one.name} ({one.identity})" for one in found) or "none"
    device = f"device {shorten(identity, 50)} of backend {backend!r}"
    raise DeviceNotFoundError(
        f"{device} is not visible here; visible are: {clause(names, 70)}",
        backend=backend,
        device=identity,
        hint="check the visible-device mask of this process",
        details=f"visible are: {names}",
    )


def _devices_of(process: Process, backend: str, runtime: str | None) -> tuple[LocalDevice, ...]:
    table = process.part(_DeviceTable)
    # The entry is the same whether the caller or ``CROSSMEM_RUNTIME`` names the runtime.
    runtime = runtime or process.registry.runtime_of(backend)
    found = table.found.get((backend, runtime))
    if found is None:
        refuse_forked_backend(backend)
        driver = process.registry.driver(backend, runtime=runtime)
        found = table.found.setdefault((backend, runtime), _made(process, driver, runtime))
        # A forked child must not call the driver, so the parent records ``fork_safe`` now.
        if all(one.capabilities.fork_safe for one in found):
            process.fork_safe_backends |= {backend}
    return found


def _made(process: Process, driver: Driver, runtime: str | None) -> tuple[LocalDevice, ...]:
    """Return an object for each device of a driver.

    A plugin's driver may return invalid devices, so this function checks them.

    Raises
    ------
    BackendUnavailableError
        The driver cannot list its devices, or lists one of them twice.
    """
    make = LocalDevice.public or LocalDevice
    try:
        made = tuple(make(process, driver, info, runtime) for info in driver.devices())
        fault = ""
        if len({one.identity for one in made}) < len(made):
            fault = "two devices have one identity"
        elif len({one.ordinal for one in made}) < len(made):
            fault = "two devices have one ordinal"
    except CrossmemError:
        raise
    except PLUGIN_FAULTS as error:
        raise_if_of_handler(error)
        _log.debug("the driver of backend %r failed here:", driver.backend, exc_info=True)
        fault = f"{type(error).__name__}: {error}"
    if fault:
        msg = f"the driver of backend {driver.backend!r} cannot list its devices: "
        raise BackendUnavailableError(
            msg + clause(fault, 100), details=fault, backend=driver.backend
        )
    return made
