# SPDX-License-Identifier: Apache-2.0
"""The holders of leases, and the leases that no row records.

No row records the reservations of messages. This process may lease its own memory. A row records
such a lease only if the memory is a block of a pool.
"""

import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple
from weakref import WeakSet

from crossmem.control.records import Export, Unit
from crossmem.control.segments import Segment
from crossmem.guards import clause

__all__ = ["Holder", "Lease", "LeaseTable", "Row", "name_holders", "new_number", "warn_of_leases"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Holder:
    """A process that holds leases.

    Parameters
    ----------
    pid
        Process id as this process sees it; 0 if this process cannot see the holder.
    uid
        User id as this process sees it.
    pidfd
        Descriptor that reports the process's death. None for this process itself, or if the kernel
        gives no pidfd.
    connections
        Number of the process's connections.
    leases
        The process's leases that no row records. The key is the number of the lease.
    messages
        The reservations of the process's messages. They are also in ``leases``.
    whitelisted
        The live exports for which the process is on the vendor's whitelist.
    rows
        The rows that record the process's other leases. Each key is a pair: a session of the
        process, and the number of a control segment.
    exports
        The exports for which the process has a grant. Its rows can record holds of these exports.
    key
        The key of the process in the lease server's table.
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
        """Whether the process has a lease, or a grant that lets it begin a hold."""
        return bool(self.leases or self.exports)


@dataclass(slots=True, eq=False)
class Row:
    """The row in which a process records holds. The exporter only reads the row.

    If the process executes another program, that program gets another row.
    """

    holder: Holder
    segment: Segment
    request: int
    """Number of the request whose reply carries the row to the importer."""


class Lease(NamedTuple):
    """A lease: one process, or one message, holds one export.

    Parameters
    ----------
    number
        A secret number that gives the right to end the lease. Only the sender and the receivers of
        a message know the number of its reservation. A lease in a row has the number 0.
    unit
        The memory that the lease keeps.
    export
        Number of the export.
    holder
        The importing process. For a message: its sender, or the process that is receiving it.
    since
        The time of the grant, in seconds since the epoch.
    in_message
        Whether the lease is a message's reservation. A reservation keeps the memory. To open the
        memory, a receiver of the message still requests a lease.
    """

    number: int
    unit: Unit
    export: int
    holder: Holder
    since: float
    in_message: bool = False


class LeaseTable:
    """The leases that no row records: leases of this process, and reservations of messages.

    The caller holds the registry's lock.

    A signal handler may raise while a method changes the table. So each change is one statement, or
    the caller can repeat it. :meth:`end` also ends a lease that was recorded only in part.
    """

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}

    def give(
        self, export: Export, holder: Holder, number: int = 0, *, in_message: bool = False
    ) -> Lease:
        """Record and return a lease with this number. If ``number`` is 0, choose a new number."""
        number = number or new_number()
        unit = export.unit
        lease = Lease(number, unit, export.handle.export, holder, time.time(), in_message)
        messages = holder.messages if in_message else {}
        self._leases[number] = unit.leases[number] = holder.leases[number] = lease
        messages[number] = lease
        return lease

    def find_reservation(self, number: int, allocation: int, export: int | None) -> Lease | None:
        """Return the reservation with this number if it is for this export, else None.

        If ``export`` is None, the reservation may be for any block of a pool.
        """
        lease = self._leases.get(number)
        if lease is None or not lease.in_message:
            return None
        is_of_it = lease.unit.allocation == allocation and export in (None, lease.export)
        return lease if is_of_it else None

    def pass_on(self, lease: Lease, holder: Holder) -> None:
        """Transfer the reservation of a message to another process."""
        number, moved = lease.number, lease._replace(holder=holder)
        self._leases[number] = lease.unit.leases[number] = moved
        holder.leases[number] = holder.messages[number] = moved
        lease.holder.leases.pop(number, None)
        lease.holder.messages.pop(number, None)

    def __contains__(self, number: int) -> bool:
        return number in self._leases

    def end(self, number: int) -> Lease | None:
        """Remove a lease and return it; return None if no lease has this number."""
        lease = self._leases.get(number)
        if lease is not None:
            lease.holder.leases.pop(number, None)
            lease.holder.messages.pop(number, None)
            lease.unit.leases.pop(number, None)
            self._leases.pop(number, None)
        return lease

    def end_all(self, holder: Holder) -> list[Lease]:
        """Remove all leases of a holder and return them."""
        leases = list(holder.leases.values())
        for lease in leases:
            self.end(lease.number)
        return leases

    def __len__(self) -> int:
        return len(self._leases)


def new_number() -> int:
    """Return a number that no other process can guess."""
    return int.from_bytes(os.urandom(8), "little") or 1


def name_holders(leases: Iterable[Lease]) -> str:
    """Return a text that names the holders of leases: processes, and senders of messages."""
    pids: dict[bool, set[int]] = {False: set(), True: set()}
    for lease in leases:
        pids[lease.in_message].add(lease.holder.pid)
    found = {kind: ", ".join(map(str, sorted(one))) for kind, one in pids.items()}
    parts = [found[False] and f"process {found[False]}"]
    parts.append(found[True] and f"an unreceived message of process {found[True]}")
    return " and ".join(filter(None, parts)) or "a process that waits for a reply"


def warn_of_leases(report: Iterable[tuple[Unit, object, Sequence[Lease]]]) -> None:
    """Log a warning about the memory that is still leased while this process exits."""
    left = {unit.allocation: leases for unit, _exports, leases in report if leases}
    if left:
        what = f"allocation {next(iter(left))} is"
        if len(left) > 1:
            numbers = ", ".join(map(str, left))
            what = f"{len(left)} allocations ({clause(numbers, 60)}) are"
        holders = name_holders(chain.from_iterable(left.values()))
        _log.warning("exiting while %s leased by %s", what, clause(holders))
