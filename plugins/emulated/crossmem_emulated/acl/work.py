# SPDX-License-Identifier: Apache-2.0
"""Work of streams: in which order it is done, and on which thread."""

import sys
import threading
import time
from collections.abc import Iterable, Mapping

from crossmem_emulated.acl.calls import Refused
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess, Caller, Stream, Work

__all__ = ["end_callback", "finish", "finish_until", "submit"]


def submit(process: AclProcess, stream: Stream, work: Work) -> None:
    """Give work to a stream, which does it at once unless it is slow or work comes first."""
    work.sequence = next(process.sequence)
    stream.queue.append(work)
    if not process.slow_streams:
        _advance(process, _needed([(stream, work.sequence)]))


def finish(process: AclProcess, *streams: Stream, timeout_ms: int = -1) -> bool:
    """Do all the work of some streams.

    Functions of the program are waited for; other calls have their turn meanwhile.

    Parameters
    ----------
    process
        Whose streams they are.
    streams
        The streams.
    timeout_ms
        How long to wait in milliseconds, -1 for ever.

    Returns
    -------
    bool
        Whether others had their turn: what was known of the process may not hold any more.
    """
    goals = [(one, sys.maxsize) for one in streams]
    return _finish(process, goals, timeout_ms, Code.RT_STREAM_SYNC_TIMEOUT)


def finish_until(process: AclProcess, stream: Stream, last: Work, timeout_ms: int = -1) -> None:
    """Do a stream's work up to one piece, which may be done already."""
    goals = [(stream, last.sequence)]
    _finish(process, goals, timeout_ms, Code.RT_EVENT_SYNC_TIMEOUT)


def _finish(
    process: AclProcess, goals: Iterable[tuple[Stream, int]], timeout_ms: int, late: Code
) -> bool:
    limits = _needed(goals)
    mine = getattr(process.thread, "callback", None)
    deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
    have_others_called = False
    while True:
        _advance(process, limits)
        if not any(_has_work(one, limit) for one, limit in limits.items()):
            return have_others_called
        if any(mine in one.queue for one in limits):
            text = "a function that is work of a stream waits for the stream"
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E43")
        have_others_called = True
        if not process.changed.wait(None if deadline is None else deadline - time.monotonic()):
            raise Refused(late, f"the work is not done in {timeout_ms} ms")


def _has_work(stream: Stream, limit: int) -> bool:
    return bool(stream.queue) and stream.queue[0].sequence <= limit


def _needed(goals: Iterable[tuple[Stream, int]]) -> dict[Stream, int]:
    """Return the last piece of work of each stream that some work of some streams needs."""
    limits: dict[Stream, int] = {}
    todo = list(goals)
    while todo:
        stream, limit = todo.pop()
        works = [work for work in stream.queue if work.sequence <= limit]
        if works and works[-1].sequence > limits.get(stream, 0):
            limits[stream] = works[-1].sequence
            todo += [work.after for work in works if work.after is not None]
    return limits


def _advance(process: AclProcess, limits: Mapping[Stream, int]) -> None:
    """Do the work of some streams, as far as no function of the program has to end first."""
    while ready := [
        one
        for one, limit in limits.items()
        if _has_work(one, limit)
        and not one.queue[0].is_running
        and (one.queue[0].after is None or not _has_work(*one.queue[0].after))
    ]:
        stream = min(ready, key=lambda one: one.queue[0].sequence)
        work = stream.queue[0]
        if work.caller is None:
            stream.queue.pop(0).run()
        else:
            _call_back(process, stream, work, work.caller)


def _call_back(process: AclProcess, stream: Stream, work: Work, caller: Caller) -> None:
    """Let a function of the program be called, by its thread or by a new one."""
    work.is_running = True
    if not caller.is_waited_for:
        stream.queue.remove(work)
    if caller.thread is not None:
        process.reports.setdefault(caller.thread, []).append((stream, work))
        process.changed.notify_all()
        return

    def run() -> None:
        process.thread.callback = work
        try:
            work.run()
        finally:
            with process.lock:
                end_callback(process, stream, work)

    threading.Thread(target=run, name="crossmem-acl-callback", daemon=True).start()


def end_callback(process: AclProcess, stream: Stream, work: Work) -> None:
    """Go on with what waited for a function of the program."""
    # The device may have been reset meanwhile.
    if work in stream.queue:
        stream.queue.remove(work)
    if not process.slow_streams:
        _advance(process, dict.fromkeys(process.streams.values(), sys.maxsize))
    process.changed.notify_all()
