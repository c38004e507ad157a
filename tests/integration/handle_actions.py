# SPDX-License-Identifier: Apache-2.0
"""What the other processes of the tests of queues' handles do."""

from multiprocessing import Queue
from multiprocessing.connection import Connection
from typing import Any

import crossmem
from crossmem.conformance.speed import SLOWNESS

WITHIN_S = 30.0 * SLOWNESS


def answer(consume: Any, produce: Any) -> str:
    """Get one item, and put it back in upper case by the other queue; return its user data."""
    with (
        crossmem.open_queue(consume) as requests,
        crossmem.open_queue(produce) as answers,
        requests.get(timeout=WITHIN_S) as found,
    ):
        data = found.read(found.data_length)
        made = answers.allocate(timeout=WITHIN_S)
        made.write(data.upper())
        made.data_length, made.user_data = len(data), found.user_data
        answers.put(made)
        return found.user_data.decode()


def answer_from_queue(handles: "Queue[Any]") -> None:
    """Receive the handles from a queue of ``multiprocessing``."""
    answer(*handles.get(timeout=WITHIN_S))


def answer_from_pipe(handles: Connection) -> None:
    """Receive the handles from a pipe."""
    assert handles.poll(WITHIN_S)
    answer(*handles.recv())
