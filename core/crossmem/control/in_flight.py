# SPDX-License-Identifier: Apache-2.0
"""The limit on descriptors that were sent to processes of another user, and are not read yet.

The kernel counts the descriptors that a user has sent and that no process has read. If that number
reaches ``ulimit -n``, the kernel refuses to send more to any peer. Without the limit of this
module, another user's processes could leave so many descriptors unread that the exporter could
reply to no importer. If the exporter closes a connection, the peer can still read the descriptors,
and the kernel still counts them.
"""

import fcntl
import resource
import termios
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Final

from crossmem.control.descriptors import close_connection
from crossmem.control.wire import MAX_DESCRIPTORS

__all__ = ["InFlight"]

_PART: Final = 4
"""The limit for a user is the larger of two numbers: ``MAX_DESCRIPTORS``, and ``ulimit -n`` divided
by ``_PART``."""
_NOTHING: Final = bytes(4)


class InFlight:
    """Counts the descriptors that were sent to processes of other users.

    Threads other than the server's thread call only :meth:`abandon`.

    Parameters
    ----------
    own_uid
        Descriptors for processes of this user are not counted; None: all descriptors are counted.
    """

    def __init__(self, own_uid: int | None) -> None:
        self.own_uid = own_uid
        self._sent: dict[socket, tuple[int, int]] = {}
        """For each connection with unread descriptors: the peer's user, and the number of
        descriptors that were sent."""
        self._closing: set[socket] = set()
        """Connections to close when their peers have read everything."""

    @property
    def is_closing(self) -> bool:
        """Whether a connection is to be closed as soon as the peer has read all descriptors."""
        return bool(self._closing)

    def has_room(self, uid: int, count: int) -> bool:
        """Whether ``count`` more descriptors may be sent to the user ``uid`` now."""
        self.forget_read()
        unread = [count for user, count in self._sent.values() if user == uid]
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return not unread or sum(unread) + count <= max(MAX_DESCRIPTORS, soft // _PART)

    def note(self, connection: socket, uid: int, count: int) -> None:
        """Count descriptors that were sent to another user."""
        _uid, before = self._sent.get(connection, (uid, 0))
        self._sent[connection] = uid, before + count

    def close(self, connection: socket) -> None:
        """Close a connection as soon as the peer has read all descriptors that were sent to it."""
        self.forget_read()
        if connection in self._sent:
            # shutdown() fails if the peer has just closed its end.
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)
            self._closing.add(connection)
        else:
            close_connection(connection)

    def forget_read(self) -> None:
        """Stop counting the descriptors of each connection whose peer has read everything.

        Close each such connection that is in ``_closing``.
        """
        for connection in [one for one in self._sent if _is_read(one)]:
            del self._sent[connection]
            if connection in self._closing:
                self._closing.discard(connection)
                close_connection(connection)

    def abandon(self) -> None:
        """Close the connections in ``_closing`` without waiting for their peers."""
        for connection in self._closing:
            connection.close()


def _is_read(connection: socket) -> bool:
    """Whether the peer has read or dropped all data that was sent to it."""
    return fcntl.ioctl(connection, termios.TIOCOUTQ, _NOTHING) == _NOTHING
