# SPDX-License-Identifier: Apache-2.0
"""What a process exports and who holds it: every decision of the lease server, and no socket."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from crossmem.control.events import ENDED, LOST, EventQueue
from crossmem.control.exports import ExportTable
from crossmem.control.leases import Holder, Lease, LeaseTable
from crossmem.control.processes import own_uid
from crossmem.control.records import Export, Unit
from crossmem.control.threads import Bell
from crossmem.control.wire import Refusal, Status, Wanted, pack_reservation, verify
from crossmem.driver import Peer
from crossmem.errors import AccessDeniedError, CrossmemError
from crossmem.locks import Rank, ordered_lock
from crossmem.models import EventKind, ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry

__all__ = ["LeaseRegistry"]

_log = logging.getLogger(__name__)


class LeaseRegistry:
    """The exports of this process and the leases on them. Any thread may call it.

    Parameters
    ----------
    identity
        This process.
    registry
        The plugins. They receive events, outside of the lock.
    limit
        How many exports the messages of one process may reserve.
    """

    def __init__(self, identity: ProcessIdentity, registry: Registry, limit: int) -> None:
        self.lock = ordered_lock(Rank.LEASES)
        """Held for moments: no driver, plugin or finaliser runs under it."""
        self._own_uid = own_uid()
        self._max_reservations = limit
        self._events = EventQueue(registry)
        self._idle: deque[Unit] = deque()
        """Retired memory whose last lease has ended, and whose owner was not told."""
        self._bells: set[Bell] = set()
        """Each rings when a lease has ended, for a thread that waits for that."""
        self._exports = ExportTable()
        self._leases = LeaseTable()
        self._myself = Holder(identity.pid, identity.uid)

    # What the exporter's own threads call -------------------------------------------------

    def publish(self, export: Export) -> None:
        """Make an export importable."""
        with self.lock:
            self._exports.add(export)

    def lease_to_myself(
        self, handle: ShareableHandle, reservation: int, leases: dict[bytes, int]
    ) -> Refusal | None:
        """Give this process itself a lease on its own memory (law C8).

        Parameters
        ----------
        handle
            What it imports.
        reservation
            The number that came with the handle in a message, 0 without one.
        leases
            Gets the number of the lease, by the core of the handle.
        """
        number, export = handle.allocation, handle.export
        with self.lock:
            is_reserved = self._leases.find_reservation(reservation, number, export) is not None
            refusal = self._exports.refusal(number, export, is_reserved=is_reserved)
            refusal = refusal or self._refusal_of_core(handle)
            if refusal is None:
                core = handle.core
                given = self._leases.give(self._exports.get(number, export), self._myself)
                # No call stands between giving the lease and recording it.
                leases[core] = given.number
            return refusal

    def refusal_of(self, handle: ShareableHandle) -> Refusal | None:
        """Return why nobody gets an export of this process, None if it can be given."""
        with self.lock:
            return self._exports.refusal(handle.allocation, handle.export)

    def reserve_mine(
        self, handles: Sequence[ShareableHandle], timeout_s: float, numbers: list[int]
    ) -> Refusal | None:
        """Reserve memory of this process for a message of its own; all or none.

        Waits for room: until others have received or discarded earlier messages.

        Parameters
        ----------
        handles
            What the message speaks of.
        timeout_s
            How long to wait.
        numbers
            Gets the number of each reservation. The caller ends them if this raises.
        """
        refusal: Refusal | None = None

        def is_settled() -> bool:
            nonlocal refusal
            refusal = self.refuse_more(self._myself, len(handles))
            if refusal is not None and refusal.status is Status.FULL:
                return False
            for handle in handles:
                refusal = refusal or self._exports.refusal_of_reservation(handle, self._myself)
                refusal = refusal or self._refusal_of_core(handle)
            if refusal is None:
                for one in handles:
                    export = self._exports.get(one.allocation, one.export)
                    numbers.append(self._reserve(export, self._myself).number)
            return True

        self._wait(is_settled, timeout_s)
        self.tell()
        return refusal

    def _refusal_of_core(self, handle: ShareableHandle) -> Refusal | None:
        known = self._exports.get(handle.allocation, handle.export).handle
        if known.core != handle.core:
            return Refusal(Status.UNKNOWN, "the handle's fields were changed")
        return None

    def release_mine(self, numbers: Sequence[int]) -> None:
        """End leases that this process has on its own memory, and reservations of messages to it.

        Ending one twice is harmless.
        """
        self.end(numbers)
        self.tell()

    def wait_idle(self, unit: Unit, timeout_s: float) -> bool:
        """Wait until memory has no lease; False if the time is over."""
        return self._wait(lambda: not unit.leases, timeout_s)

    def wait_all_idle(self, timeout_s: float) -> bool:
        """Wait until no lease is left; False if the time is over.

        From now on nothing is granted but what messages under way reserve.
        """
        self._exports.is_exiting = True
        self.end([one.number for one in list(self._myself.leases.values()) if not one.in_message])
        return self._wait(lambda: not len(self._leases), timeout_s)

    def _wait(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds that the end of a lease can bring about.

        The lock is held while that is asked. It is asked until it holds, and never again.
        """
        end = time.monotonic() + timeout_s
        while True:
            bell = Bell()
            try:
                with self.lock:
                    if is_over():
                        return True
                    self._bells.add(bell)
                left_s = end - time.monotonic()
                if left_s <= 0 or not bell.wait(left_s):
                    with self.lock:
                        return is_over()
            finally:
                self._bells.discard(bell)

    @property
    def has_leases(self) -> bool:
        """Whether anybody but this process itself holds anything."""
        with self.lock:
            return len(self._leases) > len(self._myself.leases)

    def leases_of(self, unit: Unit) -> tuple[Lease, ...]:
        """Return who holds memory, oldest lease first."""
        with self.lock:
            return tuple(unit.leases.values())

    def retire(self, unit: Unit, *, even_if_leased: bool) -> bool:
        """Stop granting memory and tell whether it is free of leases: one atomic step.

        Parameters
        ----------
        unit
            The memory.
        even_if_leased
            Retire it also if leases remain; ``on_idle`` then tells of the end of the last.

        Returns
        -------
        bool
            True if no lease remains. If one does, and ``even_if_leased`` is false, nothing has
            changed.
        """
        with self.lock:
            is_leased = bool(unit.leases or unit.grants)
            if even_if_leased or not is_leased:
                unit.is_retired = True
            if not is_leased:
                self._exports.forget(unit)
        return not is_leased

    def report(self) -> list[tuple[Unit, tuple[Export, ...], tuple[Lease, ...]]]:
        """Return everything that is exported: the memory, its exports and its leases."""
        with self.lock:
            return [
                (unit, tuple(unit.exports.values()), tuple(unit.leases.values()))
                for unit in self._exports.units()
            ]

    def tell(self) -> None:
        """Tell owners of idle memory and observers what happened. The lock is not held."""
        for unit in list(self._idle):
            unit.on_idle()
            # Last: a thread that looks meanwhile must not miss it, and telling twice is harmless.
            with suppress(ValueError):
                self._idle.remove(unit)
        self._events.tell()

    # What the lease server's thread calls -------------------------------------------------

    def admit(
        self, holder: Holder, context: bytes, reported: int, wanted: Wanted
    ) -> tuple[Lease, Export] | Refusal:
        """Give a lease to a peer that may have it, after the vendor's whitelist knows the peer.

        Parameters
        ----------
        holder
            The peer, as the kernel shows it.
        context
            What the peer's proof covers besides the export.
        reported
            The peer's number for the vendor's whitelist.
        wanted
            What it asks for.
        """
        with self.lock:
            export = self._find(holder, context, wanted)
            if isinstance(export, Refusal):
                return export
            if export.unit.grant is None or export in holder.whitelisted:
                return self._lease(export, holder)
            export.unit.grants += 1
        refusal = self._grant(export, holder, reported)
        with self.lock:
            unit = export.unit
            unit.grants -= 1
            if refusal is None:
                holder.whitelisted.add(export)
                # It may have been freed meanwhile.
                found = self._find(holder, context, wanted)
                if not isinstance(found, Refusal):
                    return self._lease(found, holder)
                refusal = found
            self._note_if_idle(unit)
            return refusal

    def _find(self, holder: Holder, context: bytes, wanted: Wanted) -> Export | Refusal:
        """Return the export that a peer asks for, if it may have it. The lock is held."""
        allocation, number = wanted.allocation, wanted.export
        held = self._leases.find_reservation(wanted.reservation, allocation, number)
        refusal = self._exports.refusal(allocation, number, is_reserved=held is not None)
        if refusal is not None:
            return refusal
        export = self._exports.get(allocation, number)
        return self._refusal_of_peer(holder, export, wanted, b"import", context) or export

    def _lease(self, export: Export, holder: Holder) -> tuple[Lease, Export]:
        self._events.note(EventKind.LEASED, export, holder.pid)
        return self._leases.give(export, holder), export

    def _grant(self, export: Export, holder: Holder, reported: int) -> Refusal | None:
        """Put a peer on the vendor's whitelist. No lock is held: this is the driver's code."""
        grant = export.unit.grant
        assert grant is not None  # noqa: S101 - the caller has asked
        try:
            grant(export, Peer(holder.pid, reported))
        except AccessDeniedError as error:
            with self.lock:
                return self._deny(export, holder, str(error))
        except CrossmemError as error:
            return Refusal(Status.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - logged, and the peer is told
            _log.exception("the driver failed to grant process %d access", holder.pid)
            return Refusal(Status.FAILED, f"the exporter's driver failed: {error!r}")
        return None

    def admit_reservation(
        self, holder: Holder, context: bytes, wanted: Wanted
    ) -> tuple[Lease, Export] | Refusal:
        """Reserve an export for a message of a peer. The parameters are those of :meth:`admit`."""
        with self.lock:
            refusal = self._exports.refusal_of_reservation(wanted, holder)
            if refusal is not None:
                return refusal
            export = self._exports.get(wanted.allocation, wanted.export)
            refusal = self._refusal_of_peer(holder, export, wanted, b"reserve", context)
            return refusal or (self._reserve(export, holder), export)

    def refuse_more(self, holder: Holder, count: int) -> Refusal | None:
        """Return why messages of a process may not reserve so many more exports, or None."""
        if self._is_room_for(holder, count):
            return None
        if count > self._max_reservations:
            reason = f"one message with {count} handles; {self._max_reservations} are allowed"
            return Refusal(Status.TOO_MANY, reason)
        who = f"process {holder.pid}" if holder.pid else "a process that is not visible"
        reason = (
            f"messages of {who} reserve {len(holder.messages)} of its exports already; "
            f"{self._max_reservations} are allowed"
        )
        return Refusal(Status.FULL, reason)

    def receive(self, wanted: Wanted, holder: Holder) -> Holder | None:
        """Make a message's reservation its receiver's, which ends it once it has opened the memory.

        So it ends with the receiver if that dies before, and not with its sender. If the
        reservation is gone, nothing happens.

        Returns
        -------
        Holder or None
            Who had it.
        """
        with self.lock:
            number = wanted.reservation
            held = self._leases.find_reservation(number, wanted.allocation, wanted.export)
            if held is None or held.holder is holder:
                return None
            self._leases.pass_on(held, holder)
            self._ring()
            return held.holder

    def end(self, numbers: Iterable[int]) -> set[Holder]:
        """End leases by number, and return who held them."""
        holders: set[Holder] = set()
        with self.lock:
            for number in numbers:
                lease = self._leases.end(number)
                if lease is not None:
                    holders.add(lease.holder)
                    self._after_end(lease, ENDED[lease.in_message])
        return holders

    def lose(self, holder: Holder) -> None:
        """End all leases of a process that is dead."""
        with self.lock:
            for lease in self._leases.end_all(holder):
                self._after_end(lease, LOST[lease.in_message])

    # Under the lock ------------------------------------------------------------------------

    def _reserve(self, export: Export, holder: Holder) -> Lease:
        self._events.note(EventKind.RESERVED, export, holder.pid)
        return self._leases.give(export, holder, in_message=True)

    def _is_room_for(self, holder: Holder, count: int) -> bool:
        return len(holder.messages) + count <= self._max_reservations

    def _ring(self) -> None:
        """Wake the threads that wait for the end of a lease."""
        for bell in list(self._bells):
            self._bells.discard(bell)
            bell.ring()

    def _refusal_of_peer(
        self, holder: Holder, export: Export, wanted: Wanted, role: bytes, context: bytes
    ) -> Refusal | None:
        handle, reservation = export.handle, pack_reservation(wanted.reservation)
        if not verify(wanted.proof, handle.secret, role, context, reservation, handle.core):
            return Refusal(Status.UNKNOWN, "the secret or a field of the handle is wrong")
        reason = export.allow.refuses(holder.pid, holder.uid, self._own_uid)
        return None if reason is None else self._deny(export, holder, reason)

    def _deny(self, export: Export, holder: Holder, reason: str) -> Refusal:
        export.denied += 1
        self._events.note(EventKind.DENIED, export, holder.pid, reason)
        return Refusal(Status.DENIED, reason)

    def _after_end(self, lease: Lease, kind: EventKind) -> None:
        self._ring()
        unit = lease.unit
        export = unit.exports.get(lease.export)
        if export is not None and (lease.in_message or lease.holder is not self._myself):
            self._events.note(kind, export, lease.holder.pid)
        self._note_if_idle(unit)

    def _note_if_idle(self, unit: Unit) -> None:
        if unit.is_retired and not unit.leases and not unit.grants:
            self._exports.forget(unit)
            self._idle.append(unit)
