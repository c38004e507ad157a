# SPDX-License-Identifier: Apache-2.0
"""Memory of an emulated host and its devices. Each process of the host can open the memory."""

import os
import sqlite3
import struct
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES
from os import close
from pathlib import Path
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.machine import Machine

__all__ = ["HOST", "DeviceFullError", "NoRoomError", "PageStore", "Pages"]

HOST: Final = -1
"""The value of ``device`` for host memory, which is charged to no device."""

_POISON: Final = 0xA5
_POISONED_NBYTES: Final = 64 << 10
_LABEL: Final = struct.Struct("<16sQQQQqQ")
"""The label in the file of labelled memory: magic, identities of host and file, device and size."""
_MAGIC: Final = b"crossmem pages"


class NoRoomError(Exception):
    """The device, the host or this process has no room."""


class DeviceFullError(NoRoomError):
    """The device has no room, until a process frees memory of the device."""


@dataclass(slots=True, eq=False)
class Pages:
    """Memory of a device or of the host, as one process has mapped it.

    Parameters
    ----------
    number
        The memory's number on the emulated host.
    device
        Index of the device on the host, or ``HOST``.
    nbytes
        Size in bytes.
    address
        Address at which the emulation uses the memory; 0 after the release. The program does not
        know this address.
    descriptor
        This process's descriptor of the memory. None if the descriptor was closed, or if
        :meth:`PageStore.open` opened the memory.
    holding
        Number of a row in the table ``holding``. While the row exists, the memory stays charged to
        the device ``device``. None: this process has no such row.
    """

    number: int
    device: int
    nbytes: int
    address: int
    descriptor: int | None
    holding: int | None


