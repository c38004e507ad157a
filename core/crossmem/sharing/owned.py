# SPDX-License-Identifier: Apache-2.0
"""The records of this process's memory, which outlive the objects that users hold."""

import threading
import warnings
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from crossmem.control.records import Allow, Export, Shared
from crossmem.driver import Block, Driver, Exported, Peer
from crossmem.errors import (
    CrossmemError,
    InvalidHandleError,
    OwnerUnresponsiveError,
    StaleHandleError,
)
from crossmem.models import Access, Event, EventKind, ShareableHandle
from crossmem.sharing.memory import Uses
from crossmem.sharing.process import Process
from crossmem.sharing.work import after_work

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["Owned"]


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

    def publish_raw(self, handle: ShareableHandle, timeout_s: float) -> None:
        """Let this process, and nobody else, lease what it exported raw (law C8).

        Raises
        ------
        InvalidHandleError
            Where this process made no such handle.
        StaleHandleError
            Where the memory was freed meanwhile.
        OwnerUnresponsiveError
            Where another thread frees or exports the memory for longer than the timeout.
        """
        shared = self.shared
        if shared is not None and handle.export in shared.exports:
            # The lease server checks the rest. A thread that frees has the lock while it waits.
            return
        if not self.lock.acquire(timeout=timeout_s):
            msg = f"another thread did not finish with allocation {self.number} in time"
            hint = "it frees or exports it; give a longer timeout"
            raise OwnerUnresponsiveError(msg, operation="import", hint=hint)
        try:
            self._publish_raw(handle)
        finally:
            self.lock.release()

    def _publish_raw(self, handle: ShareableHandle) -> None:
        for known in self.handles.values():
            if known.core == handle.core and known.raw is not None:
                exported = self.exported.get((known.access, True))
                if self.is_retired or exported is None:
                    msg = f"allocation {self.number} of this process was freed"
                    raise StaleHandleError(msg, operation="import")
                self.publish(known, Allow(pids=(self.process.identity.pid,)), exported)
                return
        msg = f"allocation {self.number} of this process was not exported like this"
        raise InvalidHandleError(msg, operation="import")

    def grant(self, export: Export, peer: Peer) -> None:
        """Put a process on the vendor's whitelist, where it has one."""
        self.device.driver.grant(self.block, export.exported, (peer,))
