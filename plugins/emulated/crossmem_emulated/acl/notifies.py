# SPDX-License-Identifier: Apache-2.0
"""Notifies: flags that streams set and wait for, shared between processes by key (ACL-E45)."""

import secrets
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import KEY_NBYTES, Code
from crossmem_emulated.acl.keys import check_peer_access
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.shares import is_admitted
from crossmem_emulated.acl.streams import find_stream
from crossmem_emulated.machine import HostLostError, ticks_since_boot
from crossmem_emulated.queues import Caller, Work
from crossmem_emulated.words import finish_later

__all__: list[str] = []

_RULE: Final = "ACL-E45"
_FLAGS: Final = frozenset({0, 1})
_SHARE_FLAGS: Final = frozenset({0, 2})
"""The valid flags of exports and imports. Flag 2 of an export admits all processes. Flag 2 of an
import lets the importer's device access the notify's device."""
_LONGEST_BUFFER: Final = 1024
_MOST_SECONDS: Final = 1 << 32
_LOOK_AGAIN_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Notify:
    """A notify that this process created or imported."""

    handle: int
    number: int
    """The notify's number on the host."""


def _find(process: AclProcess, handle: int) -> Notify:
    if not handle:
        raise Refused(Code.INVALID_PARAM, "the notify is null")
    notify: Notify | None = process.notifies.get(handle)
    if notify is None:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no notify {handle:#x}", "ACL-X7")
    return notify


def _keep(process: AclProcess, tables: sqlite3.Connection, number: int) -> int:
    """Record that this process holds a notify. Return a new handle of the notify."""
    tables.execute(
        "INSERT OR IGNORE INTO acl_notify_holder (notify, process) VALUES (?, ?)",
        (number, process.machine.me(tables)),
    )
    notify = Notify(next(process.handles), number)
    process.notifies[notify.handle] = notify
    return notify.handle


@entry("rt.create_notify", "K", 0)
def _create_notify(process: AclProcess, flag: int) -> int:
    if flag not in _FLAGS:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no flag {flag}", _RULE)
    index = process.visible[process.current().device]
    with process.machine.transaction() as tables:
        process.machine.reap(tables)
        query = "SELECT count(*) FROM acl_notify WHERE device = ?"
        if tables.execute(query, (index,)).fetchone()[0] >= process.profile.notifies:
            raise Refused(Code.RT_NO_NOTIFY_RESOURCE, "the device has no notify left")
        statement = "INSERT INTO acl_notify (device, owner) VALUES (?, ?)"
        number = tables.execute(statement, (index, process.machine.me(tables))).lastrowid
        assert number is not None  # noqa: S101 - set by each INSERT
        return _keep(process, tables, number)


@entry("rt.destroy_notify", "k")
def _destroy_notify(process: AclProcess, handle: int) -> None:
    notify = _find(process, handle)
    del process.notifies[handle]
    if all(one.number != notify.number for one in process.notifies.values()):
        # When the last holder is deleted, a trigger of the database deletes the notify.
        with process.machine.transaction() as tables:
            statement = "DELETE FROM acl_notify_holder WHERE notify = ? AND process = ?"
            tables.execute(statement, (notify.number, process.machine.me(tables)))


@entry("rt.get_notify_id", "k", 0)
def _get_notify_id(process: AclProcess, handle: int) -> int:
    return _find(process, handle).number


# Work ---------------------------------------------------------------------------------------


@entry("rt.record_notify", "kk")
def _record_notify(process: AclProcess, handle: int, stream_handle: int) -> None:
    notify, stream = _find(process, handle), find_stream(process, stream_handle)

    def record() -> None:
        # If the emulated host's folder is lost, no process can see the record, so the error is
        # ignored.
        lost = suppress(HostLostError, sqlite3.OperationalError)
        with lost, process.machine.transaction() as tables:
            statement = "UPDATE acl_notify SET is_recorded = 1 WHERE number = ?"
            tables.execute(statement, (notify.number,))

    work = Work("rt.record_notify", (), record)
    process.queues.submit(stream, work)
    if process.is_slow:
        finish_later(process.lock, lambda: process.finish(stream, until=work.sequence))


def _take(process: AclProcess, number: int) -> bool:
    """Reset a notify if it is recorded. Return whether a wait for the notify ends.

    A wait ends if the notify was recorded, or does not exist any more.
    """
    with process.machine.transaction() as tables:
        statement = "UPDATE acl_notify SET is_recorded = 0 WHERE number = ? AND is_recorded"
        if tables.execute(statement, (number,)).rowcount:
            return True
        query = "SELECT number FROM acl_notify WHERE number = ?"
        return tables.execute(query, (number,)).fetchone() is None


@entry("rt.wait_and_reset_notify", "kkL")
def _wait_and_reset_notify(
    process: AclProcess, handle: int, stream_handle: int, timeout_s: int
) -> None:
    if timeout_s < 0:
        raise ValueError("timeout can't be a negative number!")
    if timeout_s >= _MOST_SECONDS:
        raise ValueError("timeout should be less than 2**32!")
    notify, stream = _find(process, handle), find_stream(process, stream_handle)

    def wait() -> None:
        # If the emulated host's folder is lost, the notify is lost too, so the wait ends.
        with suppress(HostLostError, sqlite3.OperationalError):
            while work in stream.queue and not _take(process, notify.number):
                time.sleep(_LOOK_AGAIN_S)

    work = Work("rt.wait_and_reset_notify", (), wait, caller=Caller())
    process.queues.submit(stream, work)


# Between processes --------------------------------------------------------------------------


def _check_ipc(process: AclProcess) -> None:
    if not process.profile.ipc_notifies:
        text = "this product or edition cannot share notifies between processes"
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)


