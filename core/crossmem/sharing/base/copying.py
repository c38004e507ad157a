# SPDX-License-Identifier: Apache-2.0
"""Copies between memory of crossmem and host buffers, and from one memory object to another."""

from typing import Any

from crossmem.driver import CopyKind
from crossmem.driver.buffers import HostBuffer, new_bytes
from crossmem.errors import AccessDeniedError, ConfigurationError, UnsupportedError
from crossmem.guards import check_integer, check_part, shorten
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.ending import Endable
from crossmem.sharing.base.usage import Usage

__all__ = ["Copyable"]


class Copyable(Endable):
    """Bytes at an address of this process. The address stays valid while a copy runs.

    Attributes
    ----------
    device
        The :class:`crossmem.Device` for which the memory is mapped.
    nbytes
        Size in bytes.
    readonly
        Whether this object refuses writes.
    """

    __slots__ = ("_usage", "device", "nbytes", "readonly")

    device: LocalDevice
    nbytes: int
    readonly: bool
    _usage: Usage

    @property
    def ptr(self) -> int:
        """Address of the memory's first byte, for calls of the vendor's API in this process."""
        raise NotImplementedError

    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copy host bytes into the memory.

        Parameters
        ----------
        data
            Any contiguous buffer: bytes, memoryview, NumPy array.
        offset
            Offset of the first byte to overwrite.

        Raises
        ------
        InvalidSizeError
            The data does not fit into the memory at this offset.
        ConfigurationError
            ``data`` has no contiguous buffer.
        AccessDeniedError
            The memory is read-only in this process.
        ClosedError, ForkedProcessError
            The memory was closed, or a forked child made this call.
        """
        copy = object()
        copies = self._usage.copies
        try:
            pointer = self._begin_copy(copy)
            self._refuse_write("write")
            source = HostBuffer(data)
            try:
                start, size = check_part(offset, source.nbytes, limit=self.nbytes)
                if size:
                    self.device.driver.copy(
                        self.device.ordinal,
                        pointer + start,
                        source.address,
                        size,
                        CopyKind.HOST_TO_DEVICE,
                    )
            finally:
                source.release()
        finally:
            copies.pop(copy, None)

    def read(self, nbytes: int | None = None, *, offset: int = 0) -> bytes:
        """Return a copy of bytes of the memory.

        Parameters
        ----------
        nbytes
            Number of bytes; None: all from ``offset`` on.
        offset
            Offset of the first byte to read.

        Raises
        ------
        InvalidSizeError
            The range is out of bounds.
        ClosedError, ForkedProcessError
            The memory was closed, or a forked child made this call.
        """
        copy = object()
        copies = self._usage.copies
        try:
            pointer = self._begin_copy(copy)
            if nbytes is None:
                nbytes = max(0, self.nbytes - check_integer("offset", offset))
            start, size = check_part(offset, nbytes, limit=self.nbytes)
            result = new_bytes(size)
            if size:
                target = HostBuffer(result)
                try:
                    self.device.driver.copy(
                        self.device.ordinal,
                        target.address,
                        pointer + start,
                        size,
                        CopyKind.DEVICE_TO_HOST,
                    )
                finally:
                    target.release()
        finally:
            copies.pop(copy, None)
        return result

    def copy_from(
        self,
        source: "Copyable",
        *,
        nbytes: int | None = None,
        offset: int = 0,
        source_offset: int = 0,
    ) -> None:
        """Copy bytes of a memory object into this one, without a detour through the host.

        If the two ranges overlap, the result is undefined.

        Parameters
        ----------
        source
            An allocation, mapping or piece of the same backend and runtime. If ``source`` lies on
            another device, both devices need the capability ``peer_access``.
        nbytes
            Number of bytes; None: all of ``source`` from ``source_offset`` on.
        offset
            Offset of the first byte to overwrite.
        source_offset
            Offset of the first byte to copy.

        Raises
        ------
        InvalidSizeError
            One of the ranges is out of bounds.
        AccessDeniedError
            This memory is read-only in this process.
        UnsupportedError
            The device cannot reach the memory of ``source``.
        ConfigurationError
            ``source`` is not memory of crossmem.
        ClosedError, ForkedProcessError
            One of the two objects was closed, or a forked child made this call.
        """
        if not isinstance(source, Copyable):
            msg = f"source must be memory of crossmem, not {shorten(source)}"
            raise ConfigurationError(msg, operation="copy_from", hint="use write() for host bytes")
        copy, other = object(), object()
        copies, other_copies = self._usage.copies, source._usage.copies
        try:
            pointer, origin = self._begin_copy(copy), source._begin_copy(other)
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
        finally:
            copies.pop(copy, None)
            other_copies.pop(other, None)

    def _begin_copy(self, copy: object) -> int:
        """Register a copy and return the memory's address. The caller must remove the copy."""
        # In a forked child, ``ptr`` raises. This method must raise before it acquires the lock: a
        # forked child may wait for the lock for ever.
        self.ptr  # noqa: B018
        with self._process.state:
            # The copy is registered before the address is read. Another thread can end a block of a
            # pool without this lock, but not while a copy of the block is registered.
            self._usage.copies[copy] = self
            return self.ptr

    def _refuse_write(self, operation: str) -> None:
        if self.readonly:
            msg = f"{self!r} is read-only"
            hint = 'import without readonly=, from an export with access="rw"'
            raise AccessDeniedError(msg, operation=operation, hint=hint)

    def _refuse_unreachable(self, source: "Copyable") -> None:
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
