# SPDX-License-Identifier: Apache-2.0
"""The benchmark's floor: the peer that shares memory safely with the fewest system calls."""

import ctypes
import os
import socket
import struct
from threading import Thread
from typing import Any, ClassVar, Final

from typing_extensions import override

from crossmem.bench.peer import Peer

__all__ = ["FloorPeer"]

_PROT_READ_WRITE: Final = 3
_MAP_SHARED: Final = 1
_FAILED: Final = ctypes.c_void_p(-1).value

_KEY: Final = struct.Struct("=QQ")
_FD: Final = struct.Struct("@i")
_ANCILLARY_NBYTES: Final = socket.CMSG_SPACE(_FD.size)

# This module calls mmap through ctypes, because Python's mmap object also duplicates the
# descriptor, which takes one more system call.
_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(descriptor: int, nbytes: int) -> int:
    pointer: int = _mmap(None, nbytes, _PROT_READ_WRITE, _MAP_SHARED, descriptor, 0)
    if pointer == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "mmap")
    return pointer


class FloorPeer(Peer):
    """Shares memfds. A thread of the producer sends their descriptors over one connection."""

    title: ClassVar[str] = "floor"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._descriptors: dict[int, int] = {}
        self._next = 0
        self._connection: socket.socket

    @override
    def serve(self) -> bytes:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")  # the kernel chooses an abstract address
        listener.listen(1)
        Thread(target=self._serve, args=(listener,), name="floor", daemon=True).start()
        address: bytes = listener.getsockname()
        return address

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        listener.close()
        while request := connection.recv(_KEY.size):
            key, _ = _KEY.unpack(request)
            descriptor = _FD.pack(self._descriptors[key])
            connection.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])

    @override
    def connect(self, hello: bytes) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(hello)

    @override
    def create(self, nbytes: int) -> tuple[int, int, int, int]:
        descriptor = os.memfd_create("floor", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, nbytes)
        self._next = key = self._next + 1
        return key, descriptor, _map(descriptor, nbytes), nbytes

    @override
    def export(self, memory: tuple[int, int, int, int]) -> bytes:
        key, descriptor, _, nbytes = memory
        self._descriptors[key] = descriptor
        return _KEY.pack(key, nbytes)

    @override
    def attach(self, token: bytes) -> tuple[int, int]:
        _, nbytes = _KEY.unpack(token)
        self._connection.send(token)
        _, ancillary, _, _ = self._connection.recvmsg(
            _KEY.size, _ANCILLARY_NBYTES, socket.MSG_CMSG_CLOEXEC
        )
        (descriptor,) = _FD.unpack(ancillary[0][2])
        pointer = _map(descriptor, nbytes)
        os.close(descriptor)
        return pointer, nbytes

    @override
    def detach(self, mapping: tuple[int, int]) -> None:
        _munmap(*mapping)

    @override
    def free(self, memory: tuple[int, int, int, int]) -> None:
        key, descriptor, pointer, nbytes = memory
        self._descriptors.pop(key, None)
        _munmap(pointer, nbytes)
        os.close(descriptor)

    @override
    def view(self, memory: Any) -> memoryview:
        pointer, nbytes = memory[-2:]
        return memoryview((ctypes.c_ubyte * nbytes).from_address(pointer)).cast("B")
