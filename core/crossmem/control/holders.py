# SPDX-License-Identifier: Apache-2.0
"""The processes that have leases or a connection. The lease server watches for their deaths."""

import os
from collections.abc import Callable
from functools import partial

from crossmem.control.connection import ServerConnection
from crossmem.control.leases import Holder
from crossmem.control.loop import EventLoop
from crossmem.control.processes import is_dead, open_peer, pidfd_number
from crossmem.control.wire import Request

__all__ = ["HolderTable"]


class HolderTable:
    """Finds the process at the other end of a connection, and watches the process.

    Only the server's thread calls the methods, except :meth:`close`.

    Parameters
    ----------
    loop
        Reports the deaths of processes.
    on_death
        Called with each process that was found dead.
    """

    def __init__(self, loop: EventLoop, on_death: Callable[[Holder], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._holders: dict[tuple[int, int, int], Holder] = {}
        """The known processes. Each key has a pid, a number and a user id. If the pid is visible,
        the number is 0. If the pid is hidden, the key has the pid 0, and the number identifies the
        process. The number is then the result of :func:`pidfd_number`. If :func:`pidfd_number`
        returns 0, the key has the process's session instead of this result."""
        self._detached: set[Holder] = set()
        """Processes that have no connection, but may still hold memory."""

    def find(self, connection: ServerConnection, request: Request) -> Holder:
        """Return the process at the other end of a connection. Watch the process if it has a pidfd.

        Parameters
        ----------
        request
            The request. If the kernel cannot identify the process by the socket, this method uses
            the start time and the session in the request.

        Raises
        ------
        ProcessLookupError
            The process is dead, or its pid was reused.
        OSError
            The process cannot be watched.
        """
        if connection.holder is not None:
            return connection.holder
        holder = self._known(connection) if connection.pid else None
        if holder is None:
            pidfd = open_peer(connection.socket, connection.pid, request.start_time)
            holder = self._meet(connection, request, pidfd)
        self._detached.discard(holder)
        connection.holder = holder
        holder.connections += 1
        return holder

    def _known(self, connection: ServerConnection, number: int = 0) -> Holder | None:
        """Return the process of a connection, or None if the process is unknown or dead.

        A process with a new user id counts as another process, which is admitted separately.
        """
        holder = self._holders.get((connection.pid, number, connection.uid))
        return None if holder is None or self.lose_if_dead(holder) else holder

    def _meet(self, connection: ServerConnection, request: Request, pidfd: int | None) -> Holder:
        """Return the record of a connection's process. If there is a pidfd, watch the process."""
        number = 0
        if not connection.pid:
            # The result of pidfd_number is preferred to the session, because a request can contain
            # any session.
            number = pidfd_number(pidfd) or request.session
            known = self._known(connection, number)
            if known is not None:
                if pidfd is not None:
                    os.close(pidfd)
                return known
        who = connection.pid, number, connection.uid
        holder = Holder(connection.pid, connection.uid, pidfd, key=who)
        if pidfd is not None:
            try:
                self._loop.watch(pidfd, partial(self.lose_if_dead, holder))
            except OSError:
                os.close(pidfd)
                raise
        self._holders[who] = holder
        return holder

    def lose_if_dead(self, holder: Holder) -> bool:
        """Return whether a process is dead. Report a dead process to ``on_death``."""
        # An event of epoll alone does not prove the death. Earlier in the same batch of events, the
        # server may have closed the pidfd, and another pidfd may now have the same number.
        dead = holder.pidfd is not None and is_dead(holder.pidfd)
        if dead:
            self._on_death(holder)
        return dead

    def forget_if_unused(self, holder: Holder) -> None:
        """Stop watching a process that has neither leases nor a connection."""
        if holder.connections:
            return
        if holder.holds_something:
            self._detached.add(holder)
            return
        self._detached.discard(holder)
        if self._holders.get(holder.key) is holder:
            del self._holders[holder.key]
        if holder.pidfd is not None:
            self._loop.unwatch(holder.pidfd)
        # The rows and the holder refer to each other. Without this loop, only the garbage collector
        # would free them.
        for row in holder.rows.values():
            row.segment.close()
        holder.rows.clear()
        _close_pidfd(holder)

    def forget_unused(self) -> None:
        """Stop watching the processes that have no connection and hold nothing any more."""
        for holder in list(self._detached):
            self.forget_if_unused(holder)

    def close(self) -> None:
        """Close every descriptor. A second call does nothing.

        A child that is forked after the first call makes a second call. The second call must close
        nothing, because the numbers of the closed descriptors may belong to other files by then.
        """
        for holder in list(self._holders.values()):
            _close_pidfd(holder)


def _close_pidfd(holder: Holder) -> None:
    # The number is cleared first, so that no second call closes another file with the same number.
    pidfd, holder.pidfd = holder.pidfd, None
    if pidfd is not None:
        os.close(pidfd)
