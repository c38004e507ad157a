# SPDX-License-Identifier: Apache-2.0
"""Helpers of the timeline and stream tests, for the test's process and for peers.

The functions find timelines, streams and memory by their names in ``actions.objects``.
"""

import time
from typing import Any, Final, Protocol

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.ends import ends
from crossmem.conformance.patterns import pattern
from crossmem.driver import stream_work_of
from crossmem.models import TimelineLevel
from crossmem.sharing.base.process import current
from crossmem.sharing.timelines.watcher import StreamWatcher

__all__ = [
    "NBYTES",
    "MakeStream",
    "MakeTimeline",
    "StreamOfTest",
    "acknowledge",
    "await_ready_and_copy",
    "await_void_or_reached",
    "data_of",
    "export_on",
    "has_streams",
    "is_watching",
    "is_written",
    "issue_work",
    "make",
    "make_work",
    "new_stream",
    "open_",
    "open_event_files",
    "signal",
    "synchronize",
    "unmap_on",
    "wait",
    "wait_and_copy",
    "wait_and_read",
    "wait_for_the_dead",
]

NBYTES: Final = 8 << 20
"""Size of the memory that the work of a test copies, in bytes."""
_CHUNK: Final = pattern(1 << 16, 3)
_WORK_S: Final = 0.03
"""The approximate time of the work of a test on an otherwise idle device, in seconds."""
_MOST_COPIES: Final = 500

_copies: list[int] = []
"""The number of copies that together take about ``_WORK_S``: at least 2, at most ``_MOST_COPIES``.
The first call of :func:`issue_work` measures this number and adds it to the list."""


class StreamOfTest:
    """A stream of the device under test. As in CuPy, ``ptr`` is the vendor's stream handle."""

    def __init__(self) -> None:
        self._device = actions.device()
        work = stream_work_of(self._device.driver)
        assert work is not None
        self._work = work
        self.ptr = work.create_stream(self._device.ordinal)

    def copy(self, target: Any, source: Any, nbytes: int, *, offset: int = 0) -> None:
        """Issue a copy on this stream, from ``source`` to an offset of ``target``; do not wait."""
        where = target.ptr + offset
        self._work.copy_async(self._device.ordinal, where, source.ptr, nbytes, self.ptr)

    def synchronize(self) -> None:
        """Wait for the work of this stream."""
        actions.tracer().synchronize_stream(self._device.ordinal, self.ptr)

    def close(self) -> None:
        """Wait for the work and destroy the stream. A second call does nothing."""
        if self.ptr:
            self.synchronize()
            stream, self.ptr = self.ptr, 0
            self._work.destroy_stream(self._device.ordinal, stream)


# At the end of a test, its streams are closed before its other objects. The work of a stream may
# use those objects.
ends.insert(0, (StreamOfTest, "close"))


class MakeStream(Protocol):
    """The type of the fixture ``make_stream``."""

    def __call__(self) -> StreamOfTest:
        """Make a stream, which is closed after the test."""
        ...


class MakeTimeline(Protocol):
    """The type of the fixture ``make_timeline``."""

    def __call__(
        self, level: TimelineLevel | None = None, *, allow: crossmem.Allow | None = None
    ) -> crossmem.Timeline:
        """Make a timeline, which is closed after the test."""
        ...


def has_streams() -> bool:
    """Whether the driver under test lets the kit create streams and issue work on them."""
    return stream_work_of(actions.device().driver) is not None


# Named objects ----------------------------------------------------------------------------


def make(name: str, level: TimelineLevel | None = None, **options: Any) -> bytes:
    """Make a timeline and return the bytes of its handle."""
    timeline = actions.objects[name] = actions.device().timeline(level, **options)
    return timeline.export().to_bytes()


def open_(name: str, blob: bytes, **options: Any) -> str:
    """Open another process's timeline and return its level."""
    timeline = actions.objects[name] = crossmem.open_timeline(
        blob, device=actions.device(), **options
    )
    return timeline.level


def open_event_files() -> None:
    """Signal an event that processes can share.

    When a process signals its first such event, the vendor's library opens files and keeps them
    open. If this happened during a test, the files would count as a leak of the test. So the kit
    calls this function before the tests.
    """
    device = actions.device()
    if "event" in device.capabilities.timeline_levels:
        with device.timeline("event") as timeline:
            timeline.signal(1, stream=0)


def new_stream(name: str) -> None:
    """Make a stream."""
    actions.objects[name] = StreamOfTest()


