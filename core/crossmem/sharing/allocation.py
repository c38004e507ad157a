# SPDX-License-Identifier: Apache-2.0
"""The exporter's side: memory that this process allocated, its exports, and its end."""

import os
import threading
import time
import warnings
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from typing_extensions import override

from crossmem.control.leases import name_holders
from crossmem.control.records import Allow, Export, Shared
from crossmem.driver import Block, Driver, Exported, Peer
from crossmem.errors import (
    BusyError,
    ClosedError,
    ConfigurationError,
    CrossmemError,
    InvalidHandleError,
    UnsupportedError,
)
from crossmem.guards import check_timeout
from crossmem.models import Access, Event, EventKind, ShareableHandle
from crossmem.sharing.loan import Loan
from crossmem.sharing.memory import Memory, Uses
from crossmem.sharing.process import Process, drain, is_current, is_mine, refuse_foreign
from crossmem.sharing.work import after_work

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["Allocation", "Busy", "Owned"]

Busy = Literal["defer", "raise", "wait"]
"""What ``free`` does where other processes still hold leases."""

_EVERYONE_OF_THIS_USER = Allow()


class Owned:
    """The record of an allocation. It outlives the :class:`Allocation` while leases last."""

    __slots__ = (
        "block",
        "block_lock",
        "device",
        "exported",
        "handles",
        "is_retired",
        "lock",
        "number",
        "process",
        "shared",
        "uses",
    )

    is_adopted: ClassVar = False
    """Whether someone else allocated the memory."""
    began: ClassVar = EventKind.ALLOCATED
    ended: ClassVar = EventKind.FREED

    def __init__(self, process: Process, device: "Device", number: int, block: Block) -> None:
        self.process = process
        self.device = device
        self.number = number
        self.block = block
        self.lock = threading.RLock()
        self.block_lock = threading.RLock()
        """Held while the driver works on the block, never while waiting for anybody else."""
        self.exported: dict[tuple[Access, bool], Exported] = {}
        self.handles: dict[Any, ShareableHandle] = {}
        self.shared: Shared | None = None
        self.is_retired = False
        self.uses = Uses()

    def begin(self) -> None:
        """Enter the memory into the records of the process."""
        self.process.owned[self.number] = self
        if self.process.registry.observed:
            self.tell(self.began)

    @property
    def offset(self) -> int:
        """Where the memory begins in the driver's block."""
        return 0

    @property
    def nbytes(self) -> int:
        """Size that was asked for, in bytes."""
        return self.block.nbytes

    def lend_block(self) -> Block:
        """Return the block for an address range to show."""
        return self.block

    def tell(self, kind: EventKind) -> None:
        """Send an event about this allocation."""
        self.process.registry.emit(
            Event(
                kind,
                backend=self.device.backend,
                device=self.device.identity,
                allocation=self.number,
                nbytes=self.nbytes,
                owner_pid=self.process.identity.pid,
            )
        )

    def free_now(self) -> None:
        """Give the memory back: every lease has ended and nothing here uses it.

        The device's running work is waited for first: no vendor promises that freeing does.
        Where the vendor refuses a step, or that waiting, later calls go on with it.
        """
        with self.block_lock:
            if self.number not in self.process.owned:
                return
            try:
                with self._after_work():
                    self._release()
            except BaseException:
                if self.number in self.process.owned:
                    self.process.unfinished.append(self.free_now)
                raise

    def _after_work(self) -> AbstractContextManager[None]:
        return after_work(self.device)

    def _release(self) -> None:
        self._give_back()
        del self.process.owned[self.number]
        if self.process.registry.observed:
            self.tell(self.ended)

    def _give_back(self) -> None:
        driver = self.device.driver
        while self.exported:
            key, exported = next(iter(self.exported.items()))
            driver.release_export(self.block, exported)
            del self.exported[key]
        driver.free(self.block)

    def free_at_exit(self) -> None:
        """Give the memory back at a normal exit, whoever holds it then.

        What is viewed or copied at this moment is left to the end of the process, and so is what
        others hold where a vendor's call would take it from under them (law C20).
        """
        if self.uses.are_going_on:
            return
        if not self.device.capabilities.survives_owner and self._is_leased:
            return
        try:
            self.free_now()
        except CrossmemError as error:
            warnings.warn(f"at exit: {error}", ResourceWarning, stacklevel=1)

    @property
    def _is_leased(self) -> bool:
        # A message that is still under way leads nowhere once this process has exited.
        server = self.process.server
        leases = () if server is None else server.book.leases_of(self.number)
        return any(not lease.in_message for lease in leases)

    def retire(self) -> None:
        """Free the memory now where nobody leases it, else when the last lease ends."""
        self.is_retired = True
        server = self.process.server
        if self.shared is None or server is None or server.retire(self.number, even_if_leased=True):
            self.free_now()

    def on_idle(self) -> None:
        """Note that the last lease ended. Called by the lease server with its lock held."""
        self.process.pending.append(self.free_now)

    def publish(self, handle: ShareableHandle, allow: Allow, exported: Exported) -> None:
        """Make an export importable through the lease server."""
        server = self.process.start_server()
        if self.shared is None:
            has_whitelist = type(self.device.driver).grant is not Driver.grant
            grant = self.grant if has_whitelist else None
            self.shared = Shared(self.number, grant, self.on_idle)
        server.book.publish(self.shared, Export(handle, allow, exported))

    def publish_raw(self, handle: ShareableHandle) -> None:
        """Let this process, and nobody else, lease what it exported raw (law C8).

        Raises
        ------
        InvalidHandleError
            Where this process made no such handle.
        """
        with self.lock:
            for known in self.handles.values():
                if known.core == handle.core and known.raw is not None:
                    exported = self.exported[known.access, True]
                    self.publish(known, Allow(pids=(self.process.identity.pid,)), exported)
                    return
        msg = f"allocation {self.number} of this process was not exported like this"
        raise InvalidHandleError(msg, operation="import")

    def grant(self, export: Export, peer: Peer) -> None:
        """Put a process on the vendor's whitelist, where it has one."""
        self.device.driver.grant(self.block, export.exported, (peer,))


