# SPDX-License-Identifier: Apache-2.0
"""The benchmark's peer for iceoryx2, in which a publisher sends samples to a subscriber."""

import ctypes
import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Final

from typing_extensions import override

from crossmem.bench.peer import Peer

__all__ = ["Iceoryx2Peer"]

_SMALL_NBYTES: Final = 64 << 10
# iceoryx2 reserves a segment for as many samples as the queues of a service may contain. The
# benchmark holds a thousand small samples at once. If large samples used the same service, iceoryx2
# would reserve room for thousands of samples of the largest size. So there are two services.
_DEPTHS: Final = {True: 2000, False: 4}
"""How many samples a service may contain. The key says whether the service is for small samples."""


class Iceoryx2Peer(Peer):
    """Sends samples through one service for small samples and one for large samples.

    A sample can be sent only once. Samples arrive in the order in which they were sent. The
    subscriber maps them read-only. When :meth:`create` loans another sample, the publisher recovers
    the samples that the subscriber has released. So :meth:`free` does nothing.
    """

    title: ClassVar[str] = "iceoryx2"
    distribution: ClassVar[str | None] = "iceoryx2"
    is_read_only: ClassVar[bool] = True
    needs_reader: ClassVar[bool] = True
    asks_exporter: ClassVar[bool] = False

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._api: Any = import_module("iceoryx2")
        self._api.set_log_level(self._api.LogLevel.Error)
        # With iceoryx2's own signal handlers, a signal would not end the worker.
        mode = self._api.SignalHandlingMode.Disabled
        builder = self._api.NodeBuilder.new().signal_handling_mode(mode)
        self._node: Any = builder.create(self._api.ServiceType.Ipc)
        self._ports: dict[bool, Any] = {}

    @override
    @classmethod
    def missing(cls) -> str | None:
        return None if find_spec("iceoryx2") else "not installed"

    def _service(self, name: str, depth: int) -> Any:
        api = self._api
        builder = self._node.service_builder(api.ServiceName.new(f"{name}-{depth}"))
        return (
            builder.publish_subscribe(api.Slice[ctypes.c_uint8])
            .max_publishers(1)
            .max_subscribers(1)
            .history_size(0)
            .enable_safe_overflow(False)  # noqa: FBT003 - a method of iceoryx2
            .subscriber_max_buffer_size(depth)
            .subscriber_max_borrowed_samples(depth)
            .open_or_create()
        )

    @override
    def serve(self) -> bytes:
        name = f"crossmem-bench-{os.getpid()}"
        for is_small, depth in _DEPTHS.items():
            self._ports[is_small] = (
                self._service(name, depth)
                .publisher_builder()
                .initial_max_slice_len(4096)
                .max_loaned_samples(depth)
                # The segment grows for a sample that is larger than all samples before it.
                .allocation_strategy(self._api.AllocationStrategy.PowerOfTwo)
                .create()
            )
        return name.encode()

    @override
    def connect(self, hello: bytes) -> None:
        for is_small, depth in _DEPTHS.items():
            service = self._service(hello.decode(), depth)
            self._ports[is_small] = service.subscriber_builder().create()

    @override
    def create(self, nbytes: int) -> Any:
        return self._ports[nbytes <= _SMALL_NBYTES].loan_slice_uninit(nbytes), nbytes

    @override
    def export(self, memory: Any) -> bytes:
        sample, nbytes = memory
        sample.assume_init().send()
        return b"small" if nbytes <= _SMALL_NBYTES else b"large"

    @override
    def attach(self, token: bytes) -> Any:
        sample = self._ports[token == b"small"].receive()
        if sample is None:
            msg = "no sample has arrived"
            raise RuntimeError(msg)
        return sample, token

    @override
    def detach(self, mapping: Any) -> None:
        mapping[0].delete()

    @override
    def free(self, memory: Any) -> None:
        pass

    @override
    def view(self, memory: Any) -> memoryview:
        view: memoryview = memory[0].payload().as_memory_view()
        return view.cast("B")
