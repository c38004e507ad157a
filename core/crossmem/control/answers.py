# SPDX-License-Identifier: Apache-2.0
"""The requests of an importer and the exporter's replies to them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crossmem.control.descriptors import close_aside
from crossmem.control.holds import HoldTable
from crossmem.control.link import Deadline, Link
from crossmem.control.wire import (
    HEADER,
    LAST,
    MAX_GRANT_DESCRIPTORS,
    MAX_GRANT_NBYTES,
    MessageType,
    ProtocolError,
    Refusal,
    Request,
    Wanted,
    max_pages,
    pack_request,
    pack_terms,
    prove,
    unpack_replies,
    verify,
)
from crossmem.driver import Exported
from crossmem.models import ProcessIdentity, ShareableHandle

__all__ = ["Batch", "LateReplies", "Leased", "read_reply", "receive_reply"]


_ROLES: Final = {MessageType.IMPORT: b"import", MessageType.RESERVE: b"reserve"}
"""For each type of request, a text that the proof covers. So the proof of an IMPORT is not valid
for a RESERVE."""


class Batch(NamedTuple):
    """The content of one request. :class:`Request` explains ``reported`` and ``following``."""

    kind: MessageType
    handles: Sequence[ShareableHandle]
    reservations: Sequence[int]
    reported: int
    following: int

    def pack(self, number: int, nonce: bytes, context: bytes, this: tuple[int, int, int]) -> bytes:
        """Return the request as bytes.

        Parameters
        ----------
        nonce, context
            The importer's nonce, and the context that the proofs cover.
        this
            The importer's start time, its session, and one bit for each row that it has.
        """
        wanted: list[Wanted] = []
        for one, reservation in zip(self.handles, self.reservations, strict=True):
            export, generation = one.export, one.generation
            terms = pack_terms(reservation, export, generation)
            proof = prove(one.secret, _ROLES[self.kind], context, terms, one.core)
            wanted.append(Wanted(one.allocation, export, proof, reservation, generation))
        request = Request(nonce, self.reported, *this, wanted, self.following)
        return HEADER.pack(self.kind, LAST, 0, number) + pack_request(request)


@dataclass(slots=True, eq=False)
class Leased:
    """A granted lease. The caller of ``OwnerConnection.request`` owns the lease's descriptors."""

    slot: int
    generation: int
    nbytes: int
    capacity: int
    exported: Exported
    row: list[int] = field(default_factory=list)
    """Descriptors of a control segment and of the importer's new row, until both are mapped. Empty
    if the reply has no new row."""
    holds: HoldTable | None = None
    """The table in which the importer holds the export. ``OwnerConnection.request`` sets it. None
    for a raw handle."""
    is_recorded: bool = False
    """Whether the record of an import owns this lease. If so, the record ends the hold. If not, the
    caller of ``request`` must end the hold."""

    def close_descriptors(self) -> None:
        """Close the descriptors that no import owns. An interrupted call can be repeated."""
        # No signal handler runs between the next two statements, because they make no call.
        self.row += self.exported.descriptors
        self.exported.descriptors = ()
        close_aside(self.row)


class LateReplies:
    """The replies that have not arrived yet. A reply has the number of its request."""

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._pages)

    def expect(self, number: int, asked: int) -> None:
        """Expect a reply to a request for ``asked`` exports."""
        self._pages[number] = max_pages(asked)

    def forget(self, number: int) -> None:
        """Stop expecting a reply. A second call does nothing."""
        self._pages.pop(number, None)

    def take_page(self, message: bytes) -> tuple[int, bool]:
        """Count a message; return its request's number, and whether it is the last of the reply.

        Raises
        ------
        ProtocolError
            The message does not belong to an expected reply.
        """
        if len(message) < HEADER.size:
            msg = f"it sent a message of {len(message)} bytes"
            raise ProtocolError(msg)
        kind, flags, _reserved, number = HEADER.unpack_from(message)
        left = self._pages.get(number, 0)
        if kind != MessageType.REPLY or not left:
            msg = f"it sent a message of type {kind} that answers no request"
            raise ProtocolError(msg)
        self._pages[number] = left - 1
        if flags & LAST:
            self._pages.pop(number, None)
        return number, bool(flags & LAST)

    def drop(self, link: Link, deadline: Deadline) -> None:
        """Receive the late replies that have arrived, and close their descriptors.

        Stop at the deadline, even if messages are left.
        """
        received: list[int] = []
        try:
            while True:
                if not (link.has_messages and deadline.remaining_s):
                    break
                message, received = link.take()
                self.take_page(message)
                # A thread of close_aside() may still read this list, so the next message gets a new
                # list.
                close_aside(received)
                received = []
        except EOFError:
            # No further reply can arrive.
            self._pages.clear()
        finally:
            close_aside(received)


