# SPDX-License-Identifier: Apache-2.0
"""Who holds what. How leases are recorded is known to this module alone."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

from crossmem.control.records import Export, Unit

__all__ = ["Holder", "Lease", "LeaseTable", "name_holders"]


@dataclass(slots=True, eq=False)
class Holder:
    """A process that holds leases.

    Parameters
    ----------
    pid
        Its process id as seen here, 0 if it is not visible.
    uid
        Its user id as seen here.
    pidfd
        Descriptor that tells of its death; None for this process itself and if the kernel offers
        none.
    connections
        How many connections it has.
    leases
        What it holds, by number.
    messages
        Numbers of those leases that are reservations of messages.
    whitelisted
        Exports for which it is on the vendor's whitelist, as long as there are such exports.
    """

    pid: int
    uid: int
    pidfd: int | None = None
    connections: int = 0
    leases: dict[int, "Lease"] = field(default_factory=dict)
    messages: dict[int, "Lease"] = field(default_factory=dict)
    whitelisted: WeakSet[Export] = field(default_factory=WeakSet)


class Lease(NamedTuple):
    """The record that one process holds an import of one export, or a message does.

    Parameters
    ----------
    number
        Whoever knows it may end the lease, over any connection: the holder alone, or whoever has
        the message.
    unit
        The memory that the lease keeps.
    export
        Number of the export that was asked for.
    holder
        The importing process; for a message, its sender, or the process that is receiving it.
    since
        When it was given, in seconds since the epoch.
    in_message
        Whether it is the reservation of a message, and nobody has the memory open through it.
    """

    number: int
    unit: Unit
    export: int
    holder: Holder
    since: float
    in_message: bool = False


class LeaseTable:
    """All leases on this process's memory. Its user holds a lock around every call.

    Each change is either one statement or can be repeated: an exception of a signal handler leaves
    no lease half recorded that a second call would not end.
    """

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}

    def give(self, export: Export, holder: Holder, *, in_message: bool = False) -> Lease:
        """Record a new lease."""
        number = int.from_bytes(os.urandom(8), "little")
        unit = export.unit
        lease = Lease(number, unit, export.handle.export, holder, time.time(), in_message)
        messages = holder.messages if in_message else {}
        self._leases[number] = unit.leases[number] = holder.leases[number] = lease
        messages[number] = lease
        return lease

    def find_reservation(self, number: int, allocation: int, export: int) -> Lease | None:
        """Return the reservation of that number, if it is one of a message with this export."""
        lease = self._leases.get(number)
        if lease is None or not lease.in_message:
            return None
        return lease if (lease.unit.allocation, lease.export) == (allocation, export) else None

    def pass_on(self, lease: Lease, holder: Holder) -> None:
        """Make the reservation of a message another process's."""
        number, moved = lease.number, lease._replace(holder=holder)
        self._leases[number] = lease.unit.leases[number] = moved
        holder.leases[number] = holder.messages[number] = moved
        lease.holder.leases.pop(number, None)
        lease.holder.messages.pop(number, None)

    def end(self, number: int) -> Lease | None:
        """Forget a lease; None if there is none of that number."""
        lease = self._leases.get(number)
        if lease is not None:
            lease.holder.leases.pop(number, None)
            lease.holder.messages.pop(number, None)
            lease.unit.leases.pop(number, None)
            self._leases.pop(number, None)
        return lease

    def end_all(self, holder: Holder) -> list[Lease]:
        """Forget all leases of a holder and return them."""
        leases = list(holder.leases.values())
        for lease in leases:
            self.end(lease.number)
        return leases

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
