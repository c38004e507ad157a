# SPDX-License-Identifier: Apache-2.0
"""The functions that open and close exported memory."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmem_emulated.addresses import BLOCK_NBYTES, Piece, Region
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.exports import Handle, is_intact, take_apart
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import Context, HipProcess, Quirk
from crossmem_emulated.hip.reserves import Pool
from crossmem_emulated.hip.streams import check_idle, check_safe, finish_device
from crossmem_emulated.pages import Pages

__all__ = ["Import", "check_from_pool", "close_import", "close_once", "open_share"]


@dataclass(slots=True, eq=False)
class Import:
    """Memory that this process opened."""

    share: int
    """The number of the export in the table ``hip_share``."""
    token: bytes
    """The bytes that name the export in a handle."""
    owner: int
    """The number of the exporting process in the emulated host's database."""
    pid: int
    pages: Pages
    piece: Piece
    pointer: int
    nbytes: int
    device: int
    """The device that was current when this process last opened the memory."""
    context: Context
    record: int
    """The number of the import in the table ``hip_import``."""
    pool: Pool | None = None
    """The pool into which the memory was imported; None if ``ipcOpenMemHandle`` opened it."""
    references: int = 1
    """The number of calls that opened the memory and that are not undone yet."""


@entry("ipcOpenMemHandle(bytes handle, unsigned int flags=cudaIpcMemLazyEnablePeerAccess)")
def _ipc_open_mem_handle(process: HipProcess, handle: bytes, flags: int) -> int:
    check_safe(process)
    profile, parts = process.profile, take_apart(handle)
    _check_arguments(process, parts, flags)
    context = process.current()
    if profile.looks_first and not process.has(Quirk.NEW_ADDRESSES):
        for opened in process.imports:
            is_known = opened.token == parts.token and is_intact(
                profile, handle, parts, opened.nbytes, opened.pid
            )
            if is_known and _is_same_place(process, opened, context):
                return _open_again(opened, context)
    with process.machine.transaction() as tables:
        row = _find(process, tables, handle, parts)
        if not process.has(Quirk.NEW_ADDRESSES):
            for opened in process.imports:
                if opened.share == row["number"] and _is_same_place(process, opened, context):
                    return _open_again(opened, context)
        _check_context(process, row["owner"], row["device"], context)
        _check_reach(process, context, row["device"])
        made = _open(process, tables, row, parts.token, context)
        if made is None:
            raise Refused(profile.stale, "the memory is gone")
    process.imports.append(made)
    return made.pointer


def open_share(process: HipProcess, token: bytes, pool: Pool) -> int | None:
    """Open an exported allocation of a pool, and return its address in this process.

    ``pool`` is this process's import of the pool, and the allocation becomes memory of ``pool``. If
    no living process exports an allocation with the token ``token``, return None.
    """
    context = process.current()
    with process.machine.transaction() as tables:
        row = _row_of(tables, token)
        if row is None or not process.machine.lives(tables, row["owner"]):
            return None
        for opened in process.imports:
            if opened.share == row["number"] and opened.pool is pool:
                return _open_again(opened, context)
        _check_reach(process, context, row["device"])
        made = _open(process, tables, row, token, context)
        if made is None:
            return None
    made.pool = pool
    process.imports.append(made)
    return made.pointer


def _open(
    process: HipProcess,
    tables: sqlite3.Connection,
    row: dict[str, Any],
    token: bytes,
    context: Context,
) -> Import | None:
    """Map exported memory, and record the import in the tables.

    Return None if the memory or its owner is gone.
    """
    pages = process.store.open(row["pages"], hold=True)
    if pages is None:
        return None
    try:
        made = _map(process, row, token, pages, context)
        statement = "INSERT INTO hip_import (share, process) VALUES (?, ?)"
        entered = tables.execute(statement, (row["number"], process.machine.me(tables)))
        made.record = int(entered.lastrowid or 0)
    except BaseException:
        process.store.release(pages)
        raise
    return made


def _check_arguments(process: HipProcess, parts: Handle, flags: int) -> None:
    profile = process.profile
    wanted = 1 if profile.lazy_flag is None else profile.lazy_flag
    if flags != wanted:
        text = f"the flags must be {wanted}, not {flags}"
        if profile.lazy_flag is not None or not flags & 1:
            raise Refused(Status.INVALID_VALUE, text, "HIP-E3")
        process.violate("ipcOpenMemHandle", "HIP-E3", text)
    if not parts.nbytes and profile.is_hip:
        raise Refused(Status.INVALID_VALUE, "the size in the handle is 0")
    if profile.knows_own_pid and parts.pid == os.getpid():
        raise Refused(Status.INVALID_CONTEXT, "this process made the handle itself", "HIP-E3")
    if process.has(Quirk.FOREIGN_NAMESPACE):
        raise Refused(profile.foreign, "the exporter is in another pid namespace")
    if profile.keeps_ordinals and parts.ordinal >= len(process.setup.visible):
        raise Refused(Status.INVALID_VALUE, f"this process has no device {parts.ordinal}")


