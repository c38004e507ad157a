# SPDX-License-Identifier: Apache-2.0
"""Sharing by shareable handles of physical memory.

The vendor's rules: a physical handle is exported once, mapped whole, and freed after it is
unmapped; its pages live until the last process has freed its handle. Sharing a value without the
whitelist cannot be undone, nor can leaving it on.
"""

import struct
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from typing_extensions import override

from crossmem.driver import Block, Imported
from crossmem.driver.cleanup import on_failure
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
"""What drivers answer that are too old for exports without a whitelist."""


@dataclass(slots=True)
class _Physical(Reference):
    """Each field says what is still to be given back."""

    handle: int
    addresses: int = 0
    """Where addresses are reserved for it."""
    is_mapped: bool = False
    """Whether it is mapped there."""
    pieces: set[int] = field(default_factory=set)
    """Where it is mapped in address ranges."""
    share: int | None = None
    """What the vendor's one export gave. 0 is a value like any other."""


class Shareable(Mechanism):
    """Physical memory, mapped at reserved addresses and shared by a 64-bit value.

    Parameters
    ----------
    vendor
        The runtime.
    """

    name = "shareable"
    needs = SHAREABLE
    # What one call takes at most; no source gives a limit for all calls together.
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
        handle = vendor.value("rt.malloc_physical", rt.malloc_physical(capacity, prop, 0))
        owned = _Physical(self, handle)
        with on_failure(partial(self._free_physical, owned)):
            pointer = self._map_anywhere(owned, capacity)
        return Block(ordinal, pointer, nbytes, capacity, owned)

    @override
    def free(self, block: Block) -> None:
        owned: _Physical = block.reference
        self._unmap_mem(owned)
        self._free_physical(owned)
        self._release_addresses(owned)

    @override
    def export(self, block: Block, *, raw: bool) -> bytes:
        owned: _Physical = block.reference
        if owned.share is None:
            share, code = self._rt.mem_export_to_shareable_handle(owned.handle, 0, int(raw))
            if raw and code in _NO_RAW_EXPORT:
                if code == FEATURE_NOT_SUPPORT:
                    # The driver exported, and found only then that its whitelist stays on.
                    owned.share, owned.raw = share, False
                raise UnsupportedError(
                    "this driver cannot export without a whitelist, which raw handles need",
                    hint="use a driver of 26.1.1 or later, or export with leases",
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
        handle = self._vendor.value(
            "rt.mem_import_from_shareable_handle",
            self._rt.mem_import_from_shareable_handle(share, ordinal),
        )
        return Imported(ordinal, capacity, access, _Physical(self, handle))

    @override
    def close(self, imported: Imported) -> None:
        owned: _Physical = imported.reference
        # A mapping that failed, and could not be undone, is known here alone.
        self._unmap_mem(owned)
        self._release_addresses(owned)
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
    def unmap(self, imported: Imported, pointer: int) -> None:
        self._unmap_mem(imported.reference)
        self._release_addresses(imported.reference)

    # Address ranges -----------------------------------------------------------------------

    def reserve(self, nbytes: int) -> int:
        """Reserve addresses."""
        return self._vendor.value(
            "rt.reserve_mem_address", self._rt.reserve_mem_address(nbytes, 0, 0, 0)
        )

    def release(self, pointer: int) -> None:
        """Give reserved addresses back."""
        self._vendor.check("rt.release_mem_address", self._rt.release_mem_address(pointer))

    def map_at(self, memory: Block | Imported, pointer: int) -> None:
        """Map memory at reserved addresses."""
        owned: _Physical = memory.reference
        self._map_mem(pointer, owned.handle, memory.capacity)
        owned.pieces.add(pointer)

    def unmap_at(self, memory: Block | Imported, pointer: int) -> None:
        """Take memory away from reserved addresses."""
        owned: _Physical = memory.reference
        if pointer in owned.pieces:
            self._vendor.check("rt.unmap_mem", self._rt.unmap_mem(pointer))
            owned.pieces.remove(pointer)

    # Steps that are done once, however often they are asked for ----------------------------

    def _map_anywhere(self, owned: _Physical, capacity: int) -> int:
        if owned.is_mapped:
            return owned.addresses
        self._release_addresses(owned)
        owned.addresses = self.reserve(capacity)
        with on_failure(partial(self._release_addresses, owned)):
            self._map_mem(owned.addresses, owned.handle, capacity)
        owned.is_mapped = True
        return owned.addresses

    def _map_mem(self, pointer: int, handle: int, capacity: int) -> None:
        self._vendor.check("rt.map_mem", self._rt.map_mem(pointer, capacity, 0, handle, 0))

    def _unmap_mem(self, owned: _Physical) -> None:
        if owned.is_mapped:
            self._vendor.check("rt.unmap_mem", self._rt.unmap_mem(owned.addresses))
            owned.is_mapped = False

    def _release_addresses(self, owned: _Physical) -> None:
        if owned.addresses:
            self.release(owned.addresses)
            owned.addresses = 0

    def _free_physical(self, owned: _Physical) -> None:
        if owned.handle:
            self._vendor.check("rt.free_physical", self._rt.free_physical(owned.handle))
            owned.handle = 0


def _properties(ordinal: int) -> dict[str, Any]:
    return {
        "handleType": 0,
        "allocationType": 0,
        "memAttr": _HBM_MEM_HUGE,
        "location": {"id": ordinal, "type": _LOCATION_DEVICE},
        "reserve": 0,
    }
