# SPDX-License-Identifier: Apache-2.0
"""Events, in one process and between processes (HIP-E24)."""

import os
import secrets
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import CONSTANTS, HANDLE_NBYTES, Status
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import Stream, find_stream, finish, submit
from crossmem_emulated.machine import HostLostError
from crossmem_emulated.queues import Caller, Work
from crossmem_emulated.words import SLOW_S

__all__ = ["Event", "destroy_event"]

_DISABLE_TIMING: Final = CONSTANTS["eventDisableTiming"]
_INTERPROCESS: Final = CONSTANTS["eventInterprocess"]
_ALL_FLAGS: Final = CONSTANTS["eventBlockingSync"] | _DISABLE_TIMING | _INTERPROCESS
_OF_AMD: Final = 0x2000_0000 | 0x4000_0000 | 0x8000_0000
"""AMD's flags for the scope in which an event makes memory visible. An event has at most one of
these flags. The flags have no effect in the emulation."""
_WAIT_EXTERNAL: Final = 1
_PID_NBYTES: Final = 4
_NS_OF_MS: Final = 1e6
_LOOK_AGAIN_S: Final = 0.002
"""The time between two checks of another process's work, in seconds."""


@dataclass(slots=True, eq=False)
class Record:
    """A record of an event in a stream. ``time_ns`` is the time when the stream reached it."""

    stream: Stream
    is_captured: bool
    time_ns: int | None = None
    work: Work = field(init=False)

    def __post_init__(self) -> None:
        self.work = Work("eventRecord", (), self._reach)

    def _reach(self) -> None:
        self.time_ns = time.monotonic_ns()


@dataclass(slots=True, eq=False)
class Event:
    """A marker that is recorded in streams."""

    handle: int
    flags: int
    device: int
    """The current device when the event was created or opened."""
    record: Record | None = None
    token: bytes | None = None
    """The handle by which other processes open the event, or by which this process opened it. None:
    this process created the event, and has not exported the event."""


def _find(process: HipProcess, handle: int) -> Event:
    event: Event | None = process.events.get(handle)
    if event is None:
        raise Refused(Status.INVALID_HANDLE, f"there is no event {handle:#x}", "HIP-X3")
    return event


@entry("eventCreate() -> intptr_t")
def _event_create(process: HipProcess) -> int:
    return _event_create_with_flags(process, 0)


@entry("eventCreateWithFlags(unsigned int flags) -> intptr_t")
def _event_create_with_flags(process: HipProcess, flags: int) -> int:
    known = _ALL_FLAGS | (_OF_AMD if process.profile.is_hip else 0)
    is_one = (flags & _OF_AMD).bit_count() <= 1
    if flags & ~known or not is_one or (flags & _INTERPROCESS and not flags & _DISABLE_TIMING):
        raise Refused(Status.INVALID_VALUE, f"an event cannot have flags {flags}", "HIP-E24")
    event = Event(next(process.handles), flags, process.current().device)
    process.events[event.handle] = event
    return event.handle


@entry("eventDestroy(intptr_t event)")
def _event_destroy(process: HipProcess, handle: int) -> None:
    destroy_event(process, _find(process, handle))


def destroy_event(process: HipProcess, event: Event) -> None:
    """Remove an event. If this process created the event, other processes can no longer open it."""
    del process.events[event.handle]
    with process.machine.transaction() as tables:
        me = process.machine.me(tables)
        query = "DELETE FROM hip_event WHERE token = ? AND owner = ?"
        tables.execute(query, (event.token, me))


@entry("eventRecord(intptr_t event, intptr_t stream)")
def _event_record(process: HipProcess, handle: int, stream: int) -> None:
    event, where = _find(process, handle), find_stream(process, stream)
    if where.device != event.device and where.capture is None:
        text = f"the event belongs to device {event.device}, and the stream to {where.device}"
        raise Refused(Status.INVALID_HANDLE, text, "HIP-X3")
    record = Record(where, where.capture is not None)
    submit(process, where, record.work)
    event.record = record
    if event.flags & _INTERPROCESS and where.capture is None:
        _publish(process, event, record)


def _check_captured(process: HipProcess, event: Event) -> None:
    """With CUDA, refuse an event whose last record was made in a captured stream."""
    record = event.record
    if record is not None and record.is_captured and not process.profile.is_hip:
        raise Refused(Status.INVALID_VALUE, "the event was recorded in a capture")


def _is_done(event: Event) -> bool:
    record = event.record
    return record is None or record.work not in record.stream.queue


@entry("eventQuery(intptr_t event)", is_checked=False)
def _event_query(process: HipProcess, handle: int) -> None:
    event = _find(process, handle)
    _check_captured(process, event)
    if not _is_done(event) or _pending(process, event):
        raise Refused(Status.NOT_READY, "the event's work is not done")


@entry("eventSynchronize(intptr_t event)")
def _event_synchronize(process: HipProcess, handle: int) -> None:
    event = _find(process, handle)
    if pending := _pending(process, event):
        while _pending(process, event) == pending:
            # The wait releases the lock, so other threads can make calls.
            process.queues.changed.wait(_LOOK_AGAIN_S)
    if event.record is not None:
        finish(process, [event.record.stream], event.record.work.sequence)


@entry("eventElapsedTime(intptr_t start, intptr_t end) -> float")
def _event_elapsed_time(process: HipProcess, start: int, end: int) -> float:
    events = _find(process, start), _find(process, end)
    if any(one.flags & _DISABLE_TIMING or one.record is None for one in events):
        raise Refused(Status.INVALID_HANDLE, "an event has no time")
    for one in events:
        _check_captured(process, one)
    if events[0].device != events[1].device:
        raise Refused(Status.INVALID_HANDLE, "the events belong to two devices", "HIP-X3")
    if not all(map(_is_done, events)):
        raise Refused(Status.NOT_READY, "the event's work is not done")
    first_ns, last_ns = map(_time_of, events)
    return (last_ns - first_ns) / _NS_OF_MS


