# SPDX-License-Identifier: Apache-2.0
"""Events, in one process and between processes."""

import os
import secrets
import sqlite3
import threading
import time
from contextlib import suppress
from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess, Event, Stream
from crossmem_emulated.acl.streams import check_timeout, find_stream
from crossmem_emulated.machine import HostLostError
from crossmem_emulated.queues import Caller, Work

__all__ = ["IPC_HANDLE_NBYTES"]

IPC_HANDLE_NBYTES: Final = 64

_SYNC: Final = 0x01
_TIME_LINE: Final = 0x08
_DEVICE_ONLY: Final = 0x10
_EXTERNAL: Final = 0x20
_IPC: Final = 0x40
_COMBINED: Final = 0x0F
_NOT_READY, _COMPLETE = range(2)
_PID_NBYTES: Final = 4
_LOOK_AGAIN_S: Final = 0.005


def _create(process: AclProcess, flags: int, *, is_reusable: bool) -> int:
    process.current()
    event = Event(next(process.handles), flags, is_reusable)
    process.events[event.handle] = event
    return event.handle


def _check_flags(flags: int, *alone: int) -> None:
    if flags not in alone and (not flags or flags & ~_COMBINED):
        raise Refused(
            Code.RT_PARAM_INVALID, f"there are no events with flags {flags:#x}", "ACL-E37"
        )


@entry("rt.create_event", "", 0)
def _create_event(process: AclProcess) -> int:
    return _create(process, _SYNC | _TIME_LINE, is_reusable=False)


@entry("rt.create_event_with_flag", "I", 0)
def _create_event_with_flag(process: AclProcess, flags: int) -> int:
    _check_flags(flags, _DEVICE_ONLY, _EXTERNAL)
    return _create(process, flags, is_reusable=False)


@entry("rt.create_event_ex_with_flag", "I", 0)
def _create_event_ex_with_flag(process: AclProcess, flags: int) -> int:
    if flags == _IPC:
        _check_ipc(process)
    _check_flags(flags, _DEVICE_ONLY, _IPC)
    return _create(process, flags, is_reusable=True)


def _find(process: AclProcess, handle: int) -> Event:
    if not handle:
        raise Refused(Code.INVALID_PARAM, "the event is null")
    event = process.events.get(handle)
    if event is None:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no event {handle:#x}", "ACL-X7")
    return event


def _refuse(event: Event, what: str) -> None:
    """Refuse an operation that events of this kind do not support."""
    text = f"this event (flags {event.flags:#x}) does not support {what}"
    raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text, "ACL-E37")


@entry("rt.destroy_event", "k")
def _destroy_event(process: AclProcess, handle: int) -> None:
    event = _find(process, handle)
    del process.events[handle]
    if event.token is not None:
        with process.machine.transaction() as tables:
            statement = "DELETE FROM acl_event WHERE token = ? AND owner = ?"
            tables.execute(statement, (event.token, process.machine.me(tables)))


@entry("rt.record_event", "kk")
def _record_event(process: AclProcess, handle: int, stream_handle: int) -> None:
    event = _find(process, handle)
    stream = find_stream(process, stream_handle)

    def reach() -> None:
        if event.record is work:
            event.time_ns = time.monotonic_ns()

    work = Work("rt.record_event", (), reach)
    event.stream, event.record, event.time_ns = stream, work, None
    process.queues.submit(stream, work)
    if event.flags == _IPC:
        _publish(process, event, stream, work)


@entry("rt.reset_event", "kk")
def _reset_event(process: AclProcess, handle: int, stream_handle: int) -> None:
    event = _find(process, handle)
    if event.is_reusable or not event.flags & _SYNC:
        _refuse(event, "being reset")

    def forget() -> None:
        event.stream = event.record = event.time_ns = None

    process.queues.submit(find_stream(process, stream_handle), Work("rt.reset_event", (), forget))


def _nothing() -> None:
    """Do nothing. This is the work that a stream does after it has waited for an event."""


