# SPDX-License-Identifier: Apache-2.0
"""The processes that the lease server knows, and how it learns of their deaths."""

import os
from collections.abc import Callable
from functools import partial

from crossmem.control.connection import ServerConnection
from crossmem.control.leases import Holder
from crossmem.control.loop import EventLoop
from crossmem.control.processes import is_dead, open_peer

__all__ = ["HolderTable"]


class HolderTable:
    """Watches processes that have leases or a connection. The server's thread alone uses it.

    Parameters
    ----------
    loop
        Waits for their deaths, too.
    on_death
        Called with a process that was found dead.
    """

    def __init__(self, loop: EventLoop, on_death: Callable[[Holder], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._holders: set[Holder] = set()

    def with_leases(self) -> set[Holder]:
        """Return the processes that hold anything."""
        return {holder for holder in self._holders if holder.leases}

    def find(self, connection: ServerConnection, start_time: int) -> Holder:
        """Return the process at the other end of a connection, which is watched from now on.

        Parameters
        ----------
        connection
            The connection.
        start_time
            When the process says that it started, for kernels that do not show it.

        Raises
        ------
        ProcessLookupError
            It is dead, or it is another one.
        OSError
            It cannot be watched.
        """
        if connection.holder is not None:
            return connection.holder
        # A process that has become another user is another holder, which is admitted or not.
        who = connection.pid, connection.uid
        known = (one for one in self._holders if one.pid and (one.pid, one.uid) == who)
        holder = next(known, None)
        if holder is None or self.lose_if_dead(holder):
            pidfd = open_peer(connection.socket, connection.pid, start_time)
            holder = Holder(connection.pid, connection.uid, pidfd)
            if pidfd is not None:
                try:
                    self._loop.watch(pidfd, partial(self.lose_if_dead, holder))
                except OSError:
                    os.close(pidfd)
                    raise
            self._holders.add(holder)
        connection.holder = holder
        holder.connections += 1
        return holder

    def lose_if_dead(self, holder: Holder) -> bool:
        """Tell of the death of a process; False if it lives."""
        # Asked again even where epoll says so: within one batch of events, a descriptor's number
        # may have passed to another process's pidfd.
        dead = holder.pidfd is not None and is_dead(holder.pidfd)
        if dead:
            self._on_death(holder)
        return dead

    def forget_if_unused(self, holder: Holder) -> None:
        """Stop watching a process that has neither leases nor a connection."""
        if holder.leases or holder.connections or holder not in self._holders:
            return
        self._holders.remove(holder)
        if holder.pidfd is not None:
            self._loop.unwatch(holder.pidfd)
            os.close(holder.pidfd)
            holder.pidfd = None

    def close(self) -> None:
        """Close every descriptor."""
        for holder in list(self._holders):
            if holder.pidfd is not None:
                os.close(holder.pidfd)
