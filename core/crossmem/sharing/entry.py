# SPDX-License-Identifier: Apache-2.0
"""One imported allocation of this process, however many imports and mappings it has."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from crossmem.control.client import Leased, OwnerConnection
from crossmem.driver import Block, Imported, readonly_alias_of
from crossmem.errors import (
    DriverError,
    InvalidHandleError,
    OwnerGoneError,
    OwnerUnresponsiveError,
    StaleHandleError,
    UnsupportedError,
)
from crossmem.models import Access, ShareableHandle
from crossmem.sharing.memory import Uses
from crossmem.sharing.opening import Opening, OpeningTable
from crossmem.sharing.work import after_work

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.owned import Owned

__all__ = ["Entry", "LocalEntry", "RemoteEntry"]

_DYING_S: Final = 0.1


class Entry:
    """Counts the users of one (allocation, device, access) and owns what they share.

    ``users`` is guarded by the table's lock, everything else by the entry's own, which is held
    while the vendor opens, maps or closes: other entries are not affected.
    """

    __slots__ = (
        "access",
        "cores",
        "device",
        "handle",
        "is_dead",
        "is_open",
        "key",
        "leases",
        "leaving",
        "lock",
        "mappings",
        "pointer",
        "remappable",
        "shortcuts",
        "users",
        "uses",
    )

    def __init__(self, key: object, device: "Device", access: Access) -> None:
        self.key = key
        self.device = device
        self.access = access
        self.lock = threading.RLock()
        self.users = 0
        self.mappings = 0
        self.is_open = False
        self.is_dead = False
        self.pointer = 0
        self.leaving = 0
        """Address that is not given out any more and not yet unmapped."""
        self.handle: ShareableHandle | None = None
        """What was opened, None for memory of this process."""
        self.remappable = True
        self.cores: set[bytes] = set()
        """Cores of the handles whose secret the exporter has seen proven."""
        self.leases: list[int] = []
        self.shortcuts: list[tuple[bytes, object, object]] = []
        """Arguments by which the table finds this entry without looking closer."""
        self.uses = Uses()

    def lock_within(self, timeout_s: float) -> None:
        """Take the lock.

        Raises
        ------
        OwnerUnresponsiveError
            Where another thread's import of the same memory takes longer than that.
        """
        if not self.lock.acquire(timeout=max(0.0, timeout_s)):
            msg = "another thread's import of the same memory did not end in time"
            raise OwnerUnresponsiveError(msg, hint="give a longer timeout")

    def map(self, *, remappable: bool) -> int:
        """Count one more mapping, map where it is the first, and return the base address.

        Parameters
        ----------
        remappable
            False where the caller will close its import together with the mapping.
        """
        with self.lock:
            self._finish_unmap()
            if not self.pointer:
                self.pointer = self._map(remappable=remappable)
                self.remappable = remappable
            self.mappings += 1
            return self.pointer

    def unmap(self) -> None:
        """Count one mapping less; the last one gives the address back (law C9)."""
        with self.lock:
            self.mappings -= 1
            # What cannot be mapped again must keep its address for users who may still map it.
            # An import that is dropped together with its mapping may have been closed before it.
            if not self.mappings and self.remappable and self.pointer:
                self._unmap_now()

    def close(self) -> None:
        """Give everything back. The lock is held and there is no user.

        Where it raises, it may be called again, and goes on where it stopped: until then the
        lease lasts, since the memory is mapped still.
        """
        if self.pointer:
            self._unmap_now()
        self._finish_unmap()
        self._close()

    def _unmap_now(self) -> None:
        # Where the work that uses the memory cannot be waited for, the address stays as it is.
        with after_work(self.device):
            self.leaving, self.pointer = self.pointer, 0
            self._finish_unmap()

    def _finish_unmap(self) -> None:
        """Give up the address that a vendor did not take back before."""
        if self.leaving:
            self._unmap(self.leaving)
            self.leaving = 0

    def end_holds(self, numbers: Sequence[int]) -> None:
        """End the holds of a message that was received; never waits."""
        raise NotImplementedError

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        raise NotImplementedError

    def lend(self) -> tuple[Block | Imported, threading.RLock]:
        """Return what the driver knows the memory as, and the lock for calls that work on it."""
        raise NotImplementedError

    def _map(self, *, remappable: bool) -> int:
        raise NotImplementedError

    def _unmap(self, pointer: int) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class RemoteEntry(Entry):
    """Memory of another process."""

    __slots__ = ("_opening", "_openings", "connection")

    def __init__(
        self,
        key: object,
        device: "Device",
        access: Access,
        connection: OwnerConnection | None,
        openings: OpeningTable,
    ) -> None:
        super().__init__(key, device, access)
        self.connection = connection
        self._openings = openings
        self._opening: Opening | None = None

    def open(self, handle: ShareableHandle, leased: Leased, *, home: int) -> None:
        """Take over a lease, and open the memory where this is the first one.

        Parameters
        ----------
        handle
            What is opened.
        leased
            What its exporter answered.
        home
            Ordinal of the device that holds the memory.

        Raises
        ------
        InvalidHandleError
            Where the sizes in the handle are not the exporter's, or not what is open already.
        DriverError
            Where the vendor's call failed. The caller then still owns the lease.
        """
        if (leased.nbytes, leased.capacity) != (handle.nbytes, handle.capacity):
            msg = (
                f"the handle speaks of {handle.nbytes} bytes in {handle.capacity}, its exporter "
                f"of {leased.nbytes} in {leased.capacity}"
            )
            raise InvalidHandleError(msg, operation="import")
        known = self.handle
        if known is not None and (known.nbytes, known.capacity) != (leased.nbytes, leased.capacity):
            msg = (
                f"the exporter speaks of {leased.nbytes} bytes in {leased.capacity}, but what is "
                f"open of it here has {known.nbytes} in {known.capacity}"
            )
            raise InvalidHandleError(msg, operation="import")
        if self._opening is None:
            self._opening = self._openings.enter(
                self, handle, leased, self.device, self.access, home=home
            )
        self._opening.open(handle, leased, self.access, home=home)
        self.handle = handle
        self.leases.append(leased.lease)
        self.cores.add(handle.core)
        self.is_open = True

    @override
    def end_holds(self, numbers: Sequence[int]) -> None:
        """Tell the exporter, at once where it reads."""
        if self.connection is not None:
            self.connection.release(numbers)

    @property
    @override
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs; true where there is nobody to watch."""
        return self.connection is None or self.connection.is_owner_alive

    def _opened(self) -> tuple[Opening, Imported]:
        opening = self._opening
        if opening is None or opening.imported is None:
            msg = "the memory was never opened"
            raise InvalidHandleError(msg)
        return opening, opening.imported

    @override
    def lend(self) -> tuple[Block | Imported, threading.RLock]:
        """Return the import, on which the driver works under the opening's lock."""
        opening, imported = self._opened()
        return imported, opening.lock

    @override
    def _map(self, *, remappable: bool) -> int:
        opening, imported = self._opened()
        try:
            return opening.map(imported, remappable=remappable)
        except (DriverError, StaleHandleError) as error:
            if self.device.capabilities.survives_owner or not self._has_lost_its_owner():
                raise
            msg = "the process that exported the memory is dead, and its memory with it"
            raise OwnerGoneError(
                msg, operation="map", backend=self.device.backend, device=self.device.identity
            ) from error

    def _has_lost_its_owner(self) -> bool:
        """Whether the exporter is dead, or dying: its memory goes before its death is seen."""
        return self.connection is not None and self.connection.is_owner_dead(within_s=_DYING_S)

    @override
    def _unmap(self, pointer: int) -> None:
        opening, imported = self._opened()
        opening.unmap(imported)

    @override
    def _close(self) -> None:
        if self._opening is not None:
            self._openings.leave(self, self._opening)
            self._opening = None
        leases, self.leases = self.leases, []
        if self.connection is not None and leases:
            self.connection.release(leases)


