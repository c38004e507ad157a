# SPDX-License-Identifier: Apache-2.0
"""Devices, and how one is named."""

import logging
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from crossmem.control.processes import has_pidfds
from crossmem.driver import Driver, address_ranges_of
from crossmem.errors import DeviceNotFoundError, OutOfMemoryError, UnsupportedError
from crossmem.guards import check_size
from crossmem.models import Capabilities, DeviceInfo
from crossmem.plugin.offers import PLUGIN_FAULTS
from crossmem.sharing.adoption import Adoption, Neighbours, adopt
from crossmem.sharing.allocation import Allocation
from crossmem.sharing.owned import Owned
from crossmem.sharing.process import Process, drain, refuse_foreign, refuse_forked_backend
from crossmem.sharing.ranges import AddressRange
from crossmem.sharing.reservation import Reservation

_log = logging.getLogger(__name__)

_MAX_RANGE_NBYTES: Final = 1 << 47
"""What a process has for itself of 64-bit addresses."""

__all__ = ["Device", "device", "devices", "find_by_identity", "runtime_in_use"]


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
    mechanism
        How memory allocated here is shared: what was asked for, else the preferred one.
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
            lease_end="process" if has_pidfds() else "connection",
        )
        self.mechanism = mechanism or self.capabilities.mechanisms[0]
        self._siblings = {self.mechanism: self}

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
        return _restore, (self.backend, self.identity, self.runtime, self.mechanism)

    def for_mechanism(self, mechanism: str) -> "Device":
        """Return this device for memory that is shared in another way.

        Parameters
        ----------
        mechanism
            One of the capability ``mechanisms``.

        Returns
        -------
        Device
            Always the same object for one mechanism; its capabilities are those of that way.

        Raises
        ------
        UnsupportedError
            Where the device does not have the mechanism (law C25).
        ForkedProcessError
            Where the device object belongs to a parent process.
        """
        if mechanism == self.mechanism:
            return self
        if mechanism not in self.capabilities.mechanisms:
            known = ", ".join(self.capabilities.mechanisms)
            msg = f"{self.name} does not offer mechanism {mechanism!r}; it has: {known}"
            raise UnsupportedError(msg, backend=self.backend, device=self.identity)
        self.check_usable()
        with self._process.lock:
            found = self._siblings.get(mechanism)
            if found is None:
                found = Device(self._process, self.driver, self.info, self.runtime, mechanism)
                found._siblings = self._siblings
                self._siblings[mechanism] = found
        return found

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
            block = self.driver.allocate(self.ordinal, size, self.mechanism)
        except OutOfMemoryError:
            process.catch_up()
            try:
                block = self.driver.allocate(self.ordinal, size, self.mechanism)
            except OutOfMemoryError as error:
                raise self._out_of_memory(error, size) from error
        owned = Owned(process, self, next(process.numbers), block)
        owned.begin()
        return Allocation(owned)

    def adopt(
        self, ptr: int, nbytes: int, *, owner: object, neighbours: Neighbours | None = None
    ) -> Adoption:
        """Make memory that someone else allocated exportable, without a copy.

        :func:`crossmem.how_can_share` says beforehand what this would raise, and why.

        Parameters
        ----------
        ptr
            Address of the first byte, in the vendor's own memory of this device.
        nbytes
            How many bytes from there on; all of one allocation of the vendor's.
        owner
            What keeps the memory: a tensor, for example. It is kept alive until the adoption is
            freed and the last lease on it has ended. The memory must stay while it lives.
        neighbours
            ``"expose"`` where importers may reach what else lies in the same block of the
            vendor's; None refuses such memory.

        Returns
        -------
        Adoption
            Export it as an allocation. Free it, or use it as a context manager: that lets the
            owner go and leaves the memory alone.

        Raises
        ------
        UnsupportedError
            Where this memory cannot be shared, with the reason; where the capability
            ``foreign_memory`` is false; and where there are neighbours.
        InvalidSizeError
            Where the bytes do not lie in one allocation of the vendor's.
        BusyError
            Where other memory at these addresses was adopted, and freed without being given up.
        ConfigurationError
            Where an argument has no meaning.
        DriverError
            Where the vendor's call failed otherwise.
        """
        process = drain()
        if process is not self._process:
            self.check_usable()
        return adopt(process, self, ptr, nbytes, owner, neighbours)

    def _out_of_memory(self, error: OutOfMemoryError, nbytes: int) -> OutOfMemoryError:
        waiting = [
            one
            for one in list(self._process.owned.values())
            if one.is_retired and not one.is_adopted and one.device.info is self.info
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

    def reserve(self, nbytes: int) -> AddressRange:
        """Reserve consecutive addresses, without memory.

        Parameters
        ----------
        nbytes
            How many bytes; the range has this rounded up to the device's granularity.

        Returns
        -------
        AddressRange
            Map memory there piece by piece. Release it, or use it as a context manager.

        Raises
        ------
        InvalidSizeError
            Where ``nbytes`` is not positive, or more than a process can address.
        OutOfMemoryError
            Where this process has not so many consecutive addresses left.
        UnsupportedError
            Where the capability ``address_ranges`` is false.
        DriverError
            Where the vendor's call failed otherwise.
        """
        process = drain()
        if process is not self._process:
            self.check_usable()
        size = check_size("nbytes", nbytes, limit=_MAX_RANGE_NBYTES)
        driver = address_ranges_of(self.driver)
        if driver is None or not self.capabilities.address_ranges:
            msg = f"{self.name} does not offer address ranges (capability address_ranges)"
            raise UnsupportedError(msg, operation="reserve", backend=self.backend)
        granularity = self.capabilities.granularity_nbytes
        size = -(-size // granularity) * granularity
        pointer = driver.reserve(self.ordinal, size)
        return AddressRange(Reservation(process, self, driver, pointer, size))

    def synchronize(self) -> None:
        """Wait for all work that this process has issued on the device."""
        self.check_usable()
        self.driver.synchronize(self.ordinal)


def device(
    spec: str | None = None, *, runtime: str | None = None, mechanism: str | None = None
) -> Device:
    """Return a device.

    Parameters
    ----------
    spec
        ``"backend:ordinal"``, or a backend's name for its first device. None: what
        ``CROSSMEM_DEVICE`` names, else the first device of the available backend with the
        highest priority; an emulation is used only where it is named.
    runtime
        Name of the vendor binding to use; None for the backend's own choice.
    mechanism
        How memory allocated on the device is shared, one of its capability ``mechanisms``;
        None: the preferred one. Imports use the handle's mechanism, whatever this says.

    Raises
    ------
    ConfigurationError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        Each says what is missing and what to do.
    UnsupportedError
        Where the device does not have the mechanism.
    """
    # A program that only attaches memory never chooses a device.
    from crossmem.plugin.selection import choose  # noqa: PLC0415

    process = drain()
    choice = choose(spec, process.settings, process.registry, runtime=runtime).spec
    found = _devices_of(process, choice.backend, runtime)
    for one in found:
        if one.ordinal == choice.ordinal:
            return one if mechanism is None else one.for_mechanism(mechanism)
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


def _restore(backend: str, identity: str, runtime: str | None, mechanism: str) -> Device:
    """Return the device that was pickled, whatever its ordinal is here (law C24)."""
    found = _find(_devices_of(drain(), backend, runtime), backend, identity)
    return found.for_mechanism(mechanism)


def runtime_in_use(process: Process, backend: str) -> str | None:
    """Return the one runtime through which this process uses a backend.

    Where there are none or several, None: the backend's own choice.
    """
    used = {runtime for known, runtime in list(process.devices) if known == backend}
    return used.pop() if len(used) == 1 else None


def find_by_identity(
    process: Process, backend: str, identity: str, target: Device | str | None
) -> Device:
    """Return the device that a handle names (law C24).

    It is looked for in the runtime of the target device. Where that is not given, in the one
    runtime through which this process uses the backend already, else in the backend's own.

    Raises
    ------
    BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        Where this process does not see it.
    """
    if isinstance(target, Device) and target.backend == backend:
        runtime = target.runtime
    else:
        runtime = runtime_in_use(process, backend)
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
        refuse_forked_backend(backend)
        driver = process.registry.driver(backend, runtime=runtime)
        found = tuple(Device(process, driver, info, runtime) for info in driver.devices())
        with process.lock:
            found = process.devices.setdefault((backend, runtime), found)
    return found
