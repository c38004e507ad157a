# SPDX-License-Identifier: Apache-2.0
"""The base of the drivers ``host`` and ``emulated``. It shares memory by system calls on memfds.

The ``reference`` of a block is its descriptor. The ``reference`` of an import is its descriptor or,
when :meth:`MemfdDriver.map` has closed the descriptor, a :class:`_Kept`.
"""

import errno
from dataclasses import dataclass
from os import close
from typing import Final, Literal

from typing_extensions import override

from crossmem.driver import Block, CopyKind, Driver, Exported, Imported, Mapped, Reserved
from crossmem.driver.limits import FILE_SIZE_HINT, descriptor_hint
from crossmem.errors import CrossmemError, DriverError, InvalidHandleError, OutOfMemoryError
from crossmem.models import Access, Capabilities, DeviceInfo
from crossmem_emulated import memory
from crossmem_emulated.memory import READ, READ_WRITE, SystemCallError

__all__ = ["MECHANISM", "MemfdDriver"]

MECHANISM: Final = "memfd"

_DLPACK_CPU: Final = 1

_HUGE_PAGE_NBYTES: Final = 2 << 20
_MIN_FILL_NBYTES: Final = 64 << 10
"""The least size, in bytes, for which a write to new pages is faster through the descriptor than
through a mapping."""
_NO_ROOM: Final = frozenset({errno.EFBIG, errno.ENOMEM, errno.ENOSPC})
_ROOM_HINT: Final = (
    "free some memory, or raise the limits on the address space of a process (ulimit -v) and on "
    "its mappings (sysctl vm.max_map_count)"
)
_Operation = Literal["allocate", "attach", "export", "free", "release", "reserve", "unmap", "write"]


@dataclass(slots=True)
class _Kept:
    """An import without a descriptor: its mapping keeps the memory alive."""

    mapped: Mapped


