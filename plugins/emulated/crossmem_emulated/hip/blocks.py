# SPDX-License-Identifier: Apache-2.0
"""Allocations: device, pinned, managed and pooled memory. Small allocations share pages."""

import ctypes
import mmap
from dataclasses import dataclass, field
from typing import Any, Final

from crossmem_emulated import memory
from crossmem_emulated.addresses import BLOCK_NBYTES, Piece, Region, numbers
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import LARGEST_NBYTES, MemoryType, Status
from crossmem_emulated.hip.exports import withdraw
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import Again, HipProcess, Quirk
from crossmem_emulated.hip.reserves import Pool
from crossmem_emulated.hip.shares import check_from_pool, close_once
from crossmem_emulated.hip.streams import check_idle, check_safe, finish_device
from crossmem_emulated.pages import DeviceFullError, Pages

__all__ = [
    "HostBlock",
    "Slab",
    "allocate",
    "find_host_block",
    "free_piece",
    "malloc_from",
    "release_host",
]

_LARGEST_SMALL_NBYTES: Final = 1 << 20
_SMALL_ALIGNMENT: Final = 512
_DEVICE_FLAGS: Final = {True: range(3), False: range(5)}
"""The valid flags of AMD's device memory. The key True stands for the releases before ROCm 6."""
_SIGNAL: Final = 2
_SIGNAL_NBYTES: Final = 8
_COHERENCE: Final = 0x4000_0000 | 0x8000_0000 | 0x1000_0000
"""The flags for the coherence of AMD's pinned memory: coherent, not coherent, or uncached. A call
may set at most one of these flags."""


@dataclass(slots=True, eq=False)
class Slab:
    """Pages that small allocations share. Each new allocation gets the next unused bytes.

    The bytes of a freed allocation are not used again. The pages are released when all allocations
    in them are freed.
    """

    pages: Pages
    region: Region
    taken_nbytes: int = 0
    live: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class HostBlock:
    """Memory that the host and devices can use: managed if ``pages`` is set, else pinned."""

    start: int
    nbytes: int
    device: int
    """The number, in this process, of the device that was current when the memory was allocated or
    pinned."""
    buffer: Any = None
    pages: Pages | None = None
    flags: int = 0
    is_registered: bool = False
    """Whether the program allocated this memory itself, and pinned it with ``hostRegister``."""
    is_synchronous: bool = False
    number: int = field(default_factory=numbers)
    """A number that this process gives to no other memory, not even after this memory is freed."""

    @property
    def kind(self) -> MemoryType:
        """The type of the memory."""
        return MemoryType.HOST if self.pages is None else MemoryType.MANAGED


