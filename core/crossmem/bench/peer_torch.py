# SPDX-License-Identifier: Apache-2.0
"""The benchmark's peer for PyTorch's sharing of tensors in host memory."""

import io
import os
import pickle
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import current_process
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

from typing_extensions import override

from crossmem.bench.peer import Peer

__all__ = ["TorchPeer"]


class TorchPeer(Peer):
    """Shares tensors with PyTorch's strategy ``file_descriptor``. A token is a pickled tensor."""

    title: ClassVar[str] = "PyTorch (fd)"
    distribution: ClassVar[str | None] = "torch"
    touches_memory: ClassVar[bool] = True

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._torch: Any = import_module("torch")
        multiprocessing: Any = import_module("torch.multiprocessing")
        multiprocessing.set_sharing_strategy("file_descriptor")

    @override
    @classmethod
    def missing(cls) -> str | None:
        return None if find_spec("torch") else "not installed"

    @override
    def serve(self) -> bytes:
        # A thread of the producer sends descriptors only to processes that know the producer's key.
        # The consumer gets the key in connect().
        key = os.urandom(32)
        current_process().authkey = key
        return key

    @override
    def connect(self, hello: bytes) -> None:
        current_process().authkey = hello

    @override
    def create(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8).share_memory_()

    @override
    def export(self, memory: Any) -> bytes:
        buffer = io.BytesIO()
        ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(memory)
        return buffer.getvalue()

    @override
    def attach(self, token: bytes) -> Any:
        # The bytes come from the producer of this run, so they may be unpickled. PyTorch offers no
        # other way to open the memory.
        return [pickle.loads(token)]  # noqa: S301

    @override
    def detach(self, mapping: Any) -> None:
        mapping.clear()

    @override
    def free(self, memory: Any) -> None:
        # PyTorch frees a storage when its last reference is dropped. This call drops the reference
        # that the tensor has.
        memory.set_()

    @override
    def view(self, memory: Any) -> memoryview:
        tensor = memory[0] if isinstance(memory, list) else memory
        return memoryview(tensor.numpy())
