# SPDX-License-Identifier: Apache-2.0
"""Shareable handles: export, whitelist, import."""

import os
import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

from crossmem.models.identity import process_start_time
from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.schema import BARE_TGID_BASE
from crossmem_emulated.acl.vmm import Physical, check_vmm, find_physical, has_small_pages
from crossmem_emulated.machine import ticks_since_boot
from crossmem_emulated.pages import HOST

__all__ = ["admit", "check_peer", "export", "import_share", "is_admitted", "pack"]

_LARGEST_LIST: Final = 65535
_DEVICE_SHIFT: Final = 32
_NUMBER_MASK: Final = (1 << _DEVICE_SHIFT) - 1
_DISABLE_PID_VALIDATION: Final = 1
_Value = TypeVar("_Value")


@entry("rt.mem_export_to_shareable_handle", "kIK", 0)
def _mem_export_to_shareable_handle(
    process: AclProcess, handle: int, handle_type: int, flags: int
) -> int:
    check_vmm(process)
    if handle_type:
        raise Refused(Code.INVALID_PARAM, f"the type of the handle must be 0, not {handle_type}")
    return export(process, handle, flags, pack)


def export(
    process: AclProcess, handle: int, flags: int, describe: Callable[[Physical], _Value]
) -> _Value:
    """Export physical memory, and return the value that describes it to importers."""
    process.check_opened("ACL-E1c", Code.RT_CONTEXT_NULL)
    if not handle:
        raise Refused(Code.INVALID_PARAM, "the handle is null")
    largest = 0 if process.profile.disables_validation == "no" else _DISABLE_PID_VALIDATION
    if flags > largest:
        # The use of flag 1 is not recorded as a violation, because programs try flag 1 to find out
        # whether the driver knows this flag.
        rule = "ACL-E15" if flags > _DISABLE_PID_VALIDATION else None
        raise Refused(Code.RT_PARAM_INVALID, f"flags {flags} are invalid", rule)
    physical = find_physical(process, handle)
    if physical.share is not None:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"{handle:#x} is exported already", "ACL-E14")
    if physical.origin is Origin.IMPORTED:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"{handle:#x} is imported memory", "ACL-E14")
    is_late = bool(flags) and process.profile.disables_validation == "late"
    with process.machine.transaction() as tables:
        physical.share = tables.execute(
            "INSERT INTO acl_share (pages, owner, device, attribute, validates) "
            "VALUES (?, ?, ?, ?, ?)",
            (
                physical.pages.number,
                process.machine.me(tables),
                physical.device,
                physical.attribute,
                int(not flags or is_late),
            ),
        ).lastrowid
    value = describe(physical)
    if is_late:
        raise Refused(
            Code.RT_FEATURE_NOT_SUPPORT,
            "this driver cannot switch off the validation of pids, so the handle has a whitelist",
            outputs=(value,),
        )
    return value


def pack(physical: Physical) -> int:
    """Return the value that names exported memory."""
    # The numbers in the table begin at 1, but shareable handles begin at 0, as on real devices.
    number = (physical.share or 1) - 1
    return (max(physical.device, 0) << _DEVICE_SHIFT) | number


def _number(share: int) -> int:
    return (share & _NUMBER_MASK) + 1


def _find_share(
    process: AclProcess, tables: sqlite3.Connection, share: int
) -> tuple[int, int, int, int, bool]:
    """Return a shareable handle's pages, owner, device, attribute and ``validates``.

    ``validates`` says whether imports check the handle's whitelist. Refuse a handle that does not
    exist, or whose owner is dead.
    """
    row = tables.execute(
        "SELECT pages, owner, device, attribute, validates FROM acl_share WHERE number = ?",
        (_number(share),),
    ).fetchone()
    if row is None or max(row[2], 0) != share >> _DEVICE_SHIFT:
        raise Refused(Code.RT_INVALID_HANDLE, f"there is no shareable handle {share:#x}")
    if not process.machine.lives(tables, row[1]):
        raise Refused(Code.RT_INVALID_HANDLE, f"the process that exported {share:#x} is dead")
    pages, owner, device, attribute, validates = row
    return pages, owner, device, attribute, bool(validates)


@entry("rt.mem_set_pid_to_shareable_handle", "Kp")
def _mem_set_pid_to_shareable_handle(process: AclProcess, share: int, pids: list[int]) -> None:
    if not pids:
        raise TypeError("convert argument 2 to int32_t* failed")
    check_vmm(process)
    admit(process, share, pids)


