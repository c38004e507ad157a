# SPDX-License-Identifier: Apache-2.0
"""What the processes of the vendor's model do until they are killed."""

import os
import struct
from pathlib import Path
from typing import NoReturn

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues

NBYTES = queues.NBYTES
LOST = 207005
LABEL = struct.Struct("<QQ")


def contents_of(number: int) -> bytes:
    """Return the valid bytes of a buffer."""
    return number.to_bytes(8, "little") * (1 + number % 60)


def primary(name: str, who: int) -> None:
    """Put buffers of an own queue for ever."""
    fill(actions.objects[name], who)


def fill(queue: crossmem.Queue, who: int) -> NoReturn:
    """Allocate, fill, set length and user data, and put, for ever."""
    number = 0
    while True:
        number += 1
        buffer = queue.allocate()
        contents = contents_of(number)
        buffer.write(contents)
        buffer.data_length, buffer.user_data = len(contents), LABEL.pack(who, number)
        queue.put(buffer)


def secondary_that_puts(handle: bytes, who: int) -> str:
    """Put into a primary's queue until it ends; return the type of the error that says so."""
    try:
        with crossmem.open_queue(handle, device=actions.device()) as queue:
            fill(queue, who)
    except crossmem.CrossmemError as error:
        return type(error).__name__


def secondary_that_gets(handle: bytes, log: str) -> str:
    """Get from a primary's queue until it ends, and log what came.

    Returns
    -------
    str
        The type of the error that ended it, or what was wrong with a buffer.
    """
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with crossmem.open_queue(handle, device=actions.device()) as queue:
            while True:
                try:
                    found = queue.get()
                except crossmem.DriverError as error:
                    if error.code != LOST:
                        raise
                    # Its producer was killed before this process received the buffer.
                    continue
                with found as buffer:
                    who, number = LABEL.unpack(buffer.user_data[: LABEL.size])
                    os.write(file, LABEL.pack(who, number))
                    if buffer.read(buffer.data_length) != contents_of(number):
                        return f"other bytes in buffer {number} of {who}"
    except crossmem.CrossmemError as error:
        return type(error).__name__
    finally:
        os.close(file)


def received(log: str) -> list[tuple[int, int]]:
    """Return producer and number of all buffers in a log."""
    path = Path(log)
    blob = path.read_bytes() if path.exists() else b""
    return list(LABEL.iter_unpack(blob[: len(blob) // LABEL.size * LABEL.size]))