class PageStore:
    """Allocates, opens and releases memory of devices with ``capacity_nbytes`` bytes each."""

    def __init__(self, machine: Machine, capacity_nbytes: int) -> None:
        self.machine = machine
        self.capacity_nbytes = capacity_nbytes
        self._flags = memory.creation_flags()

    def used_nbytes(self, device: int) -> int:
        """Return the total size, in bytes, of the memory that is charged to a device."""
        with self.machine.transaction() as tables:
            self.machine.reap(tables)
            return _used(tables, device)

    def allocate(self, device: int, nbytes: int, *, is_labelled: bool = False) -> Pages:
        """Allocate memory, and fill its first 64 KiB with 0xA5.

        The contents of a vendor's new memory are undefined. The fill exposes a program that expects
        zeros.

        Parameters
        ----------
        device
            Index of the device on the host, or ``HOST``.
        nbytes
            Size in bytes, a multiple of the page size.
        is_labelled
            Whether the memory's file has a label, by which :meth:`receive` identifies the memory.
            The label is in the file, after the memory, because a descriptor may outlive the
            memory's row in the tables. The row is deleted when no process holds the memory any
            more.

        Raises
        ------
        DeviceFullError
            The device has no room.
        NoRoomError
            The host has no room, or this process has run out of descriptors or addresses.
        """
        with self.machine.transaction() as tables:
            if device != HOST and _used(tables, device) + nbytes > self.capacity_nbytes:
                self.machine.reap(tables)
                if _used(tables, device) + nbytes > self.capacity_nbytes:
                    raise DeviceFullError
            try:
                spare = memory.PAGE_NBYTES if is_labelled else 0
                descriptor, address = memory.create(
                    nbytes, self._flags, is_inherited=False, unmapped_nbytes=spare
                )
            except memory.SystemCallError as error:
                raise NoRoomError(str(error)) from None
            pages = Pages(0, device, nbytes, address, descriptor, None)
            self.machine.undo(self._let_go, pages)
            memory.fill(address, min(nbytes, _POISONED_NBYTES), _POISON)
            if is_labelled:
                os.pwrite(descriptor, self._label(_file_of(descriptor), device, nbytes), nbytes)
            me = self.machine.me(tables)
            pages.number = _enter(tables, (device, nbytes, me, descriptor, *_file_of(descriptor)))
            pages.holding = _hold(tables, pages.number, me)
            return pages

    def open(self, number: int, *, hold: bool) -> Pages | None:
        """Return memory of another process, or None if the memory or its owner is gone.

        Parameters
        ----------
        number
            The memory's number on the emulated host.
        hold
            Whether the memory stays charged to its device as long as this process has it open.

        Raises
        ------
        NoRoomError
            The memory cannot be opened or mapped, for example because this process has run out of
            descriptors or addresses.
        """
        with self.machine.transaction() as tables:
            row = tables.execute(
                "SELECT pages.device, nbytes, descriptor, filesystem, inode, pid, process.number "
                "FROM pages "
                "JOIN process ON process.number = owner WHERE pages.number = ?",
                (number,),
            ).fetchone()
            if row is None or not self.machine.lives(tables, row[-1]):
                return None
            device, nbytes, descriptor, filesystem, inode, pid, _ = row
            try:
                opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _file_of(opened) != (filesystem, inode):
                        return None
                    address = memory.map_shared(
                        opened, nbytes, memory.READ_WRITE, is_inherited=False
                    )
                finally:
                    close(opened)
            except (FileNotFoundError, ProcessLookupError):
                return None
            except OSError as error:
                if isinstance(error, PermissionError) and _is_ending(pid):
                    return None
                raise NoRoomError(str(error)) from None
            pages = Pages(number, device, nbytes, address, None, None)
            self.machine.undo(self._let_go, pages)
            if hold:
                pages.holding = _hold(tables, number, self.machine.me(tables))
            return pages

    def receive(self, descriptor: int) -> Pages | None:
        """Return the memory to which a descriptor refers.

        Return None if the file is not labelled memory of this emulated host. The method uses a
        duplicate of the descriptor, so the caller must still close ``descriptor``.

        Raises
        ------
        NoRoomError
            This process has run out of descriptors or addresses.
        """
        size = memory.sealed_nbytes(descriptor)
        if size is None or size <= memory.PAGE_NBYTES:
            return None
        nbytes, file = size - memory.PAGE_NBYTES, _file_of(descriptor)
        label = os.pread(descriptor, _LABEL.size, nbytes)
        device: int = _LABEL.unpack(label)[-2]
        if label != self._label(file, device, nbytes):
            return None
        with self.machine.transaction() as tables:
            try:
                own = os.dup(descriptor)
                try:
                    address = memory.map_shared(own, nbytes, memory.READ_WRITE, is_inherited=False)
                except BaseException:
                    close(own)
                    raise
            except OSError as error:
                if error.errno == EACCES:
                    # The emulation's descriptors are open for writing, so this is not one of them.
                    return None
                raise NoRoomError(str(error)) from None
            pages = Pages(0, device, nbytes, address, own, None)
            self.machine.undo(self._let_go, pages)
            me = self.machine.me(tables)
            row = tables.execute(
                "SELECT number FROM pages WHERE filesystem = ? AND inode = ?", file
            ).fetchone()
            pages.number = row[0] if row else _enter(tables, (device, nbytes, me, own, *file))
            pages.holding = _hold(tables, pages.number, me)
            return pages

    def _label(self, file: tuple[int, int], device: int, nbytes: int) -> bytes:
        return _LABEL.pack(_MAGIC, *self.machine.identity, *file, device, nbytes)

    def release(self, pages: Pages) -> None:
        """Release the memory in this process. The kernel frees memory that no process uses."""
        with self.machine.transaction() as tables:
            if pages.holding is not None:
                tables.execute("DELETE FROM holding WHERE number = ?", (pages.holding,))
                tables.execute(
                    "DELETE FROM pages WHERE number = ? AND NOT EXISTS "
                    "(SELECT 1 FROM holding WHERE holding.pages = pages.number)",
                    (pages.number,),
                )
        self._let_go(pages)

    def _let_go(self, pages: Pages) -> None:
        """Unmap the memory and close the descriptor, if this was not done yet."""
        address, pages.address = pages.address, 0
        if address:
            memory.unmap(address, pages.nbytes)
        self.close_descriptor(pages)

    def close_descriptor(self, pages: Pages) -> None:
        """Close this process's descriptor of the memory. The mapping stays."""
        descriptor, pages.descriptor = pages.descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                close(descriptor)


def _is_ending(pid: int) -> bool:
    """Whether a process is ending and has released its memory.

    After the release, the kernel lets only root use the process's descriptors through ``/proc``.
    """
    try:
        return Path(f"/proc/{pid}/statm").read_bytes().startswith(b"0 ")
    except (FileNotFoundError, ProcessLookupError):
        return True


def _file_of(descriptor: int) -> tuple[int, int]:
    """Return the device number and inode of a descriptor's file, which identify the file.

    The number of a descriptor does not identify a file, because the kernel reuses the number.
    """
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _used(tables: sqlite3.Connection, device: int) -> int:
    query = "SELECT COALESCE(SUM(nbytes), 0) FROM pages WHERE device = ?"
    used: int = tables.execute(query, (device,)).fetchone()[0]
    return used


def _enter(tables: sqlite3.Connection, row: tuple[int, ...]) -> int:
    statement = (
        "INSERT INTO pages (device, nbytes, owner, descriptor, filesystem, inode) "
        "VALUES (?, ?, ?, ?, ?, ?)"
    )
    return _insert(tables, statement, row)


def _hold(tables: sqlite3.Connection, pages: int, process: int) -> int:
    statement = "INSERT INTO holding (pages, process) VALUES (?, ?)"
    return _insert(tables, statement, (pages, process))


def _insert(tables: sqlite3.Connection, statement: str, values: tuple[int, ...]) -> int:
    return int(tables.execute(statement, values).lastrowid or 0)
