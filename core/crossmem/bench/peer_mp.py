# SPDX-License-Identifier: Apache-2.0
"""Shared memory of the standard library."""

import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any, ClassVar

from typing_extensions import override

from crossmem.bench.peer import Peer

__all__ = ["SharedMemoryPeer"]


class SharedMemoryPeer(Peer):
    """``multiprocessing.shared_memory``, unregistered from the consumer's resource tracker.

    Otherwise, the consumer's tracker would delete the producer's memory. Every program that shares
    memory safely in this way needs this call.
    """

    title: ClassVar[str] = "mp.shared_memory"
    asks_exporter: ClassVar[bool] = False

    @override
    def create(self, nbytes: int) -> SharedMemory:
        return SharedMemory(create=True, size=nbytes)

    @override
    def export(self, memory: SharedMemory) -> bytes:
        return memory.name.encode()

    @override
    def attach(self, token: bytes) -> SharedMemory:
        if sys.version_info >= (3, 13):
            return SharedMemory(token.decode(), track=False)
        memory = SharedMemory(token.decode())
        # The tracker has the name in the kernel's form, with a slash.
        resource_tracker.unregister("/" + memory.name, "shared_memory")
        return memory

    @override
    def detach(self, mapping: SharedMemory) -> None:
        mapping.close()

    @override
    def free(self, memory: SharedMemory) -> None:
        memory.close()
        memory.unlink()

    @override
    def view(self, memory: Any) -> memoryview:
        view: memoryview = memory.buf[:]
        return view
