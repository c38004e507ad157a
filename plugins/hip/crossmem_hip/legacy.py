# SPDX-License-Identifier: Apache-2.0
"""The mechanism that shares whole blocks by means of legacy IPC handles.

The vendors' rules: the exporter must not free the memory before all importers have closed it. An
importer must close the memory once for each call that opened it, and pass the address that this
call returned. The address is the start of the whole block, even if only a part of the block was
exported. No work may use the memory while an importer closes it.
"""

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from crossmem.driver import Block, Exported, Foreign, Imported
from crossmem.driver.cleanup import noting
from crossmem.driver.recording import call_into
from crossmem.errors import InvalidHandleError
from crossmem.models import Access
from crossmem_hip.capture import refuse_capture
from crossmem_hip.foreign import ADDED, inspect, try_export
from crossmem_hip.mechanism import Mechanism, Reference
from crossmem_hip.peers import PeerAccess
from crossmem_hip.runtime import Vendor

__all__ = ["GRANULARITY_NBYTES", "Legacy"]

GRANULARITY_NBYTES: Final = 2 << 20
"""The vendors put smaller allocations into blocks of this size, and share whole blocks."""

_HANDLE_NBYTES: Final = 64


@dataclass(slots=True)
class _Owned(Reference):
    """Memory that this process allocated or adopted."""

    base: int
    """The memory's address; 0 before the memory is allocated, and after it is freed."""
    handle: bytes = b""
    """The vendor's handle, empty before the first export."""


@dataclass(slots=True)
class _Opened(Reference):
    """Another process's memory."""

    handle: bytes
    home: int
    base: int = 0
    """The address at which the memory is open; 0 if the memory is not open."""
    is_checked: bool = False
    """Whether the check of the memory's size has succeeded."""


class Legacy(Mechanism):
    """Memory that any process can open if the process has the vendor's handle of 64 bytes."""

    name = "legacy"
    payload_sizes = (_HANDLE_NBYTES,)
    descriptors = 0
    raw_handles = True
    survives_owner = False
    address_ranges = False

    def __init__(self, vendor: Vendor, peers: PeerAccess) -> None:
        self._vendor = vendor
        self._peers = peers
        self._open_flags = vendor.family.open_flags(vendor.version)
        self.foreign_memory = all(map(vendor.has, ADDED))

    @override
    def granularity(self, ordinal: int) -> int:
        return GRANULARITY_NBYTES

    @override
    def allocate(self, ordinal: int, nbytes: int) -> Block:
        capacity = -(-nbytes // GRANULARITY_NBYTES) * GRANULARITY_NBYTES
        refuse_capture(self._vendor)
        owned = _Owned(self, 0)
        made: list[int] = []
        try:
            with self._vendor.calling("malloc"):
                call_into(made, self._vendor.rt.malloc, capacity)
            owned.base = made[0]
            return Block(ordinal, owned.base, nbytes, capacity, owned)
        except BaseException as error:
            for pointer in made:
                owned.base = pointer
            with noting(error):
                self._free(owned)
            raise

    @override
    def free(self, block: Block) -> None:
        self._free(block.reference)

    def _free(self, owned: _Owned) -> None:
        free, base = self._vendor.rt.free, owned.base
        if base:
            refuse_capture(self._vendor)
            with self._vendor.calling("free"):
                try:
                    # No signal handler runs between these two statements.
                    owned.base = 0
                    free(base)
                except self._vendor.error:
                    owned.base = base
                    raise

    @override
    def export(self, block: Block) -> Exported:
        owned: _Owned = block.reference
        # Some drivers write the current device into the handle. The caller has made the device of
        # the memory current.
        if not owned.handle:
            with self._vendor.calling("ipcGetMemHandle"):
                owned.handle = self._vendor.rt.ipcGetMemHandle(owned.base)
        return Exported((owned.handle,))

    @override
    def release_export(self, exported: Exported) -> None:
        """Do nothing: a vendor's export ends when the memory is freed."""

    @override
    def import_(
        self, ordinal: int, exported: Exported, capacity: int, access: Access, *, home: int
    ) -> Imported:
        # The vendors open and map memory in one step, so `map` makes the vendor's call.
        return Imported(ordinal, capacity, access, _Opened(self, exported.payloads[0], home))

    @override
    def close(self, imported: Imported) -> None:
        # If `map` failed and could not close the memory, core has no record of a mapping. So this
        # method closes the memory.
        self.unmap(imported)

    @override
    def map(self, imported: Imported) -> int:
        opened: _Opened = imported.reference
        if opened.base and not opened.is_checked:
            # An earlier `map` opened the memory, failed, and could not close the memory.
            self.unmap(imported)
        if opened.base:
            return opened.base
        refuse_capture(self._vendor)
        opened.is_checked = False
        if opened.home != imported.ordinal:
            self._peers.enable(opened.home)
        # Opening memory may take seconds, so this thread holds no lock of the driver meanwhile.
        made: list[int] = []
        try:
            with self._vendor.calling("ipcOpenMemHandle"):
                call_into(made, self._vendor.rt.ipcOpenMemHandle, opened.handle, self._open_flags)
            opened.base = made[0]
            self._check_size(opened.base, imported.capacity)
        except BaseException as error:
            for base in made:
                opened.base = base
            with noting(error):
                self.unmap(imported)
            raise
        opened.is_checked = True
        return opened.base

    @override
    def keep_mapped(self, imported: Imported) -> None:
        """Do nothing: the open memory is the import's only resource, and the mapping needs it."""

    @override
    def unmap(self, imported: Imported) -> None:
        opened: _Opened = imported.reference
        close, base = self._vendor.rt.ipcCloseMemHandle, opened.base
        if base:
            refuse_capture(self._vendor)
            with self._vendor.calling("ipcCloseMemHandle"):
                try:
                    # No signal handler runs between these two statements.
                    opened.base = 0
                    close(base)
                except self._vendor.error:
                    opened.base = base
                    raise

    def _check_size(self, base: int, capacity: int) -> None:
        """Refuse memory that does not begin at ``base``, or is smaller than the exporter claims.

        Do nothing if the vendor's library cannot report the memory that contains an address.
        """
        if not self._vendor.has("memGetAddressRange"):
            return
        with self._vendor.calling("memGetAddressRange"):
            start, nbytes = self._vendor.rt.memGetAddressRange(base)
        if start != base or nbytes < capacity:
            raise InvalidHandleError(
                f"the memory has {nbytes} bytes at {start:#x}, not {capacity} bytes at {base:#x}",
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
        """Do nothing: the export ends when the library that owns the memory frees it."""
