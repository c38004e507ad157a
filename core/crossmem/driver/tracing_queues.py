# SPDX-License-Identifier: Apache-2.0
"""The part of ``TracingDriver`` for the vendor's queues and buffers."""

import threading
from collections.abc import Callable
from typing import Final, cast

from crossmem.driver.base import Peer
from crossmem.driver.queues import VendorBuffer, VendorQueue, VendorQueues
from crossmem.models.queue_handle import QueueRole

__all__ = ["QUEUE_METHODS", "QueueTracer"]

_PAYLOAD_NBYTES: Final = 112

QUEUE_METHODS: Final = frozenset(name for name in vars(VendorQueues) if not name.startswith("_"))
"""The names of the methods of :class:`VendorQueues`."""


class QueueTracer:
    """Counts calls for queues and buffers, and checks that each queue or buffer is released once.

    Parameters
    ----------
    inner
        The driver that does the work.
    note
        Counts a call of a method and records the rules that the call breaks. This class holds
        ``lock`` while it calls ``note``.
    """

    def __init__(self, inner: object, note: Callable[..., None], lock: threading.Lock) -> None:
        self._inner = cast("VendorQueues", inner)
        self._note = note
        self._lock = lock
        self._queues: dict[int, tuple[VendorQueue, bool]] = {}
        """Each queue, and whether this process created it. The key is the queue's ``id()``."""
        self._buffers: dict[int, VendorBuffer] = {}
        """Each buffer that this process has. The key is the buffer's ``id()``."""

    @property
    def live(self) -> dict[str, int]:
        """Number of unreleased objects of each kind. The caller holds the lock."""
        return {"vendor queues": len(self._queues), "vendor buffers": len(self._buffers)}

    def _queue_rule(self, queue: VendorQueue) -> tuple[bool, str]:
        return id(queue) not in self._queues, "unknown or closed queue"

    def _buffer_rule(self, buffer: VendorBuffer) -> tuple[bool, str]:
        return id(buffer) not in self._buffers, "unknown, freed or enqueued buffer"

    def create_queue(self, ordinal: int, depth: int, mechanism: str) -> VendorQueue:
        """Trace the creation of a queue."""
        queue = self._inner.create_queue(ordinal, depth, mechanism)
        with self._lock:
            is_long = len(queue.payload) > _PAYLOAD_NBYTES
            self._note("create_queue", (is_long, f"{len(queue.payload)} bytes of payload"))
            self._queues[id(queue)] = queue, True
        return queue

    def attach_queue(
        self, ordinal: int, payload: bytes, role: QueueRole, mechanism: str
    ) -> VendorQueue:
        """Trace the attachment of another process's queue."""
        queue = self._inner.attach_queue(ordinal, payload, role, mechanism)
        with self._lock:
            self._note("attach_queue")
            self._queues[id(queue)] = queue, False
        return queue

    def close_queue(self, queue: VendorQueue) -> None:
        """Trace the close of a queue."""
        with self._lock:
            self._note("close_queue", self._queue_rule(queue))
        self._inner.close_queue(queue)
        with self._lock:
            self._queues.pop(id(queue), None)

    def grant_queue(self, queue: VendorQueue, role: QueueRole, peer: Peer) -> None:
        """Trace the permission for another process to use a queue."""
        with self._lock:
            _, is_own = self._queues.get(id(queue), (queue, True))
            rule = not is_own, "another process created the queue"
            self._note("grant_queue", self._queue_rule(queue), rule)
        self._inner.grant_queue(queue, role, peer)

    def allocate_buffer(self, ordinal: int, nbytes: int, mechanism: str) -> VendorBuffer:
        """Trace the allocation of a buffer."""
        buffer = self._inner.allocate_buffer(ordinal, nbytes, mechanism)
        with self._lock:
            self._note("allocate_buffer", (nbytes <= 0, f"size {nbytes} is not positive"))
            self._buffers[id(buffer)] = buffer
        return buffer

    def free_buffer(self, buffer: VendorBuffer) -> None:
        """Trace the release of a buffer."""
        with self._lock:
            self._note("free_buffer", self._buffer_rule(buffer))
        self._inner.free_buffer(buffer)
        with self._lock:
            self._buffers.pop(id(buffer), None)

    def enqueue(
        self,
        queue: VendorQueue,
        buffer: VendorBuffer,
        length: int,
        user_data: bytes,
        timeout_s: float,
    ) -> bool:
        """Trace a hand-over."""
        with self._lock:
            is_within = 0 <= length <= buffer.capacity
            self._note(
                "enqueue",
                self._buffer_rule(buffer),
                (not is_within, f"length {length} is not between 0 and {buffer.capacity}"),
            )
        try:
            return self._inner.enqueue(queue, buffer, length, user_data, timeout_s)
        finally:
            if not buffer.pointer:
                with self._lock:
                    self._buffers.pop(id(buffer), None)

    def dequeue(self, queue: VendorQueue, timeout_s: float) -> VendorBuffer | None:
        """Trace the receipt of a buffer."""
        with self._lock:
            # Another thread may close the queue at any time, so a call with a closed queue is not a
            # violation.
            self._note("dequeue")
        buffer = self._inner.dequeue(queue, timeout_s)
        if buffer is not None:
            with self._lock:
                self._buffers[id(buffer)] = buffer
        return buffer
