# SPDX-License-Identifier: Apache-2.0
"""Makes handles of memory for other processes, and invalidates the handles of freed memory."""

import os
import secrets
import sqlite3
import struct
from typing import Final, NamedTuple

from crossmem_emulated.addresses import Piece
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import HipProcess, Quirk
from crossmem_emulated.hip.profiles import Profile

__all__ = ["TOKEN_NBYTES", "Handle", "enter", "is_intact", "take_apart", "withdraw"]

_TOKEN: Final = struct.Struct("<QIIIIII")
"""The token in a handle, in the format of AMD's library ROCr: address, pid, kind of memory, node,
zero, fragment, random number."""
TOKEN_NBYTES: Final = _TOKEN.size
_REST: Final = struct.Struct("<QQii8x")
"""The rest of a handle: size, offset, pid, and the number of the exporter's current device."""


class Handle(NamedTuple):
    """The parts of a handle. The handle has the layout of AMD's runtime."""

    token: bytes
    nbytes: int
    offset: int
    pid: int
    ordinal: int


def take_apart(handle: bytes) -> Handle:
    """Return the parts of a handle. This function does not detect forged handles."""
    token, rest = handle[: _TOKEN.size], handle[_TOKEN.size :]
    return Handle(token, *_REST.unpack(rest))


def is_intact(profile: Profile, handle: bytes, parts: Handle, nbytes: int, pid: int) -> bool:
    """Whether a handle is unchanged in all parts that the profile checks.

    ``nbytes`` is the original size in bytes, and ``pid`` is the exporter's pid.
    """
    if not profile.is_documented:
        return parts.nbytes == nbytes
    expected = parts.token + _REST.pack(nbytes, parts.offset, pid, 0)
    return handle == expected and parts.offset < nbytes


@entry("ipcGetMemHandle(intptr_t devPtr)")
def _ipc_get_mem_handle(process: HipProcess, pointer: int) -> bytes:
    piece = _exportable(process, pointer)
    if process.has(Quirk.NO_EXPORT):
        raise Refused(Status.INVALID_VALUE, "exports do not work on this kernel")
    current = process.current().device
    if process.profile.is_hip and process.setup.visible[current] != piece.pages.device:
        process.violate(
            "ipcGetMemHandle",
            "HIP-E14",
            f"device {current} is current, and the memory is on another device",
        )
    numbers = process.exports.setdefault(piece.start, [])
    with process.machine.transaction() as tables:
        if not numbers or process.has(Quirk.FRESH_HANDLES):
            numbers.append(enter(process, tables, piece, current))
        query = "SELECT token, ordinal FROM hip_share WHERE number = ?"
        token, ordinal = tables.execute(query, (numbers[-1],)).fetchone()
    pid = os.getpid() if process.profile.knows_own_pid else 0
    ordinal = ordinal if process.profile.keeps_ordinals else 0
    return bytes(token + _REST.pack(piece.nbytes, pointer - piece.start, pid, ordinal))


def _exportable(process: HipProcess, pointer: int) -> Piece:
    """Return the allocation that contains an address. Refuse memory that cannot be exported."""
    for piece in process.space.overlapping(pointer, 1):
        if piece.origin is Origin.MALLOC:
            return piece
        rule = "HIP-E2" if piece.origin is Origin.IPC else "HIP-E16"
        raise Refused(
            Status.INVALID_VALUE, f"the memory at {pointer:#x} was made by {piece.origin}", rule
        )
    for start, block in process.host_blocks.items():
        if start <= pointer < start + block.nbytes:
            text = f"{pointer:#x} is in host memory or in managed memory"
            raise Refused(Status.INVALID_VALUE, text, "HIP-E16")
    raise Refused(Status.INVALID_VALUE, f"{pointer:#x} is in no allocation", "HIP-E2")


def enter(process: HipProcess, tables: sqlite3.Connection, piece: Piece, current: int) -> int:
    """Record an export, so that other processes can open the memory. Return the record's number.

    ``current`` is the current device.
    """
    tag = 0 if process.has(Quirk.REUSED_HANDLES) else secrets.randbits(32)
    token = _TOKEN.pack(piece.start, os.getpid(), 0, piece.pages.device + 1, 0, 0, tag)
    number = tables.execute(
        "INSERT INTO hip_share "
        "(token, pages, owner, device, ordinal, pid, address, first, nbytes) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            token,
            piece.pages.number,
            process.machine.me(tables),
            piece.pages.device,
            current,
            os.getpid(),
            piece.start,
            piece.offset,
            piece.nbytes,
        ),
    ).lastrowid
    return int(number or 0)


def withdraw(process: HipProcess, call: str, piece: Piece) -> bool:
    """Delete the exports of memory that is being freed. Return whether the memory had exports.

    A process that opens a handle later does not find the export. Processes that have the memory
    open keep the memory, although the vendors leave this undefined (HIP-E10). ``call`` is the
    function that the program called to free the memory; the record of a violation names ``call``.
    """
    numbers = process.exports.pop(piece.start, [])
    if not numbers:
        return False
    with process.machine.transaction() as tables:
        process.machine.reap(tables)
        marks = ", ".join("?" * len(numbers))
        importers: int = tables.execute(
            f"SELECT count(DISTINCT process) FROM hip_import WHERE share IN ({marks})",  # noqa: S608
            numbers,
        ).fetchone()[0]
        tables.execute(f"DELETE FROM hip_share WHERE number IN ({marks})", numbers)  # noqa: S608
    if importers:
        process.violate(
            call, "HIP-E10", f"{piece.start:#x} is freed while {importers} processes have it open"
        )
    return True
