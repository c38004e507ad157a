# SPDX-License-Identifier: Apache-2.0
"""The driver: whole blocks, opened once, around the calls that HIP and CUDA have in common.

The vendors' rules: the exporter's memory outlives every import; an import is closed by the call for
it, once for each open and on the address that the open gave, which is that of the whole block
whatever part was exported; nothing of it may be running then.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from typing_extensions import override

from crossmem.driver import Block, CopyKind, Driver, Exported, Foreign, Imported
from crossmem.driver.cleanup import on_failure
from crossmem.errors import CrossmemError, InvalidHandleError
from crossmem.models import Access, Capabilities, DeviceInfo
from crossmem_hip.capture import refuse_capture
from crossmem_hip.context import Current
from crossmem_hip.devices import find_devices
from crossmem_hip.family import Family
from crossmem_hip.foreign import ADDED, inspect, try_export
from crossmem_hip.peers import PeerAccess
from crossmem_hip.runtime import Runtime, Vendor

__all__ = ["GRANULARITY_NBYTES", "MECHANISM", "LegacyDriver"]

MECHANISM: Final = "legacy"

GRANULARITY_NBYTES: Final = 2 << 20
"""The vendors carve smaller allocations out of blocks of this size, and share whole blocks."""

_HANDLE_NBYTES: Final = 64
_UNKNOWN_NBYTES: Final = 1 << 40
"""More than any device has."""

_KINDS: Final = {
    CopyKind.HOST_TO_DEVICE: 1,
    CopyKind.DEVICE_TO_HOST: 2,
    CopyKind.DEVICE_TO_DEVICE: 3,
}
_DEFAULT_STREAM: Final = 0


@dataclass(slots=True)
class _Owned:
    """Own memory; each field says what is still to be given back, or was made already."""

    base: int
    handle: bytes = b""
    """What the vendor's one export gave."""


@dataclass(slots=True)
class _Opened:
    """Another process's memory."""

    handle: bytes
    home: int
    base: int = 0
    """Where it is open."""


