# SPDX-License-Identifier: Apache-2.0
"""The lease server of an exporting process: one daemon thread that answers importers.

The thread reads requests and sends replies. It never frees memory, synchronises a device or waits
for a peer. It records ended leases, and other threads free the memory. Until the server stops, no
other thread uses the connections. Signal handlers run in the main thread, so they cannot interrupt
the server's thread.
"""

import logging
import resource
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from crossmem.control.admission import Admission
from crossmem.control.answering import answer
from crossmem.control.connection import ServerConnection
from crossmem.control.descriptors import close_connection
from crossmem.control.holders import HolderTable
from crossmem.control.in_flight import InFlight
from crossmem.control.leases import Holder
from crossmem.control.limits import name_limit
from crossmem.control.listeners import Listeners
from crossmem.control.loop import EventLoop
from crossmem.control.peer_log import PeerLog
from crossmem.control.processes import own_uid
from crossmem.control.registry import LeaseRegistry
from crossmem.control.reservations import refuse_more
from crossmem.control.threads import Bell, start_thread
from crossmem.control.wire import (
    MAX_MESSAGE_NBYTES,
    MessageType,
    ProtocolError,
    Refusal,
    Request,
    Status,
    pack_refusals,
    unpack_ids,
    unpack_request,
)
from crossmem.models import ProcessIdentity
from crossmem.plugin import Registry

__all__ = ["LeaseServer"]

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.02
_SWEEP_S: Final = 0.5
_STOP_JOIN_S: Final = 2.0
_MAX_CAUGHT_UP: Final = 1000
_MAX_UNREAD: Final = 300
"""Largest number of messages that are read before a close. A socket never holds so many."""


