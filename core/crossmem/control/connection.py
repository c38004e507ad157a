# SPDX-License-Identifier: Apache-2.0
"""The server's end of one importer's connection: bytes in, bytes and descriptors out."""

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Iterator

from crossmem.control.leases import Holder
from crossmem.control.processes import peer_credentials
from crossmem.control.wire import (
    HEADER,
    LAST,
    MAX_DESCRIPTORS,
    MAX_MESSAGE_NBYTES,
    MAX_REQUEST_NBYTES,
    NONCE_NBYTES,
    MessageType,
    ProtocolError,
    pack_hello,
    pages,
)

__all__ = ["ServerConnection"]


class ServerConnection:
    """One accepted connection. Nothing in it ever blocks or trusts the other side."""

    __slots__ = (
        "_buffer",
        "_inbox",
        "_inbox_request",
        "_outbox",
        "granted",
        "granted_request",
        "holder",
        "is_answered",
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
        self.granted: list[int] = []
        """Leases given for the newest request, so that its requester can take it back."""
        self.granted_request = 0
        self.is_full = False
        """Whether what is unsent waits for the peer to read, which epoll tells."""
        self._buffer = buffer
        self._inbox = bytearray()
        self._inbox_request = 0
        self.is_answered = True
        """Whether the reply to the newest request was sent as a whole."""
        # Descriptors that wait here are the driver's. The leases that the reply gives keep them
        # open, and nobody can end those before the reply is sent (see LeaseServer._release).
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._outbox.append((pack_hello(self.nonce), ()))

    def receive(self, at_most: int) -> Iterator[tuple[MessageType, int, bytes]]:
        """Yield the complete ones among the messages that have arrived.

        Parameters
        ----------
        at_most
            How many messages to read; one that has come is known of without asking twice.

        Raises
        ------
        EOFError
            Where the other side has closed.
        ProtocolError
            Where it sent what no client of ours sends.
        """
        for _ in range(at_most):
            try:
                # Descriptors that a peer attaches are dropped by the kernel: none are received.
                size = self.socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # It closed with replies unread. That is told once, before what it had sent.
                continue
            except OSError as error:
                raise EOFError from error
            if size == 0:
                raise EOFError
            if not HEADER.size <= size <= MAX_MESSAGE_NBYTES:
                msg = f"a message of {size} bytes"
                raise ProtocolError(msg)
            kind, flags, _reserved, request = HEADER.unpack_from(self._buffer)
            body = bytes(self._buffer[HEADER.size : size])
            if kind not in {MessageType.IMPORT, MessageType.RESERVE}:
                if kind not in {MessageType.RELEASE, MessageType.CANCEL}:
                    msg = f"a message of type {kind}"
                    raise ProtocolError(msg)
                yield MessageType(kind), request, body
                continue
            if self._inbox or not flags & LAST:
                self._collect(request, body, is_last=bool(flags & LAST))
            if flags & LAST:
                if self._inbox:
                    body, self._inbox = bytes(self._inbox), bytearray()
                yield MessageType(kind), request, body

    def _collect(self, request: int, body: bytes, *, is_last: bool) -> None:
        """Put a page of a long request behind the earlier ones."""
        if self._inbox and request != self._inbox_request:
            self._inbox.clear()
        self._inbox_request = request
        self._inbox += body
        is_full = len(body) == MAX_MESSAGE_NBYTES - HEADER.size
        if len(self._inbox) > MAX_REQUEST_NBYTES or not (is_last or is_full):
            msg = f"{len(self._inbox)} bytes of a request in pages of {len(body)}"
            raise ProtocolError(msg)

    @property
    def is_collecting(self) -> bool:
        """Whether a request has begun that is not complete."""
        return bool(self._inbox)

    @property
    def collected_nbytes(self) -> int:
        """Bytes of a request that is not complete."""
        return len(self._inbox)

    def queue(self, request: int, body: bytes, descriptors: tuple[int, ...]) -> None:
        """Queue a reply; the descriptors go along in order."""
        messages = pages(MessageType.REPLY, request, body)
        # Descriptors travel with the first messages; where there are more of them than fit,
        # empty pages before the last one carry the rest.
        needed = -(-len(descriptors) // MAX_DESCRIPTORS)
        empty = HEADER.pack(MessageType.REPLY, 0, 0, request)
        messages[:0] = [empty] * (needed - len(messages))
        for index, message in enumerate(messages):
            start = index * MAX_DESCRIPTORS
            part = descriptors[start : start + MAX_DESCRIPTORS]
            self._outbox.append((message, part))

    def flush(self) -> bool:
        """Send what is queued as far as the peer takes it; return whether all is sent.

        Raises
        ------
        EOFError
            Where the other side has closed.
        """
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                if descriptors:
                    rights = array.array("i", descriptors)
                    self.socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                else:
                    self.socket.send(message)
            except OSError as error:
                # ETOOMANYREFS: too many descriptors of this user are on their way to readers.
                if error.errno not in {errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS}:
                    raise EOFError from error
                self.is_full = error.errno == errno.EAGAIN
                return False
            self._outbox.popleft()
        self.is_answered = True
        return True

    def forget_replies(self) -> None:
        """Drop queued replies: what they grant was taken back."""
        self._outbox.clear()
