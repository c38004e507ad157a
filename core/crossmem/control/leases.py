# SPDX-License-Identifier: Apache-2.0
"""Who holds what. How leases are recorded is known to this module alone."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

from crossmem.control.records import Export, Unit
from crossmem.control.segments import Segment

__all__ = ["Holder", "Lease", "LeaseTable", "Row", "name_holders", "new_number"]


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
        What it holds without a row, by number: this process itself, and reservations of messages.
    messages
        Those of them that are reservations.
    whitelisted
        Exports for which it is on the vendor's whitelist, as long as there are such exports.
    rows
        The rows in which it holds the rest, by the session of its program and the control segment.
    exports
        What its rows may hold.
    key
        By what the lease server finds it.
    """

    pid: int
    uid: int
    pidfd: int | None = None
    connections: int = 0
    leases: dict[int, "Lease"] = field(default_factory=dict)
    messages: dict[int, "Lease"] = field(default_factory=dict)
    whitelisted: WeakSet[Export] = field(default_factory=WeakSet)
    rows: dict[tuple[int, int], "Row"] = field(default_factory=dict)
    exports: set[Export] = field(default_factory=set)
    key: tuple[int, int, int] = (0, 0, 0)

    @property
    def holds_something(self) -> bool:
        """Whether it has a lease, or may begin to hold an export."""
        return bool(self.leases or self.exports)


@dataclass(slots=True, eq=False)
class Row:
    """The words in which one program says what it holds. This process only reads them."""

    holder: Holder
    segment: Segment
    request: int
    """Number of the request that brought it."""


class Lease(NamedTuple):
    """The record that one process holds an import of one export, or a message does.

    Parameters
    ----------
    number
        Whoever knows it may end the lease: this process itself, or whoever has the message. 0 for
        one that a row says.
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
    """Own leases and reservations of messages. Its user holds a lock around every call.

    Each change is either one statement or can be repeated: an exception of a signal handler leaves
    no lease half recorded that a second call would not end.
    """

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}

    def give(
        self, export: Export, holder: Holder, number: int = 0, *, in_message: bool = False
    ) -> Lease:
        """Record a new lease, under a number that a message's sender chose, or a new one."""
        number = number or new_number()
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

    def reserves(self, number: int, export: Export) -> bool:
        """Whether a reservation lets its message's receiver have an export that others do not get.

        One of a pool's block lets it have the pool, too.
        """
        lease = self._leases.get(number)
        if lease is None or not lease.in_message:
            return False
        handle = export.handle
        is_same = export.is_arena or lease.export == handle.export
        return is_same and lease.unit.allocation == handle.allocation

    def pass_on(self, lease: Lease, holder: Holder) -> None:
        """Make the reservation of a message another process's."""
        number, moved = lease.number, lease._replace(holder=holder)
        self._leases[number] = lease.unit.leases[number] = moved
        holder.leases[number] = holder.messages[number] = moved
        lease.holder.leases.pop(number, None)
        lease.holder.messages.pop(number, None)

    def __contains__(self, number: int) -> bool:
        return number in self._leases

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


def new_number() -> int:
    """Return a number that nobody else can guess."""
    return int.from_bytes(os.urandom(8), "little") or 1


def name_holders(leases: Iterable[Lease]) -> str:
    """Return in words which processes hold leases, and whose messages do."""
    pids: dict[bool, set[int]] = {False: set(), True: set()}
    for lease in leases:
        pids[lease.in_message].add(lease.holder.pid)
    found = {kind: ", ".join(map(str, sorted(one))) for kind, one in pids.items()}
    parts = [found[False] and f"process {found[False]}"]
    parts.append(found[True] and f"an unreceived message of process {found[True]}")
    return " and ".join(filter(None, parts)) or "a process that is being answered"
