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
from crossmem.models import Access, EventKind, ProcessIdentity, ShareableHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.usage import Usage

__all__ = ["ImportRecord", "ImportRequest", "State", "Use"]

ImportKey = tuple[ProcessIdentity, int, LocalDevice, Access, int, object]
"""Exporter, allocation, device here, access, the memory's device, and the handle's raw part."""


class State(Enum):
    """How far an import is."""

    NEW = "new"
    """Nothing is open yet."""
    OPEN = "open"
    CLOSING = "closing"
    """The last user left, and the vendor has not closed all of it."""
    CLOSED = "closed"


class ImportRequest(NamedTuple):
    """One import that a caller asks for.

    Parameters
    ----------
    handle
        Which memory.
    device
        For which device.
    access
        With which access.
    home
        Ordinal here of the device that holds the memory.
    reservation
        The number with which the handle came in a message, 0 without one.
    """

    handle: ShareableHandle
    device: LocalDevice
    access: Access
    home: int
    reservation: int = 0

    @property
    def key(self) -> ImportKey:
        """What two imports have in common that share one vendor open."""
        handle = self.handle
        number, raw = handle.allocation, handle.raw
        return handle.owner, number, self.device, self.access, self.home, raw


class ImportRecord:
    """One vendor open: counts its users and owns what they share.

    The lock is held while the vendor opens, maps or closes. The sets of users change with the lock
    of the state held, too.
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
        """Takes this record out of the table of imports."""
        self.key = key
        self.device = request.device
        self.access = request.access
        self.lock = ordered_lock(Rank.IMPORT)
        self.state = State.NEW
        self.uses: set[Use] = set()
        """Who has it, from before it is open."""
        self.mapped_uses: set[Use] = set()
        """Those of them who have it mapped."""
        self.mapped: list[Mapped] = []
        """The address, as long as there is one."""
        self.is_remappable = True
        self.is_leaving = False
        """Whether the address was taken from its users, and not yet given back."""
        self.leases: dict[bytes, Any] = {}
        """The leases, by the core of the handle that each was given for."""
        self.ending: list[Any] = []
        """Leases that nobody may use any more, and that are not ended yet."""
        self.shortcuts: list[tuple[bytes, object, object]] = []
        """Arguments by which the table finds this record without looking closer."""
        self.usage = Usage()

    def is_ready_for(self, core: bytes) -> bool:
        """Whether it is open, and the exporter gave a lease for the core of a handle."""
        return self.state is State.OPEN and core in self.leases

    def map(self, use: "Use", *, remappable: bool) -> int:
        """Let a user have the address, and return it. The first one has the vendor map it.

        Parameters
        ----------
        use
            The user.
        remappable
            False if no further user can map it after the last one has left the address.
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
        """Remove a user; the last one closes what is open. The lock is held.

        Returns
        -------
        CrossmemError or None
            What the vendor says of work of the device that was waited for.
        """
        with self.process.state:
            self.mapped_uses.discard(use)
            self.uses.discard(use)
            # From here on nobody joins.
            if not self.uses and self.state is not State.CLOSED:
                self.state = State.CLOSING
        if self.state is State.CLOSING:
            return self.close()
        failure = self.end_unused() if len(self.leases) > 1 or self.ending else None
        # An import that cannot be mapped again keeps its address for users who may still map it.
        if self.mapped and not self.mapped_uses and self.is_remappable:
            return self._stop_mapping() or failure
        return failure

    def end_unused(self) -> CrossmemError | None:
        """End the leases that no user has: their owner may free that memory. The lock is held.

        The users of other exports keep the vendor's open. What is returned is as for :meth:`leave`.
        """
        with self.process.state:
            used = {one.core for one in self.uses}
            # Who comes for one of them from here on asks for another lease.
            for core in [one for one in self.leases if one not in used]:
                call_into(self.ending, self.leases.pop, core)
        failure = wait_for_work(self.device) if self.ending else None
        self._end_leases()
        return failure

    def tidy(self) -> None:
        """End leases whose users left while another export was being leased. The lock is held.

        What cannot be ended now is ended when somebody leaves.
        """
        with suppress(CrossmemError):
            self.end_unused()

    def close(self) -> CrossmemError | None:
        """Give everything back. The lock is held, and nobody uses it.

        If this raises, a later call goes on. Until then the lease lasts: the memory is still open.
        """
        failure = self._stop_mapping() if self.mapped else None
        self._close()
        self.forget(self)
        self.state = State.CLOSED
        return failure

    def _stop_mapping(self) -> CrossmemError | None:
        # If the work cannot be waited for, the address stays as it is.
        failure = wait_for_work(self.device)
        self.is_leaving = True
        self._unmap()
        return failure

    def _unmap(self) -> None:
        if self.mapped:
            self._unmap_at_vendor(self.mapped[0])
        self.is_leaving = False

    def tell(self, kind: EventKind) -> None:
        """Send an event about this import, if anybody observes."""

    def keep_connection(self) -> None:
        """Keep the connection to the exporter until this import is closed."""

    def end_reservations(self, numbers: list[int]) -> None:
        """End the reservations of a message that was received; never waits."""
        raise NotImplementedError

    def words_of(self, core: bytes, slot: int) -> tuple[memoryview, memoryview, bool]:
        """Return where blocks of a pool are held, once its arena is open.

        Parameters
        ----------
        core
            The core of the arena's handle.
        slot
            The slot of the first block.

        Returns
        -------
        tuple
            The owner's control segment, this process's row, and whether it takes fences.
        """
        raise NotImplementedError

    def reserved_generation(
        self, handle: ShareableHandle, reservation: int, deadline: Deadline
    ) -> int:
        """Return the generation by which a message's receiver can hold a freed block.

        Raises
        ------
        CrossmemError
            The message does not reserve it, or the owner does not answer.
        """
        raise NotImplementedError

    def hint(self, slot: int) -> None:
        """Tell the owner of a pool, which waits for that, that a block is held no longer."""
        raise NotImplementedError

    @property
    def is_retired(self) -> bool:
        """Whether it is known without asking that its owner has freed the memory."""
        return False

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        raise NotImplementedError

    @property
    def source(self) -> Block | Imported:
        """What the driver knows the memory as, for an address range.

        Raises
        ------
        UnsupportedError
            An address range cannot show this memory.
        """
        raise NotImplementedError

    @property
    def source_lock(self) -> "threading.RLock":
        """The lock for driver calls that work on :attr:`source`."""
        return self.lock

    def _map(self, *, remappable: bool) -> None:
        raise NotImplementedError

    def _unmap_at_vendor(self, mapped: Mapped) -> None:
        """Give the address back, and forget it right after that."""
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _end_leases(self) -> None:
        """End the leases in ``ending``. If this is interrupted, it can be called again."""
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
        """Whether it is closed when the exporter has died (law C29)."""

    @override
    def leave_to_others(self) -> bool:
        """Leave an import that others have open, and mapped if this one has it mapped."""
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
        """Leave the import, and close it if nobody else uses it."""
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
