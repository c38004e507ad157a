# SPDX-License-Identifier: Apache-2.0
"""What allocations and mappings have in common: bytes at an address, read, written and viewed."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crossmem.driver import CopyKind
from crossmem.driver.buffers import address_of, exporter_at, new_bytes
from crossmem.errors import (
    AccessDeniedError,
    BusyError,
    ConfigurationError,
    UnsupportedError,
)
from crossmem.guards import check_integer, check_part

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.process import Process

__all__ = ["Memory", "Uses"]


class Uses:
    """What is being done with one block of memory, through however many objects."""

    __slots__ = ("copies", "pieces", "viewed")

    def __init__(self) -> None:
        self.copies = 0
        """Copies that threads are making."""
        self.pieces = 0
        """Pieces of address ranges that show it."""
        self.viewed: dict[int, weakref.ref[Memory]] = {}
        """Objects that were viewed, as long as they live."""

    def add_view(self, memory: "Memory") -> None:
        """Remember that an object was viewed."""
        key = id(memory)
        self.viewed[key] = weakref.ref(memory, lambda _: self.viewed.pop(key, None))

    @property
    def are_going_on(self) -> bool:
        """Whether the memory is being copied or viewed now, or shown by an address range."""
        return self.pieces > 0 or self.are_touching

    @property
    def are_touching(self) -> bool:
        """Whether the memory is being copied or viewed now."""
        viewed = [reference() for reference in list(self.viewed.values())]
        return self.copies > 0 or any(one is not None and one.has_views for one in viewed)


class Memory:
    """Bytes that this process can address. Subclasses say whether they still may be used."""

    __slots__ = (
        "__weakref__",
        "_copies",
        "_exporter",
        "_process",
        "_uses",
        "device",
        "nbytes",
        "readonly",
    )

    device: "Device"
    """The device for which the memory is mapped."""
    nbytes: int
    """Size in bytes."""
    readonly: bool
    """Whether this object refuses to write."""

    def __init__(
        self,
        process: "Process",
        device: "Device",
        nbytes: int,
        uses: Uses,
        *,
        readonly: bool,
    ) -> None:
        self._process = process
        self.device = device
        self.nbytes = nbytes
        self.readonly = readonly
        self._uses = uses
        self._copies = 0
        self._exporter: weakref.ref[Any] | None = None

    @property
    def ptr(self) -> int:
        """Address of the first byte in this process, for the device's own calls."""
        raise NotImplementedError

    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copy host bytes into the memory.

        Parameters
        ----------
        data
            Any contiguous buffer: bytes, memoryview, NumPy array.
        offset
            First byte to overwrite.

        Raises
        ------
        InvalidSizeError
            Where the data does not fit.
        AccessDeniedError
            Where the memory is read-only here.
        ClosedError, ForkedProcessError
            Where it may not be used any more.
        """
        with self._copying() as pointer:
            self._refuse_write("write")
            with address_of(data) as (source, nbytes):
                start, size = check_part(offset, nbytes, limit=self.nbytes)
                if size:
                    self.device.driver.copy(
                        self.device.ordinal, pointer + start, source, size, CopyKind.HOST_TO_DEVICE
                    )

    def read(self, nbytes: int | None = None, *, offset: int = 0) -> bytes:
        """Copy bytes out of the memory.

        Parameters
        ----------
        nbytes
            How many; all from ``offset`` on where None.
        offset
            First byte to read.

        Raises
        ------
        InvalidSizeError
            Where the range is out of bounds.
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        with self._copying() as pointer:
            if nbytes is None:
                nbytes = max(0, self.nbytes - check_integer("offset", offset))
            start, size = check_part(offset, nbytes, limit=self.nbytes)
            target = new_bytes(size)
            if size:
                with address_of(target) as (address, _size):
                    self.device.driver.copy(
                        self.device.ordinal, address, pointer + start, size, CopyKind.DEVICE_TO_HOST
                    )
        return target

    def copy_from(
        self,
        source: "Memory",
        *,
        nbytes: int | None = None,
        offset: int = 0,
        source_offset: int = 0,
    ) -> None:
        """Copy other memory of the device into this, without a detour over the host.

        The bytes must not overlap: what is copied then is undefined.

        Parameters
        ----------
        source
            An allocation, mapping or piece of the same backend; for another device only where
            the capability ``peer_access`` is true.
        nbytes
            How many; all of ``source`` from ``source_offset`` on where None.
        offset
            First byte to overwrite.
        source_offset
            First byte to copy.

        Raises
        ------
        InvalidSizeError
            Where one of the ranges is out of bounds.
        AccessDeniedError
            Where this memory is read-only here.
        UnsupportedError
            Where the device cannot reach the other memory.
        ClosedError, ForkedProcessError
            Where one of them may not be used any more.
        """
        if not isinstance(source, Memory):
            msg = f"source must be memory of crossmem, not {source!r}"
            raise ConfigurationError(msg, operation="copy_from", hint="host bytes go to write()")
        with self._copying() as pointer, source._copying() as origin:  # noqa: SLF001
            self._refuse_write("copy_from")
            self._refuse_unreachable(source)
            if nbytes is None:
                nbytes = max(0, source.nbytes - check_integer("source_offset", source_offset))
            start, size = check_part(offset, nbytes, limit=self.nbytes)
            first, _size = check_part(source_offset, nbytes, limit=source.nbytes)
            if size:
                self.device.driver.copy(
                    self.device.ordinal,
                    pointer + start,
                    origin + first,
                    size,
                    CopyKind.DEVICE_TO_DEVICE,
                )

    def _refuse_write(self, operation: str) -> None:
        if self.readonly:
            msg = f"{self!r} is read-only"
            raise AccessDeniedError(msg, operation=operation, hint="import without readonly")

    def _refuse_unreachable(self, source: "Memory") -> None:
        mine, other = self.device, source.device
        refused = None
        if other.driver is not mine.driver:
            refused = "copies from another backend or runtime"
        elif other.ordinal != mine.ordinal and not (
            mine.capabilities.peer_access and other.capabilities.peer_access
        ):
            refused = "copies from another device (capability peer_access)"
        if refused is not None:
            msg = f"{mine.name} does not offer {refused}; the source is on {other.name}"
            raise UnsupportedError(
                msg,
                operation="copy_from",
                backend=mine.backend,
                hint="copy with read() and write()",
            )

    @contextmanager
    def _copying(self) -> Iterator[int]:
        """Yield the address, and let no other thread take the memory away meanwhile."""
        self.ptr  # noqa: B018 - raises before the lock of a parent process could be waited for
        with self._process.lifetimes:
            pointer = self.ptr
            self._copies += 1
            self._uses.copies += 1
        try:
            yield pointer
        finally:
            with self._process.lifetimes:
                self._copies -= 1
                self._uses.copies -= 1

    def view(self) -> memoryview:
        """Return the memory itself as a memoryview, without a copy.

        The view, and whatever is made from it, keeps this object alive; while one exists, the
        memory cannot be unmapped or freed. A forked child must not touch a view that it
        inherited: the memory is not mapped there, and the access ends the child (SIGSEGV).

        Raises
        ------
        UnsupportedError
            Where the CPU cannot address the device's memory.
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        self.ptr  # noqa: B018 - raises before the lock of a parent process could be waited for
        if not self.device.capabilities.host_visible:
            msg = f"memory of {self.device.name} cannot be viewed by the CPU"
            raise UnsupportedError(msg, operation="view", hint="use read() and write()")
        with self._process.lifetimes:
            exporter = self._exporter() if self._exporter is not None else None
            if exporter is None:
                exporter = exporter_at(self.ptr, self.nbytes, keep_alive=self)
                self._uses.add_view(self)
                self._exporter = weakref.ref(exporter)
        view = memoryview(exporter).cast("B")
        return view.toreadonly() if self.readonly else view

    @property
    def has_views(self) -> bool:
        """Whether a view, or something made from one, is alive."""
        return self._exporter is not None and self._exporter() is not None

    def _refuse_if_used(self, operation: str) -> None:
        """Raise where the memory is in use. The lock of lifetimes is held."""
        if self._copies:
            msg = f"another thread is reading or writing {self!r}"
            raise BusyError(msg, operation=operation)
        if self.has_views:
            msg = f"{self!r} has live views"
            raise BusyError(
                msg,
                operation=operation,
                hint="release the memoryviews and arrays that were made from view()",
            )
