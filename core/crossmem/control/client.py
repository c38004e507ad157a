# SPDX-License-Identifier: Apache-2.0
"""The importer's side of leases: one kept connection and one pidfd for each exporter."""

import array
import errno
import os
import resource
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crossmem.control.endpoint import abstract_address, new_socket, socket_path
from crossmem.control.processes import is_dead, open_owner, open_peer, peer_credentials
from crossmem.control.wire import (
    HEADER,
    LAST,
    MAX_DESCRIPTORS,
    MAX_MESSAGE_NBYTES,
    MAX_REPLY_NBYTES,
    NONCE_NBYTES,
    PROTOCOL_VERSION,
    Grant,
    MessageType,
    ProtocolError,
    Refusal,
    Request,
    Wanted,
    grant_proof_parts,
    pack_ids,
    pack_request,
    pages,
    prove,
    request_proof_parts,
    unpack_hello,
    unpack_replies,
    verify,
)
from crossmem.driver import Exported
from crossmem.errors import (
    AccessDeniedError,
    DriverError,
    OwnerGoneError,
    OwnerUnresponsiveError,
    UnsupportedError,
    WrongHostError,
)
from crossmem.models import ProcessIdentity, ShareableHandle

__all__ = ["Leased", "OwnerConnection"]

_CONNECT_RETRY_S: Final = 0.005
_OVERFLOW_UID: Final = 65534
_CONTROL_NBYTES: Final = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
_MAX_WANTED: Final = 32_768


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease as the importer got it. The descriptors belong to whoever receives this."""

    lease: int
    nbytes: int
    capacity: int
    exported: Exported

    def close_descriptors(self) -> None:
        """Close what no driver took."""
        for descriptor in self.exported.descriptors:
            os.close(descriptor)


class OwnerConnection:
    """All traffic of this process with one exporting process.

    Parameters
    ----------
    owner
        The exporting process.
    this
        The calling process.
    run_dir
        Where the path of the owner's server lies.
    gate
        Held while a socket is made; a fork waits for it, so that it knows of every socket.
    """

    def __init__(
        self, owner: ProcessIdentity, this: ProcessIdentity, run_dir: Path, gate: threading.RLock
    ) -> None:
        self.owner = owner
        self.entries = 0
        """Imports that use this connection; counted by the import table."""
        self._this = this
        self._run_dir = run_dir
        self._gate = gate
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pidfd: int | None = None
        self._poller = select.poll()
        self._server_nonce = b""
        self._request = 0
        self._outbox: deque[bytes] = deque()
        self._late_replies = False

    def __repr__(self) -> str:
        state = "connected" if self._socket else "not connected"
        return f"<OwnerConnection to pid {self.owner.pid}, {state}>"

    @property
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs."""
        if self._pidfd is not None:
            return not is_dead(self._pidfd)
        connection = self._socket
        if connection is None:
            return False
        # Without a pidfd, the end of the connection is the only sign of its death.
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def request(
        self, handles: Sequence[ShareableHandle], *, reported: int, timeout_s: float
    ) -> list[Leased | Refusal]:
        """Ask for leases on exports of this owner, in one round trip.

        Parameters
        ----------
        handles
            What to import; all of one backend.
        reported
            This process's number for the exporter's whitelist.
        timeout_s
            How long all of it may take.

        Returns
        -------
        list
            One answer for each handle, in order. The caller owns the leases and descriptors.

        Raises
        ------
        OwnerGoneError, OwnerUnresponsiveError, WrongHostError, AccessDeniedError
            Where the owner cannot be asked; no lease is left then.
        DriverError
            Where this process has no descriptor left; no lease is left then.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise self._unresponsive(timeout_s)
        try:
            answers: list[Leased | Refusal] = []
            with ExitStack() as undo:
                for start in range(0, len(handles), _MAX_WANTED):
                    part = handles[start : start + _MAX_WANTED]
                    got = self._round_trip(part, reported, deadline, timeout_s)
                    answers += got
                    undo.callback(self._give_back, got)
                undo.pop_all()
            return answers
        finally:
            self._lock.release()

    def _give_back(self, answers: list[Leased | Refusal]) -> None:
        leased = [one for one in answers if isinstance(one, Leased)]
        for one in leased:
            one.close_descriptors()
        self.release([one.lease for one in leased])

    def release(self, leases: Sequence[int]) -> None:
        """End leases. Never waits: what cannot be sent now is sent with the next call."""
        for start in range(0, len(leases), 1000):
            self._outbox.append(pack_ids(MessageType.RELEASE, 0, leases[start : start + 1000]))
        self.flush()

    def flush(self) -> None:
        """Send what waits to be sent, as far as that is possible without waiting."""
        while self._outbox and (connection := self._socket) is not None:
            # Another thread may be at this too: the message must not be lost between them.
            try:
                message = self._outbox.popleft()
            except IndexError:
                return
            try:
                connection.send(message, socket.MSG_DONTWAIT)
            except OSError:
                self._outbox.appendleft(message)
                return

    def tend(self) -> None:
        """Send what waits, and take in replies that came too late; never waits."""
        self.flush()
        if self._late_replies and self._lock.acquire(blocking=False):
            try:
                with suppress(OSError, EOFError, DriverError, ProtocolError):
                    while self._socket is not None and self._poller.poll(0):
                        self._drop_message()
            finally:
                self._lock.release()

    def reopen_to_release(self, timeout_s: float) -> None:
        """Connect again where the owner has closed the connection but releases wait."""
        if not self._outbox or not self.is_owner_alive or not self._lock.acquire(blocking=False):
            return
        try:
            self._disconnect()
            self._connect(time.monotonic() + timeout_s, timeout_s)
            self.flush()
        finally:
            self._lock.release()

    @property
    def has_unsent(self) -> bool:
        """Whether releases wait to be sent."""
        return bool(self._outbox)

    def close(self) -> None:
        """Close the connection and the pidfd. Leases that are left end with this process."""
        self._disconnect()

    # One request ---------------------------------------------------------------------------

    def _round_trip(
        self,
        handles: Sequence[ShareableHandle],
        reported: int,
        deadline: float,
        timeout_s: float,
    ) -> list[Leased | Refusal]:
        was_connected = self._socket is not None
        while True:
            if self._socket is None:
                self._connect(deadline, timeout_s)
            try:
                return self._exchange(handles, reported, deadline, timeout_s)
            except EOFError:
                alive = self.is_owner_alive
                self._disconnect()
                # A server lets go of connections that were silent for long: ask once more.
                if not (was_connected and alive):
                    raise self._gone("closed its lease server") from None
                was_connected = False
            except ProtocolError as error:
                self._disconnect()
                msg = f"what answers at the address of process {self.owner.pid} is no crossmem"
                hint = "another program holds the address; see CROSSMEM_RUN_DIR"
                raise AccessDeniedError(f"{msg}: {error}", hint=hint) from None

    def _exchange(
        self,
        handles: Sequence[ShareableHandle],
        reported: int,
        deadline: float,
        timeout_s: float,
    ) -> list[Leased | Refusal]:
        self.flush()
        self._request = number = self._request + 1
        nonce = os.urandom(NONCE_NBYTES)
        wanted = []
        for handle in handles:
            parts = request_proof_parts(self._server_nonce, nonce, number, handle.core)
            proof = prove(handle.secret, b"import", *parts)
            wanted.append(Wanted(handle.allocation, handle.export, proof))
        body = pack_request(Request(nonce, reported, self._this.start_time, tuple(wanted)))
        descriptors: list[int] = []
        try:
            for message in pages(MessageType.IMPORT, number, body):
                self._send(message, deadline, timeout_s)
            reply = self._receive(number, descriptors, deadline, timeout_s)
            return self._read(handles, nonce, number, reply, descriptors)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            # Whatever was granted, or will be when a slow owner reads this, is taken back.
            self._outbox.append(pack_ids(MessageType.CANCEL, number, ()))
            self._late_replies = True
            self.flush()
            raise

    def _read(
        self,
        handles: Sequence[ShareableHandle],
        nonce: bytes,
        number: int,
        reply: bytes,
        descriptors: list[int],
    ) -> list[Leased | Refusal]:
        answers: list[Leased | Refusal] = []
        replies = unpack_replies(reply)
        expected = sum(one.descriptor_count for one in replies if isinstance(one, Grant))
        if len(replies) != len(handles) or expected != len(descriptors):
            msg = f"{len(replies)} answers, {len(descriptors)} descriptors to {len(handles)} asked"
            raise ProtocolError(msg)
        at = 0
        for handle, one in zip(handles, replies, strict=True):
            if isinstance(one, Refusal):
                answers.append(one)
                continue
            parts = grant_proof_parts(self._server_nonce, nonce, number, one)
            if not verify(one.proof, handle.secret, b"grant", *parts):
                msg = "it does not know the secret of the handle"
                raise ProtocolError(msg)
            mine = tuple(descriptors[at : at + one.descriptor_count])
            at += one.descriptor_count
            exported = Exported(one.payloads, mine)
            answers.append(Leased(one.lease, one.nbytes, one.capacity, exported))
        return answers

    # Bytes -----------------------------------------------------------------------------------

    def _wait(self, events: int, deadline: float, timeout_s: float) -> None:
        """Wait until the socket is ready, the owner is dead or the time is over."""
        connection = self._connected()
        self._poller.modify(connection, events)
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            ready = dict(self._poller.poll(remaining * 1000))
            if connection.fileno() in ready:
                return
            if ready:
                raise self._gone("died")
            if remaining == 0.0:
                raise self._unresponsive(timeout_s)

    def _send(self, message: bytes, deadline: float, timeout_s: float) -> None:
        while True:
            try:
                self._connected().send(message)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline, timeout_s)
                self._poller.modify(self._connected(), select.POLLIN)
            except OSError as error:
                raise EOFError from error
            else:
                return

    def _receive(
        self, number: int, descriptors: list[int], deadline: float, timeout_s: float
    ) -> bytes:
        body = b""
        lost = False
        while True:
            self._wait(select.POLLIN, deadline, timeout_s)
            message, received, was_cut = self._receive_message()
            if HEADER.size > len(message):
                _close_all(received)
                msg = f"a message of {len(message)} bytes"
                raise ProtocolError(msg)
            kind, flags, _reserved, request = HEADER.unpack_from(message)
            if request != number:
                # A reply that came too late for its requester, who has cancelled it.
                _close_all(received)
                continue
            descriptors += received
            lost = lost or was_cut
            if kind != MessageType.REPLY or len(body) > MAX_REPLY_NBYTES:
                msg = f"a message of type {kind} after {len(body)} bytes"
                raise ProtocolError(msg)
            body = body + message[HEADER.size :] if body else message[HEADER.size :]
            if flags & LAST:
                break
        if lost:
            raise _no_descriptors("recvmsg")
        return body

    def _receive_message(self) -> tuple[bytes, list[int], bool]:
        """Take in one message; say too whether descriptors were lost for want of room."""
        try:
            message, ancillary, flags, _address = self._connected().recvmsg(
                MAX_MESSAGE_NBYTES, _CONTROL_NBYTES, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise EOFError from error
        received = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
        if not message and not received:
            raise EOFError
        return message, received.tolist(), bool(flags & socket.MSG_CTRUNC)

    def _drop_message(self) -> None:
        _message, received, _was_cut = self._receive_message()
        _close_all(received)

    # Connecting --------------------------------------------------------------------------------

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise EOFError
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._late_replies = False

    def _connect(self, deadline: float, timeout_s: float) -> None:
        """Connect, check who is there, and read its first message."""
        if self.owner.boot_id != self._this.boot_id:
            msg = (
                f"process {self.owner.pid} exported this on another host, or before this host's "
                f"last boot (boot id {self.owner.boot_id.hex()}, here {self._this.boot_id.hex()})"
            )
            raise WrongHostError(msg, hint="handles are valid on the host where they were made")
        try:
            self._reach(deadline, timeout_s)
            self._check_server()
            self._wait(select.POLLIN, deadline, timeout_s)
            message, received, _was_cut = self._receive_message()
            _close_all(received)
            version, self._server_nonce = unpack_hello(message)
        except EOFError:
            self._disconnect()
            raise self._gone("closed its lease server") from None
        except OSError as error:
            self._disconnect()
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                raise _no_descriptors("socket") from error
            raise
        except BaseException:
            self._disconnect()
            raise
        if version != PROTOCOL_VERSION:
            self._disconnect()
            msg = (
                f"process {self.owner.pid} speaks version {version} of the lease protocol, "
                f"this process version {PROTOCOL_VERSION}"
            )
            raise UnsupportedError(msg, hint="use the same release of crossmem in both")

    def _reach(self, deadline: float, timeout_s: float) -> None:
        path = socket_path(self._run_dir, self.owner)
        attempts: list[str] = []
        for address in (str(path), abstract_address(self.owner)):
            with self._gate:
                self._socket = new_socket()
            while True:
                try:
                    self._socket.connect(address)
                except BlockingIOError:
                    # The backlog is full: the owner lives, but does not accept.
                    if time.monotonic() > deadline:
                        raise self._unresponsive(timeout_s) from None
                    time.sleep(_CONNECT_RETRY_S)
                except OSError as error:
                    attempts.append(f"{address.replace(chr(0), '@')}: {error.strerror}")
                    self._socket.close()
                    self._socket = None
                    break
                else:
                    self._poller = select.poll()
                    self._poller.register(self._socket, select.POLLIN)
                    return
        raise self._unreachable(attempts)

    def _check_server(self) -> None:
        """Make sure that the owner itself listens, and watch it from now on."""
        connection = self._connected()
        pid, uid = peer_credentials(connection)
        same_namespace = self.owner.pid_namespace == self._this.pid_namespace
        if uid not in {self.owner.uid, self._this.uid, _OVERFLOW_UID} or (
            same_namespace and pid != self.owner.pid
        ):
            msg = (
                f"the address of process {self.owner.pid} of user {self.owner.uid} is held by "
                f"process {pid} of user {uid}"
            )
            hint = "end that process, or set CROSSMEM_RUN_DIR to a directory that both share"
            raise AccessDeniedError(msg, hint=hint)
        try:
            visible = pid if same_namespace else 0
            self._pidfd = open_peer(connection, visible, self.owner.start_time)
        except ProcessLookupError:
            raise self._gone("is dead") from None
        if self._pidfd is not None:
            self._poller.register(self._pidfd, select.POLLIN)
            if is_dead(self._pidfd):
                raise self._gone("is dead")

    def _unreachable(self, attempts: list[str]) -> OwnerGoneError | WrongHostError:
        try:
            pidfd = open_owner(self.owner, self._this)
        except ProcessLookupError:
            return self._gone("is dead")
        if pidfd is not None:
            os.close(pidfd)
            state = "lives, but its lease server cannot be reached from here"
        else:
            state = "cannot be seen from here (another pid namespace), or is dead"
        return WrongHostError(
            f"process {self.owner.pid} {state}: {'; '.join(attempts)}",
            hint=(
                "processes in different network namespaces need one run directory: mount the "
                "same directory in both and name it in CROSSMEM_RUN_DIR"
            ),
        )

    def _gone(self, what: str) -> OwnerGoneError:
        return OwnerGoneError(
            f"process {self.owner.pid}, which exported this memory, {what}",
            hint="export it again in a living process and send the new handle",
        )

    def _unresponsive(self, timeout_s: float) -> OwnerUnresponsiveError:
        return OwnerUnresponsiveError(
            f"process {self.owner.pid} lives but did not answer within {timeout_s:g} s",
            hint="it is stopped or busy; try again, or give a longer timeout",
        )


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _no_descriptors(call: str) -> DriverError:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DriverError(
        "this process has no descriptor left for imported memory",
        call=call,
        code=errno.EMFILE,
        name="EMFILE",
        backend="host",
        hint=f"raise the limit of {soft} open files (hard limit {hard}) with ulimit -n",
    )