class LegacyDriver(Driver):
    """Memory of AMD's or NVIDIA's GPUs, through CuPy's runtime or what is shaped like it.

    It has the methods of :class:`crossmem.driver.ForeignMemory` where the runtime knows the bounds
    of allocations, and ``violations`` where it is an emulation that keeps watch.

    Parameters
    ----------
    family
        Whose devices they are.
    rt
        The module ``cupy.cuda.runtime``, or an emulation of it.
    streams
        Says which streams the libraries of this process use now, besides the default one.

    Raises
    ------
    BackendUnavailableError
        Where the runtime lacks a function, or finds no driver or device.
    ConfigurationError
        Where two devices cannot be told apart.
    """

    inspect: Callable[[int, int, str], Foreign]
    adopt: Callable[[int, Foreign, str], Block]
    disown: Callable[[Block], None]
    violations: Callable[[], list[str]]

    def __init__(
        self, family: Family, rt: Runtime, streams: Callable[[], tuple[int, ...]] = tuple
    ) -> None:
        self.backend = family.backend
        self._vendor = Vendor(family, rt, streams)
        self._current = Current(self._vendor)
        self._peers = PeerAccess(self._vendor)
        self._devices = find_devices(self._vendor)
        with self._vendor.calling("runtimeGetVersion"):
            self._open_flags = family.open_flags(rt.runtimeGetVersion())
        self._capabilities: dict[int, Capabilities] = {}
        self._knows_foreign = all(map(self._vendor.has, ADDED))
        if self._knows_foreign:
            self.inspect, self.adopt, self.disown = self._inspect, self._adopt, self._disown
        if hasattr(rt, "violations"):
            self.violations = lambda: [str(one) for one in rt.violations]

    @override
    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._devices

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        found = self._capabilities.get(ordinal)
        if found is None:
            others = [one.ordinal for one in self._devices if one.ordinal != ordinal]
            found = self._capabilities[ordinal] = Capabilities(
                mechanisms=(MECHANISM,),
                granularity_nbytes=GRANULARITY_NBYTES,
                max_allocation_nbytes=self._devices[ordinal].total_nbytes or _UNKNOWN_NBYTES,
                host_visible=False,
                readonly_exports=False,
                readonly_imports=False,
                peer_access=self._peers.reach_each_other(ordinal, others),
                fork_safe=False,
                survives_owner=False,
                raw_handles=True,
                address_ranges=False,
                foreign_memory=self._knows_foreign,
            )
        return found

    # Own memory ---------------------------------------------------------------------------

    @override
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        capacity = -(-nbytes // GRANULARITY_NBYTES) * GRANULARITY_NBYTES
        with ExitStack() as undo, self._on(ordinal, "allocate"):
            refuse_capture(self._vendor)
            with self._vendor.calling("malloc"):
                pointer = self._vendor.rt.malloc(capacity)
            block = Block(ordinal, pointer, nbytes, capacity, _Owned(pointer))
            undo.enter_context(on_failure(partial(self.free, block)))
        return block

    @override
    def free(self, block: Block) -> None:
        owned = cast("_Owned", block.reference)
        with self._on(block.ordinal, "free"):
            # Asked once more, because only the device was not put back, it has nothing to do.
            if owned.base:
                refuse_capture(self._vendor)
                with self._vendor.calling("free"):
                    self._vendor.rt.free(owned.base)
                owned.base = 0

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        owned = cast("_Owned", block.reference)
        # Some drivers write the current device into the handle, so it has to be the memory's.
        with self._on(block.ordinal, "export"):
            if not owned.handle:
                with self._vendor.calling("ipcGetMemHandle"):
                    owned.handle = self._vendor.rt.ipcGetMemHandle(owned.base)
        return Exported((owned.handle,))

    # Others' memory -----------------------------------------------------------------------

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
        payloads = exported.payloads
        if len(payloads) != 1 or len(payloads[0]) != _HANDLE_NBYTES or exported.descriptors:
            raise InvalidHandleError(
                f"an export of {self.backend} memory is one payload of {_HANDLE_NBYTES} bytes, not "
                f"{len(payloads)} of {', '.join(str(len(one)) for one in payloads) or 'nothing'}, "
                f"and {len(exported.descriptors)} descriptors",
                operation="import",
                backend=self.backend,
            )
        if not 0 < nbytes <= capacity:
            raise InvalidHandleError(
                f"the exporter offers {nbytes} bytes in a capacity of {capacity}",
                operation="import",
                backend=self.backend,
            )
        # The vendors open memory and map it in one step, which is left to `map`.
        return Imported(ordinal, capacity, access, _Opened(bytes(payloads[0]), home))

    @override
    def close(self, imported: Imported) -> None:
        # For a mapping that failed and could not be undone.
        self._close(imported, "close")

    @override
    def map(self, imported: Imported, *, remappable: bool) -> int:
        opened = cast("_Opened", imported.reference)
        if opened.base:
            return opened.base
        with ExitStack() as undo, self._on(imported.ordinal, "map"):
            refuse_capture(self._vendor)
            if opened.home != imported.ordinal:
                self._peers.enable(imported.ordinal, opened.home)
            # This may take seconds. No lock is held here.
            with self._vendor.calling("ipcOpenMemHandle"):
                opened.base = self._vendor.rt.ipcOpenMemHandle(opened.handle, self._open_flags)
            undo.enter_context(on_failure(partial(self._close, imported, "map")))
            self._check_size(opened.base, imported.capacity)
        return opened.base

    @override
    def unmap(self, imported: Imported, pointer: int) -> None:
        self._close(imported, "unmap")

    def _close(self, imported: Imported, operation: str) -> None:
        opened = cast("_Opened", imported.reference)
        if not opened.base and operation == "close":
            return
        with self._on(imported.ordinal, operation):
            if opened.base:
                refuse_capture(self._vendor)
                with self._vendor.calling("ipcCloseMemHandle"):
                    self._vendor.rt.ipcCloseMemHandle(opened.base)
                opened.base = 0

    def _check_size(self, base: int, capacity: int) -> None:
        """Compare what the exporter told with what the vendor knows, where it can be asked."""
        if not self._vendor.has("memGetAddressRange"):
            return
        with self._vendor.calling("memGetAddressRange"):
            start, nbytes = self._vendor.rt.memGetAddressRange(base)
        if start != base or nbytes < capacity:
            raise InvalidHandleError(
                f"the memory has {nbytes} bytes, and not the {capacity} that its exporter claims",
                backend=self.backend,
            )

    # Work of the device -------------------------------------------------------------------

    @override
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        rt = self._vendor.rt
        with self._on(ordinal, "copy"):
            refuse_capture(self._vendor)
            with self._vendor.calling("memcpy"):
                rt.memcpy(target, source, nbytes, _KINDS[kind])
            # Copies to a device may be under way still when the vendor's call returns.
            if kind is not CopyKind.DEVICE_TO_HOST:
                with self._vendor.calling("streamSynchronize"):
                    rt.streamSynchronize(_DEFAULT_STREAM)

    @override
    def synchronize(self, ordinal: int) -> None:
        with self._on(ordinal, "synchronize"):
            refuse_capture(self._vendor)
            with self._vendor.calling("deviceSynchronize"):
                self._vendor.rt.deviceSynchronize()

    # Memory that others allocated ----------------------------------------------------------

    def _inspect(self, ordinal: int, pointer: int, mechanism: str) -> Foreign:  # noqa: ARG002
        with self._on(ordinal, "inspect"):
            return inspect(self._vendor, ordinal, pointer)

    def _adopt(self, ordinal: int, foreign: Foreign, mechanism: str) -> Block:  # noqa: ARG002
        with self._on(ordinal, "adopt"):
            owned = _Owned(foreign.base, try_export(self._vendor, foreign.base))
        return Block(ordinal, foreign.base, foreign.nbytes, foreign.nbytes, owned)

    def _disown(self, block: Block) -> None:
        """Do nothing: the vendors' exports end with the memory, which is somebody else's."""

    # Around every call --------------------------------------------------------------------

    @contextmanager
    def _on(self, ordinal: int, operation: str) -> Iterator[None]:
        """Make a device current for this thread while the block runs; say on errors what failed."""
        try:
            with self._current.on(ordinal):
                yield
        except CrossmemError as error:
            error.operation = error.operation or operation
            error.device = error.device or self._devices[ordinal].identity
            raise
