# SPDX-License-Identifier: Apache-2.0
"""One vendor open, however many allocations lie in what it opened.

Usually that is one. But what an exporter adopted of one vendor's allocation comes as several
allocations with the same payloads, and the vendor is asked to open it once.
"""

import threading
from typing import TYPE_CHECKING

from crossmem.control.client import Leased
from crossmem.control.processes import has_pidfds
from crossmem.driver import Driver, Imported
from crossmem.errors import BusyError, CrossmemError
from crossmem.models import Access, ShareableHandle

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["Opening", "OpeningTable"]


class Opening:
    """What the vendor opened, shared by entries.

    ``users`` and ``is_ending`` are guarded by the table's lock, everything else by this one's
    own, which is held while the vendor works.
    """

    __slots__ = (
        "_is_remappable",
        "_mappings",
        "device",
        "imported",
        "is_ending",
        "key",
        "lock",
        "owner_pid",
        "pointer",
        "users",
    )

    def __init__(self, device: "Device", key: object, owner_pid: int) -> None:
        self.device = device
        self.key = key
        self.owner_pid = owner_pid
        self.lock = threading.RLock()
        self.users: set[object] = set()
        self.is_ending = False
        """Nobody may join; whoever wants to waits for the end and begins anew."""
        self.imported: Imported | None = None
        self.pointer = 0
        self._mappings = 0
        self._is_remappable = True

    def open(self, handle: ShareableHandle, leased: Leased, access: Access, *, home: int) -> None:
        """Open the memory, where no other user has. Where it raises, nothing has changed."""
        with self.lock:
            if self.imported is not None:
                leased.close_descriptors()
                return
            self.imported = self.device.driver.import_(
                self.device.ordinal,
                leased.exported,
                home=home,
                mechanism=handle.mechanism,
                nbytes=leased.nbytes,
                capacity=leased.capacity,
                access=access,
            )
            leased.is_taken = True

    def map(self, imported: Imported, *, remappable: bool) -> int:
        """Count one more user that has it mapped, and return the address."""
        with self.lock:
            if not self.pointer:
                self.pointer = self.device.driver.map(imported, remappable=remappable)
                self._is_remappable = remappable
            self._mappings += 1
            return self.pointer

    def unmap(self, imported: Imported) -> None:
        """Count one less; the last one gives the address back, where it can be had again.

        Where it raises, nothing has changed.
        """
        with self.lock:
            if self._mappings == 1 and self._is_remappable:
                self._unmap(imported)
            self._mappings -= 1

    def close(self) -> None:
        """Give everything back. Where it raises, it goes on when it is called again."""
        with self.lock:
            if self.imported is None:
                return
            if self.pointer:
                self._unmap(self.imported)
            self.device.driver.close(self.imported)
            self.imported = None

    def _unmap(self, imported: Imported) -> None:
        self.device.driver.unmap(imported, self.pointer)
        self.pointer = 0

    def shows(self, driver: Driver, pointer: int) -> bool:
        """Whether an address of a driver is in the memory."""
        imported = self.imported
        return (
            imported is not None
            and self.device.driver is driver
            and 0 < self.pointer <= pointer < self.pointer + imported.capacity
        )


class OpeningTable:
    """Finds openings by everything that makes two the same.

    Parameters
    ----------
    lock
        Guards the table; held for moments.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._openings: dict[object, Opening] = {}

    def enter(
        self,
        user: object,
        handle: ShareableHandle,
        leased: Leased,
        device: "Device",
        access: Access,
        *,
        home: int,
    ) -> Opening:
        """Return the opening that a lease leads to, with one more user; perhaps not open yet.

        Raises
        ------
        BusyError
            Where the vendor refuses to close what was opened there last.
        """
        key: object = (
            handle.owner,
            device,
            access,
            home,
            leased.nbytes,
            leased.capacity,
            leased.exported.payloads,
        )
        if not _is_telling(handle, leased):
            key = object()
        while True:
            with self._lock:
                opening = self._openings.get(key)
                if opening is None:
                    opening = self._openings[key] = Opening(device, key, handle.owner.pid)
                if not opening.is_ending:
                    opening.users.add(user)
                    return opening
            try:
                self._end(opening)
            except CrossmemError as error:
                msg = "the vendor does not let this process close its last import of this memory"
                raise BusyError(
                    msg,
                    operation="import",
                    backend=handle.backend,
                    hint="each call of crossmem tries it again; crossmem.collect() does only that",
                ) from error

    def leave(self, user: object, opening: Opening) -> None:
        """Let a user go; the last one closes it. Where it raises, it may be called again."""
        with self._lock:
            opening.users.discard(user)
            if opening.users:
                return
            opening.is_ending = True
        self._end(opening)

    def _end(self, opening: Opening) -> None:
        """Close what nobody uses, or wait for who does."""
        with opening.lock:
            opening.close()
            with self._lock:
                if self._openings.get(opening.key) is opening:
                    del self._openings[opening.key]

    def owner_at(self, driver: Driver, pointer: int) -> int | None:
        """Return whose memory is mapped at an address, as its pid; None where nobody's is."""
        for opening in list(self._openings.values()):
            if opening.shows(driver, pointer):
                return opening.owner_pid
        return None


def _is_telling(handle: ShareableHandle, leased: Leased) -> bool:
    """Whether equal payloads are the same memory, as long as an opening of it lives.

    Descriptors alone do not show what they lead to. And where no lease keeps the memory, or a lost
    connection ends leases, it may be gone and its payload be another memory's.
    """
    return bool(leased.exported.payloads) and handle.raw is None and has_pidfds()
