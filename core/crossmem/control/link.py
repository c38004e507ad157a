# SPDX-License-Identifier: Apache-2.0
"""An importer's connection to one lease server. The importer checks and watches the server."""

import os
import select
import socket
import time
from typing import Final

from crossmem.control.descriptors import admit, close_aside, close_connection, descriptors_in
from crossmem.control.limits import no_descriptors
from crossmem.control.processes import is_dead, open_owner, open_peer, peer_credentials
from crossmem.control.wire import (
    MAX_DESCRIPTORS,
    MAX_MESSAGE_NBYTES,
    NONCE_NBYTES,
)
from crossmem.driver.recording import call_into
from crossmem.errors import (
    AccessDeniedError,
    OwnerGoneError,
    OwnerUnresponsiveError,
)
from crossmem.models import ProcessIdentity

__all__ = ["Deadline", "Link", "owner_gone", "raise_if_dead"]

_CONNECT_RETRY_S: Final = 0.005
_MSG_CTRUNC: Final = int(socket.MSG_CTRUNC)
"""The flag of ``socket`` as a plain number, because enum flags are slow to combine."""

_PEEK: Final = int(socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC)
_SPIN_S: Final = 100e-6
_DYING_S: Final = 0.2
_OVERFLOW_UID: Final = 65534
_CONTROL_NBYTES: Final = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)