@entry("rt.stream_wait_event", "kk")
def _stream_wait_event(process: AclProcess, stream_handle: int, handle: int) -> None:
    event = _find(process, handle)
    if not event.flags & (_SYNC | _EXTERNAL | _IPC):
        _refuse(event, "being waited for by streams")
    stream = find_stream(process, stream_handle)
    if pending := _pending(process, event):

        def wait_elsewhere() -> None:
            while _pending(process, event) == pending:
                time.sleep(_LOOK_AGAIN_S)

        name = "rt.stream_wait_event"
        process.queues.submit(stream, Work(name, (), wait_elsewhere, caller=Caller()))
        return
    source, record = event.stream, event.record
    if source is None or record is None:
        return
    wait = Work("rt.stream_wait_event", (), _nothing, after=(source, record.sequence))
    event.waits.append((stream, wait))
    process.queues.submit(stream, wait)


@entry("c.stream_wait_event_with_timeout", "kki")
def _stream_wait_event_with_timeout(
    process: AclProcess, stream_handle: int, handle: int, timeout_ms: int
) -> None:
    # For this function, 0 means no timeout. For check_timeout, -1 means no timeout.
    check_timeout(timeout_ms or -1)
    _stream_wait_event(process, stream_handle, handle)


# State and times of events ----------------------------------------------------------------


@entry("rt.query_event", "k", 0)
def _query_event(process: AclProcess, handle: int) -> int:
    event = _find(process, handle)
    if event.is_reusable or event.flags & _EXTERNAL:
        _refuse(event, "this query")
    # Unlike query_event_status, this function returns 0 for a complete event, and 1 otherwise.
    return int(not (event.stream is not None and event.is_done))


@entry("rt.query_event_status", "k", 0)
def _query_event_status(process: AclProcess, handle: int) -> int:
    event = _find(process, handle)
    if event.flags & _EXTERNAL:
        _refuse(event, "being queried")
    is_empty = event.stream is None
    is_done = event.is_done and not _pending(process, event)
    return _COMPLETE if is_done and (event.is_reusable or not is_empty) else _NOT_READY


@entry("rt.query_event_wait_status", "k", 0)
def _query_event_wait_status(process: AclProcess, handle: int) -> int:
    event = _find(process, handle)
    if event.is_reusable or not event.flags & _SYNC:
        _refuse(event, "queries about waiting streams")
    event.waits = [(stream, work) for stream, work in event.waits if work in stream.queue]
    # This function returns 0 if no stream waits, and 1 otherwise.
    return int(bool(event.waits))


@entry("rt.synchronize_event", "k")
def _synchronize_event(process: AclProcess, handle: int) -> None:
    _synchronize_event_with_timeout(process, handle, -1)


@entry("rt.synchronize_event_with_timeout", "ki")
def _synchronize_event_with_timeout(process: AclProcess, handle: int, timeout_ms: int) -> None:
    check_timeout(timeout_ms)
    event = _find(process, handle)
    if event.flags & _EXTERNAL:
        _refuse(event, "being waited for")
    if pending := _pending(process, event):
        _wait_for_another(process, event, pending, timeout_ms)
    elif event.stream is not None and event.record is not None:
        process.finish(
            event.stream,
            until=event.record.sequence,
            timeout_ms=timeout_ms,
            late=Code.RT_EVENT_SYNC_TIMEOUT,
        )


def _time_of(event: Event) -> int:
    """Return the completion time of an event in nanoseconds. Refuse an event without this time."""
    if event.flags & (_EXTERNAL | _IPC):
        _refuse(event, "queries of its time")
    if event.stream is None or not event.flags & _TIME_LINE:
        text = "the event has no time: it was not recorded, or its flags do not ask for a time"
        raise Refused(Code.RT_EVENT_TIMESTAMP_INVALID, text, "ACL-E38")
    if event.time_ns is None:
        raise Refused(Code.RT_EVENT_NOT_COMPLETE, "the event is not complete", "ACL-E38")
    return event.time_ns


@entry("rt.event_elapsed_time", "kk", 0.0)
def _event_elapsed_time(process: AclProcess, start_handle: int, end_handle: int) -> float:
    start, end = (_time_of(_find(process, one)) for one in (start_handle, end_handle))
    if end < start:
        text = "the first event became complete after the second"
        raise Refused(Code.RT_EVENT_TIMESTAMP_REVERSAL, text, "ACL-E38")
    return (end - start) / 1e6


@entry("rt.event_get_timestamp", "k", 0)
def _event_get_timestamp(process: AclProcess, handle: int) -> int:
    return _time_of(_find(process, handle)) // 1000


