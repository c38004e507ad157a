# SPDX-License-Identifier: Apache-2.0
"""Runs ``crossmem demo --queue``, which sends the chunks of a file through a queue of crossmem.

The primary process reads each chunk of a file into a buffer of the queue. Each chunk goes to one
secondary process, which computes the chunk's digest. For comparison, the same chunks then go
through ``multiprocessing.Queue``, which copies them.
"""

import hashlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from errno import errorcode
from multiprocessing import get_context
from typing import Any, Final

import crossmem
from crossmem.cli.channels import Channel, Copying, Sharing
from crossmem.cli.children import Child, Children, ConsumerError, gather
from crossmem.cli.demo import OpenBar, time_for
from crossmem.cli.problems import UsageProblem
from crossmem.cli.reports import QueueDemoReport, SecondaryReport, StreamReport
from crossmem.cli.secondary import Order, Received, be_secondary
from crossmem.cli.sources import Source
from crossmem.errors import DriverError

__all__ = ["MAX_SECONDARIES", "QueueDemo"]

MAX_SECONDARIES: Final = 64
"""The largest number of secondaries. Each secondary is a consumer, and a queue of crossmem can have
up to 64 consumers."""
_DEPTH: Final = 8
_PREFETCH: Final = 4
"""The prefetch of the queue. Two secondaries together have room for all ``_DEPTH`` buffers. So if
there are two or more secondaries, no chunk waits until a secondary has room."""
_LARGEST_CHUNK: Final = 2**20
_SMALLEST_CHUNK: Final = 4 * 2**10
_CHUNKS_OF_A_SECONDARY: Final = 8
_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True)
class QueueDemo:
    """One run of the demo of queues.

    Parameters
    ----------
    open_source
        A function that opens the file or the generated weights. It is called once for the digests,
        and once for each queue through which the chunks go.
    device
        Name of the device of the buffers.
    secondaries
        Number of processes that receive chunks.
    copy
        Whether to send the chunks through ``multiprocessing.Queue`` as well.
    timeout
        Seconds that a step may wait for another process. The wait for the digests of the
        secondaries gets more time (see :func:`~crossmem.cli.demo.time_for`).
    open_bar
        A function that opens a progress bar.
    """

    open_source: Callable[[], Source]
    device: str
    secondaries: int
    copy: bool
    timeout: float
    open_bar: OpenBar

    def run(self) -> QueueDemoReport:
        """Send the chunks through the queues and return the results.

        Raises
        ------
        CrossmemError
            crossmem failed in this process or in a secondary, or a secondary died or did not reply
            in time.
        UsageProblem
            The file cannot be opened or read, or became shorter while it was read.
        """
        began = time.perf_counter()
        device = crossmem.device(self.device)
        with closing(self.open_source()) as source:
            nbytes, name, path = source.nbytes, source.name, source.path
            share = nbytes // (_CHUNKS_OF_A_SECONDARY * self.secondaries)
            size = min(max(share, _SMALLEST_CHUNK), _LARGEST_CHUNK)
            sha256, digests = self._digest(source, size)
        other = _python_queue() if self.copy else None
        try:
            with Children() as children:
                starting = time.perf_counter()
                crew = [
                    children.start(f"secondary {number}", be_secondary, device.name, other)
                    for number in range(1, self.secondaries + 1)
                ]
                gather(crew, timeout=self.timeout)
                start_s = time.perf_counter() - starting

                with device.queue(_DEPTH, size, consumers=len(crew), prefetch=_PREFETCH) as queue:
                    sharing = Sharing(queue)
                    handle_nbytes = len(sharing.handle or b"")
                    shared_s, received = self._stream(sharing, crew, size, "Stream, no copy")
                with device.queue(_DEPTH, size, consumers=1) as queue:
                    shared = StreamReport(
                        seconds=shared_s,
                        latency_s=self._time(Sharing(queue), crew[0], size),
                        equal=_are_equal(received, digests),
                    )
                secondaries = tuple(
                    _secondary(child.pid, one, digests)
                    for child, one in zip(crew, received, strict=True)
                )
                copied = None
                if other is not None:
                    copying = Copying(other, size)
                    copied_s, received = self._stream(copying, crew, size, "Copy by Python's queue")
                    copied = StreamReport(
                        seconds=copied_s,
                        latency_s=self._time(copying, crew[0], size),
                        equal=_are_equal(received, digests),
                    )
        finally:
            # If a secondary has died, unread chunks may be left in ``other``. Without
            # cancel_join_thread(), this process would not exit until these chunks are read.
            if other is not None:
                other.cancel_join_thread()
                other.close()
        return QueueDemoReport(
            version=crossmem.__version__,
            ok=shared.equal and (copied is None or copied.equal),
            name=name,
            path=path,
            nbytes=nbytes,
            sha256=sha256,
            device=device.name,
            depth=_DEPTH,
            chunk_nbytes=size,
            chunks=len(digests),
            handle_nbytes=handle_nbytes,
            start_s=start_s,
            secondaries=secondaries,
            queue=shared,
            multiprocessing_queue=copied,
            total_s=time.perf_counter() - began,
        )

    def _digest(self, source: Source, size: int) -> tuple[str, list[str]]:
        """Return the digest of the source, and the digest of each chunk."""
        whole, digests = hashlib.sha256(), []
        chunk = memoryview(bytearray(size))
        with self.open_bar(f"Read {source.name}", source.nbytes) as advance:
            for nbytes in _sizes(source, size):
                with chunk[:nbytes] as target:
                    _fill(source, target)
                    whole.update(target)
                    digests.append(hashlib.sha256(target).hexdigest())
                advance(nbytes)
        return whole.hexdigest(), digests

    def _stream(
        self, channel: Channel, crew: Sequence[Child], size: int, title: str
    ) -> tuple[float, list[Received]]:
        """Send all chunks. Return the seconds until all digests arrived, and the digests."""
        for child in crew:
            child.send(Order(channel.handle, "digest", self.timeout))
        gather(crew, timeout=self.timeout)

        def check(waited_s: float) -> None:
            for child in crew:
                child.check()
            if waited_s > self.timeout:
                raise ConsumerError(
                    f"no secondary took a chunk within {self.timeout:.0f} s",
                    hint="give a longer --timeout, or check whether the secondaries are stopped",
                )

        with (
            closing(self.open_source()) as source,
            self.open_bar(title, source.nbytes) as advance,
        ):
            start = time.perf_counter()
            for number, nbytes in enumerate(_sizes(source, size)):
                channel.put(number, nbytes, lambda target: _fill(source, target), check)
                advance(nbytes)
            channel.finish(len(crew))
            received = gather(crew, timeout=time_for(_DEPTH * size, self.timeout))
            return time.perf_counter() - start, received

    def _time(self, channel: Channel, child: Child, size: int) -> float:
        """Return the median time in seconds from the put of a chunk to its arrival.

        This process puts each chunk only after the secondary's reply to the previous chunk. So the
        secondary is asleep when the chunk arrives.
        """
        child.send(Order(channel.handle, "time", self.timeout))
        gather([child], timeout=self.timeout)
        took_s: list[float] = []
        for number in range(_ROUNDS):
            channel.put(number, size, lambda _: None, lambda _: child.check())
            took_s += gather([child], timeout=self.timeout)
        channel.finish(1)
        return statistics.median(took_s)


