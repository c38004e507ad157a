# SPDX-License-Identifier: Apache-2.0
"""The objects that hold another process's memory: imports, and mappings with an address."""

from typing import Any, ClassVar, Literal

from typing_extensions import override

from crossmem.errors import BusyError, UnsupportedError
from crossmem.models import ReadyHandle, ShareableHandle
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.ending import Endable
from crossmem.sharing.base.memory import Memory
from crossmem.sharing.importer.record import ImportRecord, Use
from crossmem.sharing.importer.watcher import end_with_owner

__all__ = ["Import", "Mapping", "Readonly", "asked_readonly", "children_of", "record_of_import"]

Readonly = bool | Literal["advisory"]
"""``True``: the device or kernel refuses writes. ``"advisory"``: only crossmem refuses them."""


class Import(Endable):
    """Another process's memory, which this process holds until this object is closed.

    Made by :func:`crossmem.import_handle`; a context manager. Unless the handle is raw, this
    process has a lease on the memory. The lease ends when this process dies, or when it closes its
    last import or mapping of the export.

    Attributes
    ----------
    handle
        The imported handle.
    device
        The device for which the memory was opened.
    nbytes
        Size of the part that the handle names, in bytes.
    readonly
        Whether mappings of this import refuse writes.
    """

    __slots__ = ("device", "handle", "nbytes", "readonly")

    _ended_by: ClassVar = "close"

    device: LocalDevice
    _record: Use | None

    def __init__(
        self, use: Use, record: ImportRecord, handle: ShareableHandle, *, readonly: bool
    ) -> None:
        self._process = use.process
        self.readonly = readonly
        self.handle = handle
        self.device = record.device
        self.nbytes = handle.length
        # This statement comes last: from here on, the finaliser of this object releases the import.
        # If an earlier statement raises, the caller must release the import.
        self._record = use

    @override
    def __repr__(self) -> str:
        state = "closed" if self._record is None else "open"
        return f"<Import of {self.nbytes} bytes from pid {self.handle.owner.pid}, {state}>"

    @property
    def owner_alive(self) -> bool:
        """Whether the exporting process still runs. For a raw handle, always True."""
        return record_of_import(self)[1].is_owner_alive

    def map(self) -> "Mapping":
        """Map the memory at an address in this process.

        Returns
        -------
        Mapping
            Unmap it before you close this import. All calls share one vendor mapping.

        Raises
        ------
        DriverError, OutOfMemoryError
            The vendor's call failed.
        OwnerGoneError
            The exporter is dead, and its memory is gone.
        ClosedError, ForkedProcessError
            This import was closed, or a forked child made this call.
        """
        parent, record = record_of_import(self)
        process = self._process
        use = Use(process, parent.core)
        try:
            with process.state:
                # Another thread may have closed the import.
                record_of_import(self)
                use.parent = parent
                use.record = record
                children_of(parent).add(use)
                record.uses.add(use)
                # A signal handler may have closed the import in the meantime.
                record_of_import(self)
            base = record.map(use, remappable=True)
            mapping = Mapping(use, record, self.handle, base, readonly=self.readonly)
            if parent.ends_with_owner:
                end_with_owner(mapping, use, use)
            return mapping
        except BaseException:
            process.deferred.ready[use] = None
            # Another thread may hold the import's lock and so delay the release of this use. Until
            # the release, a close() of the import would raise BusyError because of this use. So
            # this statement removes the use from the import's children now.
            if parent.children is not None:
                parent.children.discard(use)
            process.drain()
            raise

    def close(self) -> None:
        """Release the memory. A second call does nothing.

        Raises
        ------
        BusyError
            A mapping made by :meth:`map`, or a piece of an address range, is not unmapped yet.
        """
        self._end()

    @override
    def _refuse_if_used(self, operation: str) -> None:
        use = self._record
        # A mapping that unmap(stream=...) has ended does not need the import object any more.
        open_ = [one for one in use.children or () if not _ends(one)] if use is not None else []
        if open_:
            msg = f"{self!r} has {len(open_)} mappings and address-range pieces"
            raise BusyError(msg, operation=operation, hint="unmap them first")

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "an Import stays in its process; send its handle instead"
        raise UnsupportedError(msg)


def _ends(child: object) -> bool:
    return isinstance(child, Use) and child.landing is not None


def children_of(use: Use) -> set[object]:
    """Return the records of the mappings and pieces that were made through an import object.

    The caller holds the lock of the process's state.
    """
    if use.children is None:
        use.children = set()
    return use.children


