# SPDX-License-Identifier: Apache-2.0
"""The processes that ``crossmem demo`` starts: consumers, and a process that receives a copy.

:func:`consume` and :func:`receive_copy` run in these spawned children. A child ends without output
when its parent has ended.
"""

import hashlib
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Literal, Protocol

from crossmem.cli.orphans import end_with
from crossmem.errors import CrossmemError, UnsupportedError

__all__ = [
    "CHUNK_NBYTES",
    "Attached",
    "Checked",
    "Failed",
    "Measured",
    "Progress",
    "Ready",
    "Task",
    "consume",
    "digest",
    "measure",
    "obey",
    "receive_copy",
    "visit",
]

CHUNK_NBYTES: Final = 4 * 2**20
"""The largest number of bytes in one read, hash update or report."""


@dataclass(frozen=True, slots=True)
class Task:
    """A consumer's task: to attach the whole memory, and each tensor in this memory.

    ``handle`` is the handle of the whole memory, and ``parts`` are the handles of the tensors.
    ``timeout`` is the time limit of each attach, in seconds.
    """

    handle: bytes
    parts: tuple[bytes, ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The child has reached the point for which the parent waits."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of bytes that the child processed since its last report."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The child cannot continue. ``error`` is None if the cause is not a ``CrossmemError``."""

    message: str
    error: CrossmemError | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """The reply of a consumer that has attached the memory. Times are in seconds."""

    attach_s: float
    parts_attach_s: float
    readonly: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """The digests that a consumer computed, and the time of the computation, in seconds.

    The consumer still holds the memory.
    """

    check_s: float
    sha256: str
    part_sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The resident size of the memory in one process, in bytes.

    ``resident`` counts every page in full. ``proportional`` divides each page by the number of
    processes that have the page mapped. A size is None if the kernel does not report it.
    """

    resident: int | None
    proportional: int | None


class _Memory(Protocol):
    """The members that :func:`visit` needs. Allocations, mappings and buffers have them."""

    @property
    def nbytes(self) -> int: ...
    def view(self) -> memoryview: ...
    def read(self, nbytes: int | None = None, *, offset: int = 0) -> bytes: ...


def visit(
    memory: _Memory,
    function: Callable[[memoryview], object],
    *,
    offset: int = 0,
    nbytes: int | None = None,
) -> None:
    """Call a function with the bytes of a memory, in order and in chunks.

    If the host can address the memory, each chunk is a view of the memory. If the host cannot, each
    chunk is a copy. Each view is released after the function's return, because memory with a live
    view cannot be unmapped.

    Parameters
    ----------
    memory
        An allocation, a mapping, or a buffer of a queue.
    function
        Called with each chunk, at most ``CHUNK_NBYTES`` bytes.
    offset, nbytes
        The range of bytes. If ``nbytes`` is None, the range ends at the end of the memory.
    """
    end = memory.nbytes if nbytes is None else offset + nbytes
    ranges = ((at, min(at + CHUNK_NBYTES, end)) for at in range(offset, end, CHUNK_NBYTES))
    try:
        view = memory.view()
    except UnsupportedError:
        for start, stop in ranges:
            function(memoryview(memory.read(stop - start, offset=start)))
        return
    with view:
        for start, stop in ranges:
            with view[start:stop] as chunk:
                function(chunk)


def digest(
    memory: _Memory,
    report: Callable[[int], object],
    *,
    offset: int = 0,
    nbytes: int | None = None,
) -> str:
    """Return the SHA-256 of a range of a memory. ``report`` is called with each chunk's length."""
    hasher = hashlib.sha256()

    def update(chunk: memoryview) -> None:
        hasher.update(chunk)
        report(len(chunk))

    visit(memory, update, offset=offset, nbytes=nbytes)
    return hasher.hexdigest()


def measure(pointer: int) -> Measured:
    """Return the resident size of the mapping that contains an address of this process."""
    fields: dict[str, int] = {}
    inside = False
    with (
        suppress(OSError),
        Path("/proc/self/smaps").open(encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):
                if inside:
                    break
                start, _, end = name.partition("-")
                inside = int(start, 16) <= pointer < int(end, 16)
            elif inside and name in ("Rss:", "Pss:"):
                fields[name] = int(rest.split()[0]) * 1024
    return Measured(fields.get("Rss:"), fields.get("Pss:"))


def consume(connection: Connection, device: str) -> None:
    """Attach the parent's memory, check it, and hold it until the parent sends ``"release"``.

    The consumer sends :class:`Ready`, receives a :class:`Task` and sends :class:`Attached`. It
    answers ``"check"`` with a :class:`Progress` for each chunk and with a :class:`Checked` at the
    end. It answers ``"measure"`` with a :class:`Measured`. It ends after ``"release"``.
    """
    obey(connection, lambda: _consume(connection, device))


def _consume(connection: Connection, device: str) -> None:
    import crossmem

    # The backend is loaded here, so that the measured time to attach does not include the loading.
    capabilities = crossmem.device(device).capabilities
    readonly: Literal[True, "advisory"] = True if capabilities.readonly_imports else "advisory"
    connection.send(Ready())
    task: Task = connection.recv()

    start = time.perf_counter()
    whole = crossmem.attach(task.handle, readonly=readonly, timeout=task.timeout)
    attached = time.perf_counter()
    with whole, ExitStack() as stack:
        parts = crossmem.attach_many(task.parts, readonly=readonly, timeout=task.timeout)
        parts_attached = time.perf_counter()
        for part in parts:
            stack.enter_context(part)
        connection.send(Attached(attached - start, parts_attached - attached, whole.readonly))
        while (order := connection.recv()) != "release":
            if order == "check":
                connection.send(_check(whole, parts, connection))
            else:
                connection.send(measure(whole.ptr))


def _check(whole: _Memory, parts: Sequence[_Memory], connection: Connection) -> Checked:
    def report(nbytes: int) -> None:
        connection.send(Progress(nbytes))

    start = time.perf_counter()
    sha256 = digest(whole, report)
    part_sha256 = tuple(digest(part, report) for part in parts)
    return Checked(time.perf_counter() - start, sha256, part_sha256)


def receive_copy(connection: Connection, source: Connection, nbytes: int) -> None:
    """Read bytes from the pipe ``source`` into memory that this process allocated beforehand.

    The process sends :class:`Ready` before it reads the first byte, and :class:`Ready` again when
    it has the last byte. Then it sends the digest as text.
    """
    obey(connection, lambda: _receive_copy(connection, source, nbytes))


def _receive_copy(connection: Connection, source: Connection, nbytes: int) -> None:
    buffer = bytearray(nbytes)
    connection.send(Ready())
    with memoryview(buffer) as view, FileIO(source.fileno(), closefd=False) as pipe:
        done = 0
        while done < nbytes:
            count = pipe.readinto(view[done:])
            if not count:
                return
            done += count
    connection.send(Ready())
    connection.send(hashlib.sha256(buffer).hexdigest())


def obey(connection: Connection, work: Callable[[], None]) -> None:
    """Run a child's work; report errors to the parent, and end quietly if the parent is gone."""
    # Ctrl-C reaches the whole process group. A child ignores the signal, because the parent decides
    # when the child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        parent = parent_process()
        if parent is not None and parent.pid is not None:
            # A child sees the end of its pipe only while it reads the pipe. In the demo of queues,
            # a child also reads chunks from a multiprocessing.Queue. While it waits for the rest of
            # a chunk, it does not read the pipe. So each child asks the kernel to kill it when the
            # parent ends.
            end_with(parent.pid, signal.SIGKILL)
        try:
            work()
        except CrossmemError as error:
            connection.send(Failed(error.message, error))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - the parent reports every error
            connection.send(Failed(f"{type(error).__name__}: {error}"))
