# SPDX-License-Identifier: Apache-2.0
"""Who holds what. How leases are recorded is known to this class alone."""

import os
import time
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Holder", "Lease", "LeaseTable"]


@dataclass(slots=True, eq=False)
class Holder:
    """A process that holds leases.

    Parameters
    ----------
    pid
        Its process id as seen here, 0 where it is not visible.
    uid
        Its user id as seen here.
    pidfd
        Descriptor that tells of its death; None for this process itself and where the kernel
        offers none.
    connections
        How many connections it has.
    leases
        What it holds, by number.
    whitelisted
        Exports (allocation, export) for which it is on the vendor's whitelist.
    """

    pid: int
    uid: int
    pidfd: int | None = None
    connections: int = 0
    leases: dict[int, "Lease"] = field(default_factory=dict)
    whitelisted: set[tuple[int, int]] = field(default_factory=set)


class Lease(NamedTuple):
    """The record that one process holds an import of one allocation.

    Parameters
    ----------
    number
        Known to the holder alone, which proves with it that it may end the lease, whatever
        connection it uses then.
    allocation
        Number of the allocation.
    export
        Which of the allocation's exports was asked for.
    holder
        The importing process.
    since
        When it was given, in seconds since the epoch.
    """

    number: int
    allocation: int
    export: int
    holder: Holder
    since: float


class LeaseTable:
    """All leases on this process's memory. Its user holds a lock around every call."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._by_allocation: dict[int, dict[int, Lease]] = {}

    def give(self, allocation: int, export: int, holder: Holder) -> Lease:
        """Record a new lease."""
        number = int.from_bytes(os.urandom(8), "little")
        lease = Lease(number, allocation, export, holder, time.time())
        self._leases[number] = lease
        self._by_allocation.setdefault(allocation, {})[number] = lease
        holder.leases[number] = lease
        return lease

    def end(self, number: int) -> Lease | None:
        """Forget a lease; None where there is none of that number."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            del lease.holder.leases[number]
            of_allocation = self._by_allocation[lease.allocation]
            del of_allocation[number]
            if not of_allocation:
                del self._by_allocation[lease.allocation]
        return lease

    def end_all(self, holder: Holder) -> list[Lease]:
        """Forget all leases of a holder and return them."""
        leases = list(holder.leases.values())
        for lease in leases:
            self.end(lease.number)
        return leases

    def of(self, allocation: int) -> tuple[Lease, ...]:
        """Return the leases on an allocation, oldest first."""
        leases = self._by_allocation.get(allocation)
        return tuple(leases.values()) if leases else ()

    def is_leased(self, allocation: int) -> bool:
        """Whether any process holds the allocation."""
        return allocation in self._by_allocation

    def __len__(self) -> int:
        return len(self._leases)
