# SPDX-License-Identifier: Apache-2.0
"""The benchmark's peer that shares blocks of pools. It uses crossmem's public interface."""

from typing import Any, ClassVar, Final

from typing_extensions import override

import crossmem
from crossmem.bench.peer import Peer

__all__ = ["PoolPeer"]

_BLOCKS: Final = 1200
_MOST_NBYTES: Final = 1 << 30


class PoolPeer(Peer):
    """Shares blocks of pools. A token is the handle of a block, as bytes.

    The first call of :meth:`create` with a size makes the pool for this size.
    """

    title: ClassVar[str] = "crossmem pool"
    distribution: ClassVar[str | None] = "crossmem"
    asks_exporter: ClassVar[bool] = False

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._device = crossmem.device(device)
        self._pools: dict[int, crossmem.Pool] = {}

    @override
    def create(self, nbytes: int) -> crossmem.Block:
        pool = self._pools.get(nbytes)
        if pool is None:
            blocks = max(2, min(_BLOCKS, _MOST_NBYTES // nbytes))
            pool = self._pools[nbytes] = self._device.pool(nbytes, blocks)
        return pool.allocate()

    @override
    def export(self, memory: crossmem.Block) -> bytes:
        return memory.export().to_bytes()

    @override
    def attach(self, token: bytes) -> crossmem.Mapping:
        return crossmem.attach(token)

    @override
    def detach(self, mapping: crossmem.Mapping) -> None:
        mapping.unmap()

    @override
    def free(self, memory: crossmem.Block) -> None:
        memory.free()

    @override
    def view(self, memory: Any) -> memoryview:
        view: memoryview = memory.view()
        return view
