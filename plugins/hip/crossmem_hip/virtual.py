# SPDX-License-Identifier: Apache-2.0
"""Sharing of physical memory by file descriptors. The memory can be mapped at any address.

The vendors' rules: sizes and addresses are multiples of a granularity. A mapping starts at the
beginning of the memory. A part of a mapping cannot be unmapped. A device may use a mapping only
after the program has set the device's access. Each export creates a descriptor, which the exporter
closes. Memory lives until every process has released its handles, mappings and descriptors.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import F_DUPFD_CLOEXEC, fcntl
from functools import partial
from typing import Final

from typing_extensions import override

from crossmem.driver import Block, Exported, Foreign, Imported, Reserved
from crossmem.driver.cleanup import in_any_case, noting
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError, DriverError, InvalidHandleError
from crossmem.models import Access
from crossmem_hip.capture import refuse_capture
from crossmem_hip.errors import INVALID_VALUE, SMALLER_ON_CUDA
from crossmem_hip.foreign import inspect_mapping, knows_mappings
from crossmem_hip.mechanism import Mechanism, Reference
from crossmem_hip.runtime import VIRTUAL, Vendor

__all__ = ["Virtual"]

_log = logging.getLogger(__name__)

_PINNED: Final = 1
_DESCRIPTOR: Final = 1
_ON_DEVICE: Final = 1
_RECOMMENDED: Final = 1
_READ_WRITE: Final = 3
_TOKEN_NBYTES: Final = 16
"""The size in bytes of the token by which importers identify an export. A descriptor cannot
identify the export, because its number differs between processes."""


@dataclass(slots=True)
class _Physical(Reference):
    """Physical memory in this process. Each field records a resource that is not released yet."""

    handle: int = 0
    addresses: int = 0
    """The start of the addresses that are reserved for the memory."""
    is_mapped: bool = False
    """Whether the memory is mapped at these addresses."""
    pieces: dict[int, bool] = field(default_factory=dict)
    """The memory's mappings in address ranges. Each key is the address of a mapping."""