class Allocation(Memory):
    """Device memory that this process owns. Made by :meth:`crossmem.Device.allocate`.

    A context manager: leaving it frees the memory, deferred where others still hold it.

    Attributes
    ----------
    nbytes
        Size that was asked for, in bytes.
    device
        The device that holds the memory.
    """

    __slots__ = ("_owned", "_pieces")

    def __init__(self, owned: Owned) -> None:
        super().__init__(owned.process, owned.device, owned.nbytes, owned.uses, readonly=False)
        self._pieces = 0
        self._owned: Owned | None = owned

    @override
    def __repr__(self) -> str:
        kind = type(self).__name__
        if self._owned is None:
            return f"<{kind} of {self.nbytes} bytes on {self.device.name}, freed>"
        return f"<{kind} {self._owned.number} of {self.nbytes} bytes on {self.device.name}>"

    def _live(self) -> Owned:
        refuse_foreign(self._process, self)
        owned = self._owned
        if owned is None:
            msg = f"{self!r} cannot be used any more"
            raise ClosedError(msg, backend=self.device.backend)
        return owned

    @property
    @override
    def ptr(self) -> int:
        """Address of the first byte in this process, for the device's own calls."""
        owned = self._live()
        return owned.block.pointer + owned.offset

    @property
    def capacity(self) -> int:
        """Bytes that the device really reserved."""
        return self._live().block.capacity

    @property
    @override
    def closed(self) -> bool:
        """Whether the memory was freed."""
        return self._owned is None

    def export(
        self,
        *,
        allow: Allow | None = None,
        access: Access = "rw",
        lease: bool = True,
        synchronize: bool = True,
    ) -> ShareableHandle:
        """Return a handle with which other processes import this memory.

        Exporting again with the same arguments gives an equal handle and costs nothing (C3).

        Parameters
        ----------
        allow
            Which processes may import; None: all of the same user (C13).
        access
            ``"ro"`` makes importers' mappings read-only, enforced where the capability
            ``readonly_exports`` says so.
        lease
            False gives a raw handle that carries the vendor's bytes, for programs without
            crossmem. The memory is then not protected by leases: keep it until all importers
            are done.
        synchronize
            Wait for the device work issued so far before the handle is first given out (C21).

        Raises
        ------
        UnsupportedError
            Where the backend does not offer what was asked for.
        DriverError
            Where the vendor's call failed.
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        if allow is not None and not isinstance(allow, Allow):
            msg = f"allow must be a crossmem.Allow or None, not {allow!r}"
            raise ConfigurationError(msg, operation="export")
        owned = self._owned
        if owned is not None:
            # The hot path: has this process exported it like this before?
            try:
                handle = owned.handles.get((allow, access, lease))
            except TypeError:
                msg = f'access must be "rw" or "ro", not {access!r}'
                raise ConfigurationError(msg, operation="export") from None
            if handle is not None and is_current(self._process):
                return handle
        owned = self._live()
        drain()
        with owned.lock:
            # Another thread may have freed it before the lock was ours.
            self._live()
            key = (allow, access, lease)
            handle = owned.handles.get(key)
            if handle is None:
                handle = _export(owned, allow, access, lease, synchronize)
                owned.handles[key] = handle
        return handle

    def free(self, *, busy: Busy = "defer", timeout: float | None = None) -> None:
        """Give the memory back. Freeing twice is harmless.

        From the moment this returns, the memory's handles are stale (C6).

        Parameters
        ----------
        busy
            What to do while other processes hold leases. ``"defer"``: return at once; the
            memory is freed when the last lease has ended. ``"raise"``: raise and change
            nothing. ``"wait"``: wait for the leases to end.
        timeout
            How long ``"wait"`` may take, in seconds; ``CROSSMEM_TIMEOUT`` where None.

        Raises
        ------
        BusyError
            Where a view of the memory is alive, another thread reads or writes it, a piece of an
            address range shows it, or leases remain and ``busy`` is not ``"defer"``. Nothing
            has changed then. Also where the device's work cannot be waited for because it is
            being captured: the memory then stays until a later call of crossmem can free it, as
            if that had been deferred.
        """
        owned = self._owned
        if owned is None or self._process.is_closed:
            return
        refuse_foreign(self._process, self)
        if busy not in {"defer", "raise", "wait"}:
            msg = f'busy must be "defer", "raise" or "wait", not {busy!r}'
            raise ConfigurationError(msg, operation="free")
        wait_s = check_timeout(timeout, default_s=self._process.settings.timeout_s)
        if busy != "wait":
            wait_s = 0.0
        drain()
        if not self._free(owned, wait_s, even_if_leased=busy == "defer"):
            self._process.pending.append(
                partial(self._free, owned, wait_s, even_if_leased=busy == "defer")
            )

    def _free(self, owned: Owned, wait_s: float, *, even_if_leased: bool) -> bool:
        """Free; False where this thread is in the middle of something and it has to wait."""
        if self._process.is_inside or is_mine(owned.lock):
            return False
        with owned.lock:
            with owned.process.lifetimes:
                if self._owned is None:
                    return True
                self._refuse_if_used("free")
                if self._pieces:
                    msg = f"{self!r} is shown by {self._pieces} pieces of address ranges"
                    raise BusyError(msg, operation="free", hint="unmap them first")
                # From here on nobody begins to use it; it comes back where leases are in the way.
                self._owned = None
            try:
                if not even_if_leased:
                    _await_leases(owned, wait_s)
            except BaseException:
                self._owned = owned
                raise
            owned.retire()
        return True

    def lend(self) -> Loan:
        """Let an address range show the memory. The lock of lifetimes is held."""
        owned = self._live()
        block = owned.lend_block()
        self._pieces += 1
        return Loan(
            block,
            self.device.identity,
            owned.block_lock,
            owned.uses,
            readonly=False,
            end=self._take_back,
        )

    def _take_back(self) -> None:
        self._pieces -= 1

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end_block(self.free, error)

    def __del__(self) -> None:
        owned = getattr(self, "_owned", None)
        if owned is None or not is_current(self._process) or self._process.is_exiting:
            return
        self._process.pending.append(owned.retire)
        if not self._is_left:
            warnings.warn(
                f"{self!r} was dropped without free()", ResourceWarning, stacklevel=2, source=self
            )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # Attaching stands on this module.
        from crossmem.sharing.attach import attach  # noqa: PLC0415

        return attach, (self.export().to_bytes(),)


def _export(
    owned: Owned,
    allow: Allow | None,
    access: Access,
    lease: bool,  # noqa: FBT001
    synchronize: bool,  # noqa: FBT001
) -> ShareableHandle:
    device, process = owned.device, owned.process
    _check_export(device, access, lease=lease)
    if lease:
        process.start_server()
    if synchronize:
        device.driver.synchronize(device.ordinal)
    raw = not lease
    exported = owned.exported.get((access, raw))
    if exported is None:
        with owned.block_lock:
            # What is adopted of one vendor's allocation is exported once for all of it.
            exported = owned.exported.get((access, raw))
            if exported is None:
                exported = device.driver.export(owned.block, device.mechanism, access, raw=raw)
                owned.exported[access, raw] = exported
    handle = ShareableHandle(
        backend=device.backend,
        mechanism=device.mechanism,
        device=device.identity,
        allocation=owned.number,
        export=len(owned.handles),
        secret=os.urandom(16),
        owner=process.identity,
        nbytes=owned.block.nbytes,
        capacity=owned.block.capacity,
        access=access,
        raw=b"".join(exported.payloads) if raw else None,
    )
    if (owned.offset, owned.nbytes) != (0, handle.nbytes):
        handle = handle.slice(owned.offset, owned.nbytes)
    if lease:
        owned.publish(handle, allow or _EVERYONE_OF_THIS_USER, exported)
    if process.registry.observed:
        owned.tell(EventKind.EXPORTED)
    return handle


def _check_export(device: "Device", access: Access, *, lease: bool) -> None:
    """Raise where the device does not offer what was asked for."""
    capabilities = device.capabilities
    if access not in {"rw", "ro"}:
        msg = f'access must be "rw" or "ro", not {access!r}'
        raise ConfigurationError(msg, operation="export")
    refused = None
    if access == "ro" and not capabilities.readonly_exports:
        refused = "read-only exports (capability readonly_exports)"
    elif not lease and not capabilities.raw_handles:
        refused = "raw handles (capability raw_handles)"
    if refused is not None:
        msg = f"{device.name} does not offer {refused}"
        raise UnsupportedError(msg, operation="export", backend=device.backend)


def _await_leases(owned: Owned, wait_s: float) -> None:
    """Retire memory that nobody leases, as one step with the check; raise where it is leased."""
    server = owned.process.server
    if owned.shared is None or server is None:
        return
    deadline = time.monotonic() + wait_s
    while not server.retire(owned.number, even_if_leased=False):
        if not server.book.wait_idle(owned.number, max(0.0, deadline - time.monotonic())):
            holders = name_holders(server.book.leases_of(owned.number))
            msg = f"allocation {owned.number} is leased by {holders}"
            raise BusyError(msg, operation="free", hint='close it there, or free with busy="defer"')
