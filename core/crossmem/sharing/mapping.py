# SPDX-License-Identifier: Apache-2.0
"""The importer's side: imports, and the mappings that give them addresses."""

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from typing_extensions import override

from crossmem.errors import BusyError, ClosedError, UnsupportedError
from crossmem.models import ShareableHandle
from crossmem.sharing.entry import Entry
from crossmem.sharing.loan import Loan
from crossmem.sharing.memory import Memory
from crossmem.sharing.process import Process, drain, is_mine, may_release, refuse_foreign

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["Import", "Mapping", "Readonly"]

Readonly = bool | Literal["advisory"]
"""``True``: enforced by device or kernel, or refused. ``"advisory"``: kept by crossmem's API."""


class Import:
    """Memory of another process, held here: it stays until this is closed.

    Made by :func:`crossmem.import_handle`; a context manager. The exporter's record of it is a
    lease: closing this, or the death of this process, ends it.

    Attributes
    ----------
    handle
        What was imported.
    device
        The device for which it was opened.
    nbytes
        Size of the part that the handle names, in bytes.
    """

    __slots__ = ("_entry", "_mappings", "_process", "_readonly", "device", "handle", "nbytes")

    def __init__(
        self, process: Process, entry: Entry, handle: ShareableHandle, *, readonly: bool
    ) -> None:
        self._process = process
        self._readonly = readonly
        self._mappings = 0
        self.handle = handle
        self.device: Device = entry.device
        self.nbytes = handle.length
        # Last: from here on, this object gives the import back.
        self._entry: Entry | None = entry

    @override
    def __repr__(self) -> str:
        state = "closed" if self._entry is None else "open"
        return f"<Import of {self.nbytes} bytes from pid {self.handle.owner.pid}, {state}>"

    def _live(self) -> Entry:
        refuse_foreign(self._process, self)
        entry = self._entry
        if entry is None:
            msg = f"{self!r} cannot be used any more"
            raise ClosedError(msg)
        return entry

    @property
    def closed(self) -> bool:
        """Whether the import was closed."""
        return self._entry is None

    @property
    def owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        return self._live().is_owner_alive

    def map(self) -> "Mapping":
        """Give the memory an address in this process.

        Returns
        -------
        Mapping
            Unmap it before this import is closed. Further calls share one vendor mapping.

        Raises
        ------
        DriverError, OutOfMemoryError
            Where the vendor's call failed.
        ClosedError, ForkedProcessError
            Where this import may not be used any more.
        """
        self._live()
        with self._process.lifetimes:
            entry = self._live()
            self._mappings += 1
        try:
            base = entry.map(remappable=True)
        except BaseException:
            self.unmapped()
            raise
        return Mapping(self._process, entry, self.handle, base, self, readonly=self._readonly)

    def close(self) -> None:
        """Give the memory back. Closing twice is harmless.

        Raises
        ------
        BusyError
            Where mappings made by :meth:`map`, or pieces of address ranges, are not unmapped yet.
        """
        if self._entry is None or self._process.is_closed:
            return
        refuse_foreign(self._process, self)
        if self._process.is_inside:
            self._process.pending.append(self.close)
            return
        # Mappings that were dropped count until they are given back.
        drain()
        with self._process.lifetimes:
            if self._entry is None:
                return
            if self._mappings:
                msg = f"{self!r} has {self._mappings} mappings and pieces of address ranges"
                raise BusyError(msg, operation="close", hint="unmap them first")
            entry, self._entry = self._entry, None
        if not _release(self._process, entry):
            self._process.pending.append(partial(_release, self._process, entry))

    def lend(self) -> Loan:
        """Let an address range show the memory. The lock of lifetimes is held."""
        entry, handle = self._live(), self.handle
        if self.nbytes != handle.nbytes:
            msg = (
                f"{self!r} is a part of {handle.nbytes} bytes, from byte {handle.offset} on; "
                "an address range takes whole memory only"
            )
            raise UnsupportedError(msg, operation="map", hint="import the whole handle")
        memory, lock = entry.lend()
        self._mappings += 1
        return Loan(
            memory, handle.device, lock, entry.uses, readonly=self._readonly, end=self.unmapped
        )

    def unmapped(self) -> None:
        """Count one mapping or piece of this import less. Called when that is unmapped."""
        with self._process.lifetimes:
            self._mappings -= 1

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        entry = getattr(self, "_entry", None)
        if entry is None or not may_release(self._process):
            return
        process = self._process
        process.pending.append(partial(_release, process, entry))
        warnings.warn(
            f"{self!r} was dropped without close()", ResourceWarning, stacklevel=2, source=self
        )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "an Import stays in its process; send its handle, which forwards the original export"
        raise UnsupportedError(msg)


