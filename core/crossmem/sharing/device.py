# SPDX-License-Identifier: Apache-2.0
"""Devices, and how one is named."""

import logging
from typing import Any

from typing_extensions import override

from crossmem.control.processes import has_pidfds
from crossmem.driver import Driver
from crossmem.errors import DeviceNotFoundError, OutOfMemoryError
from crossmem.guards import check_size
from crossmem.models import Capabilities, DeviceInfo
from crossmem.plugin import choose
from crossmem.plugin.offers import PLUGIN_FAULTS
from crossmem.sharing.allocation import Allocation, Owned
from crossmem.sharing.process import Process, drain, refuse_foreign, refuse_forked_backend

_log = logging.getLogger(__name__)

__all__ = ["Device", "device", "devices", "find_by_identity"]


class Device:
    """One device, as this process sees it. Made by :func:`crossmem.device`.

    Attributes
    ----------
    backend
        Name of the backend, such as ``"emulated"``.
    ordinal
        Its number in this process.
    info
        Identity, name and size.
    capabilities
        What it can do.
    driver
        The backend's driver; for backend authors and tests.
    runtime
        The vendor binding that was asked for by name, None for the backend's own choice.
    """

    __slots__ = ("_process", "backend", "capabilities", "driver", "info", "ordinal", "runtime")

    def __init__(
        self, process: Process, driver: Driver, info: DeviceInfo, runtime: str | None
    ) -> None:
        self._process = process
        self.backend = driver.backend
        self.driver = driver
        self.info = info
        self.ordinal = info.ordinal
        self.runtime = runtime
        lease_end = "process" if has_pidfds() else "connection"
        self.capabilities: Capabilities = driver.capabilities(info.ordinal).model_copy(
            update={"lease_end": lease_end}
        )

    @property
    def name(self) -> str:
        """``backend:ordinal``."""
        return f"{self.backend}:{self.ordinal}"

    @property
    def identity(self) -> str:
        """What the device is called in every process of this host."""
        return self.info.identity

    @override
    def __repr__(self) -> str:
        return f"<Device {self.name} {self.info.name!r} {self.identity}>"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.backend, self.identity, self.runtime)

    def check_usable(self) -> None:
        """Raise where the device object belongs to a parent process.

        Raises
        ------
        ForkedProcessError
            With what to do instead.
        """
        refuse_foreign(self._process, self)

    def allocate(self, nbytes: int) -> Allocation:
        """Allocate device memory.

        Parameters
        ----------
        nbytes
            How many bytes; the capacity is this rounded up to the device's granularity.

        Returns
        -------
        Allocation
            Its contents are undefined. Free it, or use it as a context manager.

        Raises
        ------
        InvalidSizeError
            Where ``nbytes`` is not positive, or larger than the device can ever give.
        OutOfMemoryError
            Where the device has no room now; the message says how much waits on leases.
        DriverError
            Where the vendor's call failed otherwise.
        """
        process = drain()
        if process is not self._process:
            self.check_usable()
        size = check_size("nbytes", nbytes, limit=self.capabilities.max_allocation_nbytes)
        try:
            block = self.driver.allocate(self.ordinal, size)
        except OutOfMemoryError:
            # Importers may have released what is freed, and nobody has read that yet.
            if process.server is not None:
                process.server.catch_up()
            process.drain()
            try:
                block = self.driver.allocate(self.ordinal, size)
            except OutOfMemoryError as error:
                raise self._out_of_memory(error, size) from error
        owned = Owned(process, self, next(process.numbers), block)
        return Allocation(owned)

    def _out_of_memory(self, error: OutOfMemoryError, nbytes: int) -> OutOfMemoryError:
        waiting = [
            one
            for one in list(self._process.owned.values())
            if one.is_retired and one.device is self
        ]
        held = sum(one.block.capacity for one in waiting)
        return OutOfMemoryError(
            f"{error.message}; {nbytes} bytes were asked for on {self.name}, where {held} bytes in "
            f"{len(waiting)} freed allocations wait for importers to close them",
            hint="crossmem.exports() shows which processes hold them" if waiting else error.hint,
            operation="allocate",
            backend=self.backend,
            device=self.identity,
        )

    def synchronize(self) -> None:
        """Wait for all work that this process has issued on the device."""
        self.check_usable()
        self.driver.synchronize(self.ordinal)


def device(spec: str | None = None, *, runtime: str | None = None) -> Device:
    """Return a device.

    Parameters
    ----------
    spec
        ``"backend:ordinal"``, or a backend's name for its first device. None: what
        ``CROSSMEM_DEVICE`` names, else the first device of the available backend with the
        highest priority; an emulation is used only where it is named.
    runtime
        Name of the vendor binding to use; None for the backend's own choice.

    Raises
    ------
    ConfigurationError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        Each says what is missing and what to do.
    """
    process = drain()
    choice = choose(spec, process.settings, process.registry, runtime=runtime).spec
    found = _devices_of(process, choice.backend, runtime)
    for one in found:
        if one.ordinal == choice.ordinal:
            return one
    names = ", ".join(one.name for one in found) or "none"
    msg = f"backend {choice.backend!r} has no device {choice.ordinal}; it has: {names}"
    raise DeviceNotFoundError(msg, backend=choice.backend)


def devices() -> list[Device]:
    """Return every device of every backend that is usable here."""
    process = drain()
    found: list[Device] = []
    for backend in process.registry.names():
        if not process.registry.availability(backend).available:
            continue
        try:
            found.extend(_devices_of(process, backend, None))
        except PLUGIN_FAULTS:
            # One backend that does not load must not take the others' devices away;
            # ``crossmem devices`` shows why.
            _log.warning("backend %r has no devices", backend, exc_info=True)
    return found


def _restore(backend: str, identity: str, runtime: str | None) -> Device:
    """Return the device that was pickled, whatever its ordinal is here (law C24)."""
    return _find(_devices_of(drain(), backend, runtime), backend, identity)


def find_by_identity(
    process: Process, backend: str, identity: str, target: Device | str | None
) -> Device:
    """Return the device that a handle names (law C24).

    Where the caller names a target device, the home is looked for in the same runtime.

    Raises
    ------
    BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        Where this process does not see it.
    """
    runtime = target.runtime if isinstance(target, Device) else None
    return _find(_devices_of(process, backend, runtime), backend, identity)


def _find(found: tuple[Device, ...], backend: str, identity: str) -> Device:
    for one in found:
        if one.identity == identity:
            return one
    names = ", ".join(f"{one.name} ({one.identity})" for one in found) or "none"
    msg = f"device {identity!r} of backend {backend!r} is not visible here; visible are: {names}"
    raise DeviceNotFoundError(
        msg, backend=backend, device=identity, hint="check this process's visible-device mask"
    )


def _devices_of(process: Process, backend: str, runtime: str | None) -> tuple[Device, ...]:
    found = process.devices.get((backend, runtime))
    if found is None:
        driver = process.registry.driver(backend, runtime=runtime)
        found = tuple(Device(process, driver, info, runtime) for info in driver.devices())
        if found:
            refuse_forked_backend(backend, fork_safe=found[0].capabilities.fork_safe)
        with process.lock:
            found = process.devices.setdefault((backend, runtime), found)
    return found
