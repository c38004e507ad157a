# SPDX-License-Identifier: Apache-2.0
"""How an importer connects to an exporter's lease server."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from crossmem.control.descriptors import close_aside, is_behind
from crossmem.control.endpoint import abstract_address, is_silent, new_socket, socket_path
from crossmem.control.limits import name_limit
from crossmem.control.link import Deadline, Link, owner_gone, raise_if_dead
from crossmem.control.processes import belongs_to, is_dead
from crossmem.control.wire import PROTOCOL_VERSION, ProtocolError, unpack_hello
from crossmem.errors import CrossmemError, UnsupportedError, WrongHostError
from crossmem.models import ProcessIdentity

__all__ = ["dial"]

_CONNECT_RETRY_S: Final = 0.005
_DYING_S: Final = 0.2
_MAX_CLOSING: Final = 8
""":func:`dial` waits while the queue of :func:`close_aside` contains more lists than this."""


def dial(
    owner: ProcessIdentity,
    this: ProcessIdentity,
    run_dir: Path,
    opened: Callable[[socket.socket], None],
    pidfd: int | None,
    deadline: Deadline,
) -> Link:
    """Connect to an owner's lease server, check the server, and return the connection.

    Parameters
    ----------
    owner, this
        The exporter, and the process that calls this function.
    run_dir
        The run directory.
    opened
        A function that registers a socket, so that a forked child can close the socket.
    pidfd
        The owner's pidfd, if there is one already.

    Raises
    ------
    OwnerGoneError, OwnerUnresponsiveError, WrongHostError, AccessDeniedError, UnsupportedError
        The owner's server cannot be reached, or cannot be used.
    DriverError
        This process has no free descriptor.
    EOFError
        The owner has closed the connection already.
    ProtocolError
        The server's first message does not follow the protocol.
    """
    # On every connection, a hostile owner may send descriptors that are slow to close. This wait
    # bounds the number of such descriptors in this process.
    while is_behind(_MAX_CLOSING):
        if not deadline.remaining_s:
            raise deadline.passed(owner)
        time.sleep(_CONNECT_RETRY_S)
    link: Link | None = None
    try:
        with name_limit("socket"):
            link = Link(owner, _connect(owner, this, run_dir, opened, pidfd, deadline), pidfd)
            link.check_server(this)
        message, received = link.receive(deadline)
        if received:
            msg = f"it sent {len(received)} descriptors before a request"
            close_aside(received)
            raise ProtocolError(msg)
        version, link.server_nonce, _mode = unpack_hello(message)
        if version != PROTOCOL_VERSION:
            msg = (
                f"process {owner.pid} speaks version {version} of the lease protocol, but this "
                f"process speaks version {PROTOCOL_VERSION}"
            )
            raise UnsupportedError(msg, hint="use the same release of crossmem in both processes")
        link.admit_descriptors()
    except BaseException:
        if link is not None:
            try:
                link.close()
            finally:
                # The pidfd is closed even if a signal handler raises during the close of the link.
                if link.pidfd is not None and link.pidfd != pidfd:
                    os.close(link.pidfd)
        raise
    return link


def _connect(
    owner: ProcessIdentity,
    this: ProcessIdentity,
    run_dir: Path,
    opened: Callable[[socket.socket], None],
    pidfd: int | None,
    deadline: Deadline,
) -> socket.socket:
    attempts: list[str] = []
    refused: list[bool] = []
    path = socket_path(run_dir, owner)
    for address in (str(path), abstract_address(owner)):
        connection = new_socket()
        try:
            opened(connection)
            _connect_to(connection, address, owner, this, deadline)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError) or isinstance(error, CrossmemError):
                raise
            attempts.append(f"{address.replace(chr(0), '@')}: {error.strerror or error}")
            refused.append(isinstance(error, ConnectionRefusedError))
        else:
            return connection
    # A dying process closes its sockets shortly before its death is visible. If the process that
    # now has the owner's pid belongs to the owner's user, that process may be the dying owner. So
    # the next two checks wait for the owner's death.
    dying_s = _DYING_S if belongs_to(owner) else 0.0
    if pidfd is not None and is_dead(pidfd, dying_s):
        raise owner_gone(owner, "died")
    is_alive = raise_if_dead(owner, this, dying_s)
    # A socket file that refuses connections belongs to a server that has ended. If there is no
    # such file, the owner may use another run directory. So is_silent() looks for the owner's
    # server in the kernel's list of sockets.
    if (refused[0] and path.is_socket()) or (is_alive and is_silent(owner)):
        raise owner_gone(owner, "closed its lease server")
    state = (
        "lives; either it is exiting, or its lease server cannot be reached from here"
        if owner.pid_namespace == this.pid_namespace
        else "is in another pid namespace; it is dead, or cannot be reached from here"
    )
    raise WrongHostError(
        f"process {owner.pid} {state}",
        hint="if it is exiting, export the memory again in another process; if the network "
        "namespaces differ, set CROSSMEM_RUN_DIR to one shared directory in both processes",
        details="\n".join(attempts),
    )


def _connect_to(
    connection: socket.socket,
    address: str,
    owner: ProcessIdentity,
    this: ProcessIdentity,
    deadline: Deadline,
) -> None:
    while True:
        try:
            connection.connect(address)
        except BlockingIOError:
            # The backlog is full. Either the owner accepts no connections at the moment, or the
            # owner is dead and another process has taken the owner's address.
            raise_if_dead(owner, this, 0.0)
            if not deadline.remaining_s:
                raise deadline.passed(owner) from None
            time.sleep(_CONNECT_RETRY_S)
        else:
            return
