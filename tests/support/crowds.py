# SPDX-License-Identifier: Apache-2.0
"""Several producers and consumers of one queue in one process, each with a ring or place."""

from typing import Any

import crossmem
from crossmem import Queue, QueueEmptyError
from crossmem.models.queue_handle import QueueRole
from crossmem.sharing.queues.places import TakenPlaces
from crossmem.sharing.queues.record import QueueRecord

__all__ = ["NBYTES", "Crowd", "is_empty", "put", "take"]

NBYTES = 64


class Crowd:
    """An owner's queue, and further objects that take part in it."""

    def __init__(self, depth: int = 4, **terms: Any) -> None:
        terms = {"producers": 3, "consumers": 3, **terms}
        self.queue = crossmem.device("host").queue(depth, NBYTES, **terms)
        self.objects = [self.queue]
        self.opened = self.record_of(self.queue).opened

    @staticmethod
    def record_of(queue: Queue) -> QueueRecord:
        assert queue._record is not None
        return queue._record

    def open(self, role: QueueRole) -> Queue:
        queue = Queue(QueueRecord(self.opened, {role: self.record_of(self.queue).mine[role]}))
        self.objects.append(queue)
        if role == "produce":
            queue._producer()
        else:
            queue._consumer()
        return queue

    def tend(self) -> crossmem.QueueStats:
        """Let the owner look, and return its numbers."""
        return self.queue.stats()

    def vanish(self, queue: Queue) -> None:
        """Give a place up as a process does that dies, before the owner sees it."""
        record = self.record_of(queue)
        queue._record = None
        taken = self.opened.process.part(TakenPlaces).taken
        for mapping in record.mappings:
            taken.discard(mapping.handle.core)
            mapping._is_left = True
        if record.consumer is not None:
            # Buffers in hand refer to the place.
            record.consumer.held.clear()
        record.mappings.clear()
        record.producer = record.consumer = None
        self.objects.remove(queue)

    def close(self) -> None:
        while self.objects:
            self.objects.pop().close()


def put(queue: Queue, *items: bytes) -> None:
    for item in items:
        buffer = queue.allocate()
        buffer.user_data = item
        queue.put(buffer)


def take(queue: Queue, timeout: float = 5.0) -> bytes:
    with queue.get(timeout=timeout) as buffer:
        return buffer.user_data


def is_empty(queue: Queue) -> bool:
    try:
        take(queue, 0)
    except QueueEmptyError:
        return True
    return False
