# SPDX-License-Identifier: Apache-2.0
"""The benchmark's peer that shares allocations through crossmem's public interface."""

from typing import Any, ClassVar

from typing_extensions import override

import crossmem
from crossmem.bench.peer import Peer

__all__ = ["CrossmemPeer"]


class CrossmemPeer(Peer):
    """Shares allocations. A token is the handle of an allocation, as bytes."""

    title: ClassVar[str] = "crossmem"
    distribution: ClassVar[str | None] = "crossmem"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._device = crossmem.device(device)

    @override
    def create(self, nbytes: int) -> crossmem.Allocation:
        return self._device.allocate(nbytes)

    @override
    def export(self, memory: crossmem.Allocation) -> bytes:
        return memory.export().to_bytes()

    @override
    def attach(self, token: bytes) -> crossmem.Mapping:
        return crossmem.attach(token)

    @override
    def detach(self, mapping: crossmem.Mapping) -> None:
        mapping.unmap()

    @override
    def free(self, memory: crossmem.Allocation) -> None:
        memory.free()

    @override
    def view(self, memory: Any) -> memoryview:
        view: memoryview = memory.view()
        return view
