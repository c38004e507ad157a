# SPDX-License-Identifier: Apache-2.0
"""Streams: work in order, and what a capture of it forbids."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.process import Again, HipProcess

__all__ = [
    "CAPTURE_MODES",
    "PER_THREAD",
    "Capture",
    "Stream",
    "Work",
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
"""The stream that each thread has of its own."""
_NON_BLOCKING: Final = 1
CAPTURE_MODES: Final = range(3)
"""What captures forbid: nothing to any thread, nothing to other threads, or nothing at all."""
_MODE_GLOBAL, _MODE_OF_THREAD, _MODE_RELAXED = CAPTURE_MODES
_PRIORITIES: Final = {True: (1, -1), False: (0, -1)}
"""The lowest and the highest, AMD's and others'."""


@dataclass(slots=True, eq=False)
class Work:
    """What was given to a stream and is not done yet."""

    call: str
    ranges: tuple[tuple[int, int], ...]
    """Address and size in bytes of all that it touches."""
    run: Callable[[], None]
    after: tuple["Stream", int] | None = None
    """Another stream, and the last piece of its work that this one waits for."""
    is_callback: bool = False
    """Whether it is a function of the program, which has a thread of its own."""
    is_running: bool = False
    sequence: int = 0


@dataclass(slots=True, eq=False)
class Capture:
    """Work that is recorded and not done."""

    mode: int
    thread: int
    number: int
    """Which tells it from all others of this process."""
    graph: int
    """What the work becomes in the end, by the handle that it will have."""
    is_broken: bool = False


@dataclass(slots=True, eq=False)
class Stream:
    """Work in order."""

    handle: int
    device: int
    is_blocking: bool = True
    """Whether it and the legacy stream wait for each other."""
    is_legacy: bool = False
    queue: list[Work] = field(default_factory=list)
    capture: Capture | None = None
    priority: int = 0


# Work ---------------------------------------------------------------------------------------


def legacy_of(process: HipProcess, device: int) -> Stream:
    """Return the stream of a device that all blocking streams wait for."""
    stream: Stream | None = process.streams.get(("legacy", device))
    if stream is None:
        stream = Stream(0, device, is_legacy=True)
        process.streams["legacy", device] = stream
    return stream


def current_legacy(process: HipProcess) -> Stream:
    """Return the legacy stream of the current device."""
    return legacy_of(process, process.current().device)


def find_stream(process: HipProcess, handle: int) -> Stream:
    """Return a stream; 0 and 1 are the legacy one of the current device, 2 the thread's own."""
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


def submit(process: HipProcess, stream: Stream, work: Work) -> None:
    """Give work to a stream, which does it at once unless it is slow or captured."""
    if stream.capture is not None:
        return
    if stream.is_legacy:
        _check_implicit(process, stream.device)
    work.sequence = next(process.sequence)
    stream.queue.append(work)
    if not process.setup.slow_streams:
        _advance(process, _needed(process, [stream], work.sequence))


def finish(process: HipProcess, streams: Iterable[Stream], until: int = sys.maxsize) -> bool:
    """Do the work of some streams, and what it waits for.

    Functions of the program are waited for; other calls have their turn meanwhile.

    Parameters
    ----------
    process
        Whose streams they are.
    streams
        The streams.
    until
        Last piece of work that is meant.

    Returns
    -------
    bool
        Whether others had their turn: what was known of the process may not hold any more.
    """
    limits = _needed(process, streams, until)
    mine = getattr(process.thread, "callback", None)
    have_others_called = False
    while True:
        _advance(process, limits)
        if not any(_has_work(one, limit) for one, limit in limits.items()):
            return have_others_called
        if any(mine in one.queue for one in limits):
            text = "a function that is work of a stream waits for the stream"
            raise Refused(Status.UNKNOWN, text, "HIP-E25")
        process.changed.wait()
        have_others_called = True


def _has_work(stream: Stream, limit: int) -> bool:
    return bool(stream.queue) and stream.queue[0].sequence <= limit


def _needed(process: HipProcess, streams: Iterable[Stream], until: int) -> dict[Stream, int]:
    """Return the last piece of work of each stream that some work of some streams needs."""
    limits: dict[Stream, int] = {}
    todo = [(one, until) for one in streams]
    while todo:
        stream, limit = todo.pop()
        works = [work for work in stream.queue if work.sequence <= limit]
        if not works or works[-1].sequence <= limits.get(stream, 0):
            continue
        last = limits[stream] = works[-1].sequence
        todo += [work.after for work in works if work.after is not None]
        todo += [(one, last) for one in _coupled(process, stream)]
    return limits


def _coupled(process: HipProcess, stream: Stream) -> list[Stream]:
    """Return the streams that wait for one, and it for them: the legacy and the blocking ones."""
    if not stream.is_blocking:
        return []
    return [
        one
        for one in _of_device(process, stream.device)
        if one.is_blocking and one.is_legacy != stream.is_legacy
    ]


