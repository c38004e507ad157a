# SPDX-License-Identifier: Apache-2.0
"""What allocations and mappings have in common: bytes at an address, read, written and viewed."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crossmem.driver import CopyKind
from crossmem.driver.buffers import address_of, exporter_at, new_bytes
from crossmem.errors import AccessDeniedError, BusyError, UnsupportedError
from crossmem.guards import check_integer, check_part

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.process import Process

__all__ = ["Memory", "Uses"]


class Uses:
    """What is being done with one block of memory, through however many objects."""

    __slots__ = ("copies", "viewed")

    def __init__(self) -> None:
        self.copies = 0
        """Copies that threads are making."""
        self.viewed: dict[int, weakref.ref[Memory]] = {}
        """Objects that were viewed, as long as they live."""

    def add_view(self, memory: "Memory") -> None:
        """Remember that an object was viewed."""
        key = id(memory)
        self.viewed[key] = weakref.ref(memory, lambda _: self.viewed.pop(key, None))

    @property
    def are_going_on(self) -> bool:
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
            if self.readonly:
                msg = f"{self!r} is read-only"
                raise AccessDeniedError(msg, operation="write", hint="import without readonly")
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