def record_of_import(imported: Import) -> tuple[Use, ImportRecord]:
    """Return the use and the record of an import.

    Raises
    ------
    ClosedError, ForkedProcessError
        The import was closed, or a forked child made this call.
    """
    use = imported._record
    if use is None or use.record is None or not use.process.is_usable:
        raise imported._ended()
    return use, use.record


class Mapping(Memory):
    """Another process's memory at an address of this process; a context manager.

    Made by :meth:`Import.map` or :func:`crossmem.attach`.

    Attributes
    ----------
    handle
        The mapped handle.
    nbytes
        Size of the part that the handle names, in bytes.
    readonly
        Whether writes are refused. The device or kernel refuses them, with one exception: if a
        writable export was imported with ``readonly="advisory"``, only this object refuses them.
    """

    __slots__ = ("_pointer", "handle")

    _ended_by: ClassVar = "unmap"

    _record: Use | None

    def __init__(
        self,
        use: Use,
        record: ImportRecord,
        handle: ShareableHandle,
        base: int,
        *,
        readonly: bool,
    ) -> None:
        super().__init__(use.process, record.device, handle.length, record.usage, readonly=readonly)
        self._pointer = base + handle.offset
        self.handle = handle
        # This statement comes last: from here on, the finaliser of this object releases the
        # mapping. If an earlier statement raises, the caller must release the mapping.
        self._record = use

    @override
    def __repr__(self) -> str:
        state = "unmapped" if self._record is None else f"at {self._pointer:#x}"
        kind = "read-only" if self.readonly else "read-write"
        return f"<Mapping of {self.nbytes} bytes from pid {self.handle.owner.pid}, {kind}, {state}>"

    @property
    @override
    def ptr(self) -> int:
        """Address of the first byte in this process, for calls of the vendor's API."""
        if self._record is None or not self._process.is_usable:
            raise self._ended()
        return self._pointer

    def _rename(self, handle: ShareableHandle) -> None:
        """Replace the handle by another handle of the same memory."""
        self.handle = handle

    @property
    def owner_alive(self) -> bool:
        """Whether the exporting process still runs. For a raw handle, always True."""
        use = self._record
        if use is None or use.record is None or not self._process.is_usable:
            raise self._ended()
        return use.record.is_owner_alive

    def wait(self, *, stream: Any = None, timeout: float | None = None) -> None:
        """Wait for the work that preceded ``export(stream=...)`` on the owner's stream.

        If the owner exported without ``stream``, the call does nothing.

        Parameters
        ----------
        stream
            As for :meth:`crossmem.Timeline.wait`: later work of this stream waits. None: the host
            waits.
        timeout
            Time limit of the host's wait in seconds; None: ``CROSSMEM_TIMEOUT``.

        Raises
        ------
        WaitTimeoutError, OwnerGoneError, UnsupportedError
            As for :meth:`crossmem.Timeline.wait`.
        ClosedError, ForkedProcessError
            The memory was unmapped, or a forked child made this call.
        """
        self.ptr  # noqa: B018 - raises if this process cannot use the memory
        handle = self.handle
        if isinstance(handle, ReadyHandle):
            self.device._await_ready(handle, stream, timeout)

    def unmap(self, *, stream: Any = None) -> None:
        """Wait for the device's running work and release the address (C9).

        Mappings of :meth:`Import.map` use the import of the application. Each other mapping has its
        own import, and this call closes that import, too. A second call does nothing.

        Parameters
        ----------
        stream
            The only stream whose work uses the memory: a stream of CuPy, PyTorch or torch-npu, or
            the stream's handle. With a stream, the call does not wait for the device. Exception: if
            the device's strongest timeline level is ``"host"``, the call waits for the stream.
            crossmem releases the address and the lease within a second after the end of the work
            that was issued on the stream before this call.

        Raises
        ------
        BusyError
            A view of the memory is alive, or another thread reads or writes the memory. Nothing has
            changed in these cases.

            Also raised while a stream is captured into a graph, because the vendor then forbids a
            wait for the device's work. In that case, this object is closed, and a later call of
            crossmem unmaps the memory.
        UnsupportedError
            ``stream`` was passed, but the device has no streams.
        """
        use = self._record
        if stream is not None and use is not None:
            use.landing = self.device._landing_of(stream)
            try:
                self._end()
            finally:
                if self._record is not None:
                    use.landing = None
            return
        self._end()


def asked_readonly(mapping: Mapping) -> Readonly:
    """Return the ``readonly`` argument for a new import with the same access as ``mapping``.

    If the handle itself is read-only, the result is False, because each import of such a handle is
    read-only in any case.
    """
    if not mapping.readonly or mapping.handle.access == "ro":
        return False
    use = mapping._record
    if use is None or use.record is None:
        raise mapping._ended()
    return True if use.record.access == "ro" else "advisory"
