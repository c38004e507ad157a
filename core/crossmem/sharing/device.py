# SPDX-License-Identifier: Apache-2.0
"""The device objects of applications, and the functions that find them."""

from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from crossmem.control.records import Allow
from crossmem.forks import MODULES
from crossmem.models import Access, ReadyHandle, ShareableHandle, TimelineLevel
from crossmem.sharing.base.devices import (
    LocalDevice,
    find_device,
    list_devices,
    refuse_foreign_device,
)
from crossmem.sharing.base.process import drain
from crossmem.sharing.base.streams import Landing
from crossmem.sharing.exporter.adoption import Adoption, Neighbours, adopt
from crossmem.sharing.exporter.allocation import Allocation, allocate
from crossmem.sharing.pools.pool import Pool, make_pool
from crossmem.sharing.queues.layout import Delivery, Overflow
from crossmem.sharing.ranges.address_range import AddressRange, reserve
from crossmem.sharing.timelines.ends import HandOver
from crossmem.sharing.timelines.making import make_timeline
from crossmem.sharing.timelines.timeline import Timeline

if TYPE_CHECKING:
    from crossmem.sharing.queues.queue import Queue

__all__ = ["Device", "device", "devices"]


class Device(LocalDevice):
    """A device in this process. Made by :func:`crossmem.device` and :func:`crossmem.devices`.

    Attributes
    ----------
    backend
        Name of the backend, such as ``"cuda"``.
    ordinal
        Number of the device in this process.
    info
        Identity, name and size.
    capabilities
        Abilities and limits.
    driver
        The backend's driver; for backend authors and tests.
    runtime
        The vendor binding that the caller or ``CROSSMEM_RUNTIME`` named; None: the backend's own
        choice.
    mechanism
        The mechanism that shares memory of this device: the one that the caller named, or the
        preferred one.
    """

    __slots__ = ()

    def allocate(self, nbytes: int) -> Allocation:
        """Allocate device memory.

        Parameters
        ----------
        nbytes
            Requested size. The capacity is this size, rounded up to the device's granularity.

        Returns
        -------
        Allocation
            The contents of the memory are undefined. Free the allocation, or use it as a context
            manager.

        Raises
        ------
        InvalidSizeError
            ``nbytes`` is not a positive integer, or is larger than the largest possible allocation.
        OutOfMemoryError
            The device has no room now. The message says how many bytes importers still hold in
            freed allocations.
        UnsupportedError
            The device's mechanism can share only queues.
        DriverError
            The vendor's call failed for another reason.
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
        """Allocate a pool: memory that is divided into blocks of one size.

        A process leases the whole pool when it attaches its first block. After that, it usually
        attaches and unmaps blocks without a message or a system call. The owner reclaims freed
        blocks in batches, because one barrier (``membarrier``) serves a whole batch. A batch
        usually has at most 32 blocks.

        Parameters
        ----------
        block_nbytes
            Size of each block in bytes. The pool rounds this size up to a multiple of 64 bytes
            in host memory, and to a multiple of 512 bytes on other devices.
        blocks
            Number of blocks; at most 1,048,574.
        allow
            The processes that may import blocks; None: all processes of the same user (C13). A
            process that imports one block can access the memory of all blocks.
        access
            ``"ro"`` makes importers' mappings read-only.

        Raises
        ------
        InvalidSizeError, ConfigurationError
            A size or count is out of bounds, or another argument is invalid.
        OutOfMemoryError
            The device has no room now.
        UnsupportedError
            The device does not offer ``access``, cannot admit the users in ``allow``, or can share
            only queues.
        DriverError
            The vendor's call failed for another reason.
        """
        process = drain()
        if process is not self._process:
            refuse_foreign_device(self)
        return make_pool(process, self, block_nbytes, blocks, allow, access)

    def timeline(
        self, level: TimelineLevel | None = None, *, allow: Allow | None = None
    ) -> Timeline:
        """Make a timeline: a growing value that this process signals and other processes wait for.

        Parameters
        ----------
        level
            How the timeline orders streams: ``"word"``, ``"event"`` or ``"host"``; see the
            capability ``timeline_levels``. None: the strongest level that the device offers.
        allow
            The processes that may open the timeline; None: all processes of the same user (C13). At
            the levels ``"word"`` and ``"host"``, up to 64 timelines with the same ``allow`` share a
            page of memory. A process that opens one of these timelines can write the whole page.

        Returns
        -------
        Timeline
            A timeline of value 0. Close it, or use it as a context manager.

        Raises
        ------
        ConfigurationError, UnsupportedError
            An argument is invalid, or the device does not offer the level.
        BackendNotFoundError
            The backend ``host``, whose memory contains the value, is missing.
        OutOfMemoryError, DriverError
            The memory for the value cannot be allocated.
        """
        process = drain()
        if process is not self._process:
            refuse_foreign_device(self)
        return make_timeline(process, self, level, allow)

    def queue(
        self,
        depth: int,
        nbytes: int,
        *,
        delivery: Delivery = "one",
        overflow: Overflow = "wait",
        redeliver: bool = False,
        producers: int = 1,
        consumers: int = 8,
        prefetch: int | None = None,
        allow: Allow | None = None,
    ) -> "Queue":
        """Make a queue, by which processes hand buffers of this device to each other.

        Parameters
        ----------
        depth
            Number of buffers of each producer.
        nbytes
            Capacity of a buffer, in bytes.
        delivery
            ``"one"``: each buffer goes to one consumer. ``"each"``: each buffer goes to every
            consumer that opened the queue before the put, and the consumers get it read-only.
        overflow
            What :meth:`Queue.allocate` does if no buffer is free. ``"wait"``: it waits.
            ``"raise"``: it raises. ``"drop"``: it takes back the oldest buffer that no consumer has
            in hand.
        redeliver
            True: the buffers of a dead consumer are delivered again, with a higher
            ``delivery_count``. This needs ``delivery="one"``. False: these buffers are lost, and
            :meth:`Queue.stats` counts them.
        producers, consumers
            How many processes can produce at the same time, and how many can consume.
        prefetch
            The queue gives a buffer to a consumer only if the consumer has fewer than ``prefetch``
            unreleased buffers of the same producer. None: if ``consumers`` is 1, the value is
            ``depth``; otherwise, the value is 2.
        allow
            The processes that may open the queue; None: all processes of the same user (C13).

        Returns
        -------
        Queue
            Close it, or use it as a context manager.

        Raises
        ------
        InvalidSizeError, ConfigurationError
            An argument is out of bounds or invalid.
        UnsupportedError
            The device does not offer queues with these arguments.
        OutOfMemoryError, DriverError
            The memory for the buffers cannot be allocated.
        """
        process = drain()
        if process is not self._process:
            refuse_foreign_device(self)
        # This import comes late, because most programs make no queue.
        with MODULES:
            from crossmem.sharing.queues.making import make_queue  # noqa: PLC0415

        return make_queue(
            process,
            self,
            depth,
            nbytes,
            delivery=delivery,
            overflow=overflow,
            redeliver=redeliver,
            producers=producers,
            consumers=consumers,
            prefetch=prefetch,
            allow=allow,
        )

    def adopt(
        self, ptr: int, nbytes: int, *, owner: object, neighbours: Neighbours | None = None
    ) -> Adoption:
        """Make memory of another library exportable, without a copy.

        :func:`crossmem.how_can_share` reports in advance whether the memory can be shared.

        Parameters
        ----------
        ptr
            Address of the first byte. The vendor's library must have allocated the memory on this
            device.
        nbytes
            Number of bytes from ``ptr`` on. They must lie in one allocation of the vendor.
        owner
            The object that keeps the memory allocated, such as a tensor. The memory must stay
            allocated while this object lives. The adoption refers to the object until the adoption
            is freed and its last lease has ended.
        neighbours
            ``"expose"`` allows importers to reach other memory in the same block of the vendor.
            None: the call raises if the block contains other memory.

        Returns
        -------
        Adoption
            Export the adoption like an allocation. End it with ``free()``, or use it as a context
            manager. Ending the adoption does not free the memory.

        Raises
        ------
        UnsupportedError
            This memory cannot be shared (the message says why). Or the block contains other memory,
            and ``neighbours`` is None.
        InvalidSizeError
            ``nbytes`` is not positive, or the bytes do not lie in one allocation of the vendor.
        BusyError
            The vendor has new memory at these addresses, but an adoption of the previous memory was
            not freed. Free that adoption first.
        ConfigurationError
            An argument is invalid.
        DriverError
            The vendor's call failed for another reason.
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
            Requested size. The range has this size, rounded up to the device's granularity.

        Returns
        -------
        AddressRange
            Map memory into the range in pieces. Release the range, or use it as a context manager.

        Raises
        ------
        InvalidSizeError
            ``nbytes`` is not a positive integer, or is larger than the address space of a process.
        OutOfMemoryError
            This process does not have that many consecutive addresses left.
        UnsupportedError
            The capability ``address_ranges`` is false.
        DriverError
            The vendor's call failed for another reason.
        """
        process = drain()
        if process is not self._process:
            refuse_foreign_device(self)
        return reserve(process, self, nbytes)

    @override
    def _landing_of(self, stream: Any) -> Landing:
        return self._process.part(HandOver).signal(self, stream)

    @override
    def _ready_handle(self, base: ShareableHandle, stream: Any, allow: Allow | None) -> ReadyHandle:
        end = self._process.part(HandOver).signal(self, stream, allow)
        return ReadyHandle(base, end.timeline.export(), end.value)

    @override
    def _await_ready(self, ready: ReadyHandle, stream: Any, timeout: float | None) -> None:
        self._process.part(HandOver).wait(ready, self, stream, timeout)


LocalDevice.public = Device


def device(
    spec: str | None = None, *, runtime: str | None = None, mechanism: str | None = None
) -> Device:
    """Return a device.

    Parameters
    ----------
    spec
        The device's name, ``"backend:ordinal"``. If the ordinal is left out, this function returns
        the backend's first device. None: the device in ``CROSSMEM_DEVICE``, else the first device
        of the available backend with the highest priority. Emulations and the backend ``host``
        have no priority, so they must be named.
    runtime
        Name of the vendor binding. None: the binding in ``CROSSMEM_RUNTIME`` for the backend, else
        the backend's own choice.
    mechanism
        The mechanism that shares memory allocated on the device: one of the names in the capability
        ``mechanisms``. None: the preferred one. Imports always use the handle's mechanism.

    Raises
    ------
    ConfigurationError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        No device that this process can use matches the arguments. The message says what is
        missing.
    UnsupportedError
        The device does not have the mechanism.
    """
    found = cast("Device", find_device(drain(), spec, runtime))
    return found if mechanism is None else found.for_mechanism(mechanism)


def devices() -> list[Device]:
    """Return all devices of those backends that this process can use."""
    return cast("list[Device]", list_devices(drain()))