def _time_of(event: Event) -> int:
    if event.record is None or event.record.time_ns is None:
        raise Refused(Status.INVALID_HANDLE, "an event has no time: it was recorded in a capture")
    return event.record.time_ns


def _nothing() -> None:
    """Do nothing. The work of ``streamWaitEvent`` only delays the later work of its stream."""


@entry("streamWaitEvent(intptr_t stream, intptr_t event, unsigned int flags=0)")
def _stream_wait_event(process: HipProcess, handle: int, event_handle: int, flags: int) -> None:
    if flags & ~_WAIT_EXTERNAL:
        raise Refused(Status.INVALID_VALUE, f"a wait cannot have flags {flags}")
    stream, event = find_stream(process, handle), _find(process, event_handle)
    if pending := _pending(process, event):

        def wait_elsewhere() -> None:
            with suppress(HostLostError, sqlite3.OperationalError):
                while _pending(process, event) == pending:
                    time.sleep(_LOOK_AGAIN_S)

        submit(process, stream, Work("streamWaitEvent", (), wait_elsewhere, caller=Caller()))
    record = event.record
    if record is not None and record.stream is not stream:
        after = record.stream, record.work.sequence
        submit(process, stream, Work("streamWaitEvent", (), _nothing, after=after))


# Between processes ----------------------------------------------------------------------------


@entry("ipcGetEventHandle(intptr_t event)", hip_answers=Status.UNKNOWN)
def _ipc_get_event_handle(process: HipProcess, handle: int) -> bytes:
    if not handle and process.profile.is_hip:
        raise Refused(Status.INVALID_VALUE, "there is no event 0x0", "HIP-X3")
    event = _find(process, handle)
    if not event.flags & _INTERPROCESS:
        raise Refused(
            Status.INVALID_HANDLE, "the event was not created for other processes", "HIP-E24"
        )
    if event.token is None:
        pid = os.getpid().to_bytes(_PID_NBYTES, "little")
        event.token = pid + secrets.token_bytes(HANDLE_NBYTES - _PID_NBYTES)
        record = event.record
        pending = 0 if record is None or _is_done(event) else record.work.sequence
        with process.machine.transaction() as tables:
            me = process.machine.me(tables)
            statement = (
                "INSERT INTO hip_event (token, owner, recorder, pending) VALUES (?, ?, ?, ?)"
            )
            tables.execute(statement, (event.token, me, me, pending))
    return event.token


@entry("ipcOpenEventHandle(bytes handle)", hip_answers=Status.UNKNOWN)
def _ipc_open_event_handle(process: HipProcess, handle: bytes) -> int:
    with process.machine.transaction() as tables:
        query = "SELECT owner FROM hip_event WHERE token = ?"
        row = tables.execute(query, (handle,)).fetchone()
        if row is None or not process.machine.lives(tables, row[0]):
            is_hip = process.profile.is_hip
            status = Status.INVALID_VALUE if is_hip else Status.MAP_FAILED
            raise Refused(status, "the event does not exist, or its owner is dead")
        if row[0] == process.machine.me(tables):
            text = "this process made the event itself"
            raise Refused(Status.INVALID_CONTEXT, text, "HIP-E24")
    flags, device = _DISABLE_TIMING | _INTERPROCESS, process.current().device
    event = Event(next(process.handles), flags, device, token=handle)
    process.events[event.handle] = event
    return event.handle


def _publish(process: HipProcess, event: Event, record: Record) -> None:
    """Publish an event's new record to other processes, and later the record's completion."""
    # Another process may wait for the record, but cannot start the work of this process's streams.
    # So this call does the stream's work. It leaves out work that must wait until a function of the
    # program has ended (see ``Caller``). If streams are slow, this call does no work: the thread
    # that runs ``tell`` does the work after SLOW_S.
    is_slow = process.queues.is_slow
    if not is_slow:
        process.queues.drain([record.stream])
    number = 0 if _is_done(event) else record.work.sequence
    if event.token is not None:
        with process.machine.transaction() as tables:
            statement = "UPDATE hip_event SET recorder = ?, pending = ? WHERE token = ?"
            tables.execute(statement, (process.machine.me(tables), number, event.token))

    def tell() -> None:
        if is_slow:
            time.sleep(SLOW_S)
        # If the emulated host's folder is lost, no other process can be notified.
        with process.lock, suppress(HostLostError, sqlite3.OperationalError):
            finish(process, [record.stream], number)
            with process.machine.transaction() as tables:
                statement = (
                    "UPDATE hip_event SET pending = 0 "
                    "WHERE token = ? AND recorder = ? AND pending = ?"
                )
                tables.execute(statement, (event.token, process.machine.me(tables), number))

    if number:
        # A new thread finishes the work up to the record: other threads might never finish it.
        threading.Thread(target=tell, name="crossmem-event", daemon=True).start()


def _pending(process: HipProcess, event: Event) -> tuple[int, int] | None:
    """Return two numbers that identify an event's last record, or None.

    The first number is the number on the emulated host of the process that made the record. The
    second number is the sequence number of the record. The result is None if the record is
    complete, or if this process or a dead process made the record, or if there is no record.
    """
    if event.token is None:
        return None
    with process.lock, process.machine.transaction() as tables:
        query = (
            "SELECT recorder, pending FROM hip_event WHERE token = ? AND recorder != ? AND pending"
        )
        found = tables.execute(query, (event.token, process.machine.me(tables)))
        row: tuple[int, int] | None = found.fetchone()
        return row if row is not None and process.machine.lives(tables, row[0]) else None