def _can_begin(process: HipProcess, stream: Stream) -> bool:
    """Whether the first piece of a stream's work waits for nothing."""
    work = stream.queue[0]
    if work.is_running or (work.after is not None and _has_work(*work.after)):
        return False
    return not any(_has_work(one, work.sequence) for one in _coupled(process, stream))


def _advance(process: HipProcess, limits: Mapping[Stream, int]) -> None:
    """Do the work of some streams, as far as no function of the program has to end first."""
    while ready := [
        one for one, limit in limits.items() if _has_work(one, limit) and _can_begin(process, one)
    ]:
        stream = min(ready, key=lambda one: one.queue[0].sequence)
        if stream.queue[0].is_callback:
            _call_back(process, stream)
        else:
            stream.queue.pop(0).run()


def _call_back(process: HipProcess, stream: Stream) -> None:
    """Run a function of the program on a thread of its own; nobody has to wait for that."""
    work = stream.queue[0]
    work.is_running = True

    def run() -> None:
        process.thread.callback = work
        try:
            work.run()
        finally:
            with process.lock:
                # The stream may have lost its work meanwhile.
                if work in stream.queue:
                    stream.queue.remove(work)
                if not process.setup.slow_streams:
                    everything = dict.fromkeys(process.streams.values(), sys.maxsize)
                    _advance(process, everything)
                process.changed.notify_all()

    threading.Thread(target=run, name="crossmem-hip-callback", daemon=True).start()


def _of_device(process: HipProcess, device: int) -> list[Stream]:
    return [one for one in process.streams.values() if one.device == device]


def finish_device(process: HipProcess, device: int) -> None:
    """Do all the work of a device; the call begins again where it had to wait for that."""
    if finish(process, _of_device(process, device)):
        raise Again


def check_idle(process: HipProcess, call: str, start: int, nbytes: int) -> None:
    """Note where memory is taken away from work that waits; the work is lost then."""
    for stream in process.streams.values():
        for work in list(stream.queue):
            if any(first < start + nbytes and first + size > start for first, size in work.ranges):
                stream.queue.remove(work)
                process.violate(
                    call,
                    "HIP-X1",
                    f"{nbytes} bytes at {start:#x} are taken from a running {work.call}",
                )


# Captures -----------------------------------------------------------------------------------


def _break(streams: Iterable[Stream], status: Status, text: str) -> None:
    """Refuse what a capture forbids; the captures are lost."""
    captured = [one.capture for one in streams if one.capture is not None]
    for capture in captured:
        capture.is_broken = True
    if captured:
        raise Refused(status, text, "HIP-X6")


def is_capture_in_way(process: HipProcess, device: int) -> bool:
    """Whether a stream is captured that the legacy stream would wait for."""
    streams = _of_device(process, device)
    return any(one.capture is not None for one in streams if one.is_blocking)


def _check_implicit(process: HipProcess, device: int) -> None:
    streams = [one for one in _of_device(process, device) if one.is_blocking]
    _break(streams, Status.CAPTURE_IMPLICIT, "the legacy stream would wait for a captured one")


def check_wait(process: HipProcess, stream: Stream) -> None:
    """Refuse to wait for a stream that is captured, or that would wait for one that is."""
    if stream.is_legacy:
        _check_implicit(process, stream.device)
    _break([stream], Status.CAPTURE_UNSUPPORTED, "the stream is captured")


def check_safe(process: HipProcess) -> None:
    """Refuse what may synchronize, where a capture forbids that to the calling thread."""
    mode = getattr(process.thread, "capture_mode", _MODE_GLOBAL)
    streams = [
        one
        for one in process.streams.values()
        if one.capture is not None and _forbids(one.capture, mode)
    ]
    _break(streams, Status.CAPTURE_UNSUPPORTED, "a stream is captured")


def _forbids(capture: Capture, mode: int) -> bool:
    """Whether a capture forbids this thread, in the mode that it chose, what may synchronize."""
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
    # What is out of range is taken for the nearest that is not.
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
        raise Refused(Status.INVALID_HANDLE, "this stream is nobody's to destroy", "HIP-X3")
    if finish(process, [stream]):
        raise Again
    destroy_stream(process, stream)


def destroy_stream(process: HipProcess, stream: Stream) -> None:
    """Forget a stream that has no work left; the device's own and threads' own stay."""
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
        raise Refused(Status.NOT_READY, "there is work left")


@entry("deviceSynchronize()")
def _device_synchronize(process: HipProcess) -> None:
    device = process.current().device
    streams = _of_device(process, device)
    _break(streams, Status.CAPTURE_UNSUPPORTED, "a stream of the device is captured")
    finish(process, streams)
