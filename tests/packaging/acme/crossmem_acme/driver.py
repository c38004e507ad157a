# SPDX-License-Identifier: Apache-2.0
"""The contract of crossmem, translated to the memory of Acme's boards."""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from typing_extensions import override

from crossmem.driver import Block, CopyKind, Driver, Exported, Imported, Mapped
from crossmem.errors import DriverError, InvalidHandleError, OutOfMemoryError
from crossmem.models import Access, Capabilities, DeviceInfo

BOARDS: Final = 2
BOARD_NBYTES: Final = 4 << 30
PAGE: Final = mmap.PAGESIZE
PAYLOAD: Final = struct.Struct("<4sQQ")
"""What goes with a descriptor: a magic, and the capacity in bytes."""

# With these seals, no process can shrink the file under another one's mapping.
SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

_libc: Final = ctypes.CDLL(None, use_errno=True)
_mmap: Final[Callable[..., int | None]] = _libc.mmap
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _fail(call: str, code: int) -> NoReturn:
    if code in {errno.ENOMEM, errno.ENOSPC}:
        raise OutOfMemoryError(f"{call}: {os.strerror(code)}", backend="acme")
    raise DriverError(
        f"Acme's memory: {os.strerror(code)}",
        call=call,
        code=code,
        name=errno.errorcode.get(code, "?"),
        hint="Raise the limit with `ulimit -n`." if code == errno.EMFILE else None,
        backend="acme",
    )


def _map(descriptor: int, nbytes: int, protection: int) -> int:
    pointer = _mmap(None, nbytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if pointer in {None, ctypes.c_void_p(-1).value}:
        _fail("mmap", ctypes.get_errno())
    # Forked children keep the mapping: the memory is host-visible, so they may have views of it.
    return pointer or 0


def _unmap(pointer: int, nbytes: int) -> None:
    if _libc.munmap(pointer, nbytes):
        _fail("munmap", ctypes.get_errno())


class AcmeDriver(Driver):
    backend = "acme"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used = [0] * BOARDS
        self._open: set[int] = set()

    @override
    def after_fork_in_child(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

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
        self._charge(ordinal, capacity)
        descriptor = -1
        try:
            descriptor = os.memfd_create("acme", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._open.add(descriptor)
            os.ftruncate(descriptor, capacity)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SIZE_SEALS | fcntl.F_SEAL_SEAL)
            pointer = _map(descriptor, capacity, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException as error:
            if descriptor >= 0:
                self._close(descriptor)
            self._charge(ordinal, -capacity)
            if isinstance(error, OSError):
                _fail("memfd_create", error.errno or 0)
            raise
        return Block(ordinal, pointer, nbytes, capacity, descriptor)

    @override
    def free(self, block: Block) -> None:
        # Each is forgotten before it is given back: core may call this again after an interrupt.
        pointer, block.pointer = block.pointer, 0
        if pointer:
            _unmap(pointer, block.capacity)
        descriptor, block.reference = block.reference, None
        if descriptor is not None:
            self._close(descriptor)
            self._charge(block.ordinal, -block.capacity)

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
        (payload,) = exported.payloads
        if len(payload) != PAYLOAD.size or PAYLOAD.unpack(payload)[:2] != (b"ACME", capacity):
            raise InvalidHandleError("the payload is not one of Acme's", backend="acme")
        (descriptor,) = exported.descriptors
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if os.fstat(descriptor).st_size != capacity or seals & SIZE_SEALS != SIZE_SEALS:
            raise InvalidHandleError("the file is not what its exporter says", backend="acme")
        self._open.add(descriptor)
        return Imported(ordinal, capacity, access, descriptor)

    @override
    def close(self, imported: Imported) -> None:
        descriptor, imported.reference = imported.reference, None
        self._close(descriptor)

    @override
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        write = 0 if imported.access == "ro" else mmap.PROT_WRITE
        return Mapped(imported, _map(imported.reference, imported.capacity, mmap.PROT_READ | write))

    @override
    def unmap(self, mapped: Mapped) -> None:
        # Forgotten before it is given back: core may call this again after an interrupt.
        pointer, mapped.pointer = mapped.pointer, 0
        if pointer:
            _unmap(pointer, mapped.source.capacity)

    @override
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        ctypes.memmove(target, source, nbytes)

    @override
    def synchronize(self, ordinal: int) -> None:
        """Return at once: the boards work while the caller waits."""

    def _charge(self, ordinal: int, nbytes: int) -> None:
        with self._lock:
            if self._used[ordinal] + nbytes > BOARD_NBYTES:
                left = BOARD_NBYTES - self._used[ordinal]
                raise OutOfMemoryError(f"{nbytes} bytes asked for, {left} are left", backend="acme")
            self._used[ordinal] += nbytes

    def _close(self, descriptor: Any) -> None:
        if descriptor is not None:
            self._open.discard(descriptor)
            os.close(descriptor)
