# SPDX-License-Identifier: Apache-2.0
"""The driver for HIP and CUDA. It makes a device current before a mechanism uses the device."""

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from typing_extensions import override

from crossmem.driver import Block, CopyKind, Exported, Foreign, Imported, SharedEvent
from crossmem.driver.recording import call_into
from crossmem.driver.vendor import VendorDriver
from crossmem.errors import InvalidHandleError
from crossmem.guards import shorten
from crossmem.models import Access, Capabilities
from crossmem_hip.capture import refuse_capture
from crossmem_hip.context import Current
from crossmem_hip.devices import find_devices
from crossmem_hip.family import Family
from crossmem_hip.legacy import Legacy
from crossmem_hip.mechanism import Mechanism
from crossmem_hip.peers import PeerAccess
from crossmem_hip.runtime import Runtime, Vendor
from crossmem_hip.streams import StreamOrder
from crossmem_hip.virtual import Virtual

__all__ = ["GpuDriver"]

_UNKNOWN_NBYTES: Final = 1 << 40
"""The size limit of an allocation, in bytes, if the device does not report its memory's size."""

_KINDS: Final = {
    CopyKind.HOST_TO_DEVICE: 1,
    CopyKind.DEVICE_TO_HOST: 2,
    CopyKind.DEVICE_TO_DEVICE: 3,
}
_DEFAULT_STREAM: Final = 0


