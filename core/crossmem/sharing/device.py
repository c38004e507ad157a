# SPDX-License-Identifier: Apache-2.0
"""Devices as applications have them: what can be done with one, and how one is named."""

from typing import cast

from crossmem.control.records import Allow
from crossmem.models import Access
from crossmem.sharing.base.devices import (
    LocalDevice,
    find_device,
    list_devices,
    refuse_foreign_device,
)
from crossmem.sharing.base.process import drain
from crossmem.sharing.exporter.adoption import Adoption, Neighbours, adopt
from crossmem.sharing.exporter.allocation import Allocation, allocate
from crossmem.sharing.pools.pool import Pool, make_pool
from crossmem.sharing.ranges.address_range import AddressRange, reserve

__all__ = ["Device", "device", "devices"]


class Device(LocalDevice):
    """One device, as this process sees it. Made by :func:`crossmem.device`.

    Attributes
    ----------
    backend
        Name of the backend, such as ``"cuda"``.
    ordinal
        Its number in this process.
    info
        Identity, name and size.
    capabilities
        What it can do.
    driver
        The backend's driver; for backend authors and tests.
    runtime
        The vendor binding that the call or ``CROSSMEM_RUNTIME`` named, None for the backend's own
        choice.
    mechanism
        How memory allocated here is shared: what was asked for, else the preferred one.
    """

    __slots__ = ()

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
            refuse_foreign_device(self)
        return allocate(process, self, nbytes)

    def pool(
        self,
        block_nbytes: int,
        blocks: int,
        *,
        allow: Allow | None = None,
        access: Access = "rw",
    ) -> Pool:
        """Allocate memory for blocks of one size, which are shared without asking anybody.

        A process that attaches a first block leases the whole pool. From then on, attaching,
        unmapping and freeing blocks take no system call and no message in either process.

        Parameters
        ----------
        block_nbytes
            Size of each block in bytes, rounded up to 64 bytes on host memory and to 512 on other
            devices.
        blocks
            How many; at most 1,048,575.
        allow
            Which processes may import blocks; None: all of the same user (C13). Who has one block
            can reach the memory of all.
        access
            ``"ro"`` makes importers' mappings read-only.

        Raises
        ------
        InvalidSizeError
            A size or count is out of bounds.
        OutOfMemoryError
            The device has no room now.
        UnsupportedError
            The backend does not offer ``access``.
        DriverError
            The vendor's call failed otherwise.
        """
        process = drain()
        if process is not self._process:
            refuse_foreign_device(self)
        return make_pool(process, self, block_nbytes, blocks, allow, access)

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
            refuse_foreign_device(self)
        return adopt(process, self, ptr, nbytes, owner, neighbours)

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
            refuse_foreign_device(self)
        return reserve(process, self, nbytes)


LocalDevice.public = Device


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
        Name of the vendor binding to use. None: what ``CROSSMEM_RUNTIME`` names for the backend,
        else the backend's own choice.
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
    found = cast("Device", find_device(drain(), spec, runtime))
    return found if mechanism is None else found.for_mechanism(mechanism)


def devices() -> list[Device]:
    """Return every device of every backend that is usable here."""
    return cast("list[Device]", list_devices(drain()))