def receive_reply(
    link: Link,
    number: int,
    asked: int,
    expected: LateReplies,
    descriptors: list[int],
    deadline: Deadline,
) -> bytes:
    """Receive the messages of one reply, and return the joined bodies.

    Parameters
    ----------
    number, asked
        Number of the request, and the number of exports in it.
    expected
        The expected replies: this reply, and late replies that may arrive before it.
    descriptors
        A list. This function appends the descriptors of the reply, even if it raises.

    Raises
    ------
    OwnerGoneError, OwnerUnresponsiveError
        The owner dies, or does not reply in time.
    DriverError
        This process has no free descriptor.
    EOFError
        The owner has closed the connection.
    ProtocolError
        The owner sends a message that was not requested.
    """
    most_nbytes, most_descriptors = asked * MAX_GRANT_NBYTES, asked * (MAX_GRANT_DESCRIPTORS + 2)
    body = bytearray()
    received: list[int] = []
    try:
        while True:
            is_last = False
            message, received = link.receive(deadline)
            which, is_last_page = expected.take_page(message)
            if which == number:
                is_last = is_last_page
                # No signal handler runs between the next two statements, because they make no call.
                # So each descriptor is always in one of the two lists, whose descriptors are closed
                # after an error.
                descriptors += received
                received = []
                body += message[HEADER.size :]
                brought = len(descriptors)
                if len(body) > most_nbytes or brought > most_descriptors:
                    msg = f"it sent {len(body)} bytes and {brought} descriptors for {asked} exports"
                    raise ProtocolError(msg)
            else:
                # The request of this late reply has timed out.
                close_aside(received)
                received = []
            if is_last:
                break
            if not deadline.remaining_s:
                raise deadline.passed(link.owner)
    finally:
        if received:
            close_aside(received)
    return bytes(body)


def read_reply(
    owner: ProcessIdentity,
    handles: Sequence[ShareableHandle],
    context: bytes,
    reply: bytes,
    descriptors: list[int],
    deadline: Deadline,
) -> list[Leased | Refusal]:
    """Return the grants and refusals of a reply, after a check of the proofs.

    Each grant gets its own descriptors.

    Raises
    ------
    OwnerUnresponsiveError
        The reply is so long that the deadline passes while it is read.
    ProtocolError
        The reply does not fit a request for these handles.
    """
    answers: list[Leased | Refusal] = []
    at = 0
    for handle, one in zip(handles, unpack_replies(reply, len(handles)), strict=True):
        # The check of a long reply takes time, so the deadline may pass during the loop.
        if answers and not deadline.remaining_s:
            raise deadline.passed(owner)
        if isinstance(one, Refusal):
            answers.append(one)
            continue
        if not verify(one.proof, handle.secret, b"grant", context, one.record):
            msg = "it does not know the secret of the handle"
            raise ProtocolError(msg)
        row = descriptors[at : at + 2 * one.has_row]
        at += 2 * one.has_row
        mine = tuple(descriptors[at : at + one.descriptor_count])
        at += one.descriptor_count
        exported = Exported(one.payloads, mine)
        answers.append(Leased(one.slot, one.generation, one.nbytes, one.capacity, exported, row))
    if at != len(descriptors):
        msg = f"the reply has {len(descriptors)} descriptors, but its grants need {at}"
        raise ProtocolError(msg)
    return answers
