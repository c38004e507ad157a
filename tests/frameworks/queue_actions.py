# SPDX-License-Identifier: Apache-2.0
"""What the other processes of the tests of crossmem.multiprocessing do."""

import os
from multiprocessing import Queue
from multiprocessing.connection import Connection
from queue import Empty
from typing import Any

import crossmem

crossmem.install()


def echo(requests: "Queue[Any]", answers: "Queue[Any]") -> None:
    """Send back what was received, with what was seen in it, until None comes."""
    while (found := next_of(requests)) is not None:
        value = crossmem.receive(found) if isinstance(found, crossmem.Shared) else found
        if isinstance(found, crossmem.Mapping):
            answers.put(("Mapping", found.read(4), found.readonly))
            found.unmap()
            continue
        answers.put((type(value).__name__, total(value), value))
        del found, value


def next_of(queue: "Queue[Any]") -> Any:
    """Return the next message. What is no longer used is given back by the next call of crossmem.

    The queue's own thread drops what was put at some time after it has pickled that.
    """
    while True:
        try:
            return queue.get(timeout=0.05)
        except Empty:
            crossmem.collect()


def total(value: Any) -> float:
    """Return the sum of all elements of an array or of a tree."""
    if isinstance(value, dict):
        return sum(map(total, value.values()))
    return float(value.sum())


def send_and_exit(answers: "Queue[Any]", elements: int) -> None:
    """Send an array and leave at once; the queue is emptied first."""
    array = crossmem.empty(elements, "float32")
    array[:] = 2
    answers.put(array)


def forward(inbox: "Queue[Any]", outbox: "Queue[Any]") -> None:
    """Send on what was received, and forget it."""
    while (found := inbox.get()) is not None:
        outbox.put(found)
        del found


def hold_forever(requests: "Queue[Any]", connection: Connection) -> None:
    """Receive one array, say so, and never let go."""
    array = requests.get()
    connection.send((os.getpid(), float(array[0])))
    connection.recv()


def double(array: Any) -> Any:
    """Change an array where it lies, and return it."""
    array *= 2
    return array


def send_blocks_and_exit(answers: "Queue[Any]", count: int) -> None:
    """Send arrays in blocks of a pool, forget each at once, and leave."""
    with crossmem.device("host").pool(4096, 2) as pool:
        for number in range(count):
            array = crossmem.empty(100, "float32", pool=pool, timeout=60)
            array[:] = number
            answers.put(array)
            del array
