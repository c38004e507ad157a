# SPDX-License-Identifier: Apache-2.0
"""What a process exports and who holds it: every decision of the lease server, and no socket."""

import threading
from collections import deque
from collections.abc import Iterable, Sequence

from crossmem.control.leases import Holder, Lease, LeaseTable
from crossmem.control.processes import own_uid
from crossmem.control.records import Export, Shared
from crossmem.control.wire import Refusal, Status, Wanted, pack_hold, verify
from crossmem.driver import Peer
from crossmem.errors import AccessDeniedError, CrossmemError
from crossmem.models import Event, EventKind, ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry

__all__ = ["LeaseBook"]


class LeaseBook:
    """The exports of this process and the leases on them.

    Parameters
    ----------
    identity
        This process.
    registry
        Receives events, outside of the lock.
    max_holds
        How many exports the messages of one process may hold.
    """

    def __init__(self, identity: ProcessIdentity, registry: Registry, max_holds: int) -> None:
        self.lock = threading.RLock()
        """Guards everything here and in the server. Held for moments, never while waiting."""
        self._own_uid = own_uid()
        self._registry = registry
        self._max_holds = max_holds
        self._events: deque[Event] = deque()
        self._idle = threading.Condition(self.lock)
        self._has_room = threading.Condition(self.lock)
        """Told when a hold of this process's own messages has ended."""
        self._shared: dict[int, Shared] = {}
        self._newest_allocation = 0
        self._leases = LeaseTable()
        self._myself = Holder(identity.pid, identity.uid)
        self._is_exiting = False

    # What the exporter's own threads call -------------------------------------------------

    def publish(self, shared: Shared, export: Export) -> None:
        """Make an export importable."""
        with self.lock:
            shared.exports[export.handle.export] = export
            self._shared[shared.allocation] = shared
            self._newest_allocation = max(self._newest_allocation, shared.allocation)

    def lease_to_myself(self, handle: ShareableHandle, hold: int) -> Lease | Refusal:
        """Give this process itself a lease on its own memory (law C8).

        Parameters
        ----------
        handle
            What it imports.
        hold
            The number that came with the handle in a message, 0 without one.
        """
        number, export = handle.allocation, handle.export
        with self.lock:
            is_held = self._leases.find_hold(hold, number, export) is not None
            refusal = self._refusal_of(number, export, is_held=is_held)
            refusal = refusal or self._refusal_of_core(handle)
            return refusal or self._leases.give(number, export, self._myself)

    def hold_mine(
        self, handles: Sequence[ShareableHandle], timeout_s: float
    ) -> list[Lease] | Refusal:
        """Let a message of this process hold its own memory; all or none.

        Waits for room: until others have received or discarded earlier messages.
        """
        count = len(handles)
        with self.lock:
            if count <= self._max_holds:
                self._has_room.wait_for(lambda: self._is_room_for(self._myself, count), timeout_s)
            refusal = self.refuse_more(self._myself, count)
            for handle in handles:
                refusal = refusal or self._refusal_of_hold(handle, self._myself)
                refusal = refusal or self._refusal_of_core(handle)
            if refusal is not None:
                return refusal
            holds = [self._hold(one.allocation, one.export, self._myself) for one in handles]
        self.emit_events()
        return holds

    def _refusal_of_core(self, handle: ShareableHandle) -> Refusal | None:
        known = self._shared[handle.allocation].exports[handle.export].handle
        if known.core != handle.core:
            return Refusal(Status.UNKNOWN, "the handle's fields were changed")
        return None

    def release_mine(self, numbers: Sequence[int]) -> None:
        """End leases that this process has on its own memory, and holds of messages to it."""
        with self.lock:
            self.end(numbers)
        self.emit_events()

    def wait_idle(self, allocation: int, timeout_s: float) -> bool:
        """Wait until an allocation has no lease; False where the time is over."""
        with self.lock:
            return self._idle.wait_for(lambda: not self._leases.is_leased(allocation), timeout_s)

    def wait_all_idle(self, timeout_s: float) -> bool:
        """Wait until no lease is left; False where the time is over.

        From now on nothing is granted but what messages hold that are under way.
        """
        with self.lock:
            self._is_exiting = True
            for lease in list(self._myself.leases.values()):
                if not lease.in_message:
                    self._leases.end(lease.number)
            return self._idle.wait_for(lambda: not len(self._leases), timeout_s)

    def leases_of(self, allocation: int) -> tuple[Lease, ...]:
        """Return who holds an allocation, oldest lease first."""
        with self.lock:
            return self._leases.of(allocation)

    def report(self) -> list[tuple[Shared, tuple[Export, ...], tuple[Lease, ...]]]:
        """Return everything that is exported: the memory, its exports and its leases."""
        with self.lock:
            return [
                (one, tuple(one.exports.values()), self._leases.of(number))
                for number, one in self._shared.items()
            ]

    def emit_events(self) -> None:
        """Tell observers what happened. The lock is not held."""
        while self._events:
            try:
                event = self._events.popleft()
            except IndexError:
                return
            self._registry.emit(event)

    # What the server calls, with the lock held --------------------------------------------

    def retire(self, allocation: int, *, even_if_leased: bool) -> bool:
        """Stop granting an allocation and tell whether it is free of leases."""
        shared = self._shared.get(allocation)
        if shared is None:
            return True
        is_leased = self._leases.is_leased(allocation)
        if not is_leased:
            del self._shared[allocation]
        if not is_leased or even_if_leased:
            shared.is_retired = True
        return not is_leased

    def holders_of(self, allocation: int) -> set[Holder]:
        """Return the processes that hold an allocation."""
        return {lease.holder for lease in self._leases.of(allocation)}

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
        held = self._leases.find_hold(wanted.hold, wanted.allocation, wanted.export)
        refusal = self._refusal_of(wanted.allocation, wanted.export, is_held=held is not None)
        if refusal is not None:
            return refusal
        shared = self._shared[wanted.allocation]
        export = shared.exports[wanted.export]
        refusal = self._refusal_of_peer(holder, export, wanted, b"import", context)
        if refusal is not None:
            return refusal
        if shared.grant is not None and export not in holder.whitelisted:
            try:
                shared.grant(export, Peer(holder.pid, reported))
            except AccessDeniedError as error:
                return self._deny(export, holder, str(error))
            except CrossmemError as error:
                return Refusal(Status.FAILED, str(error))
            holder.whitelisted.add(export)
        self._note(EventKind.LEASED, export, holder.pid)
        return self._leases.give(wanted.allocation, wanted.export, holder), export

    def admit_hold(
        self, holder: Holder, context: bytes, wanted: Wanted
    ) -> tuple[Lease, Export] | Refusal:
        """Let a message of a peer hold an export. The parameters are those of :meth:`admit`."""
        refusal = self._refusal_of_hold(wanted, holder)
        if refusal is not None:
            return refusal
        export = self._shared[wanted.allocation].exports[wanted.export]
        refusal = self._refusal_of_peer(holder, export, wanted, b"hold", context)
        if refusal is not None:
            return refusal
        return self._hold(wanted.allocation, wanted.export, holder), export

    def refuse_more(self, holder: Holder, count: int) -> Refusal | None:
        """Return why messages of a process may not hold so many more exports, None if they may."""
        if self._is_room_for(holder, count):
            return None
        if count > self._max_holds:
            reason = f"one message with {count} handles; {self._max_holds} are allowed"
            return Refusal(Status.TOO_MANY, reason)
        who = f"process {holder.pid}" if holder.pid else "a process that is not visible"
        reason = (
            f"messages of {who} hold {holder.messages} of its exports already; "
            f"{self._max_holds} are allowed"
        )
        return Refusal(Status.FULL, reason)

    def receive(self, wanted: Wanted, holder: Holder) -> Holder | None:
        """Make a message's hold its receiver's, which ends it once it has opened the memory.

        So it ends with the receiver where that dies before, and not with its sender. Where the
        hold is gone, nothing happens.

        Returns
        -------
        Holder or None
            Who had it.
        """
        held = self._leases.find_hold(wanted.hold, wanted.allocation, wanted.export)
        if held is None or held.holder is holder:
            return None
        self._leases.pass_on(held, holder)
        self._tell_of_room(held)
        return held.holder

    def _hold(self, allocation: int, export: int, holder: Holder) -> Lease:
        self._note(EventKind.HELD, self._shared[allocation].exports[export], holder.pid)
        return self._leases.give(allocation, export, holder, in_message=True)

    def _is_room_for(self, holder: Holder, count: int) -> bool:
        return holder.messages + count <= self._max_holds

    def _tell_of_room(self, ended: Lease) -> None:
        if ended.in_message and ended.holder is self._myself:
            self._has_room.notify_all()

    def _refusal_of_peer(
        self, holder: Holder, export: Export, wanted: Wanted, role: bytes, context: bytes
    ) -> Refusal | None:
        handle, hold = export.handle, pack_hold(wanted.hold)
        if not verify(wanted.proof, handle.secret, role, context, hold, handle.core):
            return Refusal(Status.UNKNOWN, "the secret or a field of the handle is wrong")
        reason = export.allow.refuses(holder.pid, holder.uid, self._own_uid)
        return None if reason is None else self._deny(export, holder, reason)

    def _deny(self, export: Export, holder: Holder, reason: str) -> Refusal:
        export.denied += 1
        self._note(EventKind.DENIED, export, holder.pid, reason)
        return Refusal(Status.DENIED, reason)

    def end(self, numbers: Iterable[int]) -> set[Holder]:
        """End leases by number, and return who held them."""
        ended = [lease for number in numbers if (lease := self._leases.end(number)) is not None]
        for lease in ended:
            kind = EventKind.HOLD_ENDED if lease.in_message else EventKind.LEASE_ENDED
            self._after_end(lease, kind)
        return {lease.holder for lease in ended}

    def lose(self, holder: Holder) -> None:
        """End all leases of a process that is dead."""
        for lease in self._leases.end_all(holder):
            kind = EventKind.HOLD_LOST if lease.in_message else EventKind.LEASE_LOST
            self._after_end(lease, kind)

    def _refusal_of_hold(self, wanted: Wanted | ShareableHandle, holder: Holder) -> Refusal | None:
        """Return why no message of a process may hold this export, None where it may.

        Whoever holds freed memory may send it on.
        """
        refusal = self._refusal_of(wanted.allocation, wanted.export)
        if refusal is not None and self._leases.is_held_by(holder, wanted.allocation):
            refusal = self._refusal_of(wanted.allocation, wanted.export, is_held=True)
        return refusal

    def _refusal_of(self, allocation: int, export: int, *, is_held: bool = False) -> Refusal | None:
        """Return why nobody gets this export, None where it can be given.

        Parameters
        ----------
        allocation, export
            What is asked for.
        is_held
            Whether it is held for whoever asks: then it is given although it was freed, and also
            while this process exits.
        """
        if self._is_exiting and not is_held:
            return Refusal(Status.EXITING, "the exporting process is exiting")
        shared = self._shared.get(allocation)
        if shared is None and not 0 < allocation <= self._newest_allocation:
            return Refusal(Status.UNKNOWN, "there is no such allocation")
        if shared is None or (shared.is_retired and not is_held):
            return Refusal(Status.STALE, "the allocation was freed")
        if export not in shared.exports:
            return Refusal(Status.UNKNOWN, "the allocation was not exported in this way")
        return None

    def _after_end(self, lease: Lease, kind: EventKind) -> None:
        self._tell_of_room(lease)
        shared = self._shared.get(lease.allocation)
        if shared is None:
            # The holder had several leases on it, and the end of another one was the last.
            return
        if lease.in_message or lease.holder is not self._myself:
            self._note(kind, shared.exports[lease.export], lease.holder.pid)
        if self._leases.is_leased(lease.allocation):
            return
        self._idle.notify_all()
        if shared.is_retired:
            del self._shared[lease.allocation]
            shared.on_idle()

    def _note(self, kind: EventKind, export: Export, peer_pid: int, detail: str = "") -> None:
        if not self._registry.observed:
            return
        handle = export.handle
        self._events.append(
            Event(
                kind,
                backend=handle.backend,
                device=handle.device,
                allocation=handle.allocation,
                nbytes=handle.length,
                owner_pid=handle.owner.pid,
                peer_pid=peer_pid,
                detail=detail,
            )
        )