class Virtual(Mechanism):
    """Physical memory, shared by a descriptor that the exporter sends to importers.

    Parameters
    ----------
    vendor
        The runtime.
    devices
        Number of devices.
    reached_by
        Returns the devices that get access to a device's mappings. With the capability
        ``peer_access``, all devices get access. Without it, only the device itself gets access.
    """

    name = "vmm"
    payload_sizes = (_TOKEN_NBYTES,)
    descriptors = 1
    raw_handles = False
    survives_owner = True
    address_ranges = True

    def __init__(
        self, vendor: Vendor, devices: int, reached_by: Callable[[int], Iterable[int]]
    ) -> None:
        self._vendor = vendor
        self._rt = vendor.rt
        self._reached_by = reached_by
        self._exported: dict[int, bool] = {}
        """The exports of this process. Each key is the open descriptor of an export."""
        self._granularities = [self._ask_granularity(one) for one in range(devices)]
        self.foreign_memory = knows_mappings(vendor)

    def _ask_granularity(self, ordinal: int) -> int:
        vendor = self._vendor
        if not all(map(vendor.has, VIRTUAL)):
            return 0
        try:
            with vendor.calling("memGetAllocationGranularity"):
                return self._rt.memGetAllocationGranularity(
                    _PINNED, _DESCRIPTOR, _ON_DEVICE, ordinal, _RECOMMENDED
                )
        except CrossmemError:
            # A device, driver or platform without virtual memory refuses the call.
            _log.debug("device %d has no virtual memory", ordinal, exc_info=True)
            return 0

    @override
    def granularity(self, ordinal: int) -> int:
        return self._granularities[ordinal]

    @override
    def allocate(self, ordinal: int, nbytes: int) -> Block:
        unit = self._granularities[ordinal]
        capacity = -(-nbytes // unit) * unit
        refuse_capture(self._vendor)
        owned = _Physical(self)
        made: list[int] = []
        try:
            with self._vendor.calling("memCreate"):
                call_into(
                    made, self._rt.memCreate, capacity, _PINNED, _DESCRIPTOR, _ON_DEVICE, ordinal, 0
                )
            owned.handle = made[0]
            pointer = self._map_anywhere(owned, capacity, ordinal)
            return Block(ordinal, pointer, nbytes, capacity, owned)
        except BaseException as error:
            for handle in made:
                owned.handle = owned.handle or handle
            with noting(error):
                self._give_back(owned, capacity)
            raise

    @override
    def free(self, block: Block) -> None:
        owned: _Physical = block.reference
        if owned.is_mapped or owned.handle or owned.addresses:
            refuse_capture(self._vendor)
        self._give_back(owned, block.capacity)

    @override
    def export(self, block: Block) -> Exported:
        exported = Exported((secrets.token_bytes(_TOKEN_NBYTES),))
        try:
            with self._handle_of(block.reference, block.pointer) as handle:
                self._export(handle, exported)
        except BaseException:
            self.release_export(exported)
            raise
        return exported

    @contextmanager
    def _handle_of(self, owned: _Physical, pointer: int) -> Iterator[int]:
        """Yield the memory's handle. If no handle is left, get one for the ``with`` block."""
        if owned.handle:
            yield owned.handle
            return
        made: list[int] = []
        try:
            with self._vendor.calling("memRetainAllocationHandle"):
                call_into(made, self._rt.memRetainAllocationHandle, pointer)
        finally:
            for handle in made:
                owned.handle = handle
        with in_any_case(partial(self._release_handle, owned)):
            yield owned.handle

    def _export(self, handle: int, exported: Exported) -> None:
        made: list[int] = []
        exported_ones = self._exported
        try:
            with self._vendor.calling("memExportToShareableHandle"):
                call_into(made, self._rt.memExportToShareableHandle, handle, _DESCRIPTOR, 0)
        finally:
            for descriptor in made:
                exported.descriptors = (descriptor,)
                exported_ones[descriptor] = True

    @override
    def release_export(self, exported: Exported) -> None:
        for descriptor in exported.descriptors:
            self._close(descriptor)
        exported.descriptors = ()

    def _close(self, descriptor: int) -> None:
        if descriptor in self._exported:
            exported_ones = self._exported
            del exported_ones[descriptor]
            os.close(descriptor)

    def after_fork_in_child(self) -> None:
        """Close the descriptors that a forked child has inherited."""
        for descriptor in list(self._exported):
            # An emulation may have closed the descriptor already.
            with suppress(OSError):
                self._close(descriptor)

    @override
    def import_(
        self, ordinal: int, exported: Exported, capacity: int, access: Access, *, home: int
    ) -> Imported:
        (descriptor,) = exported.descriptors
        owned = _Physical(self)
        made: list[int] = []
        copies: list[int] = []
        try:
            if not descriptor:
                # CUDA, and ROCm from release 7.1 on, refuse descriptor 0.
                descriptor = call_into(copies, fcntl, descriptor, F_DUPFD_CLOEXEC, 1)
            with self._vendor.calling("memImportFromShareableHandle"):
                call_into(made, self._rt.memImportFromShareableHandle, descriptor, _DESCRIPTOR)
            owned.handle = made[0]
            return Imported(ordinal, capacity, access, owned)
        except BaseException as error:
            for handle in made:
                owned.handle = handle
            with noting(error):
                self._release_handle(owned)
            raise
        finally:
            for one in copies:
                os.close(one)

    @override
    def close(self, imported: Imported) -> None:
        owned: _Physical = imported.reference
        # If `map` failed and could not undo its steps, the memory may still be mapped. core does
        # not know this, so core does not call `unmap`. This method tries to undo the steps again.
        self.unmap(imported)
        self._release_handle(owned)

    @override
    def map(self, imported: Imported) -> int:
        refuse_capture(self._vendor)
        try:
            return self._map_anywhere(imported.reference, imported.capacity, imported.ordinal)
        except DriverError as error:
            calls = map(self._vendor.family.function, ("memAddressReserve", "memMap"))
            if error.call not in calls or error.code not in {INVALID_VALUE, SMALLER_ON_CUDA}:
                raise
            raise InvalidHandleError(
                f"the memory does not have the {imported.capacity} bytes that its exporter claims",
                backend=self._vendor.family.backend,
            ) from error

    @override
    def keep_mapped(self, imported: Imported) -> None:
        # The mapping keeps the memory alive, so the import does not need the handle any more.
        self._release_handle(imported.reference)

    @override
    def unmap(self, imported: Imported) -> None:
        owned: _Physical = imported.reference
        if owned.is_mapped:
            refuse_capture(self._vendor)
        self._unmap_and_free(owned, imported.capacity)

    # Address ranges -----------------------------------------------------------------------

    def reserve(self, reserved: Reserved) -> None:
        """Reserve addresses."""
        reserved.pointer = self._reserve(reserved.nbytes)

    def _reserve(self, nbytes: int) -> int:
        made: list[int] = []
        try:
            with self._vendor.calling("memAddressReserve"):
                call_into(made, self._rt.memAddressReserve, nbytes, 0, 0, 0)
            return made[0]
        except BaseException as error:
            with noting(error):
                for pointer in made:
                    self.release(Reserved(0, pointer, nbytes))
            raise

    def release(self, reserved: Reserved) -> None:
        """Release reserved addresses."""
        free, pointer = self._rt.memAddressFree, reserved.pointer
        with self._vendor.calling("memAddressFree"):
            try:
                # No signal handler runs between these two statements.
                reserved.pointer = 0
                free(pointer, reserved.nbytes)
            except self._vendor.error:
                reserved.pointer = pointer
                raise

    def map_at(self, memory: Block | Imported, pointer: int) -> None:
        """Map memory at reserved addresses."""
        owned: _Physical = memory.reference
        refuse_capture(self._vendor)
        made: list[None] = []
        with self._handle_of(owned, owned.addresses) as handle:
            try:
                with self._vendor.calling("memMap"):
                    call_into(made, self._rt.memMap, pointer, memory.capacity, 0, handle, 0)
            finally:
                if made:
                    owned.pieces[pointer] = True
            self._set_access(pointer, memory.capacity, memory.ordinal)

    def unmap_at(self, memory: Block | Imported, pointer: int) -> None:
        """Unmap memory from reserved addresses."""
        owned: _Physical = memory.reference
        pieces, unmap = owned.pieces, self._rt.memUnmap
        if pointer in pieces:
            refuse_capture(self._vendor)
            with self._vendor.calling("memUnmap"):
                try:
                    del pieces[pointer]
                    unmap(pointer, memory.capacity)
                except self._vendor.error:
                    pieces[pointer] = True
                    raise

    # Memory of other libraries -------------------------------------------------------------

    @override
    def inspect(self, ordinal: int, pointer: int) -> Foreign:
        return inspect_mapping(self._vendor, ordinal, pointer)

    @override
    def adopt(self, ordinal: int, foreign: Foreign) -> Block:
        return Block(ordinal, foreign.base, foreign.nbytes, foreign.nbytes, _Physical(self))

    @override
    def disown(self, block: Block) -> None:
        # A handle remains if the vendor refused to release it after the export.
        self._release_handle(block.reference)

    # Steps that have an effect only once --------------------------------------------------

    def _map_anywhere(self, owned: _Physical, capacity: int, ordinal: int) -> int:
        # The memory is still mapped if an earlier call failed and could not undo its steps.
        try:
            if not owned.is_mapped:
                self._free_addresses(owned, capacity)
                owned.addresses = self._reserve(capacity)
                made: list[None] = []
                try:
                    with self._vendor.calling("memMap"):
                        call_into(
                            made, self._rt.memMap, owned.addresses, capacity, 0, owned.handle, 0
                        )
                finally:
                    if made:
                        owned.is_mapped = True
            self._set_access(owned.addresses, capacity, ordinal)
        except BaseException as error:
            with noting(error):
                self._unmap_and_free(owned, capacity)
            raise
        return owned.addresses

    def _set_access(self, pointer: int, capacity: int, ordinal: int) -> None:
        access = [(_ON_DEVICE, one, _READ_WRITE) for one in self._reached_by(ordinal)]
        with self._vendor.calling("memSetAccess"):
            self._rt.memSetAccess(pointer, capacity, access)

    def _give_back(self, owned: _Physical, capacity: int) -> None:
        self._unmap(owned, capacity)
        self._release_handle(owned)
        self._free_addresses(owned, capacity)

    def _unmap_and_free(self, owned: _Physical, capacity: int) -> None:
        self._unmap(owned, capacity)
        self._free_addresses(owned, capacity)

    # In each method below, no signal handler runs between the statement that clears a field and
    # the vendor's call. The field is restored only if the vendor's call fails.

    def _unmap(self, owned: _Physical, capacity: int) -> None:
        unmap = self._rt.memUnmap
        if owned.is_mapped:
            with self._vendor.calling("memUnmap"):
                try:
                    owned.is_mapped = False
                    unmap(owned.addresses, capacity)
                except self._vendor.error:
                    owned.is_mapped = True
                    raise

    def _free_addresses(self, owned: _Physical, capacity: int) -> None:
        free, addresses = self._rt.memAddressFree, owned.addresses
        if addresses:
            with self._vendor.calling("memAddressFree"):
                try:
                    owned.addresses = 0
                    free(addresses, capacity)
                except self._vendor.error:
                    owned.addresses = addresses
                    raise

    def _release_handle(self, owned: _Physical) -> None:
        release, handle = self._rt.memRelease, owned.handle
        if handle:
            with self._vendor.calling("memRelease"):
                try:
                    owned.handle = 0
                    release(handle)
                except self._vendor.error:
                    owned.handle = handle
                    raise
