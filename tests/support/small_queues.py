# SPDX-License-Identifier: Apache-2.0
"""Small queues within one process, and what the tests do with them."""

from typing import Any

import crossmem
from crossmem import CrossmemError, Queue

__all__ = ["DEPTH", "NBYTES", "is_right", "make", "put", "take"]

DEPTH = 4
NBYTES = 256


def make(**options: Any) -> Queue:
    return crossmem.device("host").queue(DEPTH, NBYTES, **options)


def is_right(error: CrossmemError) -> bool:
    """Whether an error is one line with a hint, neither too long."""
    lines = error.message.splitlines()
    return len(lines) == 1 and len(lines[0]) <= 200 and 0 < len(error.hint or "") <= 200


def put(queue: Queue, data: bytes) -> None:
    buffer = queue.allocate()
    buffer.write(data)
    buffer.data_length = len(data)
    queue.put(buffer)


def take(queue: Queue, timeout: float = 5.0) -> bytes:
    with queue.get(timeout=timeout) as buffer:
        return buffer.read(buffer.data_length)
