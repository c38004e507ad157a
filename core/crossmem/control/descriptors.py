# SPDX-License-Identifier: Apache-2.0
"""Descriptors that peers send: refused where none is due, and closed where that may block.

Closing the last descriptor of a TCP socket waits as long as ``SO_LINGER`` says, and the sender of
a descriptor chooses that. Closing a file of FUSE waits for its server. So threads that peers or
applications wait for never close what a peer sent, unless the driver took it. A peer that sends
such descriptors again and again must not fill the descriptor table with those that wait: see
:func:`is_behind`.
"""

import array
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
"""Since Linux 6.16; the number is the same on x86-64 and aarch64. Not in Python's socket."""

_MAX_CLOSERS: Final = 8
_CREDENTIALS: Final = socket.CMSG_SPACE(12)
"""Room for a pid, a user and a group, and for no descriptor."""
_PEEK: Final = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_NO_LINGER: Final = bytes(8)
"""A struct linger whose time is not in use."""


def refuse(connection: socket.socket) -> None:
    """Have the kernel refuse descriptors that peers send, if it can.

    Sending one then fails at the sender. A listening socket passes this on to each connection,
    from before it is accepted.
    """
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def refuses(connection: socket.socket) -> bool:
    """Whether the kernel refuses descriptors that the peer sends."""
    try:
        return not connection.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS)
    except OSError:
        return False


def admit(connection: socket.socket) -> None:
    """Let a peer send descriptors from now on."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 1)


def descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message."""
    received: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            rights = array.array("i")
            rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
            received += rights
    return received


def close_each(descriptors: list[int], kept: int = 0) -> None:
    """Close descriptors, the last one first, down to ``kept``. Each leaves the list before that."""
    while len(descriptors) > kept:
        descriptor = descriptors[-1]
        del descriptors[-1]
        os.close(descriptor)


def close_aside(closing: list[int] | list[socket.socket]) -> None:
    """Close what a peer may have made slow to close, on one of at most eight short-lived threads.

    Parameters
    ----------
    closing
        Descriptors that a peer sent, or connections on which it may have sent some. Each leaves
        the list before it is closed. Doing so twice with one list is harmless.
    """
    if closing:
        _closing.append(closing)
        _start_closer()


def close_connection(connection: socket.socket) -> None:
    """Close a connection, or a listening socket, on which descriptors may wait unread."""
    if refuses(connection) or _is_empty(connection):
        connection.close()
    else:
        close_aside([connection])


def is_behind(most: int) -> bool:
    """Whether more than so many lists of descriptors, or connections, wait to be closed."""
    return len(_closing) > most


def is_closing() -> bool:
    """Whether something is being closed, or waits for that."""
    return bool(_closing or _closers)


def _is_empty(connection: socket.socket) -> bool:
    """Whether no message waits unread, and none can come any more."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
        # Each message then brings its sender's credentials, which tells an empty one from the end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # A peer that closed with messages unread is told of once.
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        message, ancillary, _flags, _address = connection.recvmsg(1, _CREDENTIALS, _PEEK)
        return not (message or ancillary)
    return False


_closing: deque[list[int] | list[socket.socket]] = deque()
_closers: set[object] = set()
"""One for each thread that closes."""
_in_work: dict[object, list[int] | list[socket.socket]] = {}
"""By closer: the list that it empties."""


def _start_closer() -> None:
    if len(_closers) >= _MAX_CLOSERS:
        # Each of them looks again before it ends.
        return
    closer = object()
    started: list[int] = []
    try:
        _closers.add(closer)
        call_into(started, start_new_thread, _close_all, (closer,))
    except RuntimeError:
        # No thread can be had. Whatever is closed next tries again.
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
            # A list that came between these two steps may have found eight threads.
            if not _closing or len(_closers) >= _MAX_CLOSERS:
                return
            _closers.add(closer)
            continue
        # A forked child takes over what is left of it.
        _in_work[closer] = closing
        while closing:
            try:
                one = closing.pop()
            except IndexError:
                # The list came twice, and another closer has it as well.
                break
            _close(one)
        del _in_work[closer]


def _close(one: int | socket.socket) -> None:
    # Whatever it answers, the kernel has closed it.
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
    # The threads are the parent's. What was not closed yet was inherited.
    _closers.clear()
    _closing.extend(_in_work.values())
    _in_work.clear()
    for _ in list(_closing):
        _start_closer()


os.register_at_fork(after_in_child=_after_fork_in_child)
