# SPDX-License-Identifier: Apache-2.0
"""IPC by key: export, whitelist, import, close."""

import os
import sqlite3
from dataclasses import dataclass
from typing import Final, NamedTuple

from crossmem_emulated import memory
from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import GRANULARITY_NBYTES, KEY_NBYTES, Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.release import end_key
from crossmem_emulated.acl.schema import BARE_TGID_BASE
from crossmem_emulated.acl.shares import is_admitted
from crossmem_emulated.addresses import Piece
from crossmem_emulated.machine import ticks_since_boot
from crossmem_emulated.pages import HOST, Pages

__all__ = [
    "KeyImport",
    "admit_by_key",
    "check_known",
    "check_owner",
    "check_peer_access",
    "is_withdrawn",
]

_LONGEST_BUFFER: Final = 1024
_LARGEST_LIST: Final = 31
_LARGEST_WHITELIST: Final = 32768
_DISABLE_PID_VALIDATION: Final = 1
_ENABLE_PEER_ACCESS: Final = 1


@dataclass(slots=True, eq=False)
class KeyImport:
    """Memory that this process imported by key."""

    number: int
    text: str
    pages: Pages
    piece: Piece
    device: int
    """Host-wide index of the device for which the memory was imported."""
    references: int = 1
    """The number of imports of the key that this process has not closed."""


def _check_keys(process: AclProcess) -> None:
    if not process.profile.keys:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this product has no IPC by key")


@entry("rt.ipc_mem_get_export_key", "kkkK", "")
def _ipc_mem_get_export_key(
    process: AclProcess, pointer: int, size: int, length: int, flags: int
) -> str:
    if length >= _LONGEST_BUFFER:
        raise ValueError(f"len must be below {_LONGEST_BUFFER}")
    _check_keys(process)
    process.current()
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    if not size or length < KEY_NBYTES or flags > _DISABLE_PID_VALIDATION:
        raise Refused(
            Code.RT_PARAM_INVALID, f"size {size}, length {length} or flags {flags} are invalid"
        )
    piece = _exportable(process, pointer, size)
    with process.machine.transaction() as tables:
        number = tables.execute(
            "INSERT INTO acl_key (text, pages, first, nbytes, owner, device, validates, is_small) "
            "VALUES (hex(randomblob(16)), ?, ?, ?, ?, ?, ?, ?)",
            (
                piece.pages.number,
                piece.offset + pointer - piece.start,
                size,
                process.machine.me(tables),
                piece.pages.device,
                int(not flags),
                int(piece.is_small),
            ),
        ).lastrowid
        # The drivers of A2 and A3 use this format: the numbers of the process, the key, the device,
        # the virtual function and the server.
        text = f"{os.getpid():08x}{number:016x}{piece.pages.device:02x}{0:02x}{0:08x}".ljust(
            KEY_NBYTES - 1, "0"
        )
        tables.execute("UPDATE acl_key SET text = ? WHERE number = ?", (text, number))
    piece.keys.add(text)
    return text


def _exportable(process: AclProcess, pointer: int, size: int) -> Piece:
    """Return the memory that contains a range. Refuse a range that cannot be exported by key."""
    pieces = process.space.overlapping(pointer, size)
    wrong, rule = None, None
    if len(pieces) != 1 or not pieces[0].start <= pointer <= pointer + size <= pieces[0].end:
        wrong = "do not lie in one allocation"
    elif pieces[0].origin is Origin.KEY:
        wrong = "were imported by key"
    elif pieces[0].origin is Origin.IMPORTED:
        wrong = "were imported"
    elif pieces[0].origin is Origin.PHYSICAL and pieces[0].source.share is not None:
        wrong = "are exported as a shareable handle"
    elif pieces[0].is_read_only:
        wrong = "are read-only"
    elif pieces[0].pages.device == HOST:
        wrong = "are memory of the host"
    elif pointer % (memory.PAGE_NBYTES if pieces[0].is_small else GRANULARITY_NBYTES):
        wrong, rule = "do not begin at a page boundary", "ACL-E23"
    if wrong is not None:
        text = f"{size} bytes at {pointer:#x} {wrong}"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, rule or "ACL-E14")
    return pieces[0]