class LocalEntry(Entry):
    """Memory of this process itself, under another name: no vendor import is made (law C8)."""

    __slots__ = ("_alias", "_owned", "_release")

    def __init__(
        self,
        key: object,
        device: "Device",
        access: Access,
        owned: "Owned",
        release: Callable[[Sequence[int]], None],
    ) -> None:
        super().__init__(key, device, access)
        self._owned = owned
        self._release = release
        self.uses = owned.uses
        self._alias = readonly_alias_of(device.driver) if access == "ro" else None
        if access == "ro" and self._alias is None:
            msg = f"{device.name} cannot map this process's own memory read-only"
            raise UnsupportedError(msg, hint='import with readonly="advisory"')

    def add_lease(self, core: bytes, lease: int) -> None:
        """Take over a lease of this process on its own memory."""
        self.cores.add(core)
        self.leases.append(lease)
        self.is_open = True

    @override
    def end_holds(self, numbers: Sequence[int]) -> None:
        """End them in this process's own book."""
        self._release(numbers)

    @property
    @override
    def is_owner_alive(self) -> bool:
        """Always true: this process runs."""
        return True

    @override
    def lend(self) -> tuple[Block | Imported, threading.RLock]:
        """Return the block itself; refuse where it may only be read, which no range can keep."""
        if self._alias is not None:
            msg = f"{self.device.name} cannot map this process's own memory read-only in a range"
            raise UnsupportedError(msg, operation="map", hint="map the allocation itself")
        return self._owned.lend_block(), self._owned.block_lock

    @override
    def _map(self, *, remappable: bool) -> int:
        if self._alias is None:
            return self._owned.block.pointer
        with self._owned.block_lock:
            return self._alias.map_readonly(self._owned.block)

    @override
    def _unmap(self, pointer: int) -> None:
        if self._alias is not None:
            with self._owned.block_lock:
                self._alias.unmap_readonly(self._owned.block, pointer)

    @override
    def _close(self) -> None:
        leases, self.leases = self.leases, []
        self._release(leases)
