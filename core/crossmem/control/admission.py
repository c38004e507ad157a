# SPDX-License-Identifier: Apache-2.0
"""Whom the lease server admits to which export. Its thread alone uses this."""

import os
import time
from typing import Final, NamedTuple

from crossmem.control import segments
from crossmem.control.leases import Holder, Row
from crossmem.control.peer_log import PeerLog
from crossmem.control.processes import own_uid
from crossmem.control.records import Export, Unit
from crossmem.control.registry import LeaseRegistry
from crossmem.control.segments import SLOTS
from crossmem.control.wire import Refusal, Request, Status, Wanted, pack_terms, verify
from crossmem.driver import Peer
from crossmem.errors import AccessDeniedError, CrossmemError, DriverError
from crossmem.guards import shorten
from crossmem.models import EventKind

__all__ = ["Admission", "Admitted"]

_MAX_ROWS: Final = 8
"""Rows of one process: one for each control segment, and for each program that it ran."""


class Admitted(NamedTuple):
    """What a peer may hold, and the words with which it does so."""

    export: Export
    slot: int = 0
    generation: int = 0
    row: int | None = None
    """Descriptor of a new row, if the peer has none in the slot's segment. The caller closes it."""


class Admission:
    """Checks what peers ask for, and lets them hold it.

    Parameters
    ----------
    registry
        The exports and leases.
    log
        Gets a line about each peer whose request makes a driver fail.
    """

    def __init__(self, registry: LeaseRegistry, log: PeerLog) -> None:
        self.registry = registry
        self._log = log
        self._own_uid = own_uid()

    def admit(
        self,
        holder: Holder,
        context: bytes,
        number: int,
        request: Request,
        wanted: Wanted,
        pinned: list[Unit],
    ) -> Admitted | Refusal:
        """Let a peer that may do so hold an export, after the vendor's whitelist knows the peer.

        Parameters
        ----------
        holder
            The peer, as the kernel shows it.
        context
            What the peer's proof covers besides the export.
        number, request
            The request's number, and what the peer says of itself in it.
        wanted
            What it asks for.
        pinned
            Gets the memory, which is not freed until the registry may unpin it.
        """
        lock = self.registry.lock
        with lock:
            export = self._find(holder, context, wanted)
            if isinstance(export, Refusal):
                return export
            export.unit.pins += 1
            pinned.append(export.unit)
            if export.unit.grant is None or export in holder.whitelisted:
                return self._lease(export, holder, number, request)
        refusal = self._grant(export, holder, request.reported)
        if refusal is not None:
            return refusal
        with lock:
            holder.whitelisted.add(export)
            # It may have been freed meanwhile.
            found = self._find(holder, context, wanted)
            if isinstance(found, Refusal):
                return found
            return self._lease(found, holder, number, request)

    def admit_reservation(
        self, holder: Holder, context: bytes, wanted: Wanted
    ) -> Admitted | Refusal:
        """Reserve an export for a message of a peer, under the number that the peer has chosen."""
        registry, number = self.registry, wanted.reservation
        with registry.lock:
            registry.pools.enter(wanted, holder)
            refusal = registry.exports.refusal_of_reservation(wanted, holder)
            if refusal is not None:
                return refusal
            export = registry.exports.get(wanted.allocation, wanted.export)
            refusal = self._refusal_of_peer(holder, export, wanted, b"reserve", context)
            if refusal is None and (not number or number in registry.leases):
                refusal = Refusal(Status.UNKNOWN, "the number of the reservation is not new")
            if refusal is not None:
                return refusal
            registry.reserve(export, holder, number)
            return Admitted(export)

    def _find(self, holder: Holder, context: bytes, wanted: Wanted) -> Export | Refusal:
        """Return the export that a peer asks for, if it may have it. The lock is held."""
        registry, allocation, number = self.registry, wanted.allocation, wanted.export
        known = registry.exports.find(allocation, number)
        is_reserved = known is not None and registry.leases.reserves(wanted.reservation, known)
        refusal = registry.exports.refusal(allocation, number, is_reserved=is_reserved)
        if refusal is not None:
            return refusal
        export = registry.exports.get(allocation, number)
        return self._refusal_of_peer(holder, export, wanted, b"import", context) or export

    def _refusal_of_peer(
        self, holder: Holder, export: Export, wanted: Wanted, role: bytes, context: bytes
    ) -> Refusal | None:
        handle = export.handle
        terms = pack_terms(wanted.reservation, wanted.export, wanted.generation)
        if not verify(wanted.proof, handle.secret, role, context, terms, handle.core):
            return Refusal(Status.UNKNOWN, "the secret or a field of the handle is wrong")
        reason = export.allow.refuses(holder.pid, holder.uid, self._own_uid)
        if reason is not None:
            return self._deny(export, holder, reason)
        if export.is_arena and holder.pidfd is None:
            return Refusal(Status.UNWATCHED, "this kernel shows no pidfd of the importer")
        return None

    def _deny(self, export: Export, holder: Holder, reason: str) -> Refusal:
        export.denied += 1
        self.registry.events.note(EventKind.DENIED, export, holder.pid, reason)
        return Refusal(Status.DENIED, reason)

    def _grant(self, export: Export, holder: Holder, reported: int) -> Refusal | None:
        """Put a peer on the vendor's whitelist. No lock is held: this is the driver's code."""
        grant = export.unit.grant
        assert grant is not None  # noqa: S101 - the caller has asked
        try:
            grant(export, Peer(holder.pid, reported))
        except AccessDeniedError as error:
            with self.registry.lock:
                return self._deny(export, holder, _text(error))
        except CrossmemError as error:
            return Refusal(Status.FAILED, _text(error))
        except BaseException as error:  # noqa: BLE001 - logged, and the peer is told
            # No signal handler runs in this thread: a plugin's SystemExit must not end it.
            reason = f"grant() of backend {export.handle.backend} raised {_shown(error)}"
            self._log.warning(holder.pid, f"it gets no lease: {reason}", error)
            return Refusal(Status.FAILED, reason)
        return None

    def _lease(
        self, export: Export, holder: Holder, number: int, request: Request
    ) -> Admitted | Refusal:
        """Let a peer's row hold an export from now on. The lock is held."""
        registry, made = self.registry, list[int]()
        try:
            slot = export.slot
            if slot is None:
                slot = export.slot = registry.slots.take()
                registry.granted[slot.number] = export
            row = self._row_of(holder, number, request, slot.number // SLOTS, made)
        except (CrossmemError, OSError) as error:
            for descriptor in made:
                os.close(descriptor)
            return Refusal(Status.FAILED, f"the exporter cannot record a lease: {error}")
        if row is None:
            return Refusal(Status.NO_ROW, f"it has {_MAX_ROWS} rows of leases already")
        export.rows[row] = row.segment.words
        if row not in export.since:
            export.since[row] = time.time()
            registry.events.note(EventKind.LEASED, export, holder.pid)
        export.unit.was_granted, export.unit.is_sealed = True, False
        holder.exports.add(export)
        return Admitted(export, slot.number, slot.generation, made[0] if made else None)

    def _row_of(
        self, holder: Holder, number: int, request: Request, which: int, made: list[int]
    ) -> Row | None:
        """Return a peer's row for a control segment; ``made`` gets the descriptor of a new one."""
        key = request.session, which
        row = holder.rows.get(key)
        # A request from before the one that brought the row knows nothing of it. Numbers grow, and
        # over all connections of a program.
        if row is not None and (request.known >> which & 1 or number < row.request):
            return row
        if row is not None:
            # The reply that brought it was lost, so it holds nothing.
            del holder.rows[key]
            self.registry.forget_row(row)
            kept = set(holder.rows.values())
            holder.exports = {one for one in holder.exports if one.rows.keys() & kept}
        elif len(holder.rows) >= _MAX_ROWS:
            return None
        segment = segments.create(segments.ROW_NAME, made, is_written_by_maker=False)
        holder.rows[key] = row = Row(holder, segment, number)
        return row


def _text(error: CrossmemError) -> str:
    """Return what an error of a plugin's says, or its name if it cannot be printed."""
    try:
        if isinstance(error, DriverError) and error.call:
            # First what must not be cut off.
            return f"{error.call} failed with {error.name} ({error.code}): {error.message}"
        return str(error)
    except Exception:  # noqa: BLE001 - only its name is certain
        return type(error).__name__


def _shown(error: BaseException) -> str:
    """Return an exception of a plugin's as text, whose own code may fail as well."""
    try:
        return shorten(error)
    except Exception:  # noqa: BLE001 - only its name is certain
        return type(error).__name__
