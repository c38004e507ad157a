# SPDX-License-Identifier: Apache-2.0
"""The importer's side of leases: one kept connection and one pidfd for each exporter."""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import override

from crossmem.control.answers import Leased, read_reply
from crossmem.control.limits import no_descriptors
from crossmem.control.link import Deadline, Link, close_each, dial, owner_gone
from crossmem.control.processes import is_dead
from crossmem.control.unsent import Unsent
from crossmem.control.wire import (
    HEADER,
    LAST,
    MAX_REPLY_NBYTES,
    MessageType,
    ProtocolError,
    Refusal,
    Request,
    Wanted,
    pack_request,
    pack_reservation,
    pages,
    proof_context,
    prove,
)
from crossmem.driver.recording import call_into
from crossmem.errors import AccessDeniedError, CrossmemError, OwnerGoneError, WrongHostError
from crossmem.locks import Rank, ordered_lock
from crossmem.models import ProcessIdentity, ShareableHandle

__all__ = ["OwnerConnection"]

_MAX_WANTED: Final = 32_768
_RECONNECT_S: Final = 0.005
_ROLES: Final = {MessageType.IMPORT: b"import", MessageType.RESERVE: b"reserve"}
"""What a proof says that its maker wants, so that it is good for nothing else."""


class _Batch(NamedTuple):
    """What one request asks for."""

    kind: MessageType
    handles: Sequence[ShareableHandle]
    reservations: Sequence[int]
    reported: int


