# SPDX-License-Identifier: Apache-2.0
"""The benchmark's peer for shared memory of the ``posix_ipc`` distribution."""

import mmap
import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any, ClassVar

from typing_extensions import override

from crossmem.bench.peer import Peer

__all__ = ["PosixIpcPeer"]


@dataclass(slots=True)
class _Segment:
    memory: Any
    map: mmap.mmap


class PosixIpcPeer(Peer):
    """Shares segments by names that the producer chooses, and maps them with ``mmap``."""

    title: ClassVar[str] = "posix_ipc"
    distribution: ClassVar[str | None] = "posix_ipc"
    asks_exporter: ClassVar[bool] = False

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._api: Any = import_module("posix_ipc")
        self._prefix = f"/crossmem-bench-{os.getpid()}-"
        self._numbers = count()

    @override
    @classmethod
    def missing(cls) -> str | None:
        return None if find_spec("posix_ipc") else "not installed"

    @override
    def create(self, nbytes: int) -> _Segment:
        api = self._api
        memory = api.SharedMemory(self._prefix + str(next(self._numbers)), api.O_CREX, size=nbytes)
        mapped = mmap.mmap(memory.fd, nbytes)
        memory.close_fd()
        return _Segment(memory, mapped)

    @override
    def export(self, memory: _Segment) -> bytes:
        name: str = memory.memory.name
        return name.encode()

    @override
    def attach(self, token: bytes) -> _Segment:
        memory = self._api.SharedMemory(token.decode())
        mapped = mmap.mmap(memory.fd, memory.size)
        memory.close_fd()
        return _Segment(memory, mapped)

    @override
    def detach(self, mapping: _Segment) -> None:
        mapping.map.close()

    @override
    def free(self, memory: _Segment) -> None:
        memory.map.close()
        memory.memory.unlink()

    @override
    def view(self, memory: Any) -> memoryview:
        return memoryview(memory.map)