class _Key(NamedTuple):
    """The row of a key in the emulated host's database."""

    number: int
    pages: int
    first: int
    nbytes: int
    owner: int
    device: int
    validates: int
    """Whether only processes on the key's whitelist may import the memory."""
    is_small: int
    """Whether the memory has small pages."""
    is_closed: int
    """Whether the exporter closed the key, or released the memory, while imports were open."""


def _find_key(tables: sqlite3.Connection, text: str, closed: Code = Code.RT_INVALID_HANDLE) -> _Key:
    """Return the record of a key. Refuse an unknown or closed key.

    ``closed`` is the code with which a closed key is refused. A key is also closed if the exporter
    has released the memory.
    """
    query = f"SELECT {', '.join(_Key._fields)} FROM acl_key WHERE text = ?"  # noqa: S608 - our own
    row = tables.execute(query, (text,)).fetchone()
    if row is None:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"there is no key {text!r}")
    found = _Key(*row)
    if found.is_closed:
        raise Refused(closed, f"the exporter closed the key {text!r}, or released its memory")
    return found


@entry("rt.ipc_mem_set_import_pid", "sp")
def _ipc_mem_set_import_pid(process: AclProcess, text: str, pids: list[int]) -> None:
    _check_keys(process)
    process.current()
    if not pids:
        raise Refused(Code.INVALID_PARAM, "the list of pids is null or empty")
    admit_by_key(process, text, pids)


def check_known(process: AclProcess, text: str) -> None:
    """Refuse an unknown or closed key."""
    _check_keys(process)
    process.current()
    with process.machine.transaction() as tables:
        _find_key(tables, text)


def check_owner(process: AclProcess, text: str) -> None:
    """Refuse a key that another process exported, and an unknown or closed key."""
    _check_keys(process)
    process.current()
    with process.machine.transaction() as tables:
        if _find_key(tables, text).owner != process.machine.me(tables):
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, "another process exported the key", "ACL-E16")


def admit_by_key(process: AclProcess, text: str, pids: list[int]) -> None:
    """Put processes on the whitelist of a key."""
    if len(pids) > _LARGEST_LIST:
        raise Refused(
            Code.RT_PARAM_INVALID, f"a call admits at most {_LARGEST_LIST} pids, not {len(pids)}"
        )
    with process.machine.transaction() as tables:
        key = _find_key(tables, text)
        if key.owner != process.machine.me(tables):
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, "another process exported the key", "ACL-E16")
        if not key.validates:
            raise Refused(Code.RT_NO_PERMISSION, "the key has no whitelist", "ACL-E16")
        mine = os.getpid() + BARE_TGID_BASE
        admitted = [pid for pid in pids if pid not in {0, mine}]
        if not admitted:
            raise Refused(
                Code.RT_DRV_INTERNAL_ERROR, "the list has no pid of another process", "ACL-E16"
            )
        now = ticks_since_boot()
        tables.executemany(
            "INSERT OR REPLACE INTO acl_key_admitted (key, tgid, since) VALUES (?, ?, ?)",
            [(key.number, pid, now) for pid in admitted],
        )
        query = "SELECT count(*) FROM acl_key_admitted WHERE key = ?"
        if tables.execute(query, (key.number,)).fetchone()[0] > _LARGEST_WHITELIST:
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, "the key's whitelist is full")


@entry("rt.ipc_mem_import_by_key", "sK", 0)
def _ipc_mem_import_by_key(process: AclProcess, text: str, flags: int) -> int:
    _check_keys(process)
    if flags > _ENABLE_PEER_ACCESS:
        raise Refused(Code.RT_PARAM_INVALID, f"flags {flags} are invalid")
    context = process.current()
    target = process.visible[context.device]
    with process.machine.transaction() as tables:
        key = _find_key(tables, text, closed=Code.RT_DRV_INTERNAL_ERROR)
        opened: KeyImport | None = process.opened_keys.get(text)
        if opened is not None:
            if opened.device != target:
                raise Refused(
                    Code.RT_DRV_INTERNAL_ERROR,
                    "this process has imported the key for another device",
                    "ACL-E25",
                )
            opened.references += 1
            return opened.piece.start
        me = process.machine.me(tables)
        if not process.machine.lives(tables, key.owner):
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, "the exporter of the key is dead")
        if key.owner == me and process.profile.is_documented:
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, "this process exported the key", "ACL-E24")
        if key.validates and not is_admitted(tables, "acl_key_admitted", "key", key.number):
            raise Refused(
                Code.RT_DRV_INTERNAL_ERROR, "the key's whitelist lacks this process", "ACL-E24"
            )
        check_peer_access(process, context.device, key.device, flags)
        made = _open(process, text, key, target)
        tables.execute(
            "INSERT OR IGNORE INTO acl_key_opener (key, process) VALUES (?, ?)", (key.number, me)
        )
    process.opened_keys[text] = made
    return made.piece.start


