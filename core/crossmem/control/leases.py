# SPDX-License-Identifier: Apache-2.0
"""Who holds what. How leases are recorded is known to this class alone."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

from crossmem.control.records import Export

__all__ = ["Holder", "Lease", "LeaseTable", "name_holders"]


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
    messages
        How many of these leases are holds of messages.
    whitelisted
        Exports for which it is on the vendor's whitelist, as long as there are such exports.
    """

    pid: int
    uid: int
    pidfd: int | None = None
    connections: int = 0
    leases: dict[int, "Lease"] = field(default_factory=dict)
    messages: int = 0
    whitelisted: WeakSet[Export] = field(default_factory=WeakSet)


class Lease(NamedTuple):
    """The record that one process holds an import of one allocation, or a message does.

    Parameters
    ----------
    number
        Whoever knows it may end the lease, over any connection: the holder alone, or whoever has
        the message.
    allocation
        Number of the allocation.
    export
        Which of the allocation's exports was asked for.
    holder
        The importing process; for a message, its sender, or the process that is receiving it.
    since
        When it was given, in seconds since the epoch.
    in_message
        Whether it is the hold of a message, and nobody has the memory open through it.
    """

    number: int
    allocation: int
    export: int
    holder: Holder
    since: float
    in_message: bool = False


class LeaseTable:
    """All leases on this process's memory. Its user holds a lock around every call."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._by_allocation: dict[int, dict[int, Lease]] = {}

    def give(
        self, allocation: int, export: int, holder: Holder, *, in_message: bool = False
    ) -> Lease:
        """Record a new lease."""
        number = int.from_bytes(os.urandom(8), "little")
        lease = Lease(number, allocation, export, holder, time.time(), in_message)
        self._put(lease)
        return lease

    def _put(self, lease: Lease) -> None:
        self._leases[lease.number] = lease
        self._by_allocation.setdefault(lease.allocation, {})[lease.number] = lease
        lease.holder.leases[lease.number] = lease
        lease.holder.messages += lease.in_message

    def find_hold(self, number: int, allocation: int, export: int) -> Lease | None:
        """Return the hold of that number, where it is one of a message with this export."""
        lease = self._leases.get(number)
        if lease is None or not lease.in_message:
            return None
        return lease if (lease.allocation, lease.export) == (allocation, export) else None

    def pass_on(self, lease: Lease, holder: Holder) -> None:
        """Make a lease another process's."""
        del lease.holder.leases[lease.number]
        lease.holder.messages -= lease.in_message
        self._put(lease._replace(holder=holder))

    def end(self, number: int) -> Lease | None:
        """Forget a lease; None where there is none of that number."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            del lease.holder.leases[number]
            lease.holder.messages -= lease.in_message
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

    def is_held_by(self, holder: Holder, allocation: int) -> bool:
        """Whether one process holds the allocation."""
        leases = self._by_allocation.get(allocation, {})
        return any(lease.holder is holder for lease in leases.values())

    def is_leased(self, allocation: int) -> bool:
        """Whether any process holds the allocation."""
        return allocation in self._by_allocation

    def __len__(self) -> int:
        return len(self._leases)


def name_holders(leases: Iterable[Lease]) -> str:
    """Return in words which processes hold leases, and whose messages do."""
    pids: dict[bool, set[int]] = {False: set(), True: set()}
    for lease in leases:
        pids[lease.in_message].add(lease.holder.pid)
    found = {kind: ", ".join(map(str, sorted(one))) for kind, one in pids.items()}
    parts = [found[False] and f"process {found[False]}"]
    parts.append(found[True] and f"a message of process {found[True]} that nobody received")
    return " and ".join(filter(None, parts))
