# SPDX-License-Identifier: Apache-2.0
"""Refuses descriptors from peers, and closes received descriptors on separate threads.

If a descriptor is the last one of a TCP socket, ``close`` blocks for the ``SO_LINGER`` time of the
socket. The sender of the descriptor chooses this time. If a descriptor belongs to a file on FUSE,
``close`` blocks until the FUSE server replies. Therefore a thread for which peers or applications
wait never closes a peer's descriptor. There are two exceptions: descriptors by which the driver has
imported memory, and descriptors that a check has found to be control segments or rows.
"""

import array
import ctypes
import os
import socket
from _thread import start_new_thread
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from crossmem.driver.recording import call_into

__all__ = [
    "admit",
    "close_aside",
    "close_connection",
    "close_each",
    "descriptors_in",
    "is_behind",
    "is_closing",
    "refuse",
    "refuses",
]

_SO_PASSRIGHTS: Final = 83
"""The number of a socket option. Linux has the option since version 6.16. Python's socket module
does not define the number, which is the same on x86-64 and on aarch64."""

_MAX_CLOSERS: Final = 8
_CREDENTIALS: Final = socket.CMSG_SPACE(12)
"""Space for the sender's pid, user and group. There is no room for descriptors, so the kernel opens
none of the sender's descriptors in this process."""
_PEEK: Final = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_NO_LINGER: Final = bytes(8)
"""A ``struct linger`` with ``l_onoff`` = 0: a close does not wait for unsent data."""


def refuse(connection: socket.socket) -> None:
    """Have the kernel refuse descriptors from the peer, if the kernel supports that.

    A peer that sends descriptors then gets an error. Connections inherit the option from their
    listening socket before they are accepted.
    """
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def refuses(connection: socket.socket) -> bool:
    """Whether the kernel refuses descriptors from the peer."""
    try:
        return not connection.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS)
    except OSError:
        return False


def admit(connection: socket.socket) -> None:
    """Undo :func:`refuse`, so that the kernel accepts descriptors from the peer."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 1)


def descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in a message's ancillary data."""
    received: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            rights = array.array("i")
            rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
            received += rights
    return received


def close_each(descriptors: list[int], kept: int = 0) -> None:
    """Remove each descriptor from the list, then close it. Keep the first ``kept`` descriptors."""
    while len(descriptors) > kept:
        descriptor = descriptors[-1]
        del descriptors[-1]
        os.close(descriptor)


def close_aside(closing: list[int] | list[socket.socket]) -> None:
    """Close descriptors that may be slow to close, on at most eight short-lived threads.

    Parameters
    ----------
    closing
        Descriptors from a peer, or connections with unread descriptors. Each is removed from
        the list and then closed. A second call with the same list is harmless.
    """
    if closing:
        _closing.append(closing)
        _start_closer()


def close_connection(connection: socket.socket) -> None:
    """Close a connection or listening socket that may contain unread descriptors."""
    with suppress(OSError):
        # The peer sees the end even if a forked child has a copy of the socket.
        connection.shutdown(socket.SHUT_RDWR)
    if refuses(connection) or _is_empty(connection):
        connection.close()
    else:
        close_aside([connection])


def is_behind(most: int) -> bool:
    """Whether the queue of :func:`close_aside` contains more than ``most`` lists.

    Callers then delay new connections, so that peers cannot fill the descriptor table.
    """
    return len(_closing) > most


def is_closing() -> bool:
    """Whether a descriptor or connection waits to be closed, or is being closed."""
    return bool(_closing or _closers)


def _is_empty(connection: socket.socket) -> bool:
    """Whether a connection that was shut down has no unread message."""
    with suppress(OSError):
        # With this option, every message has its sender's credentials, even an empty message. The
        # end of the connection has no credentials.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # If the peer closed its socket before it had read all messages, the kernel reports
        # ECONNRESET once. This call consumes that error.
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        message, ancillary, _flags, _address = connection.recvmsg(1, _CREDENTIALS, _PEEK)
        return not (message or ancillary)
    return False


_closing: deque[list[int] | list[socket.socket]] = deque()
# Without this extra reference, the interpreter would free the queue at exit, and so close the
# sockets in the queue. That could block the exit. With the reference, the sockets stay open until
# the kernel closes them after the exit.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_closing))
_closers: set[object] = set()
"""One object for each closer. A closer is a running thread that closes descriptors."""
_in_work: dict[object, list[int] | list[socket.socket]] = {}
"""The list that each closer empties. The key is the closer."""


def _start_closer() -> None:
    if len(_closers) >= _MAX_CLOSERS:
        # Each running closer checks the queue again before it ends.
        return
    closer = object()
    started: list[int] = []
    try:
        _closers.add(closer)
        call_into(started, start_new_thread, _close_all, (closer,))
    except RuntimeError:
        # The next call of close_aside() tries again.
        return
    finally:
        if not started:
            _closers.discard(closer)


def _close_all(closer: object) -> None:
    while True:
        try:
            closing = _closing.popleft()
        except IndexError:
            _closers.discard(closer)
            # A thread may have queued a list just before this closer left the set. If that thread
            # found eight closers, it did not start another. So this closer checks the queue again.
            if not _closing or len(_closers) >= _MAX_CLOSERS:
                return
            _closers.add(closer)
            continue
        # If this process forks now, the child closes its copies of the descriptors in ``_in_work``.
        _in_work[closer] = closing
        while closing:
            try:
                one = closing.pop()
            except IndexError:
                # The list was queued twice, and another closer has emptied it.
                break
            _close(one)
        del _in_work[closer]


def _close(one: int | socket.socket) -> None:
    # The kernel closes a descriptor even if close() reports an error.
    with suppress(OSError):
        if isinstance(one, int):
            try:
                sent = socket.socket(fileno=one)
            except OSError:
                os.close(one)
                return
            with sent:
                sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        else:
            one.close()


def _after_fork_in_child() -> None:
    # A child inherits the queued descriptors, but not the threads that would close them.
    _closers.clear()
    _closing.extend(_in_work.values())
    _in_work.clear()
    for _ in list(_closing):
        _start_closer()


os.register_at_fork(after_in_child=_after_fork_in_child)
