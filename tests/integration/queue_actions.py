# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of queues."""

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import crossmem
from crossmem.conformance import actions

objects = actions.objects


def make(name: str, depth: int, nbytes: int, **options: Any) -> dict[str, bytes]:
    """Make a queue of host memory; return the bytes of the handle of each role."""
    objects[name] = queue = crossmem.device("host").queue(depth, nbytes, **options)
    return {role: queue.export(role=role).to_bytes() for role in ("produce", "consume")}


def open_(name: str, blob: bytes) -> None:
    """Open another process's queue."""
    objects[name] = crossmem.open_queue(blob)


def stats(name: str) -> crossmem.QueueStats:
    """Return the state of a queue."""
    found: crossmem.QueueStats = objects[name].stats()
    return found


def produce(blob: bytes, path: str, name: str, most: int) -> int:
    """Put items that say who put them, and record each before and after."""
    chance = random.Random(name)
    with crossmem.open_queue(blob) as queue, Path(path).open("ab", buffering=0) as log:
        for number in range(most):
            item = f"{name}:{number}".encode()
            while True:
                try:
                    buffer = queue.allocate(timeout=60)
                    break
                except crossmem.QueueFullError:
                    # Nothing can be dropped now.
                    time.sleep(1e-3)
            buffer.write(item)
            buffer.data_length, buffer.user_data = len(item), item
            log.write(b"try " + item + b"\n")
            queue.put(buffer)
            log.write(b"put " + item + b"\n")
            if chance.random() < 0.05:
                time.sleep(chance.random() * 2e-3)
    return most


def consume(blob: bytes, path: str, seed: int) -> int:
    """Record all items until the end of the queue; return how many showed other bytes."""
    chance, wrong = random.Random(seed), 0
    with crossmem.open_queue(blob) as queue, Path(path).open("ab", buffering=0) as log:
        for buffer in queue:
            item = buffer.user_data
            log.write(item + f" {buffer.delivery_count}\n".encode())
            wrong += buffer.read(buffer.data_length) != item
            if chance.random() < 0.1:
                time.sleep(chance.random() * 2e-3)
            wrong += buffer.read(buffer.data_length) != item
            buffer.release()
    return wrong


def count_free(blob: bytes, rings: int, depth: int, timeout: float) -> int:
    """Take so many rings, and return how many buffers of them are free or become free."""
    with contextlib.ExitStack() as opened:
        taken = []
        for _ in range(rings):
            queue = opened.enter_context(crossmem.open_queue(blob))
            with contextlib.suppress(crossmem.QueueFullError):
                taken += [queue.allocate(timeout=timeout) for _ in range(depth)]
        for buffer in taken:
            buffer.release()
        return len(taken)
