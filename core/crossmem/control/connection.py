# SPDX-License-Identifier: Apache-2.0
"""The lease server's end of an importer's connection.

The server receives bytes, and sends bytes and descriptors.
"""

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from crossmem.control.descriptors import refuses
from crossmem.control.in_flight import InFlight
from crossmem.control.leases import Holder
from crossmem.control.processes import peer_credentials
from crossmem.control.records import Unit
from crossmem.control.slots import OWN_MODE
from crossmem.control.wire import (
    HEADER,
    MAX_DESCRIPTORS,
    MAX_MESSAGE_NBYTES,
    NONCE_NBYTES,
    MessageType,
    ProtocolError,
    pack_hello,
    pages,
)

__all__ = ["Reply", "ServerConnection"]

_MSG_CTRUNC: Final = int(socket.MSG_CTRUNC)
_FROM_CLIENTS: Final = frozenset(
    {MessageType.IMPORT, MessageType.RESERVE, MessageType.END, MessageType.HINT}
)


class Reply(NamedTuple):
    """The resources of a reply, which the server keeps until the reply is sent."""

    units: list[Unit]
    """The pinned units of the reply's exports."""
    rows: list[int]
    """Descriptors of new rows. :meth:`ServerConnection.finish` closes them."""


class ServerConnection:
    """One accepted connection. It never blocks and does not trust the peer.

    Parameters
    ----------
    connection
        The socket.
    buffer
        A buffer for one message and one more byte. A message that fills the buffer is too long.
    """

    __slots__ = (
        "_buffer",
        "_is_refusing",
        "_outbox",
        "_replies",
        "holder",
        "is_full",
        "nonce",
        "number",
        "pid",
        "socket",
        "uid",
    )

    def __init__(self, connection: socket.socket, buffer: memoryview) -> None:
        connection.setblocking(False)  # noqa: FBT003
        self.socket = connection
        self.number = connection.fileno()
        self.pid, self.uid = peer_credentials(connection)
        self.nonce = os.urandom(NONCE_NBYTES)
        self.holder: Holder | None = None
        self.is_full = False
        """Whether a full socket has stopped :meth:`flush`. If so, the server continues as soon as
        epoll reports room in the socket."""
        self._buffer = buffer
        self._is_refusing = refuses(connection)
        self._replies: list[Reply] = []
        """The resources of the replies in the outbox."""
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._outbox.append((pack_hello(self.nonce, OWN_MODE), ()))

    def receive(self, at_most: int) -> Iterator[tuple[MessageType, int, bytes]]:
        """Yield the type, request number and body of each message that has arrived.

        Parameters
        ----------
        at_most
            Maximum number of messages.

        Raises
        ------
        EOFError
            The peer has closed the connection.
        ProtocolError
            The peer sent a message that no crossmem client sends.
        """
        for _ in range(at_most):
            try:
                size = self._receive_into()
            except BlockingIOError:
                return
            except ConnectionResetError:
                # If the peer closes the connection before it has read all replies, the kernel first
                # reports ECONNRESET once, and then returns the data that the peer had sent.
                continue
            except OSError as error:
                raise EOFError from error
            if size == 0:
                raise EOFError
            if not HEADER.size <= size <= MAX_MESSAGE_NBYTES:
                msg = f"a message of {size} bytes"
                raise ProtocolError(msg)
            kind, _flags, _reserved, request = HEADER.unpack_from(self._buffer)
            body = bytes(self._buffer[HEADER.size : size])
            if kind not in _FROM_CLIENTS:
                msg = f"a message of type {kind}"
                raise ProtocolError(msg)
            yield MessageType(kind), request, body

    def _receive_into(self) -> int:
        """Receive one message. Return its size, or 0 if the peer has closed the connection."""
        if self._is_refusing:
            return self.socket.recv_into(self._buffer)
        # The kernel accepts descriptors from this peer. A plain receive closes a message's
        # descriptors in this thread, and the close may block.
        # MSG_PEEK shows whether there are descriptors, and leaves them in the socket.
        _size, _ancillary, flags, _address = self.socket.recvmsg_into(
            (self._buffer,), 0, socket.MSG_PEEK
        )
        if flags & _MSG_CTRUNC:
            msg = "a message with descriptors"
            raise ProtocolError(msg)
        return self.socket.recv_into(self._buffer)

    def begin_reply(self) -> Reply:
        """Return a new, empty :class:`Reply`. The caller adds the resources of one reply to it."""
        reply = Reply([], [])
        self._replies.append(reply)
        return reply

    def queue(self, request: int, body: bytes, descriptors: tuple[int, ...]) -> None:
        """Queue a reply; its descriptors keep their order."""
        messages = pages(MessageType.REPLY, request, body)
        # Descriptors travel with the first messages. If they need more messages than the body does,
        # empty messages precede the body.
        needed = -(-len(descriptors) // MAX_DESCRIPTORS)
        empty = HEADER.pack(MessageType.REPLY, 0, 0, request)
        messages[:0] = [empty] * (needed - len(messages))
        for index, message in enumerate(messages):
            start = index * MAX_DESCRIPTORS
            part = descriptors[start : start + MAX_DESCRIPTORS]
            self._outbox.append((message, part))

    def flush(self, in_flight: InFlight) -> bool:
        """Send queued messages until one has to wait; return whether all are sent.

        Parameters
        ----------
        in_flight
            Counts the unread descriptors that were sent to other users, and limits their number.

        Raises
        ------
        EOFError
            The peer has closed the connection.
        """
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                if descriptors:
                    is_counted = self.uid != in_flight.own_uid
                    if is_counted and not in_flight.has_room(self.uid, len(descriptors)):
                        self.is_full = False
                        return False
                    rights = array.array("i", descriptors)
                    self.socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                    if is_counted:
                        in_flight.note(self.socket, self.uid, len(descriptors))
                else:
                    self.socket.send(message)
            except OSError as error:
                # ETOOMANYREFS: this process's user has sent too many descriptors that are unread.
                if error.errno not in {errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS}:
                    raise EOFError from error
                self.is_full = error.errno == errno.EAGAIN
                return False
            self._outbox.popleft()
        return True

    def finish(self) -> list[Unit]:
        """Drop unsent messages, close descriptors of rows, and return the units of all replies."""
        self._outbox.clear()
        replies, self._replies = self._replies, []
        for descriptor in (one for reply in replies for one in reply.rows):
            os.close(descriptor)
        return [unit for reply in replies for unit in reply.units]