def _exported(process: AclProcess, tables: sqlite3.Connection, number: int) -> tuple[str, bool]:
    """Return a notify's key, and whether imports check the notify's whitelist.

    The key is empty before the export. Refuse a notify that another process created.
    """
    query = "SELECT text, validates, owner FROM acl_notify WHERE number = ?"
    text, validates, owner = tables.execute(query, (number,)).fetchone()
    if owner != process.machine.me(tables):
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, "another process created the notify", _RULE)
    return text or "", bool(validates)


@entry("rt.notify_get_export_key", "kkK", "")
def _notify_get_export_key(process: AclProcess, handle: int, length: int, flags: int) -> str:
    if length >= _LONGEST_BUFFER:
        raise ValueError(f"key len should be less than {_LONGEST_BUFFER}")
    _check_ipc(process)
    notify = _find(process, handle)
    if length < KEY_NBYTES or flags not in _SHARE_FLAGS:
        raise Refused(Code.RT_PARAM_INVALID, f"length {length} or flags {flags} are invalid", _RULE)
    with process.machine.transaction() as tables:
        text, _ = _exported(process, tables, notify.number)
        if text:
            return text
        text = secrets.token_hex((KEY_NBYTES - 1) // 2)
        statement = "UPDATE acl_notify SET text = ?, validates = ? WHERE number = ?"
        tables.execute(statement, (text, int(not flags), notify.number))
        return text


@entry("rt.notify_set_import_pid", "kp")
def _notify_set_import_pid(process: AclProcess, handle: int, pids: list[int]) -> None:
    _check_ipc(process)
    notify = _find(process, handle)
    if not pids:
        raise Refused(Code.INVALID_PARAM, "the list of pids is null or empty")
    with process.machine.transaction() as tables:
        text, validates = _exported(process, tables, notify.number)
        if not text:
            raise Refused(Code.RT_PARAM_INVALID, "the notify was not exported", _RULE)
        if not validates:
            raise Refused(Code.RT_NO_PERMISSION, "the notify has no whitelist", _RULE)
        now = ticks_since_boot()
        tables.executemany(
            "INSERT OR REPLACE INTO acl_notify_admitted (notify, tgid, since) VALUES (?, ?, ?)",
            [(notify.number, pid, now) for pid in pids],
        )


@entry("rt.notify_import_by_key", "sK", 0)
def _notify_import_by_key(process: AclProcess, text: str, flags: int) -> int:
    _check_ipc(process)
    if flags not in _SHARE_FLAGS:
        raise Refused(Code.RT_PARAM_INVALID, f"flags {flags} are invalid", _RULE)
    device = process.current().device
    with process.machine.transaction() as tables:
        query = "SELECT number, device, owner, validates FROM acl_notify WHERE text = ?"
        row = tables.execute(query, (text,)).fetchone()
        if row is None or not process.machine.lives(tables, row[2]):
            text = "no notify of a living process has this key"
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, text)
        number, index, _, validates = row
        if validates and not is_admitted(tables, "acl_notify_admitted", "notify", number):
            text = "this process is not on the notify's whitelist"
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, _RULE)
        check_peer_access(process, device, index, int(bool(flags)))
        return _keep(process, tables, number)