class OwnerConnection:
    """All traffic of this process with one exporting process.

    Parameters
    ----------
    owner, this
        The exporting and the calling process.
    run_dir
        Where the path of the owner's server lies.
    """

    def __init__(self, owner: ProcessIdentity, this: ProcessIdentity, run_dir: Path) -> None:
        self.owner = owner
        self.users: set[object] = set()
        """Imports and calls that use this connection. The import table adds and removes them."""
        self._this = this
        self._run_dir = run_dir
        self._dialing: list[socket.socket] = []
        """Sockets that are being connected."""
        self._lock = ordered_lock(Rank.CONNECTION)
        self._link: Link | None = None
        self._pidfd: int | None = None
        self._request = 0
        self._unsent = Unsent(lambda: self._link)
        self._late_replies = False

    @override
    def __repr__(self) -> str:
        state = "connected" if self._link else "not connected"
        return f"<OwnerConnection to pid {self.owner.pid}, {state}>"

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs; false where it was never reached."""
        return not self.is_owner_dead(within_s=0.0)

    def is_owner_dead(self, *, within_s: float) -> bool:
        """Whether the exporting process is dead, or is within a time, in seconds."""
        if self._pidfd is not None:
            return is_dead(self._pidfd, within_s)
        # Without a pidfd, the end of the connection is the only sign of its death.
        link = self._link
        return link is None or not link.is_open

    def request(
        self,
        handles: Sequence[ShareableHandle],
        reservations: Sequence[int],
        *,
        reported: int,
        deadline: Deadline,
        kind: MessageType = MessageType.IMPORT,
    ) -> list[Leased | Refusal]:
        """Ask for leases on exports of this owner, in one round trip.

        Parameters
        ----------
        handles
            What to import; all of one backend.
        reservations
            The number that came with each handle in a message, 0 without one.
        reported
            This process's number for the exporter's whitelist.
        deadline
            When all of it must be over.
        kind
            What is asked for.

        Returns
        -------
        list
            One answer for each handle, in order. The caller owns the leases and descriptors.

        Raises
        ------
        OwnerGoneError, OwnerUnresponsiveError, WrongHostError, AccessDeniedError
            Where the owner cannot be asked; no lease is left then.
        DriverError
            Where this process has no descriptor left; no lease is left then.
        """
        answers: list[Leased | Refusal] = []
        taken: list[bool] = []
        try:
            try:
                self._take_lock(taken, deadline)
                for start in range(0, len(handles), _MAX_WANTED):
                    part = slice(start, start + _MAX_WANTED)
                    batch = _Batch(kind, handles[part], reservations[part], reported)
                    answers += self._round_trip(batch, deadline)
            finally:
                if taken and taken[0]:
                    self._lock.release()
            return answers
        except BaseException:
            # After the release, too: an interrupt there must not lose the answers.
            self.give_back(answers)
            raise

    def reserve(
        self, handles: Sequence[ShareableHandle], *, deadline: Deadline
    ) -> list[Leased | Refusal]:
        """Ask for the reservations of a message, as :meth:`request` does, without the memory."""
        reservations = [0] * len(handles)
        kind = MessageType.RESERVE
        return self.request(handles, reservations, reported=0, deadline=deadline, kind=kind)

    def _take_lock(self, taken: list[bool], deadline: Deadline) -> None:
        if not call_into(taken, self._lock.acquire, True, deadline.remaining_s):  # noqa: FBT003
            raise deadline.passed(self.owner)

    def give_back(self, answers: Sequence[Leased | Refusal]) -> None:
        """Close the descriptors and end the leases of answers that nobody uses."""
        leased = [one for one in answers if isinstance(one, Leased) and not one.is_recorded]
        for one in leased:
            one.close_descriptors()
        self.release([one.lease for one in leased])

    def release(self, leases: Sequence[int]) -> None:
        """End leases; never waits."""
        self._unsent.release(leases)

    def discard(self, reservations: Sequence[int], deadline: Deadline) -> None:
        """End reservations, also where this process has not talked to the owner yet.

        Raises
        ------
        OwnerUnresponsiveError, WrongHostError, AccessDeniedError
            Where the owner cannot be told; where it is gone, so are its reservations.
        """
        taken: list[bool] = []
        try:
            self._take_lock(taken, deadline)
            if self._link is None:
                self._connect(deadline)
        except (EOFError, OwnerGoneError):
            return
        finally:
            if taken and taken[0]:
                self._lock.release()
        self.release(reservations)
        # The owner may have closed the connection since it was used last.
        self.tend(deadline.remaining_s)

    def tend(self, timeout_s: float) -> None:
        """Send what waits, connecting again if need be, and take in replies that came too late.

        Parameters
        ----------
        timeout_s
            How long all of it may take.
        """
        self._unsent.flush()
        if not (self._unsent or self._late_replies):
            return
        deadline = Deadline(timeout_s)
        taken: list[bool] = []
        try:
            if not call_into(taken, self._lock.acquire, False):  # noqa: FBT003
                return
            if self._late_replies:
                self._drop_late_replies(deadline)
            link = self._link
            if self._unsent and self.is_owner_alive and (link is None or link.is_broken):
                self._disconnect()
                self._connect(deadline)
                self._unsent.flush()
        except (EOFError, CrossmemError):
            # It cannot be reached now. What waits is sent later, or ends with this process.
            return
        finally:
            if taken and taken[0]:
                self._lock.release()

    def _drop_late_replies(self, deadline: Deadline) -> None:
        with suppress(EOFError):
            # What is left of an exporter that never stops sending is for the next call.
            while self._link is not None and self._link.has_messages and deadline.remaining_s:
                received: list[int] = []
                try:
                    _message, received, _was_cut = self._link.take()
                finally:
                    close_each(received)

    def close(self) -> None:
        """Close the connection and stop watching the owner.

        Leases that are left end with this process.
        """
        self._disconnect()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def close_at_exit(self) -> None:
        """Send what waits and close, unless a thread waits for the owner: exit ends that wait."""
        if self._lock.acquire(blocking=False):
            try:
                self._unsent.flush()
                self.close()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """Close every descriptor, and nothing else: for a forked child."""
        for connection in self._dialing:
            connection.close()
        self.close()

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._late_replies = False

    def _connect(self, deadline: Deadline) -> Link:
        try:
            link = dial(
                self.owner,
                self._this,
                self._run_dir,
                self._dialing.append,
                self._pidfd,
                deadline,
            )
            self._link, self._pidfd = link, link.pidfd
        except ProtocolError as error:
            raise self._stranger(error) from None
        finally:
            self._dialing.clear()
        return link

    def _stranger(self, error: ProtocolError) -> AccessDeniedError:
        msg = f"what answers at the address of process {self.owner.pid} is no crossmem"
        hint = "another program holds the address; see CROSSMEM_RUN_DIR"
        return AccessDeniedError(f"{msg}: {error}", hint=hint)

    # One request ---------------------------------------------------------------------------

    def _round_trip(self, batch: _Batch, deadline: Deadline) -> list[Leased | Refusal]:
        was_closed = False
        while True:
            try:
                link = self._link or self._connect(deadline)
                return self._exchange(link, batch, deadline)
            except WrongHostError:
                # It could be reached a moment ago: it is exiting, however long that takes it.
                if not was_closed:
                    raise
                raise owner_gone(self.owner, "closed its lease server") from None
            except EOFError:
                was_closed = True
                alive = self.is_owner_alive
                self._disconnect()
                if not alive:
                    raise owner_gone(self.owner, "closed its lease server") from None
                # A server with many connections lets go of some: ask again.
                if not deadline.remaining_s:
                    raise deadline.passed(self.owner) from None
                time.sleep(_RECONNECT_S)
            except ProtocolError as error:
                self._disconnect()
                raise self._stranger(error) from None

    def _exchange(self, link: Link, batch: _Batch, deadline: Deadline) -> list[Leased | Refusal]:
        self._request = number = self._request + 1
        context = proof_context(link.server_nonce, link.nonce, number)
        role = _ROLES[batch.kind]
        wanted: list[Wanted] = []
        for one, reservation in zip(batch.handles, batch.reservations, strict=True):
            proof = prove(one.secret, role, context, pack_reservation(reservation), one.core)
            wanted.append(Wanted(one.allocation, one.export, proof, reservation))
        request = Request(link.nonce, batch.reported, self._this.start_time, wanted)
        body = pack_request(request)
        descriptors: list[int] = []
        try:
            # A cancellation that comes after a later request has no effect any more.
            if self._unsent:
                self._unsent.flush()
                while self._unsent.has_cancelled:
                    link.wait_for_room(deadline)
                    self._unsent.flush()
            for message in pages(batch.kind, number, body):
                link.send(message, deadline)
            reply = self._receive(link, number, descriptors, deadline)
            return read_reply(batch.handles, context, reply, descriptors)
        except BaseException:
            close_each(descriptors)
            # Whatever was granted, or will be when a slow owner reads this, is taken back.
            self._late_replies = True
            self._unsent.cancel(number)
            raise

    def _receive(
        self, link: Link, number: int, descriptors: list[int], deadline: Deadline
    ) -> bytes:
        body = bytearray()
        kept = 0
        are_lost = False
        while True:
            message, received, was_cut = link.receive(deadline)
            # Before any call: an interrupt must find them.
            descriptors += received
            if len(message) < HEADER.size:
                msg = f"a message of {len(message)} bytes"
                raise ProtocolError(msg)
            kind, flags, _reserved, request = HEADER.unpack_from(message)
            if request != number:
                # A reply that came too late for its requester, who has cancelled it.
                close_each(descriptors, kept)
                if not deadline.remaining_s:
                    raise deadline.passed(self.owner)
                continue
            kept = len(descriptors)
            are_lost = are_lost or was_cut
            if kind != MessageType.REPLY or len(body) > MAX_REPLY_NBYTES:
                msg = f"a message of type {kind} after {len(body)} bytes"
                raise ProtocolError(msg)
            body += message[HEADER.size :]
            if flags & LAST:
                break
            if not deadline.remaining_s:
                raise deadline.passed(self.owner)
        if are_lost:
            raise no_descriptors("recvmsg")
        return bytes(body)
