# SPDX-License-Identifier: Apache-2.0
"""The benchmark's peer for ``multiprocessing.shared_memory``."""

import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any, ClassVar

from typing_extensions import override

from crossmem.bench.peer import Peer

__all__ = ["SharedMemoryPeer"]


class SharedMemoryPeer(Peer):
    """Shares segments by their names. The consumer's resource tracker ignores the segments.

    ``multiprocessing`` did not start the consumer, so the consumer has a tracker of its own. If
    this tracker knew the segments, it would delete the producer's memory when the consumer ends.
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
        # The tracker stores the name with the leading slash that shm_open() needs.
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
