# SPDX-License-Identifier: Apache-2.0
"""Streams, and the calls that a capture of a stream forbids."""

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.process import Again, HipProcess
from crossmem_emulated.queues import Work

__all__ = [
    "CAPTURE_MODES",
    "PER_THREAD",
    "Capture",
    "Stream",
    "check_idle",
    "check_safe",
    "check_wait",
    "current_legacy",
    "destroy_stream",
    "find_stream",
    "finish",
    "finish_device",
    "is_capture_in_way",
    "legacy_of",
    "submit",
]

_LEGACY: Final = frozenset({0, 1})
PER_THREAD: Final = 2
"""The handle that names the calling thread's own stream."""
_NON_BLOCKING: Final = 1
CAPTURE_MODES: Final = range(3)
"""The modes of captures, and the modes of threads.

A capture forbids some threads to make calls that may wait for a device:

- In mode 0, a capture forbids these calls to its own thread, which began the capture, and to all
  threads in mode 0.
- In mode 1, a capture forbids these calls only to its own thread.
- In mode 2, a capture forbids nothing.

By default, a thread is in mode 0. No capture forbids anything to a thread in mode 2."""
_MODE_GLOBAL, _MODE_OF_THREAD, _MODE_RELAXED = CAPTURE_MODES
_PRIORITIES: Final = {True: (1, -1), False: (0, -1)}
"""The lowest and the highest priority of a stream. The key is True for AMD, False for NVIDIA."""


@dataclass(slots=True, eq=False)
class Capture:
    """A capture of a stream.

    On a real device, a captured stream records its work in a graph instead of executing the work.
    The emulation discards this work.
    """

    mode: int
    thread: int
    """The identifier of the thread that began the capture."""
    number: int
    """A number that is unique among the captures of this process."""
    graph: int
    """The handle of the resulting graph."""
    is_broken: bool = False
    """Whether a refused call has broken the capture. The call that ends a broken capture fails."""


@dataclass(slots=True, eq=False)
class Stream:
    """A stream of a device. Its work is done in order."""

    handle: int
    device: int
    is_blocking: bool = True
    """Whether this stream and the legacy stream wait for each other."""
    is_legacy: bool = False
    queue: list[Work] = field(default_factory=list)
    capture: Capture | None = None
    priority: int = 0


# Work ---------------------------------------------------------------------------------------


def legacy_of(process: HipProcess, device: int) -> Stream:
    """Return a device's legacy stream."""
    stream: Stream | None = process.streams.get(("legacy", device))
    if stream is None:
        stream = Stream(0, device, is_legacy=True)
        process.streams["legacy", device] = stream
    return stream


def current_legacy(process: HipProcess) -> Stream:
    """Return the legacy stream of the current device."""
    return legacy_of(process, process.current().device)


def find_stream(process: HipProcess, handle: int) -> Stream:
    """Return a stream by its handle.

    The handles 0 and 1 name the legacy stream of the current device, and 2 names the calling
    thread's own stream on that device.
    """
    device = process.current().device
    if handle in _LEGACY:
        return legacy_of(process, device)
    if handle == PER_THREAD:
        key = ("thread", device, threading.get_ident())
        return process.streams.setdefault(key, Stream(handle, device))  # type: ignore[no-any-return]
    stream: Stream | None = process.streams.get(handle)
    if stream is None:
        raise Refused(Status.INVALID_HANDLE, f"there is no stream {handle:#x}", "HIP-X3")
    return stream


def submit(process: HipProcess, stream: Stream, work: Work, *, is_awaited: bool = False) -> None:
    """Submit work to a stream.

    The stream executes the work at once, unless the work must wait or streams are slow
    (``CROSSMEM_EMULATED_SLOW_STREAMS``). If ``is_awaited``, the caller finishes the work before the
    caller returns. The work of a captured stream is discarded, because the emulation launches no
    graphs.
    """
    if stream.capture is not None:
        return
    if stream.is_legacy:
        _check_implicit(process, stream.device)
    process.queues.submit(stream, work, is_awaited=is_awaited)


def finish(process: HipProcess, streams: Iterable[Stream], until: int = sys.maxsize) -> bool:
    """Do the work of some streams, and return whether this function waited.

    See :meth:`Queues.finish` for the details.
    """
    text = "a function waits for the stream in which it runs"
    return process.queues.finish(streams, until, own=Refused(Status.UNKNOWN, text, "HIP-E25"))


def _of_device(process: HipProcess, device: int) -> list[Stream]:
    return [one for one in process.streams.values() if one.device == device]


def finish_device(process: HipProcess, device: int) -> None:
    """Do all work of a device. If this function had to wait, raise :class:`Again` afterwards."""
    if finish(process, _of_device(process, device)):
        raise Again


def check_idle(process: HipProcess, call: str, start: int, nbytes: int) -> None:
    """Discard the pending work that uses memory which the program releases.

    Record a violation for each discarded :class:`Work`. ``call`` is the function that releases the
    memory.
    """
    for work in process.queues.lose(start, nbytes):
        text = f"{nbytes} bytes at {start:#x} are released while {work.call} uses them"
        process.violate(call, "HIP-X1", text)


# Captures -----------------------------------------------------------------------------------


