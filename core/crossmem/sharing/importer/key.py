# SPDX-License-Identifier: Apache-2.0
"""A caller's request for an import, and the key by which requests share one vendor import."""

from typing import NamedTuple

from crossmem.models import Access, PoolCore, ProcessIdentity, ShareableHandle
from crossmem.sharing.base.devices import LocalDevice

__all__ = ["ImportKey", "ImportRequest"]

ImportKey = tuple[ProcessIdentity, int, LocalDevice, Access, int, object]
"""Exporter, allocation number, device that uses the memory, access, ordinal of the device that
holds the memory, and the vendor's bytes in a raw handle (None for other handles)."""


class ImportRequest(NamedTuple):
    """One import that a caller requests.

    Parameters
    ----------
    device
        The device that uses the memory.
    home
        Ordinal, in this process, of the device that holds the memory.
    reservation
        The number of the reservation that came with the handle in a message; 0 if none came.
    pool
        The pool, if the handle names the arena of a pool; else None.
    extras
        How many of the reply's descriptors are for crossmem itself, not for the driver. They are
        the last ones of the reply.
    """

    handle: ShareableHandle
    device: LocalDevice
    access: Access
    home: int
    reservation: int = 0
    pool: PoolCore | None = None
    extras: int = 0

    @property
    def key(self) -> ImportKey:
        """The request's key in the import table. Requests with equal keys share one record."""
        handle = self.handle
        number, raw = handle.allocation, handle.raw
        return handle.owner, number, self.device, self.access, self.home, raw