def check_peer_access(process: AclProcess, device: int, index: int, flags: int) -> None:
    """Refuse to import memory or a notify for a device that has no access to the home device.

    The home device is the device that has the memory or notify. If this process does not see the
    home device, the import is allowed.

    Parameters
    ----------
    device
        The number, in this process, of the device for which the memory or notify is imported.
    index
        The host-wide index of the home device.
    flags
        If bit 0 is set, the import enables the access and is not refused.
    """
    home = process.ordinal_of(index)
    if process.visible[device] == index or home is None:
        return
    peers = process.devices[device].peers
    if flags & _ENABLE_PEER_ACCESS:
        peers.add(home)
    elif home not in peers:
        text = f"device {device} was not given access to device {home}"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-X6")


def _open(process: AclProcess, text: str, key: _Key, target: int) -> KeyImport:
    pages = process.store.open(key.pages, hold=False)
    if pages is None:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, "the memory of the key is gone")
    try:
        region = process.space.reserve(
            -(-key.nbytes // GRANULARITY_NBYTES) * GRANULARITY_NBYTES, is_reservation=False
        )
    except memory.SystemCallError as error:
        process.store.release(pages)
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"cannot reserve addresses: {error}") from None
    piece = Piece(
        region.start,
        key.nbytes,
        region,
        pages,
        key.first,
        Origin.KEY,
        is_small=bool(key.is_small),
    )
    process.space.attach(piece)
    made = KeyImport(key.number, text, pages, piece, target)
    piece.source = made
    return made


@entry("rt.ipc_mem_close", "s")
def _ipc_mem_close(process: AclProcess, text: str) -> None:
    _check_keys(process)
    process.current()
    opened: KeyImport | None = process.opened_keys.get(text)
    if opened is not None:
        opened.references -= 1
        if not opened.references:
            _close_import(process, opened)
        return
    with process.machine.transaction() as tables:
        process.machine.reap(tables)
        key = _find_key(tables, text)
        if key.owner != process.machine.me(tables):
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, "another process exported the key", "ACL-E26")
        openers = end_key(tables, text)
    for piece in process.space.pieces.values():
        piece.keys.discard(text)
    if openers:
        process.violate(
            "rt.ipc_mem_close", "ACL-E26", f"{openers} processes still have the key imported"
        )


def _close_import(process: AclProcess, opened: KeyImport) -> None:
    piece = opened.piece
    process.check_idle("rt.ipc_mem_close", piece.start, piece.nbytes)
    del process.opened_keys[opened.text]
    process.space.detach(piece)
    process.space.release(piece.region)
    process.store.release(opened.pages)
    with process.machine.transaction() as tables:
        tables.execute(
            "DELETE FROM acl_key_opener WHERE key = ? AND process = ?",
            (opened.number, process.machine.me(tables)),
        )


def is_withdrawn(process: AclProcess, opened: KeyImport) -> str | None:
    """Return the reason for which imported memory is gone, or None if the memory still exists.

    ``"dead"``: the exporter is dead. ``"closed"``: the exporter closed the key or released the
    memory.
    """
    with process.machine.transaction() as tables:
        row = tables.execute(
            "SELECT owner, is_closed FROM acl_key WHERE number = ?", (opened.number,)
        ).fetchone()
        # The record of a key is deleted with the record of its exporter.
        if row is None or not process.machine.lives(tables, row[0]):
            return "dead"
        return "closed" if row[1] else None
