# SPDX-License-Identifier: Apache-2.0
"""The exports of a process, and the leases on them."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from crossmem.control import rows, words
from crossmem.control.events import ENDED, LOST, EventQueue
from crossmem.control.exclusive import claim
from crossmem.control.export_ends import ExportEnds
from crossmem.control.exports import ExportTable
from crossmem.control.leases import Holder, Lease, LeaseTable, Row
from crossmem.control.pool_table import PoolTable
from crossmem.control.records import Export, Unit
from crossmem.control.reservations import refuse_more
from crossmem.control.slots import SlotTable
from crossmem.control.threads import Waiters
from crossmem.control.wire import Refusal, Status
from crossmem.errors import DriverError
from crossmem.locks import Rank, ordered_lock
from crossmem.models import EventKind, ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry

__all__ = ["LeaseRegistry"]


class LeaseRegistry:
    """The exports of this process and the leases on them.

    Any thread may call the methods. The caller of a method in the last section holds the lock.

    Parameters
    ----------
    identity
        This process.
    registry
        The plugins, which receive events. A thread that sends events does not hold the lock.
    limit
        Largest number of exports that the messages of one process may reserve.
    """

    def __init__(self, identity: ProcessIdentity, registry: Registry, limit: int) -> None:
        self.lock = ordered_lock(Rank.LEASES)
        """A thread that holds this lock calls no driver or plugin, so it holds the lock briefly."""
        self.max_reservations = limit
        self._idle: deque[Unit] = deque()
        """Retired memory without leases, until :meth:`tell` has called ``on_idle``."""
        self._waiters = Waiters(self.lock)
        """The threads that wait for the end of a lease."""
        self.myself = Holder(identity.pid, identity.uid)
        # The lock guards the attributes below.
        self.events = EventQueue(registry)
        self.exports = ExportTable()
        self.leases = LeaseTable()
        self.slots = SlotTable()
        self.pools = PoolTable()
        self.granted: dict[int, Export] = {}
        """The exports that importers may hold. The key is the number of the slot."""
        self._ends = ExportEnds(self.exports, self.slots, self.granted, self.events)

    # Methods for the exporter's own threads -----------------------------------------------

    def publish(self, export: Export) -> None:
        """Make an export importable."""
        with self.lock:
            self.exports.add(export)

    def withdraw(self, unit: Unit, handle: ShareableHandle) -> Refusal | None:
        """Refuse imports by further processes (law C28). Return a refusal if this fails, else None.

        Holders keep the export, and so do messages in transit that reserve the export. A second
        call does nothing.

        Raises
        ------
        DriverError
            The kernel refuses the barrier; try again later.
        """
        with self.lock:
            export = self.exports.find(handle.allocation, handle.export)
            if export is None or export.unit is not unit:
                # An earlier call may have been interrupted while it removed the export.
                self._ends.settle(unit)
                refusal = self.exports.refusal(handle.allocation, handle.export)
                # UNKNOWN means that the export never existed. Any other refusal already stops
                # imports.
                is_gone = refusal is not None and refusal.status is not Status.UNKNOWN
                return None if is_gone else Refusal(Status.UNKNOWN, "the handle names other memory")
            refusal = self._refusal_of_core(handle)
            if refusal is None and not unit.is_retired:
                if export not in unit.withdrawn:
                    self.events.note(EventKind.WITHDRAWN, export, 0)
                self._ends.withdraw(export)
            return refusal

    def lease_to_myself(
        self, handle: ShareableHandle, reservation: int, leases: dict[bytes, int]
    ) -> Refusal | None:
        """Grant this process a lease on its own memory (law C8). Return None, or a refusal.

        Parameters
        ----------
        reservation
            The number of the reservation that came with the handle in a message; 0 if none came.
        leases
            Receives the number of the lease. The key is the core of the handle.
        """
        number, export = handle.allocation, handle.export
        with self.lock:
            is_reserved = self.is_reserved(reservation, number, export)
            refusal = self.exports.refusal(number, export, is_reserved=is_reserved)
            refusal = refusal or self._refusal_of_core(handle)
            core = handle.core
            # An earlier call that was interrupted may have taken the lease already.
            if refusal is None and core not in leases:
                if refusal := claim(one := self.exports.get(number, export)):
                    return refusal
                # No signal handler runs between the next two statements, so the caller always gets
                # the number of a lease that was given.
                given = self.leases.give(one, self.myself)
                leases[core] = given.number
            return refusal

    def refusal_of(self, handle: ShareableHandle) -> Refusal | None:
        """Return the refusal of a lease on this process's export; None if a lease is possible."""
        with self.lock:
            return self.exports.refusal(handle.allocation, handle.export)

    def reserve_mine(
        self, handles: Sequence[ShareableHandle], numbers: Sequence[int], timeout_s: float
    ) -> Refusal | None:
        """Reserve all exports of this process's message. Return a refusal if this fails, else None.

        If the limit leaves no room, wait until earlier messages are received or discarded.

        Parameters
        ----------
        numbers
            A new number for each reservation. If this method raises, the caller ends the
            reservations with all these numbers.
        """
        refusal: Refusal | None = None

        def is_settled() -> bool:
            nonlocal refusal
            refusal = refuse_more(self.myself, len(handles), self.max_reservations)
            if refusal is not None and refusal.status is Status.FULL:
                return False
            for handle in handles:
                refusal = refusal or self.pools.enter(handle, self.myself)
                refusal = refusal or self.exports.refusal_of_reservation(handle, self.myself)
                refusal = refusal or self._refusal_of_core(handle)
            if refusal is None:
                for one, number in zip(handles, numbers, strict=True):
                    export = self.exports.get(one.allocation, one.export)
                    self.reserve(export, self.myself, number)
            return True

        self._waiters.wait(is_settled, timeout_s)
        self.tell()
        return refusal

    def _refusal_of_core(self, handle: ShareableHandle) -> Refusal | None:
        known = self.exports.get(handle.allocation, handle.export)
        if known.handle.core != handle.core:
            return Refusal(Status.UNKNOWN, "the handle's fields were changed")
        if not known.has(handle.generation):
            return Refusal(Status.STALE, "the block was freed")
        return None

    def release_mine(self, numbers: Sequence[int]) -> None:
        """End the leases and reservations that have these numbers. A second call does nothing.

        The leases are this process's leases on its own memory.
        """
        self.end(numbers)
        self.tell()

    def wait_idle(self, unit: Unit, timeout_s: float) -> bool:
        """Wait until memory has no lease; return False if the time is over."""
        if timeout_s:
            with self.lock:
                rows.wish((unit,))
        return self._waiters.wait(lambda: not (unit.is_kept or rows.is_held(unit)), timeout_s)

    def wait_all_idle(self, timeout_s: float) -> bool:
        """Wait until no lease is left; return False if the time is over.

        This call ends the leases of this process on its own memory. After the call has begun, only
        the receivers of messages in transit get new leases.
        """
        self.exports.is_exiting = True
        self.end([one.number for one in list(self.myself.leases.values()) if not one.in_message])
        held: list[Unit] | None = None

        def is_over() -> bool:
            nonlocal held
            if len(self.leases):
                return False
            if held is None:
                # No reservation is left, so no further grant is possible.
                held = list({one.unit for one in self.granted.values()})
                rows.wish(held)
            while held and not (held[-1].is_kept or rows.is_held(held[-1])):
                held.pop()
            return not held

        return self._waiters.wait(is_over, timeout_s)

    def leases_of(self, unit: Unit) -> tuple[Lease, ...]:
        """Return the leases on memory, the oldest first."""
        with self.lock:
            return rows.leases_of(unit)

    def retire(self, unit: Unit, *, even_if_leased: bool) -> bool:
        """Retire memory and return whether it has no leases, in one atomic step.

        Parameters
        ----------
        even_if_leased
            True: retire the memory even if leases remain. After the last lease has ended,
            :meth:`tell` calls ``on_idle``. False: retire only memory without leases.

        Returns
        -------
        bool
            True if no lease remains.

        Raises
        ------
        DriverError
            The kernel refuses the barrier; try again later.
        """
        with self.lock:
            if even_if_leased:
                unit.is_retired = True
            elif unit.leases or unit.pins or rows.is_held(unit):
                return False
            is_idle = False
            try:
                if not (unit.leases or unit.pins) and rows.seal(unit):
                    is_idle = unit.is_retired = True
                    self._ends.forget(unit)
                return is_idle
            finally:
                if not (is_idle or even_if_leased):
                    rows.reopen(unit)

    def cut_off(self, unit: Unit) -> bool:
        """At exit, refuse new holds of memory, and return whether the memory has no holder."""
        with self.lock:
            unit.is_retired = True
            return rows.seal(unit)

    def report(self) -> list[tuple[Unit, tuple[Export, ...], tuple[Lease, ...]]]:
        """Return all exported memory with its exports and its leases."""
        with self.lock:
            for export in self.granted.values():
                for row in rows.ended_of(export):
                    self._note_end(export, row, EventKind.LEASE_ENDED)
            for unit in self.exports.units():
                self._ends.settle(unit)
            return [
                (unit, tuple(unit.exports.values()), rows.leases_of(unit))
                for unit in self.exports.units()
            ]

    def tell(self) -> None:
        """Call ``on_idle`` of idle memory, and send events. The caller does not hold the lock."""
        for unit in list(self._idle):
            unit.on_idle()
            # The unit leaves the queue last. If a signal handler raises during ``on_idle``, the
            # next call of this method calls ``on_idle`` again.
            with suppress(ValueError):
                self._idle.remove(unit)
        self.events.tell()

    # Methods for the lease server's thread ------------------------------------------------

    def receive(self, number: int, export: Export, holder: Holder) -> Holder | None:
        """Transfer the reservation of a message from the sender to the receiver.

        The receiver later ends the reservation. If the receiver dies, the reservation ends, too. If
        the sender dies, the reservation stays.

        Returns
        -------
        Holder or None
            The former holder, or None if nothing was transferred.
        """
        with self.lock:
            handle = export.handle
            held = self.leases.find_reservation(number, handle.allocation, handle.export)
            if held is None or held.holder is holder:
                return None
            self.leases.pass_on(held, holder)
            self._waiters.ring()
            return held.holder

    def end(self, numbers: Iterable[int]) -> set[Holder]:
        """End reservations, and this process's leases on its own memory; return their holders."""
        holders: set[Holder] = set()
        with self.lock:
            for number in numbers:
                lease = self.leases.end(number)
                if lease is not None:
                    holders.add(lease.holder)
                    self._after_end(lease, ENDED[lease.in_message])
        return holders

    def hint(self, slots: Iterable[int]) -> None:
        """Check whether the memory of these slots is idle, after a peer's hint."""
        with self.lock:
            exports = map(self.granted.get, set(slots))
            for unit in {one.unit for one in exports if one is not None}:
                self._note_if_idle(unit)
            self._waiters.ring()

    def unpin(self, units: Iterable[Unit]) -> None:
        """Unpin memory, after the replies with its exports were sent or dropped."""
        with self.lock:
            for unit in units:
                unit.pins -= 1
                self._note_if_idle(unit)
            self._waiters.ring()

    def lose(self, holder: Holder) -> None:
        """End all leases of a process that is dead, or that has neither pidfd nor connection."""
        with self.lock:
            for lease in self.leases.end_all(holder):
                self._after_end(lease, LOST[lease.in_message])
            for row in holder.rows.values():
                self.forget_row(row)
            holder.rows.clear()
            self.events.deaths.note(holder.exports)
            for unit in {export.unit for export in holder.exports}:
                self._note_if_idle(unit)
            holder.exports.clear()
            self._waiters.ring()

    def wait(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition that peers bring about; return False if the time is over."""
        return self._waiters.wait(is_over, timeout_s)

    # Methods whose caller holds the lock ---------------------------------------------------

    def is_reserved(self, reservation: int, allocation: int, export: int) -> bool:
        """Whether a reservation is for this export or, if the export is an arena, for a block."""
        found = self.exports.find(allocation, export)
        which = None if found is not None and found.is_arena else export
        return self.leases.find_reservation(reservation, allocation, which) is not None

    def forget(self, unit: Unit) -> None:
        """Remove the exports of memory that has no holder."""
        self._ends.forget(unit)

    def reserve(self, export: Export, holder: Holder, number: int) -> None:
        """Reserve an export for a message."""
        self.events.note(EventKind.RESERVED, export, holder.pid)
        self.leases.give(export, holder, number, in_message=True)

    def forget_row(self, row: Row) -> None:
        """Unmap and forget the row of an importer that is dead, or that never received the row."""
        for export in row.holder.exports:
            if row in export.since:
                is_held = export.slot is not None and words.load(row.segment.words, export.slot.at)
                self._note_end(
                    export, row, EventKind.LEASE_LOST if is_held else EventKind.LEASE_ENDED
                )
            export.rows.pop(row, None)
        row.segment.close()

    def _note_end(self, export: Export, row: Row, kind: EventKind) -> None:
        export.since.pop(row, None)
        self.events.note(kind, export, row.holder.pid)

    def _after_end(self, lease: Lease, kind: EventKind) -> None:
        self._waiters.ring()
        unit = lease.unit
        export = unit.exports.get(lease.export)
        if export is not None and lease.in_message:
            self.events.note(kind, export, lease.holder.pid)
        self._note_if_idle(unit)

    def _note_if_idle(self, unit: Unit) -> None:
        if unit.withdrawn and not unit.is_retired:
            self._ends.settle(unit)
        try:
            is_idle = unit.is_retired and not unit.is_kept and rows.seal(unit)
        except DriverError:
            # The barrier failed. The memory counts as idle nevertheless, so that ``on_idle`` queues
            # it for another attempt. If the barrier fails again, that attempt reports the error.
            is_idle = True
        else:
            if is_idle:
                self._ends.forget(unit)
        if is_idle:
            self._idle.append(unit)