def _break(streams: Iterable[Stream], status: Status, text: str) -> None:
    """If any of the streams is captured, break the captures and refuse the call."""
    captured = [one.capture for one in streams if one.capture is not None]
    for capture in captured:
        capture.is_broken = True
    if captured:
        raise Refused(status, text, "HIP-X6")


def is_capture_in_way(process: HipProcess, device: int) -> bool:
    """Whether work of a device's legacy stream would have to wait for a captured stream."""
    streams = _of_device(process, device)
    return any(one.capture is not None for one in streams if one.is_blocking)


def _check_implicit(process: HipProcess, device: int) -> None:
    streams = [one for one in _of_device(process, device) if one.is_blocking]
    _break(streams, Status.CAPTURE_IMPLICIT, "the legacy stream would wait for a captured stream")


def check_wait(process: HipProcess, stream: Stream) -> None:
    """If the stream is captured, break the capture and refuse to wait for the stream.

    For the legacy stream, do the same if a blocking stream of the device is captured.
    """
    if stream.is_legacy:
        _check_implicit(process, stream.device)
    _break([stream], Status.CAPTURE_UNSUPPORTED, "the stream is captured")


def check_safe(process: HipProcess) -> None:
    """Refuse the call if a capture forbids this thread to make calls that may wait for a device.

    The refused call breaks the capture.
    """
    mode = getattr(process.thread, "capture_mode", _MODE_GLOBAL)
    streams = [
        one
        for one in process.streams.values()
        if one.capture is not None and _forbids(one.capture, mode)
    ]
    _break(streams, Status.CAPTURE_UNSUPPORTED, "a stream is captured")


def _forbids(capture: Capture, mode: int) -> bool:
    """Whether a capture forbids this thread to make calls that may wait for a device.

    ``mode`` is this thread's mode.
    """
    if _MODE_RELAXED in {mode, capture.mode}:
        return False
    is_own = capture.thread == threading.get_ident()
    return is_own or (mode == capture.mode == _MODE_GLOBAL)


# Functions ----------------------------------------------------------------------------------


@entry("streamCreate() -> intptr_t")
def _stream_create(process: HipProcess) -> int:
    return _stream_create_with_flags(process, 0)


@entry("streamCreateWithFlags(unsigned int flags) -> intptr_t")
def _stream_create_with_flags(process: HipProcess, flags: int) -> int:
    if flags not in {0, _NON_BLOCKING}:
        raise Refused(Status.INVALID_VALUE, f"there are no flags {flags}", "HIP-X3")
    stream = Stream(next(process.handles), process.current().device, not flags)
    process.streams[stream.handle] = stream
    return stream.handle


@entry("streamCreateWithPriority(unsigned int flags, int priority) -> intptr_t")
def _stream_create_with_priority(process: HipProcess, flags: int, priority: int) -> int:
    handle = _stream_create_with_flags(process, flags)
    # A priority out of range becomes the nearest valid priority.
    lowest, highest = _PRIORITIES[process.profile.is_hip]
    process.streams[handle].priority = min(max(priority, highest), lowest)
    return handle


@entry("deviceGetStreamPriorityRange()")
def _device_get_stream_priority_range(process: HipProcess) -> tuple[int, int]:
    return _PRIORITIES[process.profile.is_hip]


@entry("streamDestroy(intptr_t stream)")
def _stream_destroy(process: HipProcess, handle: int) -> None:
    stream = find_stream(process, handle)
    if handle not in process.streams:
        raise Refused(Status.INVALID_HANDLE, "this stream cannot be destroyed", "HIP-X3")
    if any(work.is_over is not None for work in stream.queue):
        _leave(process, stream)
        return
    if finish(process, [stream]):
        raise Again
    destroy_stream(process, stream)


def _leave(process: HipProcess, stream: Stream) -> None:
    """Keep a destroyed stream until its work is done.

    Some of its work waits for a value in memory, and the value may never be written. So
    ``streamDestroy`` does not wait for the work. The vendors' documents do not require a wait.
    """
    key = "destroyed", stream.handle
    process.streams[key] = process.streams.pop(stream.handle)
    stream.capture = None
    submit(process, stream, Work("streamDestroy", (), lambda: process.streams.pop(key, None)))


def destroy_stream(process: HipProcess, stream: Stream) -> None:
    """Remove a stream that has no work left. A legacy stream or a thread's own stream stays."""
    process.streams.pop(stream.handle, None)


@entry("streamSynchronize(intptr_t stream)")
def _stream_synchronize(process: HipProcess, handle: int) -> None:
    stream = find_stream(process, handle)
    check_wait(process, stream)
    finish(process, [stream])


@entry("streamQuery(intptr_t stream)", is_checked=False)
def _stream_query(process: HipProcess, handle: int) -> None:
    stream = find_stream(process, handle)
    _break([stream], Status.CAPTURE_UNSUPPORTED, "the stream is captured")
    if stream.queue:
        raise Refused(Status.NOT_READY, "the stream's work is not done")


@entry("deviceSynchronize()")
def _device_synchronize(process: HipProcess) -> None:
    device = process.current().device
    streams = _of_device(process, device)
    _break(streams, Status.CAPTURE_UNSUPPORTED, "a stream of the device is captured")
    finish(process, streams)