class LeaseServer:
    """Answers importers of this process's memory.

    Parameters
    ----------
    identity
        This process.
    run_dir
        The run directory.
    registry
        The plugins, which receive events. A thread that sends events holds no lock.
    max_reservations
        Largest number of exports that the messages of one process may reserve.

    Raises
    ------
    ConfigurationError
        The run directory cannot be used.
    DriverError, OutOfMemoryError
        This process has no free descriptor, or no memory for a control segment. :meth:`start` also
        raises DriverError, if this process can start no more threads.
    UnsupportedError
        A monkey patch has removed ``select.epoll``.
    """

    def __init__(
        self, identity: ProcessIdentity, run_dir: Path, registry: Registry, max_reservations: int
    ) -> None:
        self.leases = LeaseRegistry(identity, registry, max_reservations)
        self._peer_log = PeerLog(_log)
        self._admission = Admission(self.leases, self._peer_log)
        self._connections: dict[int, ServerConnection] = {}
        self._unsent: set[ServerConnection] = set()
        self._in_flight = InFlight(own_uid())
        self._served: set[tuple[int, int]] = set()
        """The pid and user of each process from which this round has read a message. A round is one
        call of ``_handle_all``."""
        self._skipped: set[int] = set()
        """Descriptors of the connections that this round has left to the next round. This round has
        already read a message from the process of each such connection."""
        self._bells: deque[Bell] = deque()
        """One bell for each thread that waits in :meth:`catch_up`."""
        self._stopping = False
        self._buffer = memoryview(bytearray(MAX_MESSAGE_NBYTES + 1))
        self._thread = threading.Thread(target=self._run, name="crossmem-leases", daemon=True)
        with name_limit("socket"):
            self._loop = EventLoop()
            self._holders = HolderTable(self._loop, self._lose)
            self._listeners = Listeners(self._loop, self._accept)
            try:
                # The first control segment is made now, because the process may have no free
                # descriptor when it grants the first lease.
                self.leases.slots.grow()
                self._listeners.open(run_dir, identity)
            except BaseException:
                self._listeners.close()
                self.abandon()
                raise

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if not self._thread.is_alive():
            start_thread(self._thread)

    # Methods for the exporter's own threads -----------------------------------------------

    def watch(self, descriptor: int, handler: Callable[[], object]) -> None:
        """Let the thread call a handler whenever a descriptor can be read."""
        self._loop.watch(descriptor, handler)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor. The handler may be called once more."""
        self._loop.unwatch(descriptor)

    def catch_up(self, timeout_s: float) -> None:
        """Wait until the thread has read all messages of importers, and noticed dead importers.

        Parameters
        ----------
        timeout_s
            The longest wait in seconds. A Python thread that keeps the GIL can extend the wait.
        """
        is_other = threading.get_ident() != self._thread.ident
        if self._connections and is_other and not self._stopping:
            bell = Bell()
            self._bells.append(bell)
            self._loop.wake()
            bell.wait(timeout_s)
        self.leases.tell()

    def stop(self) -> None:
        """End the thread, close every descriptor and remove the socket's path."""
        self._stopping = True
        self._loop.wake()
        if self._thread.is_alive() and threading.get_ident() != self._thread.ident:
            self._thread.join(_STOP_JOIN_S)
        for connection in list(self._connections.values()):
            close_connection(connection.socket)
            connection.finish()
        self._connections.clear()
        self._listeners.close()
        self.abandon()

    def abandon(self) -> None:
        """Close every descriptor, and change nothing else. A forked child calls this method."""
        for connection in list(self._connections.values()):
            connection.socket.close()
            connection.finish()
        self._holders.close()
        self._in_flight.abandon()
        self._listeners.abandon()
        self._loop.close()
        self.leases.slots.close()

    # The thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            waiting = self._listeners.is_paused or bool(self._unsent)
            sometimes = _SWEEP_S if self._in_flight.is_closing else None
            ready = self._loop.wait(_RETRY_S if waiting else sometimes)
            if self._stopping:
                break
            self._handle_all(ready)
            if waiting:
                self._retry()
            if self._in_flight.is_closing:
                self._in_flight.forget_read()
            if self._bells:
                self._answer_bells()
            self.leases.tell()
            self._holders.forget_unused()
        while self._bells:
            self._bells.popleft().ring()

    def _answer_bells(self) -> None:
        """Read all messages that have arrived, then ring the bells of the waiting threads."""
        bells = list(self._bells)
        try:
            for _ in range(_MAX_CAUGHT_UP):
                ready = self._loop.wait(0)
                if not ready:
                    break
                self._handle_all(ready)
        finally:
            for bell in bells:
                self._bells.remove(bell)
                bell.ring()

    def _handle_all(self, ready: list[int]) -> None:
        self._served.clear()
        if self._skipped:
            # The connections that the last round skipped come first, so that no connection of a
            # process starves the other connections of that process.
            skipped, self._skipped = self._skipped, set()
            ready.sort(key=lambda one: one not in skipped)
        for descriptor in ready:
            self._handle(descriptor)

    def _handle(self, descriptor: int) -> None:
        handler = self._loop.handler_of(descriptor)
        if handler is None:
            return
        try:
            handler()
        except Exception as error:  # noqa: BLE001 - logged, and the connection is dropped
            # All other peers need this thread, so a fault that one peer causes must not end it.
            connection = self._connections.get(descriptor)
            pid = connection.pid if connection is not None else 0
            text = f"the lease server continues after a fault: {type(error).__name__}"
            self._peer_log.warning(pid, text, error)
            if connection is not None:
                self._drop(connection)

    def _retry(self) -> None:
        for connection in list(self._unsent):
            self._flush(connection)
        if self._listeners.is_paused:
            self._listeners.resume()

    def _accept(self, accepted: socket.socket) -> None:
        self._make_room()
        try:
            connection = ServerConnection(accepted, self._buffer)
            self._loop.watch(connection.number, partial(self._serve, connection))
        except OSError:
            close_connection(accepted)
            return
        self._connections[connection.number] = connection
        self._flush(connection)

    def _make_room(self) -> None:
        """Close the oldest connection if there are many.

        The importer can connect again, and its rows still record its holds. A connection is kept if
        its end is the only sign of the importer's death.
        """
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # A connection costs two descriptors, its own and a pidfd. So this limit on the number of
        # connections leaves half of all descriptors for other uses.
        if len(self._connections) < soft // 4:
            return
        for connection in list(self._connections.values()):
            holder = connection.holder
            if holder is not None and holder.pidfd is None and holder.holds_something:
                continue
            self._read_ends(connection)
            self._drop(connection)
            return

    def _read_ends(self, connection: ServerConnection) -> None:
        """Read a peer's END messages before its connection is closed.

        Other messages need no answer: the peer repeats its requests on another connection, or the
        peer is dead. The number of messages is limited, because a forked child of a dead peer may
        send without end.
        """
        with suppress(EOFError, ProtocolError):
            for kind, _request, body in connection.receive(_MAX_UNREAD):
                if kind is MessageType.END:
                    self._end(body)

    def _end(self, body: bytes) -> None:
        for holder in self.leases.end(unpack_ids(body)):
            self._holders.forget_if_unused(holder)

    def _serve(self, connection: ServerConnection) -> None:
        """Handle one message of a connection. A round reads only one message of each process."""
        process = connection.pid, connection.uid
        if process in self._served:
            self._skipped.add(connection.number)
            return
        if connection in self._unsent:
            self._flush(connection)
            if connection in self._unsent:
                if connection.number in self._loop.hung_up:
                    self._read_ends(connection)
                    self._drop(connection)
                return
        try:
            for kind, request, body in connection.receive(1):
                # The end of a connection takes little time, so it does not count as a message.
                self._served.add(process)
                if kind is MessageType.IMPORT or kind is MessageType.RESERVE:
                    self._answer(connection, kind, request, unpack_request(body))
                elif kind is MessageType.END:
                    self._end(body)
                else:
                    self.leases.hint(unpack_ids(body))
        except EOFError:
            self._drop(connection)
        except ProtocolError as error:
            self._peer_log.warning(connection.pid, f"it is disconnected, because it sent {error}")
            self._drop(connection)

    def _answer(
        self, connection: ServerConnection, kind: MessageType, number: int, request: Request
    ) -> None:
        try:
            holder = self._holders.find(connection, request)
        except ProcessLookupError:
            self._drop(connection)
            return
        except OSError as error:
            refusal = Refusal(Status.FAILED, f"the exporter cannot watch the importer: {error}")
            self._refuse(connection, number, request, refusal)
            return
        if kind is MessageType.RESERVE:
            limit = self.leases.max_reservations
            full = refuse_more(holder, len(request.wanted), limit, request.following)
            if full is not None:
                self._refuse(connection, number, request, full)
                return
        for sender in answer(self._admission, connection, holder, kind, number, request):
            self._holders.forget_if_unused(sender)
        self._flush(connection)

    def _refuse(
        self, connection: ServerConnection, number: int, request: Request, refusal: Refusal
    ) -> None:
        """Refuse every export of a request for the same reason."""
        connection.queue(number, pack_refusals(refusal, len(request.wanted)), ())
        self._flush(connection)

    def _flush(self, connection: ServerConnection) -> None:
        was_full = connection.is_full
        try:
            sent = connection.flush(self._in_flight)
        except EOFError:
            # The peer does not read any more. The server still reads the peer's earlier messages.
            connection.socket.shutdown(socket.SHUT_WR)
            sent = True
        if sent:
            self.leases.unpin(connection.finish())
            if connection in self._unsent:
                self._unsent.remove(connection)
                self._loop.change(connection.number, read=True)
            return
        # The server reads no further request from this connection until the replies are sent.
        if not connection.is_full and (was_full or connection not in self._unsent):
            self._peer_log.warning(
                connection.pid,
                "a reply to this importer waits, because peers have left too many descriptors of "
                "earlier replies unread; a larger `ulimit -n` allows more unread descriptors",
            )
        self._unsent.add(connection)
        self._loop.change(connection.number, write=connection.is_full)

    def _drop(self, connection: ServerConnection) -> None:
        """Close a connection. The leases stay if a pidfd watches the process (law C11)."""
        if self._connections.pop(connection.number, None) is None:
            return
        self._unsent.discard(connection)
        self._loop.unwatch(connection.number)
        self._in_flight.close(connection.socket)
        self.leases.unpin(connection.finish())
        holder, connection.holder = connection.holder, None
        if holder is None:
            return
        holder.connections -= 1
        if holder.pidfd is None and not holder.connections:
            self._lose(holder)
        else:
            self._holders.forget_if_unused(holder)

    def _lose(self, holder: Holder) -> None:
        """End all leases of a process that is dead, or that has neither pidfd nor connection."""
        for connection in list(self._connections.values()):
            if connection.holder is holder:
                # An unread END may name the reservation of a message that the peer discarded. If
                # the reservation still belongs to the sender of the discarded message,
                # leases.lose() does not end the reservation. So the server reads the END first.
                self._read_ends(connection)
        self.leases.lose(holder)
        for connection in list(self._connections.values()):
            if connection.holder is holder:
                self._drop(connection)
        self._holders.forget_if_unused(holder)
