# SPDX-License-Identifier: Apache-2.0
"""The copy of an allocation through a pipe, for comparison with crossmem in the demo."""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from multiprocessing import Pipe
from typing import Final

import crossmem
from crossmem.cli.children import Children, ConsumerError, gather
from crossmem.cli.consumer import receive_copy, visit

__all__ = ["time_copy"]

# The largest pipe buffer that Linux allows an unprivileged process by default.
_PIPE_NBYTES: Final = 2**20


def time_copy(
    children: Children,
    allocation: crossmem.Allocation,
    advance: Callable[[int], object],
    timeout: float,
) -> tuple[float, str]:
    """Send all bytes of an allocation through a pipe to a new process, and measure the time.

    Returns
    -------
    tuple
        The seconds from the first write until the receiver had the last byte, and the digest of the
        received bytes. The receiver's memory is allocated before the first write.

    Raises
    ------
    ConsumerError
        The receiver died or was too slow.
    """
    receiving, sending = Pipe(duplex=False)
    with sending:
        with receiving:
            child = children.start("receiver", receive_copy, receiving, allocation.nbytes)
        pipe = sending.fileno()
        with suppress(OSError):  # the user may have reached the limit of pipe memory
            fcntl(pipe, F_SETPIPE_SZ, _PIPE_NBYTES)
        os.set_blocking(pipe, False)
        gather([child], timeout=timeout)
        deadline = time.monotonic() + timeout

        def send(chunk: memoryview) -> None:
            done = 0
            while done < len(chunk):
                with chunk[done:] as rest:
                    done += _write(pipe, rest, deadline)
            advance(len(chunk))

        start = time.perf_counter()
        try:
            visit(allocation, send)
        except BrokenPipeError:
            child.receive()
            raise
        gather([child], timeout=max(0.0, deadline - time.monotonic()))
        seconds = time.perf_counter() - start
    (received,) = gather([child], timeout=timeout)
    return seconds, received


def _write(pipe: int, data: memoryview, deadline: float) -> int:
    """Write as many bytes as fit into a pipe, and return their number.

    If the pipe is full, wait until it has room, and return 0 without a write. Raise
    ``ConsumerError`` if the pipe is still full at the deadline.
    """
    try:
        return os.write(pipe, data)
    except BlockingIOError:
        waiting = select.poll()
        waiting.register(pipe, select.POLLOUT)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ConsumerError("the receiver of the copy stopped reading") from None
        return 0
