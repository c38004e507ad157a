# SPDX-License-Identifier: Apache-2.0
"""Shares physical memory through the vendor's shareable handles.

The vendor's rules: the memory of a physical handle has at most one export. A process can map the
memory only as a whole. The process must unmap the memory before it frees the handle. The pages live
until every process has freed its handle. An export either checks a whitelist or admits all
processes; this choice is final.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from crossmem.driver import Block, Imported, Reserved
from crossmem.driver.cleanup import noting
from crossmem.driver.recording import call_into
from crossmem.errors import DriverError, InvalidHandleError, UnsupportedError
from crossmem.models import Access
from crossmem_ascend.errors import BACKEND, FEATURE_NOT_SUPPORT, PARAM_INVALID
from crossmem_ascend.mechanism import Mechanism, Reference
from crossmem_ascend.runtime import SHAREABLE, Vendor

__all__ = ["Shareable"]

_HBM_MEM_HUGE: Final = 4
_LOCATION_DEVICE: Final = 1
_GRANULARITY_MINIMUM: Final = 0
_SHARE: Final = struct.Struct("<Q")
_NO_RAW_EXPORT: Final = frozenset({FEATURE_NOT_SUPPORT, PARAM_INVALID})
"""The result codes of drivers that are too old for exports without a whitelist."""


@dataclass(slots=True)
class _Physical(Reference):
    """Physical memory in this process.

    Each field of this class except ``share`` records a resource that is not released yet.
    """

    handle: int
    addresses: int = 0
    """The start of the addresses that are reserved for the memory."""
    is_mapped: bool = False
    """Whether the memory is mapped at these addresses."""
    pieces: dict[int, bool] = field(default_factory=dict)
    """The mappings of this memory in address ranges. The key is the address at which the memory is
    mapped; the value is always True."""
    share: int | None = None
    """The 64-bit value by which other processes import the memory; None if this process has not
    exported the memory. 0 is a valid value."""


class Shareable(Mechanism):
    """Maps physical memory at reserved addresses, and shares the memory through a 64-bit value."""

    name = "shareable"
    needs = SHAREABLE
    # The largest number of processes that one vendor call may add to a whitelist. The vendor
    # documents no limit for the whole whitelist, so crossmem uses this number as the limit.
    whitelist_limit = 65535

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._rt = vendor.rt

    @override
    def allocate(self, ordinal: int, nbytes: int) -> Block:
        vendor, rt = self._vendor, self._rt
        prop = _properties(ordinal)
        unit = vendor.value(
            "rt.mem_get_allocation_granularity",
            rt.mem_get_allocation_granularity(prop, _GRANULARITY_MINIMUM),
        )
        capacity = -(-nbytes // unit) * unit
        owned = _Physical(self, 0)
        made: list[tuple[int, int]] = []
        try:
            call_into(made, rt.malloc_physical, capacity, prop, 0)
            owned.handle = vendor.value("rt.malloc_physical", made[0])
            pointer = self._map_anywhere(owned, capacity)
            return Block(ordinal, pointer, nbytes, capacity, owned)
        except BaseException as error:
            if made and not made[0][1]:
                owned.handle = made[0][0]
            with noting(error):
                self._give_back(owned)
            raise

    @override
    def free(self, block: Block) -> None:
        self._give_back(block.reference)

    @override
    def export(self, block: Block, *, raw: bool) -> bytes:
        owned: _Physical = block.reference
        if owned.share is None:
            share, code = self._rt.mem_export_to_shareable_handle(owned.handle, 0, int(raw))
            if raw and code in _NO_RAW_EXPORT:
                if code == FEATURE_NOT_SUPPORT:
                    # The driver has exported the memory, but could not switch the whitelist off.
                    owned.share, owned.raw = share, False
                raise UnsupportedError(
                    "this driver cannot export without a whitelist, so raw handles are impossible",
                    hint="use driver 26.1.1 or later, or export with leases",
                    backend=BACKEND,
                )
            self._vendor.check("rt.mem_export_to_shareable_handle", code)
            owned.share = share
        return _SHARE.pack(owned.share)

    @override
    def admit(self, block: Block, tgids: list[int]) -> None:
        self._vendor.check(
            "rt.mem_set_pid_to_shareable_handle",
            self._rt.mem_set_pid_to_shareable_handle(block.reference.share, tgids),
        )

    @override
    def import_(self, ordinal: int, payload: bytes, capacity: int, access: Access) -> Imported:
        if len(payload) != _SHARE.size:
            raise InvalidHandleError(
                f"a shareable handle has {_SHARE.size} bytes, not {len(payload)}", backend=BACKEND
            )
        (share,) = _SHARE.unpack(payload)
        owned = _Physical(self, 0)
        made: list[tuple[int, int]] = []
        try:
            call_into(made, self._rt.mem_import_from_shareable_handle, share, ordinal)
            owned.handle = self._vendor.value("rt.mem_import_from_shareable_handle", made[0])
            return Imported(ordinal, capacity, access, owned)
        except BaseException as error:
            if made and not made[0][1]:
                owned.handle = made[0][0]
            with noting(error):
                self._free_physical(owned)
            raise

    @override
    def close(self, imported: Imported) -> None:
        owned: _Physical = imported.reference
        # If map() failed and could not undo its work, crossmem's core has no mapping to unmap. So
        # only close() can retry the undo.
        self.unmap(imported)
        self._free_physical(owned)

    @override
    def map(self, imported: Imported) -> int:
        try:
            return self._map_anywhere(imported.reference, imported.capacity)
        except DriverError as error:
            if (error.call, error.code) != ("acl.rt.map_mem", PARAM_INVALID):
                raise
            raise InvalidHandleError(
                f"the memory does not have the {imported.capacity} bytes that its exporter claims",
                backend=BACKEND,
            ) from error

    @override
    def keep_mapped(self, imported: Imported) -> None:
        """Do nothing, because the import needs its physical handle until the memory is unmapped."""

    @override
    def unmap(self, imported: Imported) -> None:
        self._unmap_mem(imported.reference)
        self._release_addresses(imported.reference)

    # Address ranges -----------------------------------------------------------------------

    def reserve(self, reserved: Reserved) -> None:
        """Reserve addresses."""
        reserved.pointer = self._reserve(reserved.nbytes)

    def _reserve(self, nbytes: int) -> int:
        made: list[tuple[int, int]] = []
        try:
            call_into(made, self._rt.reserve_mem_address, nbytes, 0, 0, 0)
            return self._vendor.value("rt.reserve_mem_address", made[0])
        except BaseException:
            if made and not made[0][1]:
                self._rt.release_mem_address(made[0][0])
            raise

    def release(self, reserved: Reserved) -> None:
        """Release reserved addresses."""
        pointer, release = reserved.pointer, self._rt.release_mem_address
        reserved.pointer = 0
        code = release(pointer)
        if code:
            reserved.pointer = pointer
        self._vendor.check("rt.release_mem_address", code)

    def map_at(self, memory: Block | Imported, pointer: int) -> None:
        """Map memory at reserved addresses."""
        owned: _Physical = memory.reference
        made: list[int] = []
        try:
            call_into(made, self._rt.map_mem, pointer, memory.capacity, 0, owned.handle, 0)
            self._vendor.check("rt.map_mem", made[0])
        finally:
            if made and not made[0]:
                owned.pieces[pointer] = True

    def unmap_at(self, memory: Block | Imported, pointer: int) -> None:
        """Unmap memory from reserved addresses."""
        owned: _Physical = memory.reference
        pieces, unmap = owned.pieces, self._rt.unmap_mem
        if pointer in pieces:
            del pieces[pointer]
            code = unmap(pointer)
            if code:
                pieces[pointer] = True
            self._vendor.check("rt.unmap_mem", code)

    # Idempotent steps ---------------------------------------------------------------------

    def _map_anywhere(self, owned: _Physical, capacity: int) -> int:
        if owned.is_mapped:
            return owned.addresses
        self._release_addresses(owned)
        made: list[int] = []
        try:
            owned.addresses = self._reserve(capacity)
            call_into(made, self._rt.map_mem, owned.addresses, capacity, 0, owned.handle, 0)
            self._vendor.check("rt.map_mem", made[0])
        except BaseException as error:
            if made and not made[0]:
                owned.is_mapped = True
            with noting(error):
                self._unmap_mem(owned)
                self._release_addresses(owned)
            raise
        owned.is_mapped = True
        return owned.addresses

    def _give_back(self, owned: _Physical) -> None:
        self._unmap_mem(owned)
        self._free_physical(owned)
        self._release_addresses(owned)

    # In the methods below, no signal handler runs between the statement that clears a resource's
    # record and the vendor's call. The record is restored only if the vendor refuses the call.

    def _unmap_mem(self, owned: _Physical) -> None:
        unmap, pointer = self._rt.unmap_mem, owned.addresses
        if owned.is_mapped:
            owned.is_mapped = False
            code = unmap(pointer)
            if code:
                owned.is_mapped = True
            self._vendor.check("rt.unmap_mem", code)

    def _release_addresses(self, owned: _Physical) -> None:
        release, pointer = self._rt.release_mem_address, owned.addresses
        if pointer:
            owned.addresses = 0
            code = release(pointer)
            if code:
                owned.addresses = pointer
            self._vendor.check("rt.release_mem_address", code)

    def _free_physical(self, owned: _Physical) -> None:
        free, handle = self._rt.free_physical, owned.handle
        if handle:
            owned.handle = 0
            code = free(handle)
            if code:
                owned.handle = handle
            self._vendor.check("rt.free_physical", code)


def _properties(ordinal: int) -> dict[str, Any]:
    return {
        "handleType": 0,
        "allocationType": 0,
        "memAttr": _HBM_MEM_HUGE,
        "location": {"id": ordinal, "type": _LOCATION_DEVICE},
        "reserve": 0,
    }