@entry("c.get_event_id", "k", 0)
def _get_event_id(process: AclProcess, handle: int) -> int:
    event = _find(process, handle)
    if event.flags == _IPC:
        _refuse(event, "queries of its number")
    return list(process.events.values()).index(event)


# Between processes ------------------------------------------------------------------------


def _check_ipc(process: AclProcess) -> None:
    if not process.profile.ipc_events:
        text = "this product or driver cannot share events between processes"
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)


@entry("c.ipc_get_event_handle", "k", b"")
def _ipc_get_event_handle(process: AclProcess, handle: int) -> bytes:
    _check_ipc(process)
    event = _find(process, handle)
    if event.flags != _IPC:
        text = f"events with flags {event.flags:#x} cannot be opened by other processes"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-E39")
    if event.token is None:
        pid = os.getpid().to_bytes(_PID_NBYTES, "little")
        event.token = pid + secrets.token_bytes(IPC_HANDLE_NBYTES - _PID_NBYTES)
        with process.machine.transaction() as tables:
            pending = 0 if event.record is None or event.is_done else event.record.sequence
            statement = "INSERT INTO acl_event (token, owner, pending) VALUES (?, ?, ?)"
            tables.execute(statement, (event.token, process.machine.me(tables), pending))
    return event.token


@entry("c.ipc_open_event_handle", "o", 0)
def _ipc_open_event_handle(process: AclProcess, token: bytes) -> int:
    _check_ipc(process)
    process.current()
    with process.machine.transaction() as tables:
        query = "SELECT owner FROM acl_event WHERE token = ?"
        row = tables.execute(query, (token,)).fetchone()
        if row is None or not process.machine.lives(tables, row[0]):
            raise Refused(Code.RT_INVALID_HANDLE, "the event does not exist, or its owner is dead")
        if row[0] == process.machine.me(tables):
            text = "this process made the event itself"
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E39")
    event = Event(next(process.handles), _IPC, is_reusable=True, token=token, is_foreign=True)
    process.events[event.handle] = event
    return event.handle


def _publish(process: AclProcess, event: Event, stream: Stream, work: Work) -> None:
    """Publish an event's new record to other processes, and later the record's completion."""
    number = work.sequence
    # The work of a slow stream begins only when a thread of this process waits for the work. A wait
    # in another process does not begin the work. So this call does the stream's work, except work
    # that must wait for a function of the application.
    is_done = process.queues.drain([stream])

    def finish() -> None:
        # If the emulated host's folder is lost, no other process can be notified.
        with process.lock, suppress(HostLostError, sqlite3.OperationalError):
            process.finish(stream, until=number)
            with process.machine.transaction() as tables:
                statement = "UPDATE acl_event SET pending = 0 WHERE token = ? AND pending = ?"
                tables.execute(statement, (event.token, number))

    with process.machine.transaction() as tables:
        statement = "UPDATE acl_event SET pending = ? WHERE token = ?"
        tables.execute(statement, (0 if is_done else number, event.token))
    if not is_done:
        # The rest of the work waits for a function of the application. A new thread finishes this
        # work, because it is possible that no other thread of this process waits for the work.
        threading.Thread(target=finish, name="crossmem-event", daemon=True).start()


def _pending(process: AclProcess, event: Event) -> int:
    """Return the sequence number of a foreign event's incomplete record, or 0 if there is none."""
    if not event.is_foreign or event.stream is not None:
        return 0
    with process.machine.transaction() as tables:
        query = "SELECT owner, pending FROM acl_event WHERE token = ?"
        row = tables.execute(query, (event.token,)).fetchone()
        return int(row[1]) if row is not None and process.machine.lives(tables, row[0]) else 0


def _wait_for_another(process: AclProcess, event: Event, pending: int, timeout_ms: int) -> None:
    """Wait for the completion of another process's event. Other calls may run during the wait."""
    deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
    while _pending(process, event) == pending:
        if deadline is not None and time.monotonic() > deadline:
            text = f"the event did not become complete within {timeout_ms} ms"
            raise Refused(Code.RT_EVENT_SYNC_TIMEOUT, text)
        process.queues.changed.wait(_LOOK_AGAIN_S)