class MemfdDriver(Driver):
    """Memory of the host, shared through sealed memfds.

    Parameters
    ----------
    devices
        The visible devices, in the order of their ordinals.
    granularity_nbytes
        Unit of capacities in bytes: a power of two, and a multiple of the page size.
    max_allocation_nbytes
        Largest request in bytes that a caller may pass to :meth:`allocate`.
    peer_access
        Whether devices can map each other's memory.
    hugepages
        Whether to request huge pages, if the kernel gives them only on request.

    Raises
    ------
    DriverError
        This kernel cannot create memfds.
    """

    def __init__(
        self,
        devices: tuple[DeviceInfo, ...],
        *,
        granularity_nbytes: int,
        max_allocation_nbytes: int,
        peer_access: bool,
        hugepages: bool,
    ) -> None:
        self._devices = devices
        self._granularity_mask = granularity_nbytes - 1
        self._capabilities = Capabilities(
            mechanisms=(MECHANISM,),
            granularity_nbytes=granularity_nbytes,
            max_allocation_nbytes=max_allocation_nbytes,
            host_visible=True,
            readonly_exports=True,
            readonly_imports=True,
            peer_access=peer_access,
            fork_safe=True,
            survives_owner=True,
            raw_handles=False,
            address_ranges=True,
            foreign_memory=False,
            dlpack_device_type=_DLPACK_CPU,
            # The CPU's work is complete when a call returns, so there are no streams to order.
            timeline_levels=("word", "host"),
        )
        self._is_inherited = self._capabilities.host_visible
        """Whether forked children inherit the mappings of the memory (law C18)."""
        self._advise_huge = hugepages and memory.wants_huge_page_advice()
        self._prepares = self._advise_huge
        """Whether :meth:`allocate` calls :meth:`_prepare` for a new block. If so, :meth:`fill`
        writes through the mapping."""
        try:
            self._flags = memory.creation_flags()
        except SystemCallError as error:
            raise self._translate(error, "allocate") from None

    @override
    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._devices

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        return self._capabilities

    @override
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        mask = self._granularity_mask
        capacity = (nbytes + mask) & ~mask
        # _charge() sets the capacity. Until then, the capacity is 0, and free() refunds nothing.
        block = Block(ordinal, 0, nbytes, 0)
        try:
            self._charge(block, capacity)
            block.reference, block.pointer = memory.create(
                capacity, self._flags, is_inherited=self._is_inherited
            )
            if self._prepares:
                self._prepare(block)
        except BaseException as error:
            self.free(block)
            if isinstance(error, SystemCallError):
                raise self._translate(error, "allocate", ordinal, capacity) from None
            raise
        return block

    def _charge(self, block: Block, capacity: int) -> None:
        """Set the capacity of a block.

        A subclass with limits raises ``OutOfMemoryError`` if the limits leave too little room.
        """
        block.capacity = capacity

    def _refund(self, block: Block) -> None:
        """Undo :meth:`_charge`, and set the capacity of the freed block to 0."""
        block.capacity = 0

    def _prepare(self, block: Block) -> None:
        """Prepare a new block for its first use."""
        # An allocation below the size of a huge page gets no huge page, because the kernel would
        # zero the whole huge page.
        if self._advise_huge and block.nbytes >= _HUGE_PAGE_NBYTES:
            memory.advise_huge(block.pointer, block.capacity)

    @override
    def free(self, block: Block) -> None:
        pointer, capacity = block.pointer, block.capacity
        if pointer:
            # No signal handler runs between this statement and the unmapping.
            block.pointer = 0
            if memory.munmap(pointer, capacity):
                block.pointer = pointer
                raise self._munmap_failed(block.ordinal, "free", capacity) from None
        if capacity:
            self._refund(block)
        descriptor = block.reference
        if descriptor is not None:
            try:
                # The kernel closes the descriptor even if close() reports an error. So the
                # reference is cleared first, and a repeated free() does not close the descriptor
                # again.
                block.reference = None
                close(descriptor)
            except OSError as error:
                raise self._close_failed(block.ordinal, error, "free") from None

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        descriptor: int = block.reference
        if access == "rw":
            return Exported((), (descriptor,))
        exported = Exported()
        try:
            exported.descriptors = (memory.reopen_readonly(descriptor),)
        except SystemCallError as error:
            raise self._translate(error, "export", block.ordinal, block.capacity) from None
        return exported

    @override
    def release_export(self, block: Block, exported: Exported) -> None:
        if not exported.descriptors:
            return
        (descriptor,) = exported.descriptors
        # A writable export has no descriptor of its own: it has the descriptor of the block.
        is_own = descriptor == block.reference
        try:
            exported.descriptors = ()
            if not is_own:
                close(descriptor)
        except OSError as error:
            raise self._close_failed(block.ordinal, error, "free") from None

    @override
    def after_fork_in_child(self) -> None:
        # Mappings stay, because the child uses inherited views of them (law C18).
        memory.close_inherited()

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
        if len(exported.descriptors) != 1 or exported.payloads:
            msg = (
                f"an export of {self.backend} memory has one descriptor and no payload, "
                f"but this export has {len(exported.descriptors)} descriptors "
                f"and {len(exported.payloads)} payloads"
            )
            raise InvalidHandleError(msg, operation="attach", backend=self.backend)
        (descriptor,) = exported.descriptors
        actual = memory.sealed_nbytes(descriptor)
        if actual is None:
            msg = "the exporter sent a descriptor that is not a memfd with a sealed size"
            raise InvalidHandleError(msg, operation="attach", backend=self.backend)
        if actual != capacity or not 0 < nbytes <= capacity:
            msg = (
                f"the sizes do not fit: the exporter reports {nbytes} bytes and capacity "
                f"{capacity} for memory of {actual} bytes"
            )
            raise InvalidHandleError(msg, operation="attach", backend=self.backend)
        return Imported(ordinal, capacity, access, descriptor)

    @override
    def close(self, imported: Imported) -> None:
        reference = imported.reference
        if isinstance(reference, int):
            try:
                imported.reference = None
                close(reference)
            except OSError as error:
                raise self._close_failed(imported.ordinal, error, "unmap") from None
        elif reference is not None and reference.mapped.pointer:
            # An interrupt ended map() after map() had made this mapping. The core does not know the
            # mapping, so only this method can unmap it.
            self.unmap(reference.mapped)

    @override
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        if isinstance(imported.reference, _Kept) and imported.reference.mapped.pointer:
            # An earlier call made this mapping, but an interrupt ended the call before it returned.
            kept: Mapped = imported.reference.mapped
            return kept
        mapped = Mapped(imported, 0)
        try:
            mapped.pointer = self._map(imported, "rw" if imported.access == "rw" else "ro")
            # This method does not know how many bytes the exporter requested. If the capacity is
            # exactly one huge page, the exporter may have requested fewer bytes. If the capacity
            # exceeds one huge page, the requested size exceeds one huge page, too.
            if self._advise_huge and imported.capacity > _HUGE_PAGE_NBYTES:
                memory.advise_huge(mapped.pointer, imported.capacity)
            if not remappable:
                # The mapping keeps the memory alive. If each import held a descriptor, too, many
                # imports would exhaust the descriptors of this process.
                descriptor, reference = imported.reference, _Kept(mapped)
                imported.reference = reference
                close(descriptor)
        except BaseException as error:
            if not isinstance(imported.reference, _Kept):
                self.unmap(mapped)
            elif isinstance(error, OSError):
                imported.reference = None
                self.unmap(mapped)
                raise self._close_failed(imported.ordinal, error, "attach") from None
            raise
        return mapped

    def _map(self, source: Block | Imported, access: Access, at: int = 0) -> int:
        protection = READ_WRITE if access == "rw" else READ
        try:
            return memory.map_shared(
                source.reference,
                source.capacity,
                protection,
                is_inherited=self._is_inherited,
                at=at,
            )
        except SystemCallError as error:
            raise self._translate(error, "attach", source.ordinal, source.capacity) from None

    @override
    def unmap(self, mapped: Mapped) -> None:
        source, pointer = mapped.source, mapped.pointer
        capacity = source.capacity
        if pointer:
            # No signal handler runs between this statement and the unmapping.
            mapped.pointer = 0
            if memory.munmap(pointer, capacity):
                mapped.pointer = pointer
                raise self._munmap_failed(source.ordinal, "unmap", capacity) from None

    def map_readonly(self, block: Block) -> Mapped:
        """Map a block a second time, for reading only (law C8)."""
        mapped = Mapped(block, 0)
        mapped.pointer = self._map(block, "ro")
        return mapped

    def unmap_readonly(self, mapped: Mapped) -> None:
        """Unmap a mapping that :meth:`map_readonly` made."""
        self.unmap(mapped)

    def reserve(self, ordinal: int, nbytes: int) -> Reserved:
        """Reserve consecutive addresses. An access faults if nothing is mapped at the address."""
        reserved = Reserved(ordinal, 0, nbytes)
        try:
            reserved.pointer = memory.reserve(nbytes, self._capabilities.granularity_nbytes)
        except SystemCallError as error:
            raise self._translate(error, "reserve", ordinal, nbytes) from None
        return reserved

    def release(self, reserved: Reserved) -> None:
        """Release reserved addresses."""
        pointer, nbytes = reserved.pointer, reserved.nbytes
        if pointer:
            reserved.pointer = 0
            if memory.munmap(pointer, nbytes):
                reserved.pointer = pointer
                raise self._munmap_failed(reserved.ordinal, "release", nbytes) from None

    def map_at(self, source: Block | Imported, pointer: int) -> Mapped:
        """Map memory at reserved addresses."""
        mapped = Mapped(source, pointer)
        capacity, kept = source.capacity, source.reference
        try:
            if isinstance(kept, _Kept):
                memory.duplicate_at(kept.mapped.pointer, capacity, pointer)
            else:
                is_writable = isinstance(source, Block) or source.access == "rw"
                self._map(source, "rw" if is_writable else "ro", pointer)
            if self._advise_huge and capacity > _HUGE_PAGE_NBYTES:
                memory.advise_huge(pointer, capacity)
        except SystemCallError as error:
            raise self._translate(error, "attach", source.ordinal, capacity) from None
        except CrossmemError:
            raise
        except BaseException:
            # cover() removes the mapping. If nothing was mapped yet, it changes nothing.
            memory.cover(pointer, capacity)
            raise
        return mapped

    def unmap_at(self, mapped: Mapped) -> None:
        """Unmap memory from reserved addresses, which stay reserved."""
        source = mapped.source
        if mapped.pointer:
            try:
                # After an interrupt, a repeated call of this method runs cover() a second time for
                # the same addresses. This is harmless, because the addresses are still reserved.
                memory.cover(mapped.pointer, source.capacity)
            except SystemCallError as error:
                raise self._translate(error, "unmap", source.ordinal, source.capacity) from None
            mapped.pointer = 0

    def _munmap_failed(
        self, ordinal: int, operation: _Operation, capacity: int
    ) -> OutOfMemoryError | DriverError:
        return self._translate(memory.libc_error("munmap"), operation, ordinal, capacity)

    def _close_failed(
        self, ordinal: int, error: OSError, operation: _Operation
    ) -> OutOfMemoryError | DriverError:
        failure = SystemCallError("close", error.errno or 0)
        return self._translate(failure, operation, ordinal)

    @override
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        memory.copy(target, source, nbytes)

    @override
    def fill(self, block: Block, offset: int, source: int, nbytes: int) -> None:
        # For a write through the descriptor, the kernel neither zeroes nor maps a new page. For
        # pages that exist already, and for huge pages, a write through the mapping is faster.
        if self._prepares or nbytes < _MIN_FILL_NBYTES:
            super().fill(block, offset, source, nbytes)
            return
        try:
            memory.write(block.reference, offset, source, nbytes)
        except SystemCallError as error:
            raise self._translate(error, "write", block.ordinal, block.capacity) from None

    @override
    def synchronize(self, ordinal: int) -> None:
        # The CPU's work is complete when a call returns, and the CPU's caches are coherent.
        pass

    def _translate(
        self,
        error: SystemCallError,
        operation: _Operation,
        ordinal: int | None = None,
        capacity: int = 0,
    ) -> OutOfMemoryError | DriverError:
        """Return crossmem's error for a failed system call."""
        name = errno.errorcode.get(error.code, str(error.code))
        device = None if ordinal is None else self._devices[ordinal].identity
        if error.code in _NO_ROOM:
            return OutOfMemoryError(
                f"the kernel has no room for {capacity} bytes: {error.call} failed with {name}",
                hint=FILE_SIZE_HINT if error.code == errno.EFBIG else _ROOM_HINT,
                operation=operation,
                backend=self.backend,
                device=device,
            )
        return DriverError(
            f"{operation} failed in the kernel: {error.strerror}",
            call=error.call,
            code=error.code,
            name=name,
            hint=self._hint(error),
            operation=operation,
            backend=self.backend,
            device=device,
        )

    def _hint(self, error: SystemCallError) -> str | None:
        if error.code == errno.EMFILE:
            return descriptor_hint()
        if error.code == errno.ENFILE:
            return "the system has too many open files: raise the limit `sysctl fs.file-max`"
        if error.code == errno.EACCES and error.call == "mmap":
            return "the exporter shared this memory read-only: attach with readonly=True"
        return None
