# SPDX-License-Identifier: Apache-2.0
"""Memory pools.

``mallocAsync`` allocates memory at once. ``freeAsync`` adds work to a stream, and this work frees
the memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from crossmem_emulated.addresses import Piece
from crossmem_emulated.hip.blocks import free_piece, malloc_from
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.physical import NO_HANDLE, ON_DEVICE, PINNED
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.reserves import Pool
from crossmem_emulated.hip.shares import check_from_pool, close_once
from crossmem_emulated.hip.streams import find_stream, submit
from crossmem_emulated.hip.virtual import ACCESS, READ_WRITE
from crossmem_emulated.queues import Work

__all__ = ["MemPoolProps", "find_pool", "forget_pools", "new_pool"]

_LACKS: Final = "HIP does not support {}"


class Attribute(IntEnum):
    """The attributes of a pool. The numbers are the same in HIP and CUDA."""

    REUSE_FOLLOW_EVENTS = 1
    REUSE_OPPORTUNISTIC = 2
    REUSE_INTERNAL = 3
    RELEASE_THRESHOLD = 4
    RESERVED_CURRENT = 5
    RESERVED_HIGH = 6
    USED_CURRENT = 7
    USED_HIGH = 8


_FLAGS: Final = range(Attribute.REUSE_FOLLOW_EVENTS, Attribute.RELEASE_THRESHOLD)


@dataclass(frozen=True, slots=True)
class MemPoolProps:
    """The properties of a new pool. This class replaces ``cupy.cuda.runtime.MemPoolProps``."""

    allocType: int  # noqa: N815 - CuPy's names
    handleType: int  # noqa: N815
    locationType: int  # noqa: N815
    devId: int  # noqa: N815


def find_pool(process: HipProcess, handle: int) -> Pool:
    """Return the pool that a handle names. Refuse an invalid handle."""
    pool: Pool | None = process.pools.get(handle)
    if pool is None:
        raise Refused(Status.INVALID_VALUE, f"there is no pool {handle:#x}", "HIP-X11")
    return pool


def new_pool(process: HipProcess, device: int, handle_type: int = NO_HANDLE) -> Pool:
    """Return a new pool of a device.

    ``handle_type`` is the type of the handles by which the pool can be shared.
    """
    pool = Pool(next(process.handles), device, handle_type)
    process.pools[pool.handle] = pool
    return pool


def _check_own(process: HipProcess, call: str, pool: Pool) -> None:
    """Refuse an imported pool.

    ``call`` is a call that would allocate from the pool, or that would make the pool the source of
    later allocations. AMD's runtimes allow allocations from imported pools. So the profiles that
    follow a runtime record a violation, and do not refuse the call.
    """
    if pool.is_imported:
        text = f"the pool {pool.handle:#x} was imported"
        if process.profile.is_documented:
            raise Refused(Status.INVALID_VALUE, text, "HIP-X12")
        process.violate(call, "HIP-X12", text)


def _default_of(process: HipProcess, device: int) -> Pool:
    pool: Pool | None = process.default_pools.get(device)
    if pool is None:
        pool = process.default_pools[device] = new_pool(process, device)
    return pool


def _current_of(process: HipProcess, device: int) -> Pool:
    return process.current_pools.get(device) or _default_of(process, device)


def forget_pools(process: HipProcess, device: int) -> None:
    """Remove all pools of a device. The device gets a new default pool when a call needs one."""
    for pool in [one for one in process.pools.values() if one.device == device]:
        _end(process, pool)
    process.default_pools.pop(device, None)


def _end(process: HipProcess, pool: Pool) -> None:
    """Remove a pool and release its unused memory. Allocated memory stays until it is freed."""
    del process.pools[pool.handle]
    pool.threshold_nbytes = 0
    pool.trim(process.store, 0)
    if process.current_pools.get(pool.device) is pool:
        del process.current_pools[pool.device]


# Pools ----------------------------------------------------------------------------------------


@entry(
    "deviceGetDefaultMemPool(int device) -> intptr_t",
    hip_lacks=_LACKS.format("deviceGetDefaultMemPool"),
)
def _device_get_default_mem_pool(process: HipProcess, device: int) -> int:
    process.check_device(device)
    return _default_of(process, device).handle


def _check_device(process: HipProcess, device: int) -> None:
    if process.profile.is_hip and not 0 <= device < len(process.setup.visible):
        raise Refused(Status.INVALID_VALUE, f"there is no device {device}")
    process.check_device(device)


@entry("deviceGetMemPool(int device) -> intptr_t", hip_lacks=_LACKS.format("deviceGetMemPool"))
def _device_get_mem_pool(process: HipProcess, device: int) -> int:
    _check_device(process, device)
    return _current_of(process, device).handle


@entry("deviceSetMemPool(int device, intptr_t pool)", hip_lacks=_LACKS.format("deviceSetMemPool"))
def _device_set_mem_pool(process: HipProcess, device: int, handle: int) -> None:
    pool = find_pool(process, handle)
    _check_own(process, "deviceSetMemPool", pool)
    _check_device(process, device)
    if pool.device != device:
        text = f"the pool {handle:#x} belongs to device {pool.device}, not {device}"
        raise Refused(Status.INVALID_DEVICE, text, "HIP-X11")
    process.current_pools[device] = pool


@entry("memPoolCreate(MemPoolProps props) -> intptr_t", hip_lacks=_LACKS.format("memPoolCreate"))
def _mem_pool_create(process: HipProcess, props: MemPoolProps) -> int:
    if props.allocType != PINNED or props.locationType != ON_DEVICE:
        raise Refused(Status.INVALID_VALUE, f"there are no pools with {props}", "HIP-X11")
    _check_device(process, props.devId)
    return new_pool(process, props.devId, props.handleType).handle


@entry("memPoolDestroy(intptr_t pool)", hip_lacks=_LACKS.format("memPoolDestroy"))
def _mem_pool_destroy(process: HipProcess, handle: int) -> None:
    pool = find_pool(process, handle)
    if pool is process.default_pools.get(pool.device):
        raise Refused(
            Status.INVALID_VALUE, "the default pool of a device cannot be destroyed", "HIP-X11"
        )
    _end(process, pool)


@entry("memPoolTrimTo(intptr_t pool, size_t size)", hip_lacks=_LACKS.format("memPoolTrimTo"))
def _mem_pool_trim_to(process: HipProcess, handle: int, size: int) -> None:
    find_pool(process, handle).trim(process.store, size)


@entry(
    "memPoolGetAttribute(intptr_t pool, int attr)", hip_lacks=_LACKS.format("memPoolGetAttribute")
)
def _mem_pool_get_attribute(process: HipProcess, handle: int, attribute: int) -> int:
    pool = find_pool(process, handle)
    if attribute in _FLAGS:
        return pool.flags.get(attribute, 1)
    if attribute not in set(Attribute):
        raise Refused(Status.INVALID_VALUE, f"there is no attribute {attribute}", "HIP-X11")
    return {
        Attribute.RELEASE_THRESHOLD: pool.threshold_nbytes,
        Attribute.RESERVED_CURRENT: pool.reserved_nbytes,
        Attribute.RESERVED_HIGH: pool.most_reserved_nbytes,
        Attribute.USED_CURRENT: pool.used_nbytes,
        Attribute.USED_HIGH: pool.most_used_nbytes,
    }[Attribute(attribute)]


@entry(
    "memPoolSetAttribute(intptr_t pool, int attr, value)",
    hip_lacks=_LACKS.format("memPoolSetAttribute"),
)
def _mem_pool_set_attribute(process: HipProcess, handle: int, attribute: int, value: int) -> None:
    pool = find_pool(process, handle)
    if attribute in _FLAGS:
        pool.flags[attribute] = int(value)
    elif attribute == Attribute.RELEASE_THRESHOLD:
        pool.threshold_nbytes = int(value)
    elif attribute == Attribute.RESERVED_HIGH and not value:
        pool.most_reserved_nbytes = 0
    elif attribute == Attribute.USED_HIGH and not value:
        pool.most_used_nbytes = 0
    else:
        text = f"attribute {attribute} cannot be set to {value}"
        raise Refused(Status.INVALID_VALUE, text, "HIP-X11")


@entry("memPoolSetAccess(intptr_t pool, access)")
def _mem_pool_set_access(
    process: HipProcess, handle: int, access: Iterable[tuple[int, int, int]]
) -> None:
    pool, wanted = find_pool(process, handle), list(access)
    if len(wanted) > len(process.setup.visible):
        raise Refused(Status.INVALID_DEVICE, f"{len(wanted)} accesses exceed the number of devices")
    for kind, device, flags in wanted:
        if kind != ON_DEVICE or flags not in ACCESS:
            text = f"access {flags} for location {device} of type {kind} cannot be set"
            raise Refused(Status.INVALID_VALUE, text, "HIP-X11")
        process.check_device(device)
        if device == pool.device and flags != READ_WRITE:
            status = Status.NOT_SUPPORTED if flags else Status.INVALID_DEVICE
            text = "a pool's own device always has access for reading and writing"
            raise Refused(status, text, "HIP-X11")
    pool.access.update((device, flags) for _, device, flags in wanted)


@entry("memPoolGetAccess(intptr_t pool, int type, int id) -> int")
def _mem_pool_get_access(process: HipProcess, handle: int, kind: int, device: int) -> int:
    pool = find_pool(process, handle)
    if kind != ON_DEVICE:
        raise Refused(Status.INVALID_VALUE, f"there is no location of type {kind}", "HIP-X11")
    _check_device(process, device)
    return pool.access.get(device, READ_WRITE if device == pool.device else 0)


# Memory ---------------------------------------------------------------------------------------


@entry(
    "mallocAsync(size_t size, intptr_t stream) -> intptr_t", hip_lacks=_LACKS.format("mallocAsync")
)
def _malloc_async(process: HipProcess, size: int, stream: int) -> int:
    device = find_stream(process, stream).device
    return malloc_from(process, _current_of(process, device), size) if size else 0


@entry(
    "mallocFromPoolAsync(size_t size, intptr_t pool, intptr_t stream) -> intptr_t",
    hip_lacks=_LACKS.format("mallocFromPoolAsync"),
)
def _malloc_from_pool_async(process: HipProcess, size: int, handle: int, stream: int) -> int:
    pool = find_pool(process, handle)
    _check_own(process, "mallocFromPoolAsync", pool)
    find_stream(process, stream)
    return malloc_from(process, pool, size) if size else 0


@entry("freeAsync(intptr_t ptr, intptr_t stream)", hip_lacks=_LACKS.format("freeAsync"))
def _free_async(process: HipProcess, pointer: int, stream: int) -> None:
    where = find_stream(process, stream)
    if not pointer and process.profile.frees_null:
        return
    piece = process.space.pieces.get(pointer)
    if piece is None or piece.is_freed or piece.origin is Origin.VIRTUAL:
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} was not allocated", "HIP-X4")
    if piece.origin is Origin.IPC:
        check_from_pool(piece.source)
    if where.capture is not None and not process.profile.is_hip:
        text = f"{pointer:#x} was not allocated in the captured graph"
        raise Refused(Status.INVALID_VALUE, text)
    submit(process, where, Work("freeAsync", (), lambda: _give_back(process, piece)))
    # Imported memory is not marked as freed: a program that opened the memory several times must
    # free it the same number of times.
    piece.is_freed = where.capture is None and piece.origin is not Origin.IPC
    # Even a slow stream does its work now. It stops before the first work that must wait for a
    # function that the program gave to a stream.
    process.queues.drain([where])


def _give_back(process: HipProcess, piece: Piece) -> None:
    """Free an allocation, or undo one call that opened imported memory.

    This is the work that ``freeAsync`` gives to a stream. If another call has released the memory
    in the meantime, do nothing.
    """
    if process.space.pieces.get(piece.start) is not piece:
        return
    if piece.origin is Origin.IPC:
        close_once(process, "freeAsync", piece.source)
    else:
        free_piece(process, "freeAsync", piece)
