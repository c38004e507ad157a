# SPDX-License-Identifier: Apache-2.0
"""The record of imported memory, which several imports and mappings of this process share."""

import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from crossmem.control.link import Deadline
from crossmem.driver import Block, Imported, Mapped
from crossmem.driver.recording import call_into
from crossmem.errors import ClosedError, CrossmemError
from crossmem.locks import Rank, ordered_lock
from crossmem.models import EventKind, ShareableHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import wait_for_work
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.streams import Landing
from crossmem.sharing.base.usage import Usage
from crossmem.sharing.importer.key import ImportKey, ImportRequest

__all__ = ["ImportRecord", "LeaseWords", "State", "Use"]


class State(Enum):
    """The state of an import."""

    NEW = "new"
    OPEN = "open"
    CLOSING = "closing"
    """Closing has begun. A new user completes it, or waits until another thread has done so."""
    CLOSED = "closed"


class LeaseWords(NamedTuple):
    """The words by which this process holds an export.

    Parameters
    ----------
    control
        The generations of the exporter's slots.
    row
        The row of this process: one word for each slot.
    address
        Address of the row in this process; 0 if no device can write to the row.
    """

    slot: int
    control: memoryview
    row: memoryview
    address: int


class ImportRecord:
    """Memory that the vendor opens once, for several users. The last user closes the memory.

    A thread holds :attr:`lock` while the vendor opens, maps or closes the memory. A thread that
    changes :attr:`uses` holds the lock of the process's state.
    """

    __slots__ = (
        "access",
        "device",
        "ending",
        "forget",
        "has_unawaited_work",
        "is_leaving",
        "is_remappable",
        "key",
        "leases",
        "lock",
        "mapped",
        "mapped_uses",
        "process",
        "shortcuts",
        "state",
        "usage",
        "uses",
    )

    def __init__(
        self,
        process: Process,
        request: ImportRequest,
        key: ImportKey,
        forget: "Callable[[ImportRecord], None]",
    ) -> None:
        self.process = process
        self.forget = forget
        """Removes this record from the table of imports."""
        self.key = key
        self.device = request.device
        self.access = request.access
        self.lock = ordered_lock(Rank.IMPORT)
        self.state = State.NEW
        self.uses: set[Use] = set()
        """The users. A user joins before the memory is opened. So if another user leaves during the
        opening, the leaving user is not the last one, and does not close the memory."""
        self.mapped_uses: set[Use] = set()
        self.mapped: list[Mapped] = []
        """The vendor's mapping, if there is one."""
        self.is_remappable = True
        self.is_leaving = False
        """Whether unmapping has begun and is not complete. The next call of map() completes it."""
        self.has_unawaited_work = False
        """Whether a user has left, and no thread has waited for the device's work since then."""
        self.leases: dict[bytes, Any] = {}
        """For each leased export, the lease. The key is the core of the export's handle."""
        self.ending: list[Any] = []
        """Leases that no user needs any more, and that have not ended yet."""
        self.shortcuts: list[tuple[bytes, object, object]] = []
        """The keys under which the import table's hot path finds this record."""
        self.usage = Usage()

    def is_ready_for(self, core: bytes) -> bool:
        """Whether the memory is open, with a lease for the export that this core names."""
        return self.state is State.OPEN and core in self.leases

    def map(self, use: "Use", *, remappable: bool) -> int:
        """Add a user of the address, and return the address.

        For the first user, the vendor maps the memory.

        Parameters
        ----------
        remappable
            False: crossmem will not map the memory again; see :meth:`crossmem.driver.Driver.map`.
        """
        with self.lock:
            if self.state is State.CLOSED:
                # At the exit of this process, memory is closed even if it has users.
                msg = "the imported memory was closed, because this process is exiting"
                raise ClosedError(msg, operation="map")
            if self.is_leaving:
                self._unmap()
            if not self.mapped:
                self._map(remappable=remappable)
                self.is_remappable = remappable
            self.mapped_uses.add(use)
            return self.mapped[0].pointer

    def leave(self, use: "Use") -> CrossmemError | None:
        """Remove a user. The last user closes the memory. The caller holds :attr:`lock`.

        Returns
        -------
        CrossmemError or None
            If this call waited for the device's work, and the work failed: the failure. Else None.
        """
        with self.process.state:
            self.discard(use)
            if not self.uses and self.state is not State.CLOSED:
                self.state = State.CLOSING
        if self.state is State.CLOSING:
            return self.close()
        failure = self.end_unused() if len(self.leases) > 1 or self.ending else None
        # Memory that was mapped with remappable=False stays mapped, for users that come later.
        if self.mapped and not self.mapped_uses and self.is_remappable:
            return self._stop_mapping() or failure
        return failure

    def discard(self, use: "Use") -> None:
        """Remove a user. The caller holds the lock of the process's state."""
        if use in self.mapped_uses and use.landing is None:
            self.has_unawaited_work = True
        self.mapped_uses.discard(use)
        self.uses.discard(use)

    def await_work(self) -> CrossmemError | None:
        """Wait for the device's work if a user left without a wait. Return the work's failure."""
        if not self.has_unawaited_work:
            return None
        # The flag is cleared before the wait: a user that leaves during the wait sets it again.
        self.has_unawaited_work = False
        try:
            return wait_for_work(self.device)
        except BaseException:
            self.has_unawaited_work = True
            raise

    def end_unused(self) -> CrossmemError | None:
        """End the leases of exports that have no user in this process any more.

        The memory stays open for the users of its other exports. The caller holds :attr:`lock`. The
        return value has the same meaning as that of :meth:`leave`.
        """
        with self.process.state:
            used = {one.core for one in self.uses}
            # From here on, a new user of an export that is not in ``used`` requests a new lease.
            for core in [one for one in self.leases if one not in used]:
                call_into(self.ending, self.leases.pop, core)
        failure = self.await_work() if self.ending else None
        self._end_leases()
        return failure

    def tidy(self) -> None:
        """End the leases of users that left while this process requested another lease.

        The caller holds :attr:`lock`. If a lease cannot end now, it ends when the next user leaves.
        """
        with suppress(CrossmemError):
            self.end_unused()

    def close(self) -> CrossmemError | None:
        """Unmap and close the memory, and end the leases. The caller holds :attr:`lock`.

        If this call raises, a later call does the remaining work. The leases last until the memory
        is closed.
        """
        # At exit, the memory may still have users, and their work may be running.
        self.has_unawaited_work = self.has_unawaited_work or bool(self.mapped_uses)
        failure = self._stop_mapping() if self.mapped else None
        self._close()
        self.forget(self)
        self.state = State.CLOSED
        return failure

    def _stop_mapping(self) -> CrossmemError | None:
        # If the wait raises, nothing has changed: the address stays mapped.
        failure = self.await_work()
        self.is_leaving = True
        self._unmap()
        return failure

    def _unmap(self) -> None:
        if self.mapped:
            self._unmap_at_vendor(self.mapped[0])
        self.is_leaving = False

    def tell(self, kind: EventKind) -> None:
        """Emit an event about this import, if an observer is registered."""

    def keep_connection(self) -> None:
        """Keep the connection to the exporter until this import is closed."""

    def end_reservations(self, numbers: list[int]) -> None:
        """End the reservations of a received message, without a wait."""
        raise NotImplementedError

    def words_of(self, core: bytes, slot: int) -> tuple[memoryview, memoryview, bool]:
        """Return the words that record the holds on blocks of an open arena.

        Parameters
        ----------
        core
            The core of the arena's handle.
        slot
            The slot of the arena, from the handle of a block.

        Returns
        -------
        tuple
            The owner's control segment, this process's row, and whether this process uses fences.

        Raises
        ------
        InvalidHandleError
            The owner keeps the arena in a slot other than ``slot``.
        """
        raise NotImplementedError

    def row_of(self, core: bytes) -> LeaseWords:
        """Return the words by which this process holds an export."""
        raise NotImplementedError

    def reserved_generation(
        self, handle: ShareableHandle, reservation: int, deadline: Deadline
    ) -> int:
        """Return the generation by which a message's receiver holds a block that was freed.

        Raises
        ------
        CrossmemError
            The message does not reserve the block, or the owner does not answer.
        """
        raise NotImplementedError

    def hint(self, slot: int) -> None:
        """Tell the waiting owner of a pool that this process has released a block."""
        raise NotImplementedError

    @property
    def is_retired(self) -> bool:
        """Whether this process knows, without a request to the owner, that the memory was freed."""
        return False

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        raise NotImplementedError

    @property
    def source(self) -> Block | Imported:
        """The driver's object for the memory, which an address range can map.

        Raises
        ------
        UnsupportedError
            An address range cannot map this memory.
        """
        raise NotImplementedError

    @property
    def source_lock(self) -> "threading.RLock":
        """The lock for driver calls on :attr:`source`."""
        return self.lock

    def _map(self, *, remappable: bool) -> None:
        raise NotImplementedError

    def _unmap_at_vendor(self, mapped: Mapped) -> None:
        """Have the vendor unmap the address, then forget the address."""
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _end_leases(self) -> None:
        """End the leases in ``ending``. An interrupted call can be repeated."""
        raise NotImplementedError


