# SPDX-License-Identifier: Apache-2.0
"""The secondary processes of the demo of queues.

Each secondary process is a spawned child that runs :func:`be_secondary`.
"""

import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

from crossmem.cli.consumer import Ready, obey, visit
from crossmem.errors import ClosedError

__all__ = ["ABOUT", "Order", "Received", "be_secondary"]

ABOUT: Final = struct.Struct("<QQ")
"""The user data of a chunk: its number, and the monotonic time of its put, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Order:
    """A secondary's task for one stream of chunks.

    Attributes
    ----------
    handle
        The handle of the queue, as bytes. None if the chunks come through
        ``multiprocessing.Queue``.
    work
        ``"digest"``: compute the digest of each chunk and reply at the end. ``"time"``: reply to
        each chunk with the seconds since its put.
    timeout
        The timeout in seconds of ``open_queue``, and of the receipt of each chunk.
    """

    handle: bytes | None
    work: Literal["digest", "time"]
    timeout: float


@dataclass(frozen=True, slots=True)
class Received:
    """Number, length in bytes and SHA-256 digest of each chunk, in the order of arrival."""

    chunks: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk: its number, the seconds from its put to its arrival, and its length in bytes.

    ``visit`` passes the chunk's bytes to a function, if necessary in several calls. The bytes are
    valid until the next chunk is received.
    """

    number: int
    took_s: float
    nbytes: int
    visit: Callable[[Callable[[memoryview], object]], object]


def be_secondary(connection: Connection, device: str, other: Any) -> None:
    """Receive one stream of chunks for each order, until the parent closes the pipe.

    The secondary sends :class:`Ready` when the backend is loaded. For each :class:`Order`, it sends
    :class:`Ready` when it can receive chunks. Then it sends the replies that the order requests.

    Parameters
    ----------
    connection
        The pipe to the parent.
    device
        Name of the device of the buffers.
    other
        The ``multiprocessing.Queue`` through which copied chunks come; None if no chunk is copied.
    """
    obey(connection, lambda: _be_secondary(connection, device, other))


def _be_secondary(connection: Connection, device: str, other: Any) -> None:
    import crossmem

    # The backend is loaded now, so that no measured time of a stream includes the loading.
    crossmem.device(device)
    connection.send(Ready())
    while True:
        order: Order = connection.recv()
        if order.handle is None:
            connection.send(Ready())
            _receive(connection, order, _chunks_of_other(other, order.timeout))
            continue
        with crossmem.open_queue(order.handle, timeout=order.timeout) as queue:
            connection.send(Ready())
            _receive(connection, order, _chunks_of_queue(queue, order.timeout))


def _receive(connection: Connection, order: Order, chunks: Iterator[_Chunk]) -> None:
    received = []
    for chunk in chunks:
        if order.work == "time":
            connection.send(chunk.took_s)
            continue
        hasher = hashlib.sha256()
        chunk.visit(hasher.update)
        received.append((chunk.number, chunk.nbytes, hasher.hexdigest()))
    if order.work == "digest":
        connection.send(Received(tuple(received)))


def _chunks_of_queue(queue: Any, timeout: float) -> Iterator[_Chunk]:
    while True:
        try:
            buffer = queue.get(timeout=timeout)
        except ClosedError:
            return
        now = time.monotonic_ns()
        with buffer:
            number, put = ABOUT.unpack(buffer.user_data)
            nbytes = buffer.data_length
            yield _Chunk(number, (now - put) / 1e9, nbytes, partial(visit, buffer, nbytes=nbytes))


def _chunks_of_other(queue: Any, timeout: float) -> Iterator[_Chunk]:
    while (item := queue.get(timeout=timeout)) is not None:
        now = time.monotonic_ns()
        number, put, data = item
        yield _Chunk(number, (now - put) / 1e9, len(data), partial(_visit_copy, data))


def _visit_copy(data: bytes, function: Callable[[memoryview], object]) -> None:
    function(memoryview(data))