def synchronize(stream: str) -> float:
    """Wait for the work of a stream; return the time of the wait, in seconds."""
    start = time.monotonic()
    actions.objects[stream].synchronize()
    return time.monotonic() - start


def signal(name: str, value: int, stream: str | None = None) -> None:
    """Signal a value, at once or on a stream."""
    where = None if stream is None else actions.objects[stream]
    actions.objects[name].signal(value, stream=where)


def wait(
    name: str, value: int, stream: str | None = None, timeout: float | None = None
) -> tuple[int, float]:
    """Wait for a value on the host or on a stream.

    Return the result of the call, and how many seconds the call took.
    """
    where = None if stream is None else actions.objects[stream]
    start = time.monotonic()
    found = actions.objects[name].wait(value, stream=where, timeout=timeout)
    return found, time.monotonic() - start


def wait_for_the_dead(name: str, value: int, stream: str) -> bool:
    """Let a stream wait for a dead process's timeline; return whether the call was refused."""
    try:
        actions.objects[name].wait(value, stream=actions.objects[stream])
    except crossmem.OwnerGoneError:
        return True
    return False


def await_void_or_reached(name: str, value: int) -> None:
    """Wait until a dead process's timeline is void or has reached the value."""
    timeline = actions.objects[name]
    while not timeline.void and timeline.value < value:
        time.sleep(1e-3)


# Work and its result ----------------------------------------------------------------------


def data_of(nbytes: int = NBYTES) -> bytes:
    """Return the data that :func:`issue_work` writes."""
    return _CHUNK * (nbytes // len(_CHUNK))


def make_work(name: str) -> bytes:
    """Allocate target, source and decoy for :func:`issue_work`; return the target's handle.

    The work copies the decoy to the target many times before it copies the source.
    """
    zeros = bytes(NBYTES)
    for one, data in ((name, zeros), (f"{name}-source", data_of()), (f"{name}-decoy", zeros)):
        actions.allocate(one, NBYTES)
        actions.write(one, data)
    return actions.export(name)


def issue_work(name: str, stream: str) -> None:
    """Issue work that takes a while. Its last copy writes the data of :func:`data_of`."""
    target, source, decoy = (actions.objects[name + part] for part in ("", "-source", "-decoy"))
    queue: StreamOfTest = actions.objects[stream]
    if not _copies:
        # Only the time of the second copy is used. The first copy may be the first access to the
        # memory's pages, and such an access is slower.
        for _ in range(2):
            start = time.monotonic()
            queue.copy(target, decoy, NBYTES)
            queue.synchronize()
        needed = int(_WORK_S / max(time.monotonic() - start, 1e-6))
        _copies.append(min(max(needed, 2), _MOST_COPIES))
    for _ in range(_copies[0]):
        queue.copy(target, decoy, NBYTES)
    queue.copy(target, source, NBYTES)


def is_written(name: str) -> bool:
    """Whether memory contains all data of the work."""
    return bool(actions.read(name) == data_of())


def wait_and_copy(timeline: str, value: int, stream: str, source: str, target: str) -> None:
    """Let a stream wait for a value and then copy memory. Return at once."""
    queue: StreamOfTest = actions.objects[stream]
    actions.objects[timeline].wait(value, stream=queue)
    queue.copy(actions.objects[target], actions.objects[source], NBYTES)


def wait_and_read(timeline: str, value: int, name: str) -> bool:
    """Wait for a value on the host; then return whether memory contains all data of the work."""
    actions.objects[timeline].wait(value)
    return is_written(name)


def acknowledge(name: str, value: int, stream: str) -> None:
    """Acknowledge a value when the work of a stream is complete."""
    actions.objects[name].done(value, stream=actions.objects[stream])


def export_on(name: str, stream: str) -> bytes:
    """Export memory that is ready when the work of a stream is complete."""
    blob: bytes = actions.objects[name].export(stream=actions.objects[stream]).to_bytes()
    return blob


def await_ready_and_copy(name: str, stream: str, target: str) -> None:
    """Let a stream wait until a mapping is ready, and then copy the mapped memory."""
    queue: StreamOfTest = actions.objects[stream]
    actions.objects[name].wait(stream=queue)
    queue.copy(actions.objects[target], actions.objects[name], NBYTES)


def unmap_on(name: str, stream: str) -> None:
    """Unmap memory when the work of a stream is complete."""
    actions.objects[name].unmap(stream=actions.objects[stream])


def is_watching() -> bool:
    """Whether the thread that releases waiting streams is running in this process."""
    lock = current().part(StreamWatcher)._thread._running
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False