def admit(process: AclProcess, share: int, pids: list[int]) -> None:
    """Put processes on the whitelist of a shareable handle."""
    if len(pids) > _LARGEST_LIST:
        raise Refused(
            Code.RT_PARAM_INVALID, f"a call admits at most {_LARGEST_LIST} pids, not {len(pids)}"
        )
    with process.machine.transaction() as tables:
        _, owner, _, _, validates = _find_share(process, tables, share)
        if owner != process.machine.me(tables):
            raise Refused(
                Code.RT_DRV_INTERNAL_ERROR, f"another process exported {share:#x}", "ACL-E16"
            )
        if not validates:
            text = f"{share:#x} has no whitelist"
            raise Refused(Code.RT_NO_PERMISSION, text, "ACL-E16")
        admitted = [pid for pid in pids if pid]
        if not admitted:
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, "all pids are 0", "ACL-E16")
        now = ticks_since_boot()
        tables.executemany(
            "INSERT OR REPLACE INTO acl_share_admitted (share, tgid, since) VALUES (?, ?, ?)",
            [(_number(share), pid, now) for pid in admitted],
        )


def is_admitted(tables: sqlite3.Connection, table: str, column: str, number: int) -> bool:
    """Whether this process's pid was put on a whitelist after this process had started.

    An older entry admitted another process with the same pid.

    Parameters
    ----------
    table, column
        The table of whitelists, and its column with the number of the export.
    number
        The number of the export.
    """
    row = tables.execute(
        f"SELECT since FROM {table} WHERE {column} = ? AND tgid = ?",  # noqa: S608 - our own names
        (number, os.getpid() + BARE_TGID_BASE),
    ).fetchone()
    return row is not None and (process_start_time("self") or 0) <= row[0]


def check_peer(process: AclProcess, call: str, device: int, index: int) -> None:
    """Record a violation if the importing device was not given access to the memory's device.

    ``device`` is the importing device's number in this process. ``index`` is the host-wide index of
    the memory's device.
    """
    home = process.ordinal_of(index)
    if index != HOST and process.visible[device] != index:
        state = process.devices.get(device)
        if state is None or home not in state.peers:
            text = f"device {device} was not given access to device {home}"
            process.violate(call, "ACL-X6", text)


@entry("rt.mem_import_from_shareable_handle", "Ki", 0)
def _mem_import_from_shareable_handle(process: AclProcess, share: int, device: int) -> int:
    check_vmm(process)
    return import_share(process, share, device)


def import_share(process: AclProcess, share: int, device: int) -> int:
    """Import memory for a device, and return the memory's handle in this process."""
    process.current()
    target = process.check_device(device)
    with process.machine.transaction() as tables:
        number, owner, index, attribute, validates = _find_share(process, tables, share)
        _check_own(process, share, owner == process.machine.me(tables), index == target)
        if validates and not is_admitted(tables, "acl_share_admitted", "share", _number(share)):
            raise Refused(
                Code.RT_DRV_INTERNAL_ERROR, f"this process may not import {share:#x}", "ACL-E17"
            )
        if has_small_pages(index, attribute):
            text = "host memory with normal pages cannot be imported"
            raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
        again = [
            one
            for one in process.physical.values()
            if one.imported_share == _number(share) and one.device == target
        ]
        if again:
            return _import_again(process, again[0], share)
        check_peer(process, "rt.mem_import_from_shareable_handle", device, index)
        pages = process.store.open(number, hold=True)
        if pages is None:
            raise Refused(Code.RT_INVALID_HANDLE, f"the memory of {share:#x} is gone")
    made = Physical(
        next(process.handles),
        target,
        attribute,
        pages,
        Origin.IMPORTED,
        imported_share=_number(share),
    )
    process.physical[made.handle] = made
    return made.handle


def _check_own(process: AclProcess, share: int, is_mine: bool, is_home: bool) -> None:  # noqa: FBT001
    if not is_mine:
        return
    text = f"this process itself exported {share:#x}"
    if is_home or process.profile.is_documented:
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E18")
    process.violate("rt.mem_import_from_shareable_handle", "ACL-E18", text)


def _import_again(process: AclProcess, physical: Physical, share: int) -> int:
    text = f"{share:#x} is imported already"
    if process.profile.is_documented:
        raise Refused(Code.RT_INVALID_HANDLE, text, "ACL-E19")
    process.violate("rt.mem_import_from_shareable_handle", "ACL-E19", text)
    physical.references += 1
    return physical.handle
