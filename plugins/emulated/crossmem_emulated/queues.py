# SPDX-License-Identifier: Apache-2.0
"""The work of streams: its order, and the threads that do it.

A slow stream does not execute work when the work is submitted, but only in a call of
:meth:`Queues.finish` or :meth:`Queues.drain`.
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Caller", "Queue", "Queues", "Watch", "Work"]


@dataclass(frozen=True, slots=True)
class Caller:
    """How the emulation calls a function that the program gave to a stream as work.

    In this module, "function of the program" also means a wait that another process may end, such
    as the wait for a value in memory. Such a wait runs in a new thread.

    Parameters
    ----------
    thread
        The identifier of the thread that calls the function. The call waits until this thread asks
        for functions. If None, a new thread calls the function.
    is_waited_for
        Whether the stream waits for the end of the function.
    """

    thread: int | None = None
    is_waited_for: bool = True


@dataclass(slots=True, eq=False)
class Work:
    """Pending work of a stream or of the host."""

    call: str
    ranges: tuple[tuple[int, int], ...]
    """Address and size in bytes of each memory range that the work accesses."""
    run: Callable[[], object]
    after: tuple["Queue", int] | None = None
    """Another stream and a sequence number. The other stream's work up to this number must be done
    before this work. None if there is no such stream."""
    caller: Caller | None = None
    """How the work is called, if it is a function of the program; None for other work, which any
    thread can do."""
    is_over: Callable[[], bool] | None = None
    """Says whether a word in memory satisfies the condition for which this work waits. None if this
    work does not wait for a word."""
    is_running: bool = False
    sequence: int = 0
    written: tuple[tuple[int, int], ...] = ()
    """The contiguous ranges that the work writes. Two things are not listed: ranges with gaps
    between them, and words for which streams can wait."""
    rows: list[int] = field(default_factory=list)
    """The numbers of the database's rows that tell other processes what the work writes."""


class Queue(Protocol):
    """A stream. This module uses only its pending work, in the order of submission."""

    queue: list[Work]


class Watch(Protocol):
    """An observer of the work of slow streams."""

    def submitted(self, stream: Queue, work: Work) -> None:
        """Work was submitted to a slow stream."""
        ...

    def begins(self, work: Work, stream: Queue | None = None) -> None:
        """Work begins in a stream. If ``stream`` is None, the host does the work."""
        ...

    def ended(self, work: Work) -> None:
        """Work is done or discarded."""
        ...


def _uncoupled(_stream: Queue, _streams: Collection[Queue]) -> Collection[Queue]:
    return ()


