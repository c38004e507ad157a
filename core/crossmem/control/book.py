# SPDX-License-Identifier: Apache-2.0
"""What a process exports and who holds it: every decision of the lease server, and no socket."""

import threading
from collections.abc import Iterable

from crossmem.control.leases import Holder, Lease, LeaseTable
from crossmem.control.processes import own_uid
from crossmem.control.records import Export, Shared
from crossmem.control.wire import Refusal, Status, Wanted, verify
from crossmem.driver import Peer
from crossmem.errors import AccessDeniedError, CrossmemError
from crossmem.models import Event, EventKind, ProcessIdentity
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
    """

    def __init__(self, identity: ProcessIdentity, registry: Registry) -> None:
        self.lock = threading.RLock()
        """Guards everything here and in the server. Held for moments, never while waiting."""
        self._own_uid = own_uid()
        self._registry = registry
        self._events: list[Event] = []
        self._idle = threading.Condition(self.lock)
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

    def lease_to_myself(self, allocation: int, export: int, core: bytes) -> Lease | Refusal:
        """Give this process itself a lease on its own memory (law C8)."""
        with self.lock:
            refusal = self._refusal_of(allocation, export)
            if refusal is not None:
                return refusal
            if self._shared[allocation].exports[export].handle.core != core:
                return Refusal(Status.UNKNOWN, "the handle's fields were changed")
            return self._leases.give(allocation, export, self._myself)

    def release_mine(self, number: int) -> None:
        """End a lease of this process on its own memory."""
        with self.lock:
            self.end((number,))
        self.emit_events()

    def wait_idle(self, allocation: int, timeout_s: float) -> bool:
        """Wait until an allocation has no lease; False where the time is over."""
        with self.lock:
            return self._idle.wait_for(lambda: not self._leases.is_leased(allocation), timeout_s)

    def wait_all_idle(self, timeout_s: float) -> bool:
        """Grant nothing more, and wait until no lease is left; False where the time is over."""
        with self.lock:
            self._is_exiting = True
            self._leases.end_all(self._myself)
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
                event = self._events.pop(0)
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

    def leased(self) -> list[int]:
        """Return the allocations that somebody holds."""
        return [number for number in self._shared if self._leases.is_leased(number)]

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
        refusal = self._refusal_of(wanted.allocation, wanted.export)
        if refusal is not None:
            return refusal
        shared = self._shared[wanted.allocation]
        export = shared.exports[wanted.export]
        handle = export.handle
        if not verify(wanted.proof, handle.secret, b"import", context, handle.core):
            return Refusal(Status.UNKNOWN, "the secret or a field of the handle is wrong")
        reason = export.allow.refuses(holder.pid, holder.uid, self._own_uid)
        if reason is not None:
            return self._deny(export, holder, reason)
        key = (wanted.allocation, wanted.export)
        if shared.grant is not None and key not in holder.whitelisted:
            try:
                shared.grant(export, Peer(holder.pid, reported))
            except AccessDeniedError as error:
                return self._deny(export, holder, str(error))
            except CrossmemError as error:
                return Refusal(Status.FAILED, str(error))
            holder.whitelisted.add(key)
        self._note(EventKind.LEASED, export, holder.pid)
        return self._leases.give(wanted.allocation, wanted.export, holder), export

    def _deny(self, export: Export, holder: Holder, reason: str) -> Refusal:
        export.denied += 1
        self._note(EventKind.DENIED, export, holder.pid, reason)
        return Refusal(Status.DENIED, reason)

    def end(self, numbers: Iterable[int]) -> set[Holder]:
        """End leases by number, and return who held them."""
        ended = [lease for number in numbers if (lease := self._leases.end(number)) is not None]
        for lease in ended:
            self._after_end(lease, EventKind.LEASE_ENDED)
        return {lease.holder for lease in ended}

    def lose(self, holder: Holder) -> None:
        """End all leases of a process that is dead."""
        for lease in self._leases.end_all(holder):
            self._after_end(lease, EventKind.LEASE_LOST)

    def _refusal_of(self, allocation: int, export: int) -> Refusal | None:
        """Return why nobody gets this export, None where it can be given."""
        if self._is_exiting:
            return Refusal(Status.EXITING, "the exporting process is exiting")
        shared = self._shared.get(allocation)
        if shared is None and not 0 < allocation <= self._newest_allocation:
            return Refusal(Status.UNKNOWN, "there is no such allocation")
        if shared is None or shared.is_retired:
            return Refusal(Status.STALE, "the allocation was freed")
        if export not in shared.exports:
            return Refusal(Status.UNKNOWN, "the allocation was not exported in this way")
        return None

    def _after_end(self, lease: Lease, kind: EventKind) -> None:
        shared = self._shared.get(lease.allocation)
        if shared is None:
            # The holder had several leases on it, and the end of another one was the last.
            return
        if lease.holder is not self._myself:
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
