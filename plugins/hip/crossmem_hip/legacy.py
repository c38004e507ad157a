# SPDX-License-Identifier: Apache-2.0
"""Sharing by the handles of legacy IPC: whole blocks, opened once.

The vendors' rules: the exporter's memory outlives every import; an import is closed by the call for
it, once for each open and on the address that the open gave, which is that of the whole block
whatever part was exported; nothing of it may be running then.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from typing_extensions import override

from crossmem.driver import Block, Exported, Foreign, Imported
from crossmem.driver.cleanup import on_failure
from crossmem.errors import InvalidHandleError
from crossmem.models import Access
from crossmem_hip.capture import refuse_capture
from crossmem_hip.foreign import ADDED, inspect, try_export
from crossmem_hip.mechanism import Mechanism, Reference
from crossmem_hip.peers import PeerAccess
from crossmem_hip.runtime import Vendor

__all__ = ["GRANULARITY_NBYTES", "Legacy"]

GRANULARITY_NBYTES: Final = 2 << 20
"""The vendors carve smaller allocations out of blocks of this size, and share whole blocks."""

_HANDLE_NBYTES: Final = 64


@dataclass(slots=True)
class _Owned(Reference):
    """Own memory; each field says what is still to be given back, or was made already."""

    base: int
    handle: bytes = b""
    """What the vendor's one export gave."""


@dataclass(slots=True)
class _Opened(Reference):
    """Another process's memory."""

    handle: bytes
    home: int
    base: int = 0
    """Where it is open."""


class Legacy(Mechanism):
    """Memory that is found by 64 bytes, whoever shows them.

    Parameters
    ----------
    vendor
        The runtime.
    peers
        Access between devices.
    """

    name = "legacy"
    payload_sizes = (_HANDLE_NBYTES,)
    descriptors = 0
    raw_handles = True
    survives_owner = False
    address_ranges = False

    def __init__(self, vendor: Vendor, peers: PeerAccess) -> None:
        self._vendor = vendor
        self._peers = peers
        with vendor.calling("runtimeGetVersion"):
            self._open_flags = vendor.family.open_flags(vendor.rt.runtimeGetVersion())
        self.foreign_memory = all(map(vendor.has, ADDED))

    @override
    def granularity(self, ordinal: int) -> int:
        return GRANULARITY_NBYTES

    @override
    def allocate(self, ordinal: int, nbytes: int) -> Block:
        capacity = -(-nbytes // GRANULARITY_NBYTES) * GRANULARITY_NBYTES
        refuse_capture(self._vendor)
        with self._vendor.calling("malloc"):
            pointer = self._vendor.rt.malloc(capacity)
        return Block(ordinal, pointer, nbytes, capacity, _Owned(self, pointer))

    @override
    def free(self, block: Block) -> None:
        owned: _Owned = block.reference
        # Asked once more, because only the device was not put back, it has nothing to do.
        if owned.base:
            refuse_capture(self._vendor)
            with self._vendor.calling("free"):
                self._vendor.rt.free(owned.base)
            owned.base = 0

    @override
    def export(self, block: Block) -> Exported:
        owned: _Owned = block.reference
        # Some drivers write the current device into the handle, so it has to be the memory's.
        if not owned.handle:
            with self._vendor.calling("ipcGetMemHandle"):
                owned.handle = self._vendor.rt.ipcGetMemHandle(owned.base)
        return Exported((owned.handle,))

    @override
    def release_export(self, exported: Exported) -> None:
        """Do nothing: the vendors' exports end with the memory."""

    @override
    def import_(
        self, ordinal: int, exported: Exported, capacity: int, access: Access, *, home: int
    ) -> Imported:
        # The vendors open memory and map it in one step, which is left to `map`.
        return Imported(ordinal, capacity, access, _Opened(self, exported.payloads[0], home))

    @override
    def close(self, imported: Imported) -> None:
        # For a mapping that failed and could not be undone.
        self.unmap(imported)

    @override
    def map(self, imported: Imported) -> int:
        opened: _Opened = imported.reference
        if opened.base:
            return opened.base
        refuse_capture(self._vendor)
        if opened.home != imported.ordinal:
            self._peers.enable(imported.ordinal, opened.home)
        # This may take seconds. No lock is held here.
        with self._vendor.calling("ipcOpenMemHandle"):
            opened.base = self._vendor.rt.ipcOpenMemHandle(opened.handle, self._open_flags)
        with on_failure(partial(self.unmap, imported)):
            self._check_size(opened.base, imported.capacity)
        return opened.base

    @override
    def keep_mapped(self, imported: Imported) -> None:
        """Do nothing: a mapping is all that there is."""

    @override
    def unmap(self, imported: Imported) -> None:
        opened: _Opened = imported.reference
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
                backend=self._vendor.family.backend,
            )

    @override
    def inspect(self, ordinal: int, pointer: int) -> Foreign:
        return inspect(self._vendor, ordinal, pointer)

    @override
    def adopt(self, ordinal: int, foreign: Foreign) -> Block:
        owned = _Owned(self, foreign.base, try_export(self._vendor, foreign.base))
        return Block(ordinal, foreign.base, foreign.nbytes, foreign.nbytes, owned)

    @override
    def disown(self, block: Block) -> None:
        """Do nothing: what was exported ends with the memory, which is somebody else's."""
