# SPDX-License-Identifier: Apache-2.0
"""Common steps of the calls that use a queue: permission checks, and the wait for a result."""

import os
import sqlite3
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from crossmem_emulated.acl.calls import Refused
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.pools import Pool, tables_of

__all__ = [
    "DEQUEUE",
    "ENQUEUE",
    "EVERY_BIT",
    "MANAGE",
    "Queue",
    "check_id",
    "check_right",
    "check_use",
    "die_inside",
    "find_queue",
    "grant",
    "record_use",
    "until",
]

MANAGE, DEQUEUE, ENQUEUE = 1, 2, 4
EVERY_BIT: Final = MANAGE | DEQUEUE | ENQUEUE
_IDS: Final = 4096
_LOOK_AGAIN_S: Final = 0.001
_LOOK_ANYWAY_S: Final = 0.05
_Result = TypeVar("_Result")


class Queue(NamedTuple):
    """A queue that this process has created or attached."""

    number: int
    """The queue's number on the host."""
    depth: int
    busy: int
    """A bit mask of the kinds of use during which a process died. The queue refuses any further use
    of these kinds."""
    bits: int | None
    """A bit mask of the permissions that were granted to this process; None without a grant."""


def check_id(qid: int) -> None:
    """Refuse an id that no queue can have."""
    if qid >= _IDS:
        text = f"the id must be below {_IDS}, not {qid}"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-Q10")


def find_queue(process: AclProcess, tables: sqlite3.Connection, pool: Pool, qid: int) -> Queue:
    """Return the queue ``qid``. This process must have created or attached the queue."""
    check_id(qid)
    row = tables.execute(
        "SELECT acl_queue.number, depth, busy, bits FROM acl_queue "
        "JOIN acl_queue_user ON acl_queue_user.queue = acl_queue.number "
        "JOIN process ON process.number = acl_queue_user.process "
        "LEFT JOIN acl_queue_grant AS grants ON grants.queue = acl_queue.number "
        "AND grants.pid = process.pid AND grants.start_time = process.start_time "
        "WHERE pool = ? AND id = ? AND process.number = ?",
        (pool.number, qid, process.machine.me(tables)),
    ).fetchone()
    if row is None:
        text = f"this process has neither created nor attached queue {qid}, or the queue is gone"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text)
    return Queue(*row)


def grant(tables: sqlite3.Connection, number: int, identity: tuple[int, int], bits: int) -> None:
    """Record the permissions of a process. ``identity`` is its pid and its start time."""
    tables.execute(
        "INSERT OR REPLACE INTO acl_queue_grant (queue, pid, start_time, bits) VALUES (?, ?, ?, ?)",
        (number, *identity, bits),
    )


def check_right(pool: Pool, right: int) -> None:
    """Refuse the use of a queue if this process lacks a right in its memory group."""
    if not pool.attributes & right:
        text = f"this process lacks the right {right} in its memory group"
        raise Refused(Code.RT_NO_PERMISSION, text)


def check_use(process: AclProcess, queue: Queue, bit: int) -> None:
    """Refuse the use of a queue if this process lacks the permission, or if the queue is busy.

    The permission is checked only in the profiles with the rules of Huawei's documents. The drivers
    with published source code do not check permissions.
    """
    if not (queue.bits or 0) & bit and process.profile.is_documented:
        text = f"this process was not granted the permission {bit} for the queue"
        raise Refused(Code.RT_NO_PERMISSION, text, "ACL-Q26")
    if queue.busy & bit:
        text = "the queue is busy: a process died while it used the queue"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text)


def record_use(process: AclProcess, call: str, queue: Queue, bit: int) -> None:
    """Record a violation if this process uses a queue without the permission ``bit``."""
    if not (queue.bits or 0) & bit:
        text = f"this process was not granted the permission {bit} for the queue"
        process.violate(call, "ACL-Q26", text)


def die_inside(process: AclProcess, call: str, qid: int, bit: int) -> None:
    """Kill this process while it uses a queue, if the fault ``CALL.inside`` was injected.

    ``CALL`` stands for the name of the call. The fault's code is the number of the signal. Before
    its death, the process adds the kind of use ``bit`` to :attr:`Queue.busy`.
    """
    number = process.faults.take(f"{call}.inside")
    if number is not None:
        with tables_of(process) as (tables, pool):
            queue = find_queue(process, tables, pool, qid)
            statement = "UPDATE acl_queue SET busy = busy | ? WHERE number = ?"
            tables.execute(statement, (bit, queue.number))
        os.kill(os.getpid(), number)


def until(
    process: AclProcess,
    timeout_ms: int,
    attempt: Callable[[sqlite3.Connection, Pool], _Result | None],
    late: Refused,
    *,
    device: int,
) -> _Result:
    """Call ``attempt`` until it returns a result other than None, and return this result.

    Other threads can make calls between two attempts. A negative timeout means no timeout. After
    the timeout, ``late`` is raised. ``device`` is the result of :func:`device_of`, which the caller
    calls before this function.
    """
    started = time.monotonic()
    end = started + timeout_ms / 1000 if timeout_ms >= 0 else None
    while True:
        with tables_of(process, device) as (tables, pool):
            result = attempt(tables, pool)
            version = process.machine.version
        if result is not None:
            process.queues.changed.notify_all()
            return result
        looked = time.monotonic()
        while True:
            now = time.monotonic()
            if end is not None and now >= end:
                raise late
            pause = _LOOK_AGAIN_S if end is None else min(_LOOK_AGAIN_S, end - now)
            is_notified = process.queues.changed.wait(pause)
            is_old = now - looked > _LOOK_ANYWAY_S
            if is_notified or is_old or process.machine.version != version:
                break