def _allocate_pages(process: HipProcess, index: int, nbytes: int) -> Pages:
    if nbytes > LARGEST_NBYTES:
        raise Refused(Status.OUT_OF_MEMORY, f"the device has no room for {nbytes} bytes")
    try:
        return process.store.allocate(index, -(-nbytes // BLOCK_NBYTES) * BLOCK_NBYTES)
    except DeviceFullError:
        raise Refused(Status.OUT_OF_MEMORY, f"the device has no room for {nbytes} bytes") from None


def _new_slab(process: HipProcess, index: int) -> Slab:
    pages = _allocate_pages(process, index, BLOCK_NBYTES)
    try:
        region = process.space.reserve(BLOCK_NBYTES, is_reservation=False)
    except memory.SystemCallError:
        process.store.release(pages)
        raise
    process.space.show(pages.address, pages.nbytes, region.start)
    slab = Slab(pages, region)
    process.slabs.append(slab)
    return slab


def _malloc_small(process: HipProcess, index: int, nbytes: int) -> int:
    size = -(-nbytes // _SMALL_ALIGNMENT) * _SMALL_ALIGNMENT
    for slab in process.slabs:
        fits = slab.taken_nbytes + size <= slab.pages.nbytes
        if fits and slab.pages.device == index:
            break
    else:
        slab = _new_slab(process, index)
    start: int = slab.region.start + slab.taken_nbytes
    process.space.attach(
        Piece(
            start,
            nbytes,
            slab.region,
            slab.pages,
            slab.taken_nbytes,
            Origin.MALLOC,
            slab,
            is_part=True,
        )
    )
    slab.taken_nbytes += size
    slab.live.add(start)
    return start


def _attach(
    process: HipProcess, pages: Pages, nbytes: int, origin: Origin, source: Pool | None = None
) -> int:
    """Map pages and return their device address. If no addresses are left, release the pages."""
    try:
        region = process.space.reserve(pages.nbytes, is_reservation=False)
    except memory.SystemCallError:
        process.store.release(pages)
        raise
    process.space.attach(Piece(region.start, nbytes, region, pages, 0, origin, source))
    return region.start


def malloc_from(process: HipProcess, pool: Pool, nbytes: int) -> int:
    """Allocate memory from a pool, and return its address."""
    index, size = process.setup.visible[pool.device], -(-nbytes // BLOCK_NBYTES) * BLOCK_NBYTES
    for pages in pool.kept:
        if pages.nbytes == size:
            pool.kept.remove(pages)
            break
    else:
        try:
            pages = _allocate_pages(process, index, nbytes)
        except Refused:
            # The device may have room after the pool has released its unused pages.
            pool.trim(process.store, 0)
            pages = _allocate_pages(process, index, nbytes)
    pointer = _attach(process, pages, nbytes, Origin.POOL, pool)
    pool.note(nbytes, pages)
    return pointer


def allocate(process: HipProcess, size: int) -> int:
    """Allocate memory on the current device, and return its address."""
    index = process.setup.visible[process.current().device]
    if size <= _LARGEST_SMALL_NBYTES:
        return _malloc_small(process, index, size)
    return _attach(process, _allocate_pages(process, index, size), size, Origin.MALLOC)


@entry("malloc(size_t size) -> intptr_t")
def _malloc(process: HipProcess, size: int) -> int:
    check_safe(process)
    return allocate(process, size) if size else 0


@entry("extMallocWithFlags(size_t size, unsigned int flags) -> intptr_t")
def _ext_malloc_with_flags(process: HipProcess, size: int, flags: int) -> int:
    is_signal = flags == _SIGNAL
    known = _DEVICE_FLAGS[process.profile.is_before_6]
    if flags not in known or (is_signal and size != _SIGNAL_NBYTES):
        raise Refused(
            Status.INVALID_VALUE, f"cannot allocate {size} bytes with flags {flags}", "HIP-X10"
        )
    return _malloc(process, size)


@entry("free(intptr_t ptr)")
def _free(process: HipProcess, pointer: int) -> None:
    check_safe(process)
    if not pointer:
        return
    block = process.host_blocks.get(pointer)
    if block is not None and block.pages is not None:
        release_host(process, block)
        return
    piece = process.space.pieces.get(pointer)
    if piece is not None and piece.origin is Origin.IPC:
        check_from_pool(piece.source)
        finish_device(process, piece.source.device)
        if process.space.pieces.get(pointer) is not piece:
            # finish_device() has executed a stream's work, and this work has freed the memory.
            raise Again
        close_once(process, "free", piece.source)
        return
    if piece is None or piece.is_freed:
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} was not allocated", "HIP-X4")
    if piece.origin is Origin.VIRTUAL:
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} is mapped, not allocated", "HIP-V11")
    device = process.ordinal_of(piece.pages.device)
    if device is not None:
        finish_device(process, device)
    free_piece(process, "free", piece)


def free_piece(process: HipProcess, call: str, piece: Piece) -> None:
    """Free an allocation.

    ``call`` is the function that the program called to free the memory; the record of a violation
    names ``call``.
    """
    was_exported = withdraw(process, call, piece)
    check_idle(process, call, piece.start, piece.nbytes)
    process.space.detach(piece)
    source = piece.source
    if isinstance(source, Slab):
        source.live.remove(piece.start)
        if source.live:
            return
        process.slabs.remove(source)
    process.space.release(piece.region)
    if isinstance(source, Pool):
        source.take_back(process.store, piece.nbytes, piece.pages)
    elif was_exported and process.has(Quirk.PIN_AFTER_FREE):
        process.leaked.append(piece.pages)
    else:
        process.store.release(piece.pages)


@entry("memGetInfo()")
def _mem_get_info(process: HipProcess) -> tuple[int, int]:
    index = process.setup.visible[process.current().device]
    total = process.store.capacity_nbytes
    return total - process.store.used_nbytes(index), total


# Host memory --------------------------------------------------------------------------------


def find_host_block(process: HipProcess, pointer: int) -> HostBlock | None:
    """Return the pinned or managed memory that contains an address, or None."""
    for start, block in process.host_blocks.items():
        if start <= pointer < start + block.nbytes:
            return block  # type: ignore[no-any-return]
    return None


@entry("hostAlloc(size_t size, unsigned int flags) -> intptr_t")
def _host_alloc(process: HipProcess, size: int, flags: int) -> int:
    check_safe(process)
    if not size:
        return 0
    if process.profile.is_hip and (flags & _COHERENCE).bit_count() > 1:
        raise Refused(
            Status.INVALID_VALUE, f"flags {flags:#x} name several kinds of coherence", "HIP-X10"
        )
    if size > LARGEST_NBYTES:
        raise Refused(Status.OUT_OF_MEMORY, f"the host has no room for {size} bytes")
    try:
        buffer = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise Refused(Status.OUT_OF_MEMORY, f"the host has no room: {error}") from None
    pointer = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    device = process.current().device
    process.host_blocks[pointer] = HostBlock(pointer, size, device, buffer, flags=flags)
    return pointer


@entry("freeHost(intptr_t ptr)")
def _free_host(process: HipProcess, pointer: int) -> None:
    check_safe(process)
    if not pointer:
        return
    block = process.host_blocks.get(pointer)
    if block is None or block.pages is not None or block.is_registered:
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} was not allocated", "HIP-X4")
    release_host(process, block)


def release_host(process: HipProcess, block: HostBlock) -> None:
    """Free pinned or managed memory. Memory that the program registered is unpinned, not freed."""
    for device in range(len(process.setup.visible)):
        finish_device(process, device)
    del process.host_blocks[block.start]
    if block.pages is not None:
        process.store.release(block.pages)


@entry("mallocManaged(size_t size, unsigned int flags=cudaMemAttachGlobal) -> intptr_t")
def _malloc_managed(process: HipProcess, size: int, flags: int) -> int:
    check_safe(process)
    if not size or flags not in {1, 2}:
        raise Refused(Status.INVALID_VALUE, f"cannot allocate {size} bytes with flags {flags}")
    device = process.current().device
    pages = _allocate_pages(process, process.setup.visible[device], size)
    process.host_blocks[pages.address] = HostBlock(pages.address, size, device, pages=pages)
    return pages.address
