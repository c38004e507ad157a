# SPDX-License-Identifier: Apache-2.0
"""The event loop of the lease server's thread, and the means to wake it."""

import select
import socket
from collections.abc import Callable
from contextlib import suppress

from crossmem.errors import UnsupportedError

__all__ = ["EventLoop"]


class EventLoop:
    """Finds the descriptors that are ready, and the handler of each.

    Raises
    ------
    OSError
        This process has no free descriptor. Nothing is left open.
    UnsupportedError
        A monkey patch has removed ``select.epoll``, which this process needs as an exporter.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[], object]] = {}
        self._sockets: list[socket.socket] = []
        self.hung_up: set[int] = set()
        """The descriptors whose peer has closed both directions, as of the last :meth:`wait`."""
        if not hasattr(select, "epoll"):
            msg = "select.epoll is missing, probably after a monkey patch of gevent or eventlet"
            hint = "export in a process without that patch; a patched process can import memory"
            raise UnsupportedError(msg, hint=hint)
        self.epoll = select.epoll()
        try:
            self._sockets += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for one in self._sockets:
                # One unread byte wakes the loop. So a sender that finds the socket full need not
                # wait for room.
                one.setblocking(False)  # noqa: FBT003
            self.watch(self._sockets[1].fileno(), self._take_wake)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the loop's own descriptors."""
        for one in self._sockets:
            one.close()
        self.epoll.close()

    def wake(self) -> None:
        """Make :meth:`wait` return. Any thread may call this."""
        with suppress(BlockingIOError):
            self._sockets[0].send(b"x")

    def _take_wake(self) -> None:
        with suppress(BlockingIOError):
            self._sockets[1].recv(1)

    def wait(self, timeout_s: float | None) -> list[int]:
        """Wait for ready descriptors, for at most ``timeout_s`` seconds, and return them.

        If ``timeout_s`` is None, there is no limit.
        """
        events = self.epoll.poll(timeout_s)
        self.hung_up = {descriptor for descriptor, mask in events if mask & select.EPOLLHUP}
        return [descriptor for descriptor, _mask in events]

    def handler_of(self, descriptor: int) -> Callable[[], object] | None:
        """Return the handler of a descriptor; None if the descriptor is not watched any more."""
        return self._handlers.get(descriptor)

    def watch(self, descriptor: int, handler: Callable[[], object]) -> None:
        """Store a descriptor's handler; :meth:`wait` returns the descriptor if it is readable."""
        # If the kernel refuses the registration, no handler is stored.
        self.epoll.register(descriptor, select.EPOLLIN)
        self._handlers[descriptor] = handler

    def change(self, descriptor: int, *, read: bool = False, write: bool = False) -> None:
        """Choose the events for which :meth:`wait` returns a descriptor.

        epoll reports the end of a connection in any case.
        """
        events = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
        self.epoll.modify(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor. A second call does nothing."""
        if self._handlers.pop(descriptor, None) is not None:
            self.epoll.unregister(descriptor)
