# SPDX-License-Identifier: Apache-2.0
"""The checks of a peer's request, and the grants of leases and reservations.

Only the lease server's thread uses this module.
"""

import os
import time
from typing import Final, NamedTuple

from crossmem.control import segments
from crossmem.control.exclusive import claim
from crossmem.control.leases import Holder, Row
from crossmem.control.peer_log import PeerLog
from crossmem.control.processes import own_uid
from crossmem.control.records import Export, Unit
from crossmem.control.registry import LeaseRegistry
from crossmem.control.segments import SLOTS
from crossmem.control.wire import Refusal, Request, Status, Wanted, pack_terms, verify
from crossmem.driver import Peer
from crossmem.errors import AccessDeniedError, CrossmemError, DriverError
from crossmem.guards import clause, shorten
from crossmem.models import EventKind

__all__ = ["Admission", "Admitted"]

_MAX_ROWS: Final = 8
"""Maximum number of rows of one process. A process needs a row for each control segment, and new
rows after each exec."""

_MAX_TEXT: Final = 300
"""Maximum number of characters of a plugin's error in a reply. Errors that name a vendor call are
exempt."""


class Admitted(NamedTuple):
    """A granted export, with the slot and generation for the peer's row.

    For a reservation, which grants no lease, slot and generation are 0.
    """

    export: Export
    slot: int = 0
    generation: int = 0
    row: int | None = None
    """Descriptor of the peer's row if the row is new, else None. The caller closes it."""


class Admission:
    """Checks the requests of peers and grants leases.

    Parameters
    ----------
    registry
        The exports and leases.
    log
        Receives a line about each exception that is raised by a driver and is not a
        :class:`CrossmemError`.
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
        """Grant an export to a peer, or return the refusal.

        If the vendor has a whitelist, this method first adds the peer to the whitelist.

        Parameters
        ----------
        holder
            The peer, as the kernel reports it.
        context
            Bytes that identify the connection and the request. The proof in ``wanted`` must cover
            them.
        number, request
            The number and the fields of the request.
        wanted
            The requested export.
        pinned
            Receives the unit that this method pins. The memory is not freed until the registry
            unpins the unit.
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
            # Another thread may have freed the memory during the vendor's call.
            found = self._find(holder, context, wanted)
            if isinstance(found, Refusal):
                return found
            return self._lease(found, holder, number, request)

    def admit_reservation(
        self, holder: Holder, context: bytes, wanted: Wanted
    ) -> Admitted | Refusal:
        """Reserve an export for a message of a peer, or return the refusal.

        The peer has chosen the number of the reservation.
        """
        registry, number = self.registry, wanted.reservation
        with registry.lock:
            refusal = registry.pools.enter(wanted, holder)
            refusal = refusal or registry.exports.refusal_of_reservation(wanted, holder)
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
        """Return the export that a peer requests, or the refusal. The caller holds the lock."""
        registry, allocation, number = self.registry, wanted.allocation, wanted.export
        is_reserved = registry.is_reserved(wanted.reservation, allocation, number)
        refusal = registry.exports.refusal(allocation, number, is_reserved=is_reserved)
        if refusal is not None:
            return refusal
        export = registry.exports.get(allocation, number)
        if export.generations and not is_reserved:
            # The export is a block. An importer without a reservation requests a block only if the
            # generations in the control segment and in the handle differ. So the block was freed,
            # or the handle was withdrawn. If the block was freed, the check above has refused it.
            return Refusal(Status.WITHDRAWN, "the handle was withdrawn")
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
        if not export.has(wanted.generation):
            return Refusal(Status.STALE, "the block was freed")
        if export.is_arena and holder.pidfd is None:
            return Refusal(Status.UNWATCHED, "the kernel offers no pidfd of the importer")
        return None

    def _deny(self, export: Export, holder: Holder, reason: str) -> Refusal:
        export.denied += 1
        self.registry.events.note(EventKind.DENIED, export, holder.pid, reason)
        return Refusal(Status.DENIED, reason)

    def _grant(self, export: Export, holder: Holder, reported: int) -> Refusal | None:
        """Put a peer on the vendor's whitelist; return the refusal if that fails, else None.

        No lock is held during the driver's call.
        """
        grant = export.unit.grant
        assert grant is not None  # noqa: S101 - the caller has checked
        try:
            grant(export, Peer(holder.pid, reported))
        except AccessDeniedError as error:
            with self.registry.lock:
                return self._deny(export, holder, _text(error))
        except CrossmemError as error:
            return Refusal(Status.FAILED, _text(error))
        except BaseException as error:  # noqa: BLE001 - logged, and reported to the peer
            # A fault of a plugin, even SystemExit, must not end this thread. Only the main thread
            # runs signal handlers, so no KeyboardInterrupt is caught here.
            reason = f"grant() of backend {export.handle.backend} raised {shorten(error)}"
            self._log.warning(holder.pid, f"its request is refused: {reason}", error)
            return Refusal(Status.FAILED, reason)
        return None

    def _lease(
        self, export: Export, holder: Holder, number: int, request: Request
    ) -> Admitted | Refusal:
        """Grant an export to a peer, or return the refusal. The caller holds the lock."""
        registry, made = self.registry, list[int]()
        try:
            if refusal := claim(export):
                return refusal
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
            return Refusal(Status.NO_ROW, f"the process has {_MAX_ROWS} rows of leases already")
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
        """Return a peer's row for a control segment; None if the peer has too many rows.

        If the row is new, ``made`` receives its descriptor.
        """
        key = request.session, which
        row = holder.rows.get(key)
        # A request lists the importer's rows in ``known``. A program numbers the requests of all
        # its connections in one ascending sequence. So a request with a number below
        # ``row.request`` is older than the row, and cannot list the row.
        if row is not None and (request.known >> which & 1 or number < row.request):
            return row
        if row is not None:
            # This later request does not list the row. So the importer never got the reply with the
            # descriptor of the row.
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
    """Return the text of a plugin's error, or the name of its type if ``__str__`` raises."""
    try:
        if isinstance(error, DriverError) and error.call:
            # The vendor's code comes first, because a long text is cut off at its end.
            return f"{error.call} failed with {error.name} ({error.code}): {error.message}"
        return clause(str(error), _MAX_TEXT)
    except Exception:  # noqa: BLE001 - a plugin's __str__ may raise anything
        return type(error).__name__
