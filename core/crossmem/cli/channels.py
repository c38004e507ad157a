# SPDX-License-Identifier: Apache-2.0
"""The queues through which the demo sends chunks of a file: crossmem's and multiprocessing's."""

import queue as queues
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from typing_extensions import override

import crossmem
from crossmem.cli.secondary import ABOUT

__all__ = ["Channel", "Copying", "Sharing"]

_LOOK_S: Final = 0.25
"""The seconds between two checks of the secondaries, while the channel is full."""


class Channel(Protocol):
    """A bounded channel from this process to its secondaries. Each chunk goes to one secondary.

    Attributes
    ----------
    handle
        The bytes with which a secondary opens the channel; None if the secondary has its end of the
        channel already.
    """

    handle: bytes | None

    def put(
        self,
        number: int,
        nbytes: int,
        fill: Callable[[memoryview], object],
        check: Callable[[float], object],
    ) -> None:
        """Send a chunk.

        Parameters
        ----------
        number, nbytes
            Number of the chunk, and its length in bytes.
        fill
            A function that writes the chunk into a buffer. put() calls the function only once.
        check
            A function that put() calls again and again while the channel is full. The function gets
            the number of seconds since the beginning of the wait. If the function raises an error,
            put() raises this error.
        """

    def finish(self, receivers: int) -> None:
        """Tell ``receivers`` secondaries that no further chunk comes."""


class Sharing(Channel):
    """A queue of crossmem, which this process owns."""

    def __init__(self, queue: crossmem.Queue) -> None:
        self._queue = queue
        self.handle = queue.export(role="consume").to_bytes()
        # The first allocate() also makes this process a producer of the queue. This call is made
        # before the first chunk, so that the measured times do not include this work.
        queue.allocate().release()
        # ``fill`` writes only into memory that the host can address. If the host cannot address the
        # queue's buffers, ``fill`` writes into the staging buffer, and put() copies the chunk.
        visible = queue.device.capabilities.host_visible
        self._staging = None if visible else memoryview(bytearray(queue.nbytes))

    @override
    def put(
        self,
        number: int,
        nbytes: int,
        fill: Callable[[memoryview], object],
        check: Callable[[float], object],
    ) -> None:
        began = time.monotonic()
        while True:
            try:
                buffer = self._queue.allocate(timeout=_LOOK_S)
                break
            except crossmem.QueueFullError:
                check(time.monotonic() - began)
        # The end of the ``with`` block releases the buffer after an error, and does nothing after
        # put().
        with buffer:
            if self._staging is None:
                with buffer.view() as view, view[:nbytes] as target:
                    fill(target)
            else:
                with self._staging[:nbytes] as target:
                    fill(target)
                    buffer.write(target)
            buffer.data_length = nbytes
            buffer.user_data = ABOUT.pack(number, time.monotonic_ns())
            self._queue.put(buffer)

    @override
    def finish(self, receivers: int) -> None:
        self._queue.finish()


class Copying(Channel):
    """A ``multiprocessing.Queue``: a chunk is pickled, sent through a pipe, and unpickled.

    Parameters
    ----------
    other
        The queue. The secondaries have this queue, too.
    size
        Length of the largest chunk, in bytes.
    """

    handle = None

    def __init__(self, other: Any, size: int) -> None:
        self._other = other
        self._staging = memoryview(bytearray(size))

    @override
    def put(
        self,
        number: int,
        nbytes: int,
        fill: Callable[[memoryview], object],
        check: Callable[[float], object],
    ) -> None:
        with self._staging[:nbytes] as target:
            fill(target)
            data = bytes(target)
        began = time.monotonic()
        while True:
            try:
                self._other.put((number, time.monotonic_ns(), data), timeout=_LOOK_S)
            except queues.Full:
                check(time.monotonic() - began)
            else:
                return

    @override
    def finish(self, receivers: int) -> None:
        for _ in range(receivers):
            self._other.put(None)
