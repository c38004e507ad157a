# SPDX-License-Identifier: Apache-2.0
"""Shares memory of ``acl.rt.malloc`` by key.

The vendor's rules: every importer closes the key before the exporter does, and the exporter closes
the key before it frees the memory. The memory is lost when the exporter ends. If an importer opens
the key on a device that does not hold the memory, the vendor refuses copies between the memory and
the host. So crossmem imports memory only on the device that holds the memory.
"""

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from crossmem.driver import Block, Imported
from crossmem.driver.cleanup import noting
from crossmem.driver.recording import call_into
from crossmem.errors import InvalidHandleError
from crossmem.models import Access
from crossmem_ascend.errors import BACKEND
from crossmem_ascend.mechanism import GRANULARITY_NBYTES, Mechanism, Reference
from crossmem_ascend.runtime import KEY, Vendor

__all__ = ["Key"]

_HUGE_FIRST: Final = 0
_KEY_LENGTH: Final = 64
_IMPORT_FLAGS: Final = 0
_PIDS_IN_A_CALL: Final = 31


@dataclass(slots=True)
class _Keyed(Reference):
    """Memory that this process has allocated, or that it imports by a key."""

    key: str = ""
    """In the exporter, the open key; empty if there is none. In an importer, the key to open."""
    address: int = 0
    """The address of the allocation, or of the mapped import; 0 if there is none."""


class Key(Mechanism):
    """The mechanism that shares memory by a key."""

    name = "key"
    needs = KEY
    whitelist_limit = 32768

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._rt = vendor.rt

    @override
    def allocate(self, ordinal: int, nbytes: int) -> Block:
        # A key can export only memory that begins at a page boundary. An allocation of whole huge
        # pages begins at a page boundary, and shares no page with other memory.
        capacity = -(-nbytes // GRANULARITY_NBYTES) * GRANULARITY_NBYTES
        owned = _Keyed(self)
        made: list[tuple[int, int]] = []
        try:
            call_into(made, self._rt.malloc, capacity, _HUGE_FIRST)
            owned.address = self._vendor.value("rt.malloc", made[0])
            return Block(ordinal, owned.address, nbytes, capacity, owned)
        except BaseException as error:
            if made and not made[0][1]:
                owned.address = made[0][0]
            with noting(error):
                self._free(owned)
            raise

    @override
    def free(self, block: Block) -> None:
        owned: _Keyed = block.reference
        close, key = self._rt.ipc_mem_close, owned.key
        if key:
            # If the key cannot be closed, the memory is not freed, because freeing memory with an
            # open key is undefined behaviour.
            owned.key = ""
            code = close(key)
            if code:
                owned.key = key
            self._vendor.check("rt.ipc_mem_close", code)
        self._free(owned)

    def _free(self, owned: _Keyed) -> None:
        free, address = self._rt.free, owned.address
        if address:
            # CPython runs no signal handler between the next two statements. So the address cannot
            # be lost before the call of free().
            owned.address = 0
            code = free(address)
            if code:
                owned.address = address
            self._vendor.check("rt.free", code)

    @override
    def export(self, block: Block, *, raw: bool) -> bytes:
        owned: _Keyed = block.reference
        if not owned.key:
            made: list[tuple[str, int]] = []
            get_key = self._rt.ipc_mem_get_export_key
            try:
                # The length includes the terminating zero byte.
                call_into(made, get_key, block.pointer, block.capacity, _KEY_LENGTH + 1, int(raw))
                self._vendor.check("rt.ipc_mem_get_export_key", made[0][1])
            finally:
                if made and not made[0][1]:
                    owned.key = made[0][0]
        return owned.key.encode()

    @override
    def admit(self, block: Block, tgids: list[int]) -> None:
        for start in range(0, len(tgids), _PIDS_IN_A_CALL):
            some = tgids[start : start + _PIDS_IN_A_CALL]
            code = self._rt.ipc_mem_set_import_pid(block.reference.key, some)
            self._vendor.check("rt.ipc_mem_set_import_pid", code)

    @override
    def import_(self, ordinal: int, payload: bytes, capacity: int, access: Access) -> Imported:
        if len(payload) != _KEY_LENGTH or not payload.isascii() or b"\0" in payload:
            raise InvalidHandleError(
                f"a key is {_KEY_LENGTH} ASCII characters, not these {len(payload)} bytes",
                backend=BACKEND,
            )
        return Imported(ordinal, capacity, access, _Keyed(self, payload.decode()))

    @override
    def close(self, imported: Imported) -> None:
        # map() opens the key and unmap() closes the key, so an import that is not mapped has no
        # resource. If the driver's map() raises after the key was opened, the driver calls unmap().
        # If unmap() fails, too, only this call can close the key.
        self.unmap(imported)

    @override
    def map(self, imported: Imported) -> int:
        owned: _Keyed = imported.reference
        if not owned.address:
            made: list[tuple[int, int]] = []
            try:
                call_into(made, self._rt.ipc_mem_import_by_key, owned.key, _IMPORT_FLAGS)
                self._vendor.check("rt.ipc_mem_import_by_key", made[0][1])
            finally:
                if made and not made[0][1]:
                    owned.address = made[0][0]
        return owned.address

    @override
    def keep_mapped(self, imported: Imported) -> None:
        """Do nothing: the mapping is the only resource of the import."""

    @override
    def unmap(self, imported: Imported) -> None:
        owned: _Keyed = imported.reference
        close, address = self._rt.ipc_mem_close, owned.address
        if address:
            owned.address = 0
            code = close(owned.key)
            if code:
                owned.address = address
            self._vendor.check("rt.ipc_mem_close", code)
