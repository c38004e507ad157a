# SPDX-License-Identifier: Apache-2.0
"""The importer's side of leases: one cached connection and one pidfd for each exporter."""

import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from crossmem.control.answers import Batch, LateReplies, Leased, read_reply, receive_reply
from crossmem.control.descriptors import close_aside, close_each
from crossmem.control.dialing import dial
from crossmem.control.holds import HoldTable
from crossmem.control.leases import new_number
from crossmem.control.link import Deadline, Link, owner_gone
from crossmem.control.processes import is_dead
from crossmem.control.segments import SLOTS
from crossmem.control.wire import (
    MAX_WANTED,
    MessageType,
    ProtocolError,
    Refusal,
    pack_ids,
    proof_context,
)
from crossmem.driver.recording import call_into
from crossmem.errors import (
    AccessDeniedError,
    CrossmemError,
    DriverError,
    OwnerGoneError,
    OwnerUnresponsiveError,
    WrongHostError,
)
from crossmem.guards import clause
from crossmem.locks import Rank, ordered_lock
from crossmem.models import ProcessIdentity, ShareableHandle

__all__ = ["OwnerConnection"]

_MAX_ENDED: Final = 4096
_RECONNECT_S: Final = 0.005
_LONGEST_RECONNECT_S: Final = 0.5