class GpuDriver(VendorDriver):
    """Memory of AMD or NVIDIA GPUs, through CuPy's runtime or a binding with the same interface.

    The driver has optional groups of methods:

    - :class:`crossmem.driver.AddressRanges`, if a device offers virtual memory;
    - :class:`crossmem.driver.ForeignMemory`, if the runtime knows the bounds of allocations;
    - :class:`crossmem.driver.Streams`, always;
    - :class:`crossmem.driver.StreamWords`, if the runtime has the functions, and streams of a
      device can write and wait for values in host memory;
    - :class:`crossmem.driver.StreamEvents` and :class:`crossmem.driver.StreamWork`, if the runtime
      has the functions;
    - ``violations``, if the runtime is an emulation that records API misuse.

    Parameters
    ----------
    family
        The vendor of the devices.
    rt
        CuPy's runtime, or a binding or emulation with the same interface.
    streams
        Returns the streams that CuPy and PyTorch use in the calling thread.
    is_emulated
        Whether the runtime is an emulation within Python. The vendor's library does not know the
        emulation's addresses, so CuPy and PyTorch cannot have arrays in emulated memory.

    Raises
    ------
    BackendUnavailableError
        The runtime lacks a function, or finds no driver or device.
    ConfigurationError
        Two devices have the same identity.
    DriverError
        The runtime refused a query.
    """

    inspect: Callable[[int, int, str], Foreign]
    adopt: Callable[[int, Foreign, str], Block]
    disown: Callable[[Block], None]
    register_host: Callable[[int, int, int], int]
    unregister_host: Callable[[int, int], None]
    write_value: Callable[[int, int, int, int], None]
    wait_value: Callable[[int, int, int, int], None]
    create_event: Callable[[int], SharedEvent]
    open_event: Callable[[int, bytes], SharedEvent]
    destroy_event: Callable[[SharedEvent], None]
    record_event: Callable[[SharedEvent, int], None]
    wait_event: Callable[[SharedEvent, int], None]
    is_event_done: Callable[[SharedEvent], bool]
    create_stream: Callable[[int], int]
    destroy_stream: Callable[[int, int], None]
    copy_async: Callable[[int, int, int, int, int], None]

    def __init__(
        self,
        family: Family,
        rt: Runtime,
        streams: Callable[[], tuple[int, ...]] = tuple,
        *,
        is_emulated: bool = False,
    ) -> None:
        self.backend = family.backend
        self._has_arrays = not is_emulated
        self._vendor = Vendor(family, rt, streams)
        self._current = Current(self._vendor)
        self._peers = PeerAccess(self._vendor)
        self._devices = find_devices(self._vendor)
        count = len(self._devices)
        self._virtual = Virtual(self._vendor, count, self._reached_by)
        mechanisms: tuple[Mechanism, ...] = (Legacy(self._vendor, self._peers), self._virtual)
        self._mechanisms = {
            one.name: one for one in mechanisms if any(map(one.granularity, range(count)))
        }
        self._capabilities: dict[tuple[int, str | None], Capabilities] = {}
        if any(one.address_ranges for one in self._mechanisms.values()):
            self._offer_ranges(self._virtual)
        if any(one.foreign_memory for one in self._mechanisms.values()):
            self.inspect, self.adopt, self.disown = self._inspect, self._adopt, self._disown
        self._order = order = StreamOrder(self._vendor, self._on)
        self.synchronize_stream = order.synchronize_stream
        offered = {level for ordinal in range(count) for level in order.levels(ordinal)}
        if "word" in offered:
            self.register_host, self.unregister_host = order.register_host, order.unregister_host
            self.write_value, self.wait_value = order.write_value, order.wait_value
        if "event" in offered:
            self.create_event, self.open_event = order.create_event, order.open_event
            self.destroy_event, self.is_event_done = order.destroy_event, order.is_event_done
            self.record_event, self.wait_event = order.record_event, order.wait_event
        if order.has_work:
            self.create_stream, self.destroy_stream = order.create_stream, order.destroy_stream
            self.copy_async = order.copy_async
        if hasattr(rt, "violations"):
            self.violations = lambda: [str(one) for one in rt.violations]

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        found = self._capabilities.get((ordinal, mechanism))
        if found is None:
            others = [one.ordinal for one in self._devices if one.ordinal != ordinal]
            peer_access = self._peers.reach_each_other(ordinal, others)
            offered = [one for one in self._mechanisms.values() if one.granularity(ordinal)]
            for one in offered:
                self._capabilities[ordinal, one.name] = Capabilities(
                    mechanisms=tuple(each.name for each in offered),
                    granularity_nbytes=one.granularity(ordinal),
                    max_allocation_nbytes=self._devices[ordinal].total_nbytes or _UNKNOWN_NBYTES,
                    host_visible=False,
                    readonly_exports=False,
                    readonly_imports=False,
                    peer_access=peer_access,
                    fork_safe=False,
                    survives_owner=one.survives_owner,
                    raw_handles=one.raw_handles,
                    address_ranges=one.address_ranges,
                    foreign_memory=one.foreign_memory,
                    cuda_array_interface=self._has_arrays,
                    timeline_levels=self._order.levels(ordinal),
                    dlpack_device_type=self._vendor.family.dlpack_device_type
                    if self._has_arrays
                    else None,
                )
            self._capabilities[ordinal, None] = self._capabilities[ordinal, offered[0].name]
            found = self._capabilities[ordinal, mechanism]
        return found

    def _reached_by(self, ordinal: int) -> tuple[int, ...]:
        """Return the devices that get access to the mappings of a device."""
        if not self.capabilities(ordinal, None).peer_access:
            return (ordinal,)
        return (ordinal, *(one.ordinal for one in self._devices if one.ordinal != ordinal))

    # Own memory ---------------------------------------------------------------------------

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        made: list[Exported] = []
        try:
            with self._on(block.ordinal, "export"):
                call_into(made, block.reference.mechanism.export, block)
        except BaseException as error:
            for exported in made:
                self._undo(error, partial(self.release_export, block), exported)
            raise
        return made[0]

    @override
    def release_export(self, block: Block, exported: Exported) -> None:
        block.reference.mechanism.release_export(exported)

    @override
    def after_fork_in_child(self) -> None:
        self._virtual.after_fork_in_child()

    # Memory of other processes ------------------------------------------------------------

    @override
    def import_(
        self,
        ordinal: int,
        exported: Exported,
        *,
        home: int,
        mechanism: str,
        nbytes: int,
        capacity: int,
        access: Access,
    ) -> Imported:
        way = self._mechanisms[mechanism]
        sizes, count = tuple(map(len, exported.payloads)), len(exported.descriptors)
        if (sizes, count) != (way.payload_sizes, way.descriptors):
            raise InvalidHandleError(
                f"an export for mechanism {mechanism!r} has payloads of {way.payload_sizes} bytes "
                f"and {way.descriptors} descriptors, not {shorten(sizes, 50)} and {count}",
                operation="import",
                backend=self.backend,
            )
        if not 0 < nbytes <= capacity:
            raise InvalidHandleError(
                f"the size of the memory must be from 1 to its capacity {capacity}, not {nbytes}",
                operation="import",
                backend=self.backend,
            )
        made: list[Imported] = []
        try:
            with self._on(ordinal, "import"):
                call_into(
                    made, partial(way.import_, ordinal, exported, capacity, access, home=home)
                )
            # The descriptors are closed last, because core closes them if this method raises.
            while True:
                if not exported.descriptors:
                    break
                descriptor, *others = exported.descriptors
                exported.descriptors = tuple(others)
                os.close(descriptor)
        except BaseException as error:
            for imported in made:
                self._undo(error, self.close, imported)
            raise
        return made[0]

    # Work of the device -------------------------------------------------------------------

    @override
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        rt = self._vendor.rt
        with self._on(ordinal, "copy"):
            refuse_capture(self._vendor)
            with self._vendor.calling("memcpy"):
                rt.memcpy(target, source, nbytes, _KINDS[kind])
            # A copy to a device may still be running when the vendor's call returns.
            if kind is not CopyKind.DEVICE_TO_HOST:
                with self._vendor.calling("streamSynchronize"):
                    rt.streamSynchronize(_DEFAULT_STREAM)

    @override
    def synchronize(self, ordinal: int) -> None:
        with self._on(ordinal, "synchronize"):
            refuse_capture(self._vendor)
            with self._vendor.calling("deviceSynchronize"):
                self._vendor.rt.deviceSynchronize()

    # Memory of other libraries -------------------------------------------------------------

    def _inspect(self, ordinal: int, pointer: int, mechanism: str) -> Foreign:
        with self._on(ordinal, "inspect"):
            found: Foreign = self._mechanisms[mechanism].inspect(ordinal, pointer)
        return found

    def _adopt(self, ordinal: int, foreign: Foreign, mechanism: str) -> Block:
        with self._on(ordinal, "adopt"):
            block: Block = self._mechanisms[mechanism].adopt(ordinal, foreign)
        return block

    def _disown(self, block: Block) -> None:
        with self._on(block.ordinal, "disown"):
            block.reference.mechanism.disown(block)
