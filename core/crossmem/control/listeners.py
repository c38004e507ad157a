# SPDX-License-Identifier: Apache-2.0
"""The sockets at which the lease server accepts importers. Only the server's thread accepts."""

import logging
import resource
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from crossmem.control.descriptors import close_connection, is_behind
from crossmem.control.endpoint import is_abstract, listen
from crossmem.control.loop import EventLoop
from crossmem.models import ProcessIdentity

__all__ = ["Listeners"]

_log = logging.getLogger(__name__)

_CLOSING_PART: Final = 8
"""If the limit on this process's descriptors is n, other users cannot connect while more than
``n / _CLOSING_PART`` closes are delayed."""


class Listeners:
    """Accepts connections while this process has free descriptors.

    Parameters
    ----------
    loop
        Reports new connections.
    on_accept
        Receives each connection.
    """

    def __init__(self, loop: EventLoop, on_accept: Callable[[socket.socket], None]) -> None:
        self._loop = loop
        self._on_accept = on_accept
        self.is_paused = False
        """Whether new connections wait in a backlog until :meth:`resume`."""
        self._has_warned = False
        self._sockets: list[socket.socket] = []
        self._path: Path | None = None

    def open(self, run_dir: Path, identity: ProcessIdentity) -> None:
        """Listen at the addresses of a process.

        If this method raises, the caller must call :meth:`close`.

        Raises
        ------
        ConfigurationError
            The run directory cannot be used.
        OSError
            This process has no free descriptor.
        """
        self._sockets, self._path = listen(run_dir, identity)
        for one in self._sockets:
            self._loop.watch(one.fileno(), partial(self._accept, one))

    def _accept(self, listener: socket.socket) -> None:
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if is_behind(soft // _CLOSING_PART) and is_abstract(listener):
            # On a kernel that cannot refuse descriptors, other users can send descriptors that are
            # slow to close, and so fill this process's descriptor table. These users can connect
            # only at the abstract address.
            self._pause((listener,))
            return
        try:
            accepted, _address = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if not self._has_warned:
                _log.warning("no importer can connect: %s", error)
            self._has_warned = True
            self._pause(self._sockets)
            return
        self._has_warned = False
        self._on_accept(accepted)

    def _pause(self, listeners: Iterable[socket.socket]) -> None:
        self.is_paused = True
        for one in listeners:
            self._loop.change(one.fileno())

    def resume(self) -> None:
        """Accept connections again."""
        self.is_paused = False
        for one in self._sockets:
            self._loop.change(one.fileno(), read=True)

    def close(self) -> None:
        """Stop listening, and remove the socket's path.

        The kernel refuses an importer that still finds the path.
        """
        while self._sockets:
            close_connection(self._sockets.pop())
        if self._path is not None:
            # In a run directory that has become read-only, the path stays until a later server can
            # remove it.
            with suppress(OSError):
                self._path.unlink()

    def abandon(self) -> None:
        """Close the sockets and change nothing else, as a forked child must."""
        for one in self._sockets:
            one.close()