def _find(
    process: HipProcess, tables: sqlite3.Connection, handle: bytes, parts: Handle
) -> dict[str, Any]:
    """Return the record of the export that a handle names. Refuse an invalid handle."""
    found = _row_of(tables, parts.token)
    if found is None:
        is_dead = parts.pid > 0 and not Path(f"/proc/{parts.pid}").exists()
        status = process.profile.dead if is_dead else process.profile.stale
        raise Refused(status, "the memory was not exported, or was freed")
    if not is_intact(process.profile, handle, parts, found["nbytes"], found["pid"]):
        raise Refused(process.profile.stale, "the handle was changed")
    if not process.machine.lives(tables, found["owner"]):
        raise Refused(process.profile.dead, "the process that made the handle is dead")
    return found


def _row_of(tables: sqlite3.Connection, token: bytes) -> dict[str, Any] | None:
    """Return the record of the export that a token names; None if there is no such export."""
    columns = ("number", "pages", "owner", "device", "pid", "address", "first", "nbytes")
    row = tables.execute(
        f"SELECT {', '.join(columns)} FROM hip_share WHERE token = ?",  # noqa: S608
        (token,),
    ).fetchone()
    return None if row is None else dict(zip(columns, row, strict=True))


def _is_same_place(process: HipProcess, opened: Import, context: Context) -> bool:
    """Whether opening the memory of ``opened`` again, in ``context``, returns the same mapping."""
    return not process.profile.has_contexts or opened.context is context


def _open_again(opened: Import, context: Context) -> int:
    opened.references += 1
    opened.device = context.device
    return opened.pointer


def _check_context(process: HipProcess, owner: int, index: int, context: Context) -> None:
    for opened in process.imports:
        is_shared = opened.owner == owner and opened.pages.device == index
        if is_shared and opened.context.device == context.device and opened.context is not context:
            text = f"memory of this exporter is open in another context of device {context.device}"
            raise Refused(Status.INVALID_HANDLE, text, "HIP-E13")


def _check_reach(process: HipProcess, context: Context, index: int) -> None:
    here = process.setup.visible[context.device]
    if not process.can_reach(here, index):
        raise Refused(
            process.profile.unreachable, f"device {context.device} cannot reach the memory"
        )
    home = process.ordinal_of(index)
    if home is not None and here != index and not process.has(Quirk.IGNORED_FLAG):
        context.peers.add(home)


def _map(
    process: HipProcess, row: dict[str, Any], token: bytes, pages: Pages, context: Context
) -> Import:
    """Map all pages that contain exported memory. The address differs from the exporter's."""
    size = -(-pages.nbytes // BLOCK_NBYTES) * BLOCK_NBYTES
    avoided: list[Region] = []
    try:
        region = process.space.reserve(size, is_reservation=False)
        if region.start == row["address"] - row["first"]:
            avoided.append(region)
            region = process.space.reserve(size, is_reservation=False)
    finally:
        for one in avoided:
            process.space.release(one)
    is_part = row["nbytes"] < BLOCK_NBYTES and pages.nbytes == BLOCK_NBYTES
    nbytes = pages.nbytes if is_part else row["nbytes"]
    piece = Piece(region.start, nbytes, region, pages, 0, Origin.IPC)
    process.space.attach(piece)
    made = Import(
        share=row["number"],
        token=token,
        owner=row["owner"],
        pid=row["pid"],
        pages=pages,
        piece=piece,
        pointer=region.start + row["first"],
        nbytes=row["nbytes"],
        device=context.device,
        context=context,
        record=0,
    )
    piece.source = made
    return made


# Close --------------------------------------------------------------------------------------


@entry("ipcCloseMemHandle(intptr_t devPtr)")
def _ipc_close_mem_handle(process: HipProcess, pointer: int) -> None:
    check_safe(process)
    opened = _opened_at(process, pointer)
    finish_device(process, opened.device)
    close_once(process, "ipcCloseMemHandle", opened)


def check_from_pool(opened: Import) -> None:
    """Refuse to free memory that ``ipcOpenMemHandle`` opened: a program must close such memory."""
    if opened.pool is None:
        raise Refused(Status.INVALID_VALUE, f"{opened.pointer:#x} was imported", "HIP-E11")


def close_once(process: HipProcess, call: str, opened: Import) -> None:
    """Undo one call that opened memory. Unmap the memory if all such calls are undone."""
    opened.references -= 1
    if not opened.references:
        close_import(process, call, opened)


def close_import(process: HipProcess, call: str, opened: Import) -> None:
    """Unmap opened memory, even if it was opened several times."""
    process.imports.remove(opened)
    piece = opened.piece
    check_idle(process, call, piece.start, piece.nbytes)
    process.space.detach(piece)
    process.space.release(piece.region)
    with process.machine.transaction() as tables:
        tables.execute("DELETE FROM hip_import WHERE number = ?", (opened.record,))
    if process.has(Quirk.LEAK_ON_CLOSE):
        process.leaked.append(opened.pages)
    else:
        process.store.release(opened.pages)


def _opened_at(process: HipProcess, pointer: int) -> Import:
    for opened in process.imports:
        if opened.pool is not None:
            continue
        is_inside = opened.pointer <= pointer < opened.pointer + opened.nbytes
        if pointer == opened.pointer or (is_inside and process.profile.closes_inside):
            if pointer != opened.pointer:
                process.violate(
                    "ipcCloseMemHandle",
                    "HIP-E6",
                    f"{pointer:#x} is not the first address of opened memory",
                )
            return opened  # type: ignore[no-any-return]
    raise Refused(Status.INVALID_VALUE, f"{pointer:#x} was not opened", "HIP-E6")