class Mapping(Memory):
    """Another process's memory at an address of this process; a context manager.

    Made by :meth:`Import.map` or :func:`crossmem.attach`.

    Attributes
    ----------
    handle
        What is mapped.
    nbytes
        Size of the part that the handle names, in bytes.
    readonly
        Whether writing is refused: by the device or kernel where its capability says so, else
        by this object alone.
    """

    __slots__ = ("_entry", "_import", "_pointer", "handle")

    def __init__(
        self,
        process: Process,
        entry: Entry,
        handle: ShareableHandle,
        base: int,
        imported: Import | None,
        *,
        readonly: bool,
    ) -> None:
        super().__init__(process, entry.device, handle.length, entry.uses, readonly=readonly)
        self._import = imported
        self._pointer = base + handle.offset
        self.handle = handle
        # Last: from here on, this object gives the mapping back.
        self._entry: Entry | None = entry

    @override
    def __repr__(self) -> str:
        state = "unmapped" if self._entry is None else f"at {self._pointer:#x}"
        kind = "read-only" if self.readonly else "read-write"
        return f"<Mapping of {self.nbytes} bytes from pid {self.handle.owner.pid}, {kind}, {state}>"

    def _live(self) -> Entry:
        refuse_foreign(self._process, self)
        entry = self._entry
        if entry is None:
            msg = f"{self!r} cannot be used any more"
            raise ClosedError(msg)
        return entry

    @property
    @override
    def ptr(self) -> int:
        """Address of the first byte in this process, for the device's own calls."""
        self._live()
        return self._pointer

    @property
    @override
    def closed(self) -> bool:
        """Whether the memory was unmapped."""
        return self._entry is None

    @property
    def owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        return self._live().is_owner_alive

    @property
    def asked_readonly(self) -> Readonly:
        """What was asked of the import, beyond what the handle says."""
        if not self.readonly or self.handle.access == "ro":
            return False
        return True if self._live().access == "ro" else "advisory"

    def unmap(self) -> None:
        """Give the address back, after waiting for the device's running work (C9).

        Where the mapping was made by :func:`crossmem.attach`, this closes the import too.
        Unmapping twice is harmless.

        Raises
        ------
        BusyError
            Where a view of the memory is alive. Also where the device's work cannot be waited
            for because it is being captured: this object is then closed, and the memory stays
            mapped until a later call of crossmem can unmap it.
        """
        if self._entry is None or self._process.is_closed:
            return
        refuse_foreign(self._process, self)
        if self._process.is_inside:
            self._process.pending.append(self.unmap)
            return
        with self._process.lifetimes:
            if self._entry is None:
                return
            self._refuse_if_used("unmap")
            entry, self._entry = self._entry, None
        imported, self._import = self._import, None
        if not _give_back(self._process, entry, imported):
            self._process.pending.append(partial(_give_back, self._process, entry, imported))
        self._process.drain()

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end_block(self.unmap, error)

    def __del__(self) -> None:
        entry = getattr(self, "_entry", None)
        if entry is None or not may_release(self._process):
            return
        process = self._process
        process.pending.append(partial(_give_back, process, entry, self._import))
        if not self._is_left:
            warnings.warn(
                f"{self!r} was dropped without unmap()", ResourceWarning, stacklevel=2, source=self
            )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # Attaching stands on this module.
        from crossmem.sharing.attach import reattach  # noqa: PLC0415

        return reattach, (self.handle.to_bytes(), self.asked_readonly)


def _give_back(process: Process, entry: Entry, imported: Import | None) -> bool:
    """Take back one mapping, and the import with it where nobody else has that.

    Returns
    -------
    bool
        False where this thread is in the middle of changing the entry, and it has to wait.
    """
    if is_mine(entry.lock):
        return False
    try:
        entry.unmap()
    finally:
        if imported is not None:
            imported.unmapped()
        else:
            process.imports.release(entry)
    return True


def _release(process: Process, entry: Entry) -> bool:
    """Count one user of an entry less; False where it has to wait as above."""
    if is_mine(entry.lock):
        return False
    process.imports.release(entry)
    return True