class OwnerConnection:
    """The connection of this process to one exporting process. It sends requests and messages.

    Parameters
    ----------
    owner, this
        The exporting and the calling process.
    run_dir
        The run directory.
    state
        The lock of this process's state. It guards the holds.
    """

    def __init__(
        self, owner: ProcessIdentity, this: ProcessIdentity, run_dir: Path, state: "threading.RLock"
    ) -> None:
        self.owner = owner
        self.users: set[object] = set()
        """The imports and calls that use this connection."""
        self._this = this
        self._state = state
        self._run_dir = run_dir
        self._dialing: list[socket.socket] = []
        """Sockets that are connecting. A forked child closes them."""
        self.lock = ordered_lock(Rank.CONNECTION)
        """Held during a connect or a close, and from a request until its reply has been read."""
        self._link: Link | None = None
        self._pidfd: int | None = None
        self._request = 0
        self._session = new_number()
        """Distinguishes this program from a program that the process executes later."""
        self._holds = HoldTable()
        self._ended: dict[int, None] = {}
        """Ended reservations that are not reported to the owner yet."""
        self.late_replies = LateReplies()
        """Replies that have not arrived yet, including replies to requests that have timed out."""

    @override
    def __repr__(self) -> str:
        state = "connected" if self._link else "not connected"
        return f"<OwnerConnection to pid {self.owner.pid}, {state}>"

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process lives; see :meth:`is_owner_dead`."""
        return not self.is_owner_dead(within_s=0.0)

    @property
    def open_link(self) -> Link | None:
        """The connection; None if there is no connection, or if the exporter has closed it."""
        link = self._link
        return link if link is not None and link.is_open else None

    def is_owner_dead(self, *, within_s: float) -> bool:
        """Whether the owner is dead, or dies within ``within_s`` seconds."""
        if self._pidfd is not None:
            return is_dead(self._pidfd, within_s)
        # Without a pidfd, an owner counts as dead if no connection to it is open.
        return self.open_link is None

    def request(
        self,
        handles: Sequence[ShareableHandle],
        reservations: Sequence[int],
        *,
        reported: int,
        deadline: Deadline,
        kind: MessageType = MessageType.IMPORT,
    ) -> list[Leased | Refusal]:
        """Request leases or reservations. One round trip serves at most ``MAX_WANTED`` exports.

        Parameters
        ----------
        handles
            The handles of the requested exports. For IMPORT, all handles have the same backend.
        reservations
            One number for each handle: the handle's reservation in a message, or 0. For RESERVE:
            the number of the new reservation.
        reported
            The number by which the vendor's whitelist names this process.
        deadline, kind
            The deadline of the whole call, and the type of the request.

        Returns
        -------
        list
            One answer for each handle. The caller owns the descriptors in the answers.

        Raises
        ------
        CrossmemError
            The request failed, or this process has run out of descriptors or of mappings.
        """
        answers: list[Leased | Refusal] = []
        taken: list[bool] = []
        try:
            try:
                call_into(taken, self.lock.acquire, True, deadline.remaining_s)  # noqa: FBT003
                if not taken[0]:
                    raise deadline.passed(self.owner)
                for start in range(0, len(handles), MAX_WANTED):
                    part = slice(start, start + MAX_WANTED)
                    following = max(0, len(handles) - part.stop)
                    batch = Batch(kind, handles[part], reservations[part], reported, following)
                    answers += self._round_trip(batch, deadline)
                    for one in answers:
                        if isinstance(one, Leased) and one.holds is None:
                            if one.row:
                                self._take_row(one)
                            # The lease keeps its table, because _take_row() may replace _holds.
                            one.holds = self._holds
                    if isinstance(answers[-1], Refusal):
                        # The caller needs all exports or none, so the rest is not requested.
                        answers += [answers[-1]] * following
                        break
            finally:
                if taken and taken[0]:
                    self.lock.release()
            return answers
        except BaseException:
            # This also runs if a signal handler raises during the release of the lock.
            self.give_back(answers)
            raise

    def _take_row(self, leased: Leased) -> None:
        """Map the control segment and the row that came with a reply."""
        which = leased.slot // SLOTS
        if self._holds.known >> which & 1:
            # The owner sends another row if it runs a new program, or has dropped an unused row.
            self._holds = HoldTable()
        self._holds.add(which, leased.row)
        close_each(leased.row)

    def hold(self, leased: Leased) -> bool:
        """Write the granted generation into the row. The memory then stays until :meth:`end`.

        Return False if the exporter has begun another generation.
        """
        assert leased.holds is not None  # noqa: S101 - request() has set it
        with self._state:
            return leased.holds.hold(leased.slot, leased.generation, leased)

    def end(self, leased: Leased) -> None:
        """End a hold without waiting. A second call does nothing."""
        holds = leased.holds
        if holds is None:
            return
        with self._state:
            is_awaited = holds.end(leased.slot, leased)
        if is_awaited:
            self.send_hint(leased.slot)

    def send_hint(self, slot: int) -> None:
        """Without blocking, tell a waiting exporter that a hold has ended."""
        # A hint that cannot be sent now is dropped, because the exporter soon reads the row anyway.
        if (link := self._link) is not None:
            link.send_now(pack_ids(MessageType.HINT, (slot,)))

    def give_back(self, answers: Sequence[Leased | Refusal]) -> None:
        """Close the descriptors and end the holds of answers that no import uses."""
        for one in answers:
            if isinstance(one, Leased) and not one.is_recorded:
                one.close_descriptors()
                self.end(one)

    def end_reservations(self, numbers: Sequence[int]) -> None:
        """End reservations without waiting. A later call sends numbers that cannot be sent now."""
        self._ended.update(dict.fromkeys(numbers))
        self._send_ended()

    def _send_ended(self) -> None:
        """Send as many ended reservations as possible without waiting."""
        link = self._link
        while self._ended and link is not None:
            # Numbers stay until they are sent, so an interrupt loses none.
            part = list(self._ended)[:_MAX_ENDED]
            if not link.send_now(pack_ids(MessageType.END, part)):
                return
            for number in part:
                self._ended.pop(number, None)

    def discard(self, reservations: Sequence[int], deadline: Deadline) -> None:
        """End reservations, even if this process has not connected to the owner yet.

        Raises
        ------
        CrossmemError
            The owner cannot be reached. A dead owner is no error: its reservations have ended.
        """
        taken: list[bool] = []
        try:
            call_into(taken, self.lock.acquire, True, deadline.remaining_s)  # noqa: FBT003
            if not taken[0]:
                raise deadline.passed(self.owner)
            if self._link is None:
                self._connect(deadline)
        except (EOFError, OwnerGoneError):
            return
        finally:
            if taken and taken[0]:
                self.lock.release()
        self.end_reservations(reservations)
        # If the owner has closed the connection by now, tend() connects again.
        self.tend(deadline.remaining_s)

    def tend(self, timeout_s: float) -> None:
        """Send delayed messages and drop late replies, within ``timeout_s`` seconds.

        The method connects again if necessary.
        """
        self._send_ended()
        if not (self._ended or self.late_replies):
            return
        deadline = Deadline(timeout_s)
        taken: list[bool] = []
        try:
            if not call_into(taken, self.lock.acquire, False):  # noqa: FBT003
                return
            link = self._link
            if self.late_replies and link is not None:
                self.late_replies.drop(link, deadline)
            if self._ended and self.is_owner_alive and (link is None or link.is_broken):
                self._disconnect()
                self._connect(deadline)
                self._send_ended()
        except (ProtocolError, DriverError):
            self._disconnect()
        except (EOFError, CrossmemError):
            # A later call sends the remaining messages.
            return
        finally:
            if taken and taken[0]:
                self.lock.release()

    def close(self) -> None:
        """Close the connection and the owner's pidfd. The rows keep the words of the holds."""
        self._leave()
        self._holds.close()

    def close_at_exit(self) -> None:
        """If the lock is free, send delayed messages and close. Otherwise, do nothing."""
        if self.lock.acquire(blocking=False):
            try:
                self._send_ended()
                # The rows stay mapped, because other threads may use them until the process ends.
                self._leave()
            finally:
                self.lock.release()

    def _leave(self) -> None:
        self._disconnect()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def abandon(self) -> None:
        """In a forked child, close every descriptor and change nothing else."""
        for connection in self._dialing:
            connection.close()
        if self._link is not None:
            self._link.abandon()
            self._link = None
        self.close()

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self.late_replies = LateReplies()

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
        msg = f"the program at the address of process {self.owner.pid} is not crossmem"
        hint = "end that program, or set CROSSMEM_RUN_DIR to another directory"
        return AccessDeniedError(f"{msg}: {clause(str(error), 100)}", hint=hint)

    # One request ---------------------------------------------------------------------------

    def _round_trip(self, batch: Batch, deadline: Deadline) -> list[Leased | Refusal]:
        was_closed, pause_s = False, _RECONNECT_S
        while True:
            try:
                link = self._link or self._connect(deadline)
                return self._exchange(link, batch, deadline)
            except WrongHostError:
                # An owner that has just closed a connection and cannot be reached is exiting.
                if not was_closed:
                    raise
                raise owner_gone(self.owner, "closed its lease server") from None
            except EOFError:
                was_closed = True
                alive = self.is_owner_alive
                self._disconnect()
                if not alive:
                    what = "closed its lease server" if self._pidfd is None else "died"
                    raise owner_gone(self.owner, what) from None
                # A server with too many connections closes the oldest one, so connect again.
                left_s = deadline.remaining_s
                if not left_s:
                    raise deadline.passed(self.owner) from None
                time.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _LONGEST_RECONNECT_S)
            except DriverError:
                # The reply stays unread, because this process has no free descriptors. So this
                # connection is not used again.
                self._disconnect()
                raise
            except ProtocolError as error:
                self._disconnect()
                raise self._stranger(error) from None

    def _exchange(self, link: Link, batch: Batch, deadline: Deadline) -> list[Leased | Refusal]:
        self._request = number = self._request + 1
        context = proof_context(link.server_nonce, link.nonce, number)
        this = self._this.start_time, self._session, self._holds.known
        message = batch.pack(number, link.nonce, context, this)
        expected, asked = self.late_replies, len(batch.handles)
        descriptors: list[int] = []
        try:
            if self._ended:
                self._send_ended()
            # expect() comes first. If a signal handler raises after the send, the late reply is
            # still recognised.
            expected.expect(number, asked)
            try:
                link.send(message, deadline)
            except OwnerUnresponsiveError:
                # The request was not sent, so no reply will come.
                expected.forget(number)
                raise
            reply = receive_reply(link, number, asked, expected, descriptors, deadline)
            return read_reply(link.owner, batch.handles, context, reply, descriptors, deadline)
        except BaseException:
            close_aside(descriptors)
            raise
