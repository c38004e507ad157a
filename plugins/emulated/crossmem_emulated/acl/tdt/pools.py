# SPDX-License-Identifier: Apache-2.0
"""Chooses a process's pool, and the vendor's implementation of TDT that serves the process.

A pool contains the queues and buffers of one memory group, for all members of the group. A program
on the host is not in a group: the program has a pool of its own on each device.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from crossmem.models.identity import process_start_time
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.blocks import release_unused
from crossmem_emulated.acl.tdt.state import Processor

__all__ = [
    "ALLOC",
    "READ",
    "WRITE",
    "Pool",
    "check_processor",
    "close_device",
    "device_of",
    "tables_of",
]

ADMIN, READ, WRITE, ALLOC = 1, 2, 4, 8
_EVERYTHING: Final = ADMIN | READ | WRITE | ALLOC
_CREATOR: Final = 16
"""The bit of a group's creator. At first, the creator has no other right in the group."""
_LONGEST_NAME: Final = 31
_MOST_MEMBERS: Final = 1024
_MOST_GROUPS: Final = 32


class Pool(NamedTuple):
    """The pool that this process uses."""

    number: int
    device: int
    """Host-wide index of the device."""
    attributes: int
    """The rights of this process."""


def _processor(process: AclProcess) -> Processor:
    """Return the implementation that serves this process. The first call chooses it."""
    if process.tdt.processor is None:
        if not process.profile.is_on_device:
            process.tdt.processor = Processor.HOST
        elif "SHAREGROUP_PRECONFIG" in os.environ:
            process.tdt.processor = Processor.SHARE_GROUP
        else:
            process.tdt.processor = Processor.DEVICE
    return process.tdt.processor


def check_processor(process: AclProcess, *, lacking: tuple[Processor, ...] = ()) -> None:
    """Refuse a function that the implementation or the driver lacks.

    ``lacking`` names the implementations that lack the function.
    """
    processor = _processor(process)
    if processor in lacking:
        text = f"the implementation of TDT for {processor.value!r} has no such function"
        raise Refused(Code.FEATURE_UNSUPPORTED, text)
    if not process.profile.queues:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this driver has no queues")


def device_of(process: AclProcess) -> int:
    """Return the number, in this process, of the device whose queues this thread uses."""
    return process.current().device if _processor(process) is Processor.HOST else 0


@contextmanager
def tables_of(
    process: AclProcess, device: int | None = None
) -> Iterator[tuple[sqlite3.Connection, Pool]]:
    """Yield the tables in a transaction, and this process's pool.

    Before the yield, release the blocks that this process need not keep. From time to time, also
    free the buffers of dead processes; see ``_recycle``.

    A function that waits must call :func:`device_of` before the wait and pass the result as
    ``device``, because another thread may reset the device during the wait.
    """
    device = device_of(process) if device is None else device
    with process.machine.transaction() as tables:
        now = time.monotonic()
        if now - process.tdt.recycled_s >= process.recycle_s / 4:
            _recycle(process, tables)
            process.tdt.recycled_s = now
        release_unused(process, tables)
        yield tables, _pool_of(process, tables, device)


def _pool_of(process: AclProcess, tables: sqlite3.Connection, device: int) -> Pool:
    """Return the pool of this process. ``device`` is the device's number in this process."""
    me, index = process.machine.me(tables), process.visible[device]
    processor = _processor(process)
    if processor is Processor.HOST:
        # On a real device, each host process has queues of its own, which a separate process on
        # the device keeps. So no other host process uses this pool.
        name = f"/{me}/{index}"
        tables.execute(
            "INSERT OR IGNORE INTO acl_pool (name, device, owner) VALUES (?, ?, ?)",
            (name, index, me),
        )
        (number,) = tables.execute("SELECT number FROM acl_pool WHERE name = ?", (name,)).fetchone()
        return Pool(number, index, _EVERYTHING)
    found = _memberships(tables, me)
    if not found:
        name = f"acltdt{os.getpid()}" if processor is Processor.DEVICE else process.group
        if not name:
            text = "this process is in no memory group; another process must add it"
            raise Refused(Code.FAILURE, text)
        _recycle(process, tables)
        tables.execute("INSERT OR IGNORE INTO acl_pool (name, device) VALUES (?, ?)", (name, index))
        _add(tables, name, (os.getpid(), process_start_time("self") or 0), _EVERYTHING)
        found = _memberships(tables, me)
    # The process uses the first group in which it may allocate, or else its first group.
    number, attributes = next((one for one in found if one[1] & ALLOC), found[0])
    return Pool(number, index, attributes)


def _memberships(tables: sqlite3.Connection, me: int) -> list[tuple[int, int]]:
    """Return the number of each group in which this process has rights, and these rights."""
    return tables.execute(
        "SELECT pool, attributes FROM acl_pool_member AS member "
        "JOIN process ON process.pid = member.pid AND process.start_time = member.start_time "
        "WHERE process.number = ? AND attributes & ? ORDER BY pool",
        (me, _EVERYTHING),
    ).fetchall()


