# SPDX-License-Identifier: Apache-2.0
"""What the other processes of the tests of crossmem.multiprocessing do."""

import os
import time
from multiprocessing import Queue
from multiprocessing.connection import Connection
from typing import Any

import crossmem
import crossmem.multiprocessing


def echo(requests: "Queue[Any]", answers: "Queue[Any]") -> None:
    """Send back what was received, with what was seen in it, until None comes."""
    while (found := requests.get()) is not None:
        value = crossmem.receive(found) if isinstance(found, crossmem.Shared) else found
        if isinstance(found, crossmem.Mapping):
            answers.put(("Mapping", found.read(4), found.readonly))
            found.unmap()
            continue
        answers.put((type(value).__name__, total(value), value))
        del found, value
        # What is no longer used is given back by the next call of crossmem, and this one may wait
        # long for its next message.
        until_sent(answers)
        crossmem.collect()


def until_sent(queue: "Queue[Any]") -> None:
    """Wait until the queue's thread has pickled what was put, and dropped it."""
    while queue._buffer:  # type: ignore[attr-defined]
        time.sleep(0.001)
    time.sleep(0.01)


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