class Queues:
    """The work of all streams of one process, guarded by the given lock.

    Parameters
    ----------
    lock
        The process's lock.
    thread
        State of each thread. The attribute ``callback`` is the :class:`Work` whose function the
        thread is running.
    streams
        A mapping whose values are all streams of the process.
    is_slow
        Whether the streams are slow.
    coupled
        Returns the streams that are coupled with a given stream. Coupled streams wait for each
        other's earlier work.
    """

    def __init__(
        self,
        lock: threading.RLock,
        thread: threading.local,
        streams: Mapping[Any, Any],
        *,
        is_slow: bool,
        coupled: Callable[[Any, Collection[Any]], Collection[Any]] = _uncoupled,
    ) -> None:
        self.changed = threading.Condition(lock)
        """Notified when a thread has a function of the program to call, and when such a function
        has ended. Other modules also notify this condition, after changes of their own."""
        self.reports: dict[int, list[tuple[Queue, Work]]] = {}
        """The functions of the program that each thread will call when the thread asks for them.
        The key is the identifier of the thread. A function's entry is its stream and its work."""
        self.sequence = itertools.count(1)
        self.ordering: Watch | None = None
        self._lock = lock
        self._thread = thread
        self._streams = streams
        self.is_slow = is_slow
        self._coupled = coupled

    def submit(self, stream: Queue, work: Work, *, is_awaited: bool = False) -> None:
        """Append work to a stream. Do the work now, unless streams are slow or the work must wait.

        If ``is_awaited``, the caller finishes the work before the program goes on. So the observer
        is not told that the work was submitted.
        """
        work.sequence = next(self.sequence)
        stream.queue.append(work)
        if not self.is_slow:
            self._advance(self._needed([stream], work.sequence))
        elif self.ordering is not None and not is_awaited:
            self.ordering.submitted(stream, work)

    def run_now(self, work: Work) -> None:
        """Do work of the host, which waits for no stream."""
        work.sequence = next(self.sequence)
        self._run(work, None)

    def _run(self, work: Work, stream: Queue | None) -> None:
        if self.ordering is None:
            work.run()
            return
        self.ordering.begins(work, stream)
        try:
            work.run()
        finally:
            self.ordering.ended(work)

    def is_free(self, stream: Queue, work: Work) -> bool:
        """Whether work is free: it waits for no function of the program and no other stream.

        Work also waits for all earlier work of its own stream. So work is not free if the earlier
        work is not free. Functions of the program are not free.
        """
        before = [one for one in stream.queue if one.sequence <= work.sequence]
        coupled = self._coupled(stream, self._streams.values())
        return not any(one.caller or one.after for one in before) and not any(
            _has_work(one, work.sequence) for one in coupled
        )

    def pending_before(self, work: Work, stream: Queue | None) -> Iterator[Work]:
        """Yield the free work that other streams got before ``work`` and have not done yet."""
        for other in self._streams.values():
            for earlier in other.queue if other is not stream else ():
                if earlier.sequence < work.sequence and self.is_free(other, earlier):
                    yield earlier

    def drop(self, stream: Queue) -> None:
        """Discard all work of a stream."""
        for work in stream.queue:
            self._forget(work)
        stream.queue.clear()

    def _forget(self, work: Work) -> None:
        if self.ordering is not None:
            self.ordering.ended(work)

    def finish(
        self,
        streams: Iterable[Queue],
        until: int = sys.maxsize,
        *,
        own: Exception,
        timeout_ms: int = -1,
        late: Exception | None = None,
    ) -> bool:
        """Execute the work of some streams, and the work for which these streams wait.

        If the work includes functions of the program, this method waits for them.

        Parameters
        ----------
        streams
            The streams.
        until
            Sequence number of the last work to do.
        own
            The error to raise if a function of the program waits for the stream in which it runs.
        timeout_ms
            The longest wait in milliseconds; -1 for no limit.
        late
            The error to raise if ``timeout_ms`` has passed and the work is not done.

        Returns
        -------
        bool
            Whether this method waited for a function of the program. During such a wait, other
            calls may have changed the state of the process.
        """
        limits = self._needed(streams, until)
        mine = getattr(self._thread, "callback", None)
        deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        have_others_called = False
        while True:
            self._advance(limits)
            if not any(_has_work(one, limit) for one, limit in limits.items()):
                return have_others_called
            if any(mine in one.queue for one in limits):
                raise own
            have_others_called = True
            left_s = None if deadline is None else deadline - time.monotonic()
            if not self.changed.wait(left_s) and late is not None:
                raise late

    def drain(self, streams: Iterable[Queue]) -> bool:
        """Do the work of some streams, except work that must wait for a function of the program.

        Returns
        -------
        bool
            Whether all work of the streams is done.
        """
        limits = self._needed(streams, sys.maxsize)
        self._advance(limits)
        return not any(_has_work(one, limit) for one, limit in limits.items())

    def _needed(self, streams: Iterable[Queue], until: int) -> dict[Queue, int]:
        """Return a dict of the streams whose work must be done.

        These are ``streams``, and all streams for which they wait. The value is the sequence number
        of the stream's last work that must be done.
        """
        limits: dict[Queue, int] = {}
        todo = [(one, until) for one in streams]
        while todo:
            stream, limit = todo.pop()
            works = [work for work in stream.queue if work.sequence <= limit]
            if works and works[-1].sequence > limits.get(stream, 0):
                last = limits[stream] = works[-1].sequence
                todo += [work.after for work in works if work.after is not None]
                todo += [(one, last) for one in self._coupled(stream, self._streams.values())]
        return limits

    def _can_begin(self, stream: Queue) -> bool:
        """Whether the first work of a stream is not running yet, and waits for no other work."""
        work = stream.queue[0]
        if work.is_running or (work.after is not None and _has_work(*work.after)):
            return False
        coupled = self._coupled(stream, self._streams.values())
        return not any(_has_work(one, work.sequence) for one in coupled)

    def _advance(self, limits: Mapping[Queue, int]) -> None:
        """Do the work of some streams, except work that must wait for a function of the program."""
        while ready := [
            one for one, limit in limits.items() if _has_work(one, limit) and self._can_begin(one)
        ]:
            stream = min(ready, key=lambda one: one.queue[0].sequence)
            work = stream.queue[0]
            if work.is_over is not None and work.is_over():
                stream.queue.pop(0)
            elif work.caller is None:
                self._run(stream.queue.pop(0), stream)
            else:
                self._call_back(stream, work, work.caller)

    def _call_back(self, stream: Queue, work: Work, caller: Caller) -> None:
        """Give a function of the program to its thread, or call it in a new thread."""
        work.is_running = True
        if not caller.is_waited_for:
            stream.queue.remove(work)
        if caller.thread is not None:
            self.reports.setdefault(caller.thread, []).append((stream, work))
            self.changed.notify_all()
            return

        def run() -> None:
            self._thread.callback = work
            try:
                work.run()
            finally:
                with self._lock:
                    self.end_callback(stream, work)

        threading.Thread(target=run, name="crossmem-callback", daemon=True).start()

    def end_callback(self, stream: Queue, work: Work) -> None:
        """Remove work from its stream, because the work's function has ended.

        Unless streams are slow, do the work that waited for the function.
        """
        # The work may have left the stream already, for example because its memory was freed.
        if work in stream.queue:
            stream.queue.remove(work)
        try:
            if not self.is_slow:
                self._advance(dict.fromkeys(self._streams.values(), sys.maxsize))
        finally:
            self.changed.notify_all()

    def may_write(self, start: int, nbytes: int) -> bool:
        """Whether work that is not done yet may write into a range.

        A function of the program may write anywhere. Other work may write the ranges in
        ``Work.written``. The caller holds the lock.
        """
        return any(
            work.caller is not None
            or any(first < start + nbytes and first + size > start for first, size in work.written)
            for stream in self._streams.values()
            for work in stream.queue
        )

    def lose(self, start: int, nbytes: int) -> Iterator[Work]:
        """Discard and yield the work that would access memory that is being released."""
        for stream in self._streams.values():
            for work in list(stream.queue):
                if any(
                    first < start + nbytes and first + size > start for first, size in work.ranges
                ):
                    stream.queue.remove(work)
                    self._forget(work)
                    yield work


def _has_work(stream: Queue, limit: int) -> bool:
    return bool(stream.queue) and stream.queue[0].sequence <= limit