def _add(tables: sqlite3.Connection, name: str, identity: tuple[int, int], attributes: int) -> None:
    tables.execute(
        "INSERT INTO acl_pool_member (pool, pid, start_time, attributes) "
        "SELECT number, ?, ?, ? FROM acl_pool WHERE name = ? ON CONFLICT DO UPDATE "
        "SET attributes = (attributes & ?) | excluded.attributes",
        (*identity, attributes, name, _CREATOR),
    )


def _recycle(process: AclProcess, tables: sqlite3.Connection) -> None:
    """Delete groups without processes, and free the buffers of dead processes.

    After the death of the process that holds a buffer, the next call of this function records the
    time. A call of this function frees the buffer if at least ``recycle_s`` seconds have passed
    since that time.
    """
    for pid, start_time in tables.execute(
        "SELECT DISTINCT pid, start_time FROM acl_pool_member"
    ).fetchall():
        if process_start_time(pid) != start_time:
            statement = "DELETE FROM acl_pool_member WHERE pid = ? AND start_time = ?"
            tables.execute(statement, (pid, start_time))
    tables.execute(
        "DELETE FROM acl_pool WHERE owner IS NULL "
        "AND number NOT IN (SELECT pool FROM acl_pool_member)"
    )
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for (holder,) in tables.execute(
        "SELECT DISTINCT holder FROM acl_mbuf WHERE holder IS NOT NULL AND lost_s IS NULL"
    ).fetchall():
        if not process.machine.lives(tables, holder):
            tables.execute("UPDATE acl_mbuf SET lost_s = ? WHERE holder = ?", (now, holder))
    tables.execute("DELETE FROM acl_mbuf WHERE lost_s <= ?", (now - process.recycle_s,))


def close_device(process: AclProcess, index: int) -> None:
    """End the use of the queues on a device that the program resets.

    ``index`` is the device's host-wide index. Queues of a memory group stay for other processes.
    """
    if process.tdt.processor is None:
        return
    with process.machine.transaction() as tables:
        me = process.machine.me(tables)
        tables.execute("DELETE FROM acl_pool WHERE owner = ? AND device = ?", (me, index))
        tables.execute(
            "DELETE FROM acl_queue_user WHERE process = ? AND queue IN (SELECT acl_queue.number "
            "FROM acl_queue JOIN acl_pool ON acl_pool.number = pool WHERE device = ?)",
            (me, index),
        )
        release_unused(process, tables)
    process.queues.changed.notify_all()


# Memory groups ------------------------------------------------------------------------------


@entry("c.mem_grp_create", "s")
def _mem_grp_create(process: AclProcess, name: str) -> None:
    if not 0 < len(name) <= _LONGEST_NAME:
        text = f"the name must have 1 to {_LONGEST_NAME} characters, not {len(name)}"
        raise Refused(Code.RT_PARAM_INVALID, text)
    me = os.getpid(), process_start_time("self") or 0
    with process.machine.transaction() as tables:
        _recycle(process, tables)
        query = (
            "SELECT 1 FROM acl_pool WHERE name = ? UNION SELECT 1 FROM acl_pool_member "
            "WHERE pid = ? AND start_time = ? AND attributes & ?"
        )
        if tables.execute(query, (name, *me, _CREATOR)).fetchone():
            text = "the group exists, or this process has created another one"
            raise Refused(Code.RT_REPEATED_INIT, text)
        device = process.visible[0]
        tables.execute("INSERT INTO acl_pool (name, device) VALUES (?, ?)", (name, device))
        _add(tables, name, me, _CREATOR)


@entry("c.mem_grp_add_proc", "siI")
def _mem_grp_add_proc(process: AclProcess, name: str, pid: int, attributes: int) -> None:
    """Add a process to a group.

    ``attributes`` has a bit for each right: ADMIN 1, READ 2, WRITE 4, ALLOC 8.
    """
    started = process_start_time(pid) if pid > 0 else None
    if started is None:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no process {pid}")
    me = os.getpid(), process_start_time("self") or 0
    with process.machine.transaction() as tables:
        _recycle(process, tables)
        row = tables.execute("SELECT number FROM acl_pool WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"there is no group {name!r}")
        members = {
            (one, start_time): rights
            for one, start_time, rights in tables.execute(
                "SELECT pid, start_time, attributes FROM acl_pool_member WHERE pool = ?", row
            )
        }
        if not members.get(me, 0) & (ADMIN | _CREATOR):
            text = "only the group's creator, or a member with the right ADMIN, can add processes"
            raise Refused(Code.RT_NO_PERMISSION, text)
        groups = "SELECT count(*) FROM acl_pool_member WHERE pid = ? AND start_time = ?"
        (count,) = tables.execute(groups, (pid, started)).fetchone()
        if (pid, started) not in members and (
            len(members) >= _MOST_MEMBERS or count >= _MOST_GROUPS
        ):
            text = f"at most {_MOST_MEMBERS} processes per group, {_MOST_GROUPS} groups per process"
            raise Refused(Code.RT_OVER_LIMIT, text)
        rights = attributes & _EVERYTHING
        # ALLOC implies WRITE, and WRITE implies READ, as the vendor's header of the runtime says.
        if rights & ALLOC:
            rights |= WRITE
        if rights & WRITE:
            rights |= READ
        _add(tables, name, (pid, started), rights)
