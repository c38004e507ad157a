# SPDX-License-Identifier: Apache-2.0
"""The contract of crossmem, translated to the memory of Acme's boards."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
from pathlib import Path
from typing import Final

from typing_extensions import override

from crossmem.driver import Block, CopyKind, Driver, Exported, Imported, Mapped
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError, DriverError, InvalidHandleError, OutOfMemoryError
from crossmem.models import Access, Capabilities, DeviceInfo

BOARDS: Final = 2
BOARD_NBYTES: Final = 4 << 30
PAGE: Final = mmap.PAGESIZE
PAYLOAD: Final = struct.Struct("<4sQQ")
"""What goes with a descriptor: a magic, the capacity in bytes, and the number of the export."""

NAME: Final = "crossmem-acme"
LINK: Final = f"/memfd:{NAME} (deleted)"
"""The target of each link in /proc/self/fd that is memory of this driver."""

# With these seals, no process can shrink the file under another one's mapping.
SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
READ_WRITE: Final[int] = mmap.PROT_READ | mmap.PROT_WRITE
FAILED: Final = -1

_libc: Final = ctypes.CDLL(None, use_errno=True)
_mmap: Final = _libc.mmap
_mmap.restype = ctypes.c_ssize_t
_mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_munmap: Final = _libc.munmap
_munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


def _error(call: str, code: int | None) -> CrossmemError:
    code = code or 0
    if code in {errno.ENOMEM, errno.ENOSPC}:
        return OutOfMemoryError(f"{call}: {os.strerror(code)}", backend="acme")
    return DriverError(
        f"Acme's memory: {os.strerror(code)}",
        call=call,
        code=code,
        name=errno.errorcode.get(code, "?"),
        hint="Raise the limit with `ulimit -n`." if code == errno.EMFILE else None,
        backend="acme",
    )


def _map(descriptor: int, nbytes: int, protection: int) -> int:
    # Forked children keep the mapping: the memory is host-visible, so they may have views of it.
    made: list[int] = []
    try:
        pointer = call_into(made, _mmap, 0, nbytes, protection, mmap.MAP_SHARED, descriptor, 0)
        if pointer == FAILED:
            raise _error("mmap", ctypes.get_errno())
        return pointer
    except BaseException:
        for one in made:
            if one != FAILED:
                _munmap(one, nbytes)
        raise


class AcmeDriver(Driver):
    backend = "acme"

    def __init__(self) -> None:
        # Reentrant: a signal handler may allocate while the interrupted thread holds this lock.
        self._lock = threading.RLock()
        self._used = [0] * BOARDS

    @override
    def after_fork_in_child(self) -> None:
        for entry in Path("/proc/self/fd").iterdir():
            # One of the entries is the descriptor of the listing itself, which is closed.
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == LINK:
                    os.close(int(entry.name))

    @override
    def devices(self) -> tuple[DeviceInfo, ...]:
        return tuple(
            DeviceInfo(
                ordinal=n, identity=f"acme:{n:04}", name="Acme One", total_nbytes=BOARD_NBYTES
            )
            for n in range(BOARDS)
        )

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        return Capabilities(
            mechanisms=("acme-file",),
            granularity_nbytes=PAGE,
            max_allocation_nbytes=BOARD_NBYTES,
            host_visible=True,
            readonly_exports=False,
            readonly_imports=True,
            peer_access=False,
            fork_safe=True,
            survives_owner=True,
            raw_handles=False,
            address_ranges=False,
            foreign_memory=False,
        )

    @override
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        capacity = -(-nbytes // PAGE) * PAGE
        # The capacity stays 0 until it is charged, so that `free` refunds only a charged capacity.
        block = Block(ordinal, 0, nbytes, 0)
        opened: list[int] = []
        try:
            self._charge(block, capacity)
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            block.reference = call_into(opened, os.memfd_create, NAME, flags)
            os.ftruncate(block.reference, capacity)
            fcntl.fcntl(block.reference, fcntl.F_ADD_SEALS, SIZE_SEALS | fcntl.F_SEAL_SEAL)
            block.pointer = _map(block.reference, capacity, READ_WRITE)
        except BaseException as error:
            if opened:
                block.reference = opened[0]
            self.free(block)
            if isinstance(error, OSError):
                raise _error("memfd_create", error.errno) from None
            raise
        return block

    @override
    def free(self, block: Block) -> None:
        # Each record is cleared right before its resource is released: after an interrupt, core
        # calls this method again, and no signal handler runs between the two statements.
        pointer, capacity, descriptor = block.pointer, block.capacity, block.reference
        if pointer:
            block.pointer = 0
            if _munmap(pointer, capacity):
                block.pointer = pointer
                raise _error("munmap", ctypes.get_errno())
        if descriptor is not None:
            block.reference = None
            os.close(descriptor)
        if capacity:
            self._refund(block)

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        # The descriptor's number is what no other export has as long as this one lives.
        payload = PAYLOAD.pack(b"ACME", block.capacity, block.reference)
        return Exported((payload,), (block.reference,))

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
        sent = len(exported.payloads), len(exported.descriptors)
        if sent != (1, 1):
            raise InvalidHandleError(
                f"an export of Acme's has 1 payload and 1 descriptor, not {sent[0]} and {sent[1]}",
                backend="acme",
            )
        (payload,), (descriptor,) = exported.payloads, exported.descriptors
        if len(payload) != PAYLOAD.size or PAYLOAD.unpack(payload)[:2] != (b"ACME", capacity):
            raise InvalidHandleError("the payload is not one of Acme's", backend="acme")
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            actual = os.fstat(descriptor).st_size
        except OSError:
            raise InvalidHandleError("the descriptor is not a memfd", backend="acme") from None
        if seals & SIZE_SEALS != SIZE_SEALS or not nbytes <= capacity == actual:
            raise InvalidHandleError("the file is not what its exporter says", backend="acme")
        return Imported(ordinal, capacity, access, descriptor)

    @override
    def close(self, imported: Imported) -> None:
        reference = imported.reference
        if isinstance(reference, Mapped):
            # If `map` was interrupted, core does not know its mapping.
            self.unmap(reference)
        elif reference is not None:
            imported.reference = None
            os.close(reference)

    @override
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        if isinstance(imported.reference, Mapped) and imported.reference.pointer:
            # An earlier call was interrupted after it had closed the descriptor.
            return imported.reference
        mapped = Mapped(imported, 0)
        protection = mmap.PROT_READ if imported.access == "ro" else READ_WRITE
        try:
            mapped.pointer = _map(imported.reference, imported.capacity, protection)
            if not remappable:
                # The mapping keeps the memory. If each import held a descriptor, too, many imports
                # would exhaust the descriptors of the process.
                descriptor, imported.reference = imported.reference, mapped
                os.close(descriptor)
        except BaseException:
            if imported.reference is not mapped:
                self.unmap(mapped)
            raise
        return mapped

    @override
    def unmap(self, mapped: Mapped) -> None:
        pointer, capacity = mapped.pointer, mapped.source.capacity
        if pointer:
            mapped.pointer = 0
            if _munmap(pointer, capacity):
                mapped.pointer = pointer
                raise _error("munmap", ctypes.get_errno())

    @override
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        ctypes.memmove(target, source, nbytes)

    @override
    def synchronize(self, ordinal: int) -> None:
        """Return at once: the boards work while the caller waits."""

    def _charge(self, block: Block, capacity: int) -> None:
        with self._lock:
            left = BOARD_NBYTES - self._used[block.ordinal]
            if capacity > left:
                raise OutOfMemoryError(
                    f"{capacity} bytes asked for, {left} are left", backend="acme"
                )
            # No signal handler runs between these two statements.
            self._used[block.ordinal] += capacity
            block.capacity = capacity

    def _refund(self, block: Block) -> None:
        with self._lock:
            self._used[block.ordinal] -= block.capacity
            block.capacity = 0
