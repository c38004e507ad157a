# SPDX-License-Identifier: Apache-2.0
"""One imported allocation of this process, however many imports and mappings it has."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from typing_extensions import override

from crossmem.control.client import Leased, OwnerConnection
from crossmem.driver import Imported, readonly_alias_of
from crossmem.errors import InvalidHandleError, OwnerUnresponsiveError, UnsupportedError
from crossmem.models import Access, ShareableHandle
from crossmem.sharing.memory import Uses

if TYPE_CHECKING:
    from crossmem.sharing.allocation import Owned
    from crossmem.sharing.device import Device

__all__ = ["Entry", "LocalEntry", "RemoteEntry"]


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
        """Give everything back. The lock is held and there is no user."""
        try:
            if self.pointer:
                self._unmap_now()
        finally:
            self._close()

    def _unmap_now(self) -> None:
        pointer, self.pointer = self.pointer, 0
        try:
            self.device.driver.synchronize(self.device.ordinal)
        finally:
            self._unmap(pointer)

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        raise NotImplementedError

    def _map(self, *, remappable: bool) -> int:
        raise NotImplementedError

    def _unmap(self, pointer: int) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class RemoteEntry(Entry):
    """Memory of another process."""

    __slots__ = ("connection", "imported")

    def __init__(
        self, key: object, device: "Device", access: Access, connection: OwnerConnection | None
    ) -> None:
        super().__init__(key, device, access)
        self.connection = connection
        self.imported: Imported | None = None

    def open(self, handle: ShareableHandle, leased: Leased) -> None:
        """Take over a lease, and open the memory where this is the first one.

        Raises
        ------
        InvalidHandleError
            Where the sizes in the handle are not the exporter's.
        DriverError
            Where the vendor's call failed. The caller then still owns the lease.
        """
        if (leased.nbytes, leased.capacity) != (handle.nbytes, handle.capacity):
            msg = (
                f"the handle speaks of {handle.nbytes} bytes in {handle.capacity}, its exporter "
                f"of {leased.nbytes} in {leased.capacity}"
            )
            raise InvalidHandleError(msg, operation="import")
        if self.imported is None:
            self.imported = self.device.driver.import_(
                self.device.ordinal,
                leased.exported,
                nbytes=leased.nbytes,
                capacity=leased.capacity,
                access=self.access,
            )
        else:
            leased.close_descriptors()
        self.handle = handle
        self.leases.append(leased.lease)
        self.cores.add(handle.core)
        self.is_open = True

    @property
    @override
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs; true where there is nobody to watch."""
        return self.connection is None or self.connection.is_owner_alive

    def _imported(self) -> Imported:
        if self.imported is None:
            msg = "the memory was never opened"
            raise InvalidHandleError(msg)
        return self.imported

    @override
    def _map(self, *, remappable: bool) -> int:
        return self.device.driver.map(self._imported(), remappable=remappable)

    @override
    def _unmap(self, pointer: int) -> None:
        self.device.driver.unmap(self._imported(), pointer)

    @override
    def _close(self) -> None:
        imported, self.imported = self.imported, None
        leases, self.leases = self.leases, []
        try:
            if imported is not None:
                self.device.driver.close(imported)
        finally:
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
        release: Callable[[int], None],
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

    @property
    @override
    def is_owner_alive(self) -> bool:
        """Always true: this process runs."""
        return True

    @override
    def _map(self, *, remappable: bool) -> int:
        if self._alias is not None:
            return self._alias.map_readonly(self._owned.block)
        return self._owned.block.pointer

    @override
    def _unmap(self, pointer: int) -> None:
        if self._alias is not None:
            self._alias.unmap_readonly(self._owned.block, pointer)

    @override
    def _close(self) -> None:
        leases, self.leases = self.leases, []
        for lease in leases:
            self._release(lease)
