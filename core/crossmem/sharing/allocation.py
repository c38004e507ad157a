# SPDX-License-Identifier: Apache-2.0
"""The exporter's side: memory that this process allocated, its exports, and its end."""

import os
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from typing_extensions import override

from crossmem.control.leases import name_holders
from crossmem.control.records import Allow
from crossmem.errors import (
    BusyError,
    ClosedError,
    ConfigurationError,
    UnsupportedError,
)
from crossmem.guards import check_timeout
from crossmem.models import Access, EventKind, ShareableHandle
from crossmem.sharing.loan import Loan
from crossmem.sharing.memory import Memory
from crossmem.sharing.owned import Owned
from crossmem.sharing.process import drain, is_current, is_mine, may_release, refuse_foreign

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["Allocation", "Busy", "export_again"]

Busy = Literal["defer", "raise", "wait"]
"""What ``free`` does where other processes still hold leases."""

_EVERYONE_OF_THIS_USER = Allow()


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
            return export_again(owned, allow, access, lease=lease, synchronize=synchronize)

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
        if owned is None or not may_release(self._process):
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


def export_again(
    owned: Owned,
    allow: Allow | None,
    access: Access,
    *,
    lease: bool = True,
    synchronize: bool = True,
) -> ShareableHandle:
    """Return the handle of memory of this process; see :meth:`Allocation.export`."""
    key = (allow, access, lease)
    with owned.lock:
        handle = owned.handles.get(key)
        if handle is None:
            handle = owned.handles[key] = _export(owned, allow, access, lease, synchronize)
    return handle


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