class Deadline:
    """The deadline of an operation that waits for another process."""

    __slots__ = ("_end", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def passed(self, owner: ProcessIdentity) -> OwnerUnresponsiveError:
        """Return the error for an exporter that did not reply in time."""
        return OwnerUnresponsiveError(
            f"process {owner.pid} lives but did not answer within {self.timeout_s:g} s",
            hint="the process is busy, stopped or out of descriptors; retry with a longer timeout",
        )


class Link:
    """An open connection to the owner's lease server.

    :meth:`send`, :meth:`receive` and :meth:`take` raise ``EOFError`` if the owner has closed the
    connection. :meth:`wait_for_room` raises ``EOFError`` only if :attr:`is_broken` is true.

    Parameters
    ----------
    owner
        The exporting process.
    connection
        A connected, non-blocking socket, which :meth:`close` closes.
    pidfd
        The owner's pidfd, or None if no earlier connection has opened one. If None,
        :meth:`check_server` tries to open a pidfd. The caller closes :attr:`pidfd` in any case.
    """

    def __init__(
        self, owner: ProcessIdentity, connection: socket.socket, pidfd: int | None
    ) -> None:
        self.owner = owner
        self._socket = connection
        self._number = connection.fileno()
        self._buffer = memoryview(bytearray(MAX_MESSAGE_NBYTES))
        self.pidfd = pidfd
        self.is_broken = False
        """Whether :meth:`send_now` has found that the owner has closed the connection."""
        self._readable = select.poll()
        self._readable.register(self._number, select.POLLIN)
        self.nonce = os.urandom(NONCE_NBYTES)
        self.server_nonce = b""

    def close(self) -> None:
        """Close the connection without blocking on unread descriptors. The pidfd stays open."""
        close_connection(self._socket)

    def admit_descriptors(self) -> None:
        """Allow the owner to send descriptors."""
        admit(self._socket)

    def abandon(self) -> None:
        """Close a forked child's copy of the socket.

        Closing this copy cannot block: the kernel closes unread descriptors only when the last copy
        of the socket is closed, and the parent's copy stays open.
        """
        self._socket.close()

    @property
    def is_open(self) -> bool:
        """Whether the owner still has the connection open."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def has_messages(self) -> bool:
        """Whether an unread message has arrived, or the connection has ended."""
        return any(number == self._number for number, _events in self._readable.poll(0))

    def send_now(self, message: bytes) -> bool:
        """Send a message if that is possible without waiting; return whether it was sent."""
        try:
            self._socket.send(message)
        except BlockingIOError:
            return False
        except OSError:
            self.is_broken = True
            return False
        return True

    def send(self, message: bytes, deadline: Deadline) -> None:
        """Send a message.

        If the socket has no room, wait until it has room, the owner dies or the deadline passes.
        """
        while True:
            try:
                self._socket.send(message)
            except BlockingIOError:
                self.wait_for_room(deadline)
            except OSError as error:
                raise EOFError from error
            else:
                return

    def wait_for_room(self, deadline: Deadline) -> None:
        """Wait until a message can be sent, the owner dies or the deadline passes."""
        if self.is_broken:
            raise EOFError
        writable = select.poll()
        writable.register(self._number, select.POLLOUT)
        if self.pidfd is not None:
            writable.register(self.pidfd, select.POLLIN)
        self._wait(writable, deadline)

    def receive(self, deadline: Deadline) -> tuple[bytes, list[int]]:
        """Receive one message. Wait until it arrives, the owner dies or the deadline passes.

        Returns
        -------
        tuple
            The message and its descriptors. The caller owns the descriptors.

        Raises
        ------
        DriverError
            This process has no room for the descriptors. The message can be received later.
        """
        # This loop does not sleep, because most owners reply faster than the kernel wakes a thread.
        give_up = time.perf_counter() + _SPIN_S
        while not (ready := self._readable.poll(0)) and time.perf_counter() < give_up:
            os.sched_yield()
        # The socket was registered before the pidfd, so poll lists the socket first. Thus the last
        # messages of a dead owner are still read.
        if not ready or ready[0][0] != self._number:
            self._wait(self._readable, deadline)
        return self.take()

    def take(self) -> tuple[bytes, list[int]]:
        """Receive one message; raise ``BlockingIOError`` if there is none."""
        messages: list[tuple[int, list[tuple[int, int, bytes]], int, object]] = []
        received: list[int] = []
        try:
            call_into(
                messages,
                self._socket.recvmsg_into,
                (self._buffer,),
                _CONTROL_NBYTES,
                _PEEK,
            )
            size, ancillary, flags, _address = messages[0]
            received += descriptors_in(ancillary)
            if not size and not received:
                raise EOFError
            if flags & _MSG_CTRUNC:
                # This process has no room for all descriptors. The message stays in the socket. If
                # this thread took the message out, the kernel would close the remaining descriptors
                # in this thread, and closing them may block.
                raise no_descriptors("recvmsg")
            # This read takes the message out of the socket. The kernel then drops the message's
            # references to open files. The read cannot block, because no such reference is a file's
            # last one: this process has just received descriptors of the same files.
            size = self._socket.recv_into(self._buffer)
            return bytes(self._buffer[:size]), received
        except BlockingIOError:
            raise
        except BaseException as error:
            # Even an interrupted read may have opened descriptors in this process.
            for message in messages:
                close_aside(descriptors_in(message[1]))
            if not isinstance(error, OSError):
                raise
            raise EOFError from error

    def _wait(self, poller: select.poll, deadline: Deadline) -> None:
        while True:
            remaining_s = deadline.remaining_s
            ready = poller.poll(remaining_s * 1000)
            # The socket is checked before the pidfd, so the last messages of a dead owner are read.
            if any(number == self._number for number, _events in ready):
                return
            if ready:
                raise owner_gone(self.owner, "died")
            if not remaining_s:
                raise deadline.passed(self.owner)

    def check_server(self, this: ProcessIdentity) -> None:
        """Check that the owner itself listens, and start to watch the owner.

        Raises
        ------
        AccessDeniedError
            Another process listens at the owner's address.
        OwnerGoneError
            The owner is dead.
        """
        owner = self.owner
        pid, uid = peer_credentials(self._socket)
        is_visible = owner.pid_namespace == this.pid_namespace
        # An owner in another user namespace may appear here as the overflow user, or as the user
        # of this process. So these two users are accepted, too.
        is_right_user = uid in {owner.uid, this.uid, _OVERFLOW_UID}
        if not is_right_user or (is_visible and pid != owner.pid):
            raise_if_dead(owner, this, _DYING_S)
            msg = (
                f"process {pid} (user {uid}) holds the address of process {owner.pid} "
                f"(user {owner.uid})"
            )
            hint = "end the process that holds the address, or use the exporter's CROSSMEM_RUN_DIR"
            raise AccessDeniedError(msg, hint=hint)
        try:
            if self.pidfd is None:
                visible_pid = pid if is_visible else 0
                self.pidfd = open_peer(self._socket, visible_pid, owner.start_time)
        except ProcessLookupError:
            raise owner_gone(owner, "is dead") from None
        if self.pidfd is not None:
            self._readable.register(self.pidfd, select.POLLIN)
            if is_dead(self.pidfd):
                raise owner_gone(owner, "is dead")


def raise_if_dead(owner: ProcessIdentity, this: ProcessIdentity, dying_s: float) -> bool:
    """Raise if the owner is dead or dies within ``dying_s`` seconds.

    Return True if the owner is known to live, False if this process cannot tell. The call waits,
    because a dying process closes its sockets before its death is visible.

    Raises
    ------
    OwnerGoneError
        The owner is dead.
    """
    try:
        pidfd = open_owner(owner, this, dying_s)
        if pidfd is None:
            return False
        try:
            if is_dead(pidfd, dying_s):
                raise owner_gone(owner, "is dead")
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        raise owner_gone(owner, "is dead") from None
    return True


def owner_gone(owner: ProcessIdentity, what: str) -> OwnerGoneError:
    """Return the error for an exporter that is dead or has closed its server."""
    return OwnerGoneError(
        f"process {owner.pid}, which exported this memory, {what}",
        hint="export the data again from a living process, and send the new handle",
    )
