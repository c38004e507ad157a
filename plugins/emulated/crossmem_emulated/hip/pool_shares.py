# SPDX-License-Identifier: Apache-2.0
"""The sharing of pools, and of memory from shared pools, between processes (HIP-X12)."""

import os
import struct
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import HANDLE_NBYTES, Status
from crossmem_emulated.hip.exports import TOKEN_NBYTES, enter
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.physical import NO_HANDLE
from crossmem_emulated.hip.pools import find_pool, new_pool
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.reserves import Pool
from crossmem_emulated.hip.shares import open_share

__all__: list[str] = []

_DESCRIPTOR: Final = 1
_NOTE: Final = struct.Struct("<16sQQiI")
"""The header of the file that describes a shared pool: magic bytes, the identity of the emulated
host (two numbers), the host-wide index of the pool's device, and the number of access entries."""
_ACCESS: Final = struct.Struct("<iI")
"""One access entry, after the header: a device's host-wide index, and its access to the pool."""
_MAGIC: Final = b"crossmem a pool "
_DATA: Final = struct.Struct("<QQ")
"""The start of a handle of pooled memory: the offset of the exported address in its allocation, and
the size of the allocation. The token of the export follows. AMD's runtime uses the same format."""


def _check_release(process: HipProcess) -> None:
    if process.profile.is_before_6:
        raise Refused(Status.NOT_SUPPORTED, "this release cannot share pools")


def _missing(process: HipProcess, text: str, rule: str | None = None) -> Refused:
    """Return the exception for a pool or memory that cannot be exported or imported."""
    status = Status.OUT_OF_MEMORY if process.profile.is_hip else Status.INVALID_VALUE
    return Refused(status, text, rule)


# Pools ----------------------------------------------------------------------------------------


@entry("memPoolExportToShareableHandle(intptr_t pool, int handleType, unsigned int flags) -> int")
def _mem_pool_export_to_shareable_handle(
    process: HipProcess, handle: int, handle_type: int, flags: int
) -> int:
    pool = find_pool(process, handle)
    _check_release(process)
    if flags or handle_type == NO_HANDLE or handle_type != pool.handle_type:
        text = (
            f"a pool of handle type {pool.handle_type} cannot be exported with handle type "
            f"{handle_type} and flags {flags}"
        )
        raise Refused(Status.INVALID_VALUE, text, "HIP-X12")
    visible = process.setup.visible
    access = [(visible[device], flags) for device, flags in pool.access.items()]
    note = _NOTE.pack(_MAGIC, *process.machine.identity, visible[pool.device], len(access))
    descriptor, address = memory.create(
        memory.PAGE_NBYTES, memory.creation_flags(), is_inherited=False
    )
    try:
        memory.unmap(address, memory.PAGE_NBYTES)
        os.pwrite(descriptor, note + b"".join(_ACCESS.pack(*one) for one in access), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@entry("memPoolImportFromShareableHandle(int fd, int handleType, unsigned int flags) -> intptr_t")
def _mem_pool_import_from_shareable_handle(
    process: HipProcess, descriptor: int, handle_type: int, flags: int
) -> int:
    _check_release(process)
    if flags or handle_type != _DESCRIPTOR:
        text = f"handle type {handle_type} and flags {flags} are invalid: they must be 1 and 0"
        raise Refused(Status.INVALID_VALUE, text, "HIP-X12")
    found = _read(process, descriptor)
    if found is None:
        raise _missing(
            process,
            f"the file of descriptor {descriptor} describes no pool of this host",
            "HIP-X12",
        )
    home, access = found
    device = process.ordinal_of(home)
    pool = new_pool(process, process.current().device if device is None else device)
    pool.is_imported = True
    for index, allowed in access.items():
        device = process.ordinal_of(index)
        if device is not None:
            pool.access[device] = allowed
    return pool.handle


def _read(process: HipProcess, descriptor: int) -> tuple[int, dict[int, int]] | None:
    """Read the file that describes a pool. Return the index of the pool's device, and a dict.

    Each key of the dict is the index of a device that the file names. The value is the access that
    the exporter gave this device. The indices are host-wide. The result is None if the file
    describes no pool of this emulated host.
    """
    if descriptor < 0 or memory.sealed_nbytes(descriptor) != memory.PAGE_NBYTES:
        return None
    data = os.pread(descriptor, memory.PAGE_NBYTES, 0)
    *head, home, count = _NOTE.unpack_from(data)
    end = _NOTE.size + count * _ACCESS.size
    if head != [_MAGIC, *process.machine.identity] or end > len(data):
        return None
    return home, dict(_ACCESS.iter_unpack(data[_NOTE.size : end]))


# Memory ---------------------------------------------------------------------------------------


@entry("memPoolExportPointer(intptr_t ptr) -> bytes")
def _mem_pool_export_pointer(process: HipProcess, pointer: int) -> bytes:
    if not pointer:
        raise Refused(Status.INVALID_VALUE, "the address is null", "HIP-X12")
    _check_release(process)
    found = process.space.overlapping(pointer, 1)
    if not found or found[0].origin is not Origin.POOL:
        raise _missing(process, f"{pointer:#x} is not from a pool", "HIP-X12")
    piece, pool = found[0], found[0].source
    if pool.handle_type == NO_HANDLE:
        raise _missing(process, f"{pointer:#x} is from a pool that cannot be shared", "HIP-X12")
    numbers = process.exports.setdefault(piece.start, [])
    with process.machine.transaction() as tables:
        if not numbers:
            numbers.append(enter(process, tables, piece, process.current().device))
        query = "SELECT token FROM hip_share WHERE number = ?"
        (token,) = tables.execute(query, (numbers[-1],)).fetchone()
    data = _DATA.pack(pointer - piece.start, piece.nbytes) + token
    return bytes(data.ljust(HANDLE_NBYTES, b"\0"))


@entry("memPoolImportPointer(intptr_t pool, bytes data) -> intptr_t")
def _mem_pool_import_pointer(process: HipProcess, handle: int, data: bytes) -> int:
    pool: Pool = find_pool(process, handle)
    _check_release(process)
    if process.profile.is_documented and not pool.is_imported:
        raise Refused(Status.INVALID_VALUE, f"the pool {handle:#x} was not imported", "HIP-X12")
    token = data[_DATA.size : _DATA.size + TOKEN_NBYTES]
    found = open_share(process, token, pool)
    if found is None:
        raise _missing(process, "the memory was not exported, or was freed, or its owner is dead")
    return found