def _python_queue() -> "multiprocessing.Queue[Any]":
    try:
        return get_context("spawn").Queue(_DEPTH)
    except OSError as error:
        # The queue's semaphores are files in /dev/shm, which may be full.
        raise DriverError(
            f"multiprocessing.Queue cannot be made: {error.strerror}",
            call="sem_open",
            code=error.errno or 0,
            name=errorcode.get(error.errno or 0, ""),
            hint="make room in /dev/shm, or pass --no-copy to leave out the comparison",
        ) from error


def _sizes(source: Source, size: int) -> list[int]:
    """Return the length of each chunk."""
    return [min(size, source.nbytes - at) for at in range(0, source.nbytes, size)]


def _fill(source: Source, target: memoryview) -> None:
    """Fill a buffer with the next bytes of a source."""
    done = 0
    while done < len(target):
        try:
            with target[done:] as rest:
                count = source.readinto(rest)
        except OSError as error:
            raise UsageProblem(f"cannot read {source.name}: {error.strerror}") from error
        if not count:
            raise UsageProblem(f"{source.name} became shorter while it was read")
        done += count


def _secondary(pid: int, received: Received, digests: Sequence[str]) -> SecondaryReport:
    return SecondaryReport(
        pid=pid,
        chunks=len(received.chunks),
        nbytes=sum(nbytes for _, nbytes, _ in received.chunks),
        equal=sum(digests[number] == text for number, _, text in received.chunks),
    )


def _are_equal(received: Sequence[Received], digests: Sequence[str]) -> bool:
    """Return whether each chunk arrived exactly once, with the expected digest."""
    found = sorted((number, text) for one in received for number, _, text in one.chunks)
    return found == list(enumerate(digests))
