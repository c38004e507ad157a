# SPDX-License-Identifier: Apache-2.0
"""One vendor open of this process, and the imports and mappings that use it."""

import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from crossmem.control.link import Deadline
from crossmem.driver import Block, Imported, Mapped
from crossmem.driver.recording import call_into
from crossmem.errors import (
    CrossmemError,
)
from crossmem.locks import Rank, ordered_lock
from crossmem.models import Access, EventKind, PoolCore, ProcessIdentity, ShareableHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.usage import Usage

__all__ = ["ImportRecord", "ImportRequest", "State", "Use"]

ImportKey = tuple[ProcessIdentity, int, LocalDevice, Access, int, object]
"""Exporter, allocation, device here, access, the memory's device, and the handle's raw part."""


class State(Enum):
    """The state of an import."""

    NEW = "new"
    """Nothing is open yet."""
    OPEN = "open"
    CLOSING = "closing"
    """The last user has left, and the vendor has not closed everything yet."""
    CLOSED = "closed"


class ImportRequest(NamedTuple):
    """One import that a caller asks for.

    Parameters
    ----------
    handle
        The handle of the memory.
    device
        The device that uses the memory.
    access
        The requested access.
    home
        Ordinal in this process of the device that holds the memory.
    reservation
        The handle's reservation number in a message, 0 without a reservation.
    pool
        The pool, if the handle is that of a pool's arena.
    """

    handle: ShareableHandle
    device: LocalDevice
    access: Access
    home: int
    reservation: int = 0
    pool: PoolCore | None = None

    @property
    def key(self) -> ImportKey:
        """The key: requests with equal keys share one vendor open."""
        handle = self.handle
        number, raw = handle.allocation, handle.raw
        return handle.owner, number, self.device, self.access, self.home, raw


class ImportRecord:
    """One vendor open. It counts its users and owns the resources that they share.

    A thread holds the lock while the vendor opens, maps or closes. A change of the sets of users
    also needs the lock of the state.
    """

    __slots__ = (
        "access",
        "device",
        "ending",
        "forget",
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
        """The users, entered before the memory is open."""
        self.mapped_uses: set[Use] = set()
        """The users that have it mapped."""
        self.mapped: list[Mapped] = []
        """The vendor's mapping, if there is one."""
        self.is_remappable = True
        self.is_leaving = False
        """Whether the users have lost the address while the vendor still has it mapped."""
        self.leases: dict[bytes, Any] = {}
        """The leases, by the core of the leased handle."""
        self.ending: list[Any] = []
        """Leases without users that are not ended yet."""
        self.shortcuts: list[tuple[bytes, object, object]] = []
        """Arguments by which the table finds this record on the hot path."""
        self.usage = Usage()

    def is_ready_for(self, core: bytes) -> bool:
        """Whether it is open, and the exporter has given a lease for this core of a handle."""
        return self.state is State.OPEN and core in self.leases

    def map(self, use: "Use", *, remappable: bool) -> int:
        """Add a user of the address and return the address. The first user has the vendor map it.

        Parameters
        ----------
        use
            The user.
        remappable
            False if no other user can map the memory after the last user has left the address.
        """
        with self.lock:
            if self.is_leaving:
                self._unmap()
            if not self.mapped:
                self._map(remappable=remappable)
                self.is_remappable = remappable
            self.mapped_uses.add(use)
            return self.mapped[0].pointer

    def leave(self, use: "Use") -> CrossmemError | None:
        """Remove a user; the last one closes what is open. The caller holds the lock.

        Returns
        -------
        CrossmemError or None
            The error of the device's work for which this call waited.
        """
        with self.process.state:
            self.mapped_uses.discard(use)
            self.uses.discard(use)
            # From here on no user can join.
            if not self.uses and self.state is not State.CLOSED:
                self.state = State.CLOSING
        if self.state is State.CLOSING:
            return self.close()
        failure = self.end_unused() if len(self.leases) > 1 or self.ending else None
        # An import that cannot be mapped twice keeps its address for users that may still map it.
        if self.mapped and not self.mapped_uses and self.is_remappable:
            return self._stop_mapping() or failure
        return failure

    def end_unused(self) -> CrossmemError | None:
        """End the leases without users, so that their owner can free the memory. The lock is held.

        Users of other exports keep the vendor's import open. Returns the same as :meth:`leave`.
        """
        with self.process.state:
            used = {one.core for one in self.uses}
            # From here on, a new user of one of these exports asks for another lease.
            for core in [one for one in self.leases if one not in used]:
                call_into(self.ending, self.leases.pop, core)
        failure = wait_for_work(self.device) if self.ending else None
        self._end_leases()
        return failure

    def tidy(self) -> None:
        """End leases whose users left while another export was being leased. The lock is held.

        If a lease cannot be ended now, the next user that leaves ends it.
        """
        with suppress(CrossmemError):
            self.end_unused()

    def close(self) -> CrossmemError | None:
        """Release everything. The caller holds the lock, and no user is left.

        If this raises, a later call continues. The lease lasts until then, because the memory is
        still open.
        """
        failure = self._stop_mapping() if self.mapped else None
        self._close()
        self.forget(self)
        self.state = State.CLOSED
        return failure

    def _stop_mapping(self) -> CrossmemError | None:
        # If the wait for the work fails, the address stays mapped.
        failure = wait_for_work(self.device)
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
        """End the reservations of a received message. This never waits."""
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
            The owner has given the arena another slot.
        """
        raise NotImplementedError

    def reserved_generation(
        self, handle: ShareableHandle, reservation: int, deadline: Deadline
    ) -> int:
        """Return the generation by which a message's receiver can hold a freed block.

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
        """Whether this process knows, without a request, that the owner has freed the memory."""
        return False

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        raise NotImplementedError

    @property
    def source(self) -> Block | Imported:
        """The driver's object for the memory, for an address range.

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
        """Have the vendor unmap the address, and forget the address right after that."""
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _end_leases(self) -> None:
        """End the leases in ``ending``. An interrupted call can be repeated."""
        raise NotImplementedError


class Use(Record):
    """One user of an import: an import object, a mapping, or both in one."""

    __slots__ = ("children", "core", "ends_with_owner", "parent", "process", "record")

    is_shared: ClassVar = True

    def __init__(self, process: Process, core: bytes) -> None:
        self.is_done = False
        self.process = process
        self.core = core
        """The core of the handle that was imported."""
        self.record: ImportRecord | None = None
        self.parent: Use | None = None
        """The import object through which the memory was mapped."""
        self.children: set[object] | None = None
        """Mappings and pieces of address ranges that were made through this import object."""
        self.ends_with_owner = False
        """Whether the death of the exporter closes it (law C29)."""

    @override
    def leave_to_others(self) -> bool:
        """Leave the import if other users keep it open, and also mapped if this user maps it."""
        record = self.record
        if record is None or self.parent is not None or len(record.leases) != 1:
            return False
        uses, mapped_uses = record.uses, record.mapped_uses
        if len(uses) == 1 or (self in mapped_uses and len(mapped_uses) == 1):
            return False
        mapped_uses.discard(self)
        uses.discard(self)
        self.is_done = True
        return True

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Leave the import. The last user closes it."""
        record = self.record
        if record is None:
            self.is_done = True
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