class Use(Record):
    """The record of one user of imported memory. The user is an ``Import`` or a ``Mapping``."""

    __slots__ = ("children", "core", "ends_with_owner", "landing", "parent", "process", "record")

    is_shared: ClassVar = True

    def __init__(self, process: Process, core: bytes) -> None:
        self.is_done = False
        self.process = process
        self.core = core
        """The core of the handle that was imported."""
        self.record: ImportRecord | None = None
        self.parent: Use | None = None
        """The use of the import object through which the memory was mapped."""
        self.children: set[object] | None = None
        """The records of the mappings and pieces that were made through this import object."""
        self.ends_with_owner = False
        """Whether the death of the exporter closes the object (law C29)."""
        self.landing: Landing | None = None
        """Set by ``unmap(stream=...)``. It tells when the work of the stream is complete."""

    @override
    def leave_to_others(self) -> bool:
        """Leave the import if other users keep it open and mapped. Return whether this use left."""
        record = self.record if self.landing is None else None
        if record is None or self.parent is not None or len(record.leases) != 1:
            return False
        uses, mapped_uses = record.uses, record.mapped_uses
        if len(uses) == 1 or (self in mapped_uses and len(mapped_uses) == 1):
            return False
        record.discard(self)
        self.is_done = True
        return True

    def is_needed(self, landing: Landing) -> bool:
        """Whether the release must wait for the stream's work. If so, start the reaper."""
        try:
            is_needed = not landing.has_landed()
        except CrossmemError:
            # The vendor's query failed, so the release waits for all work of the device.
            self.landing, is_needed = None, False
        if is_needed:
            self.process.deferred.start_reaper()
        return is_needed

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Leave the import. If the work of the stream still runs, let the reaper try later."""
        record = self.record
        if record is None:
            self.is_done = True
            return
        if self.landing is not None and self.is_needed(self.landing):
            return
        taken: list[bool] = []
        lock = record.lock
        try:
            call_into(taken, lock.acquire, blocking)
            if not taken[0] or self.is_done:
                return
            was_open = record.state is not State.CLOSED
            failure = record.leave(self)
            if self.parent is not None and self.parent.children is not None:
                self.parent.children.discard(self)
            self.is_done = True
        finally:
            if taken and taken[0]:
                lock.release()
        if was_open and record.state is State.CLOSED and self.process.registry.observed:
            record.tell(EventKind.RELEASED)
        if failure is not None:
            raise failure
