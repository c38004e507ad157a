# SPDX-License-Identifier: Apache-2.0
"""The channel between a test and its peers, and the loop that serves the channel in a peer."""

import faulthandler
import os
import pickle
import socket
import struct
import traceback
from collections.abc import Callable
from typing import Any, Final

from crossmem.conformance.speed import SLOWNESS

__all__ = ["GRACE_S", "START_TIMEOUT_S", "receive", "send", "serve"]

START_TIMEOUT_S: Final = 60.0 * SLOWNESS
"""How long a peer may take to start, in seconds."""

GRACE_S: Final = 10.0 * SLOWNESS
"""How long a call may continue in a peer after the test has stopped waiting, in seconds. A test
also waits this long for a peer to stop after SIGSTOP, or to end after SIGKILL."""

_LENGTH: Final = struct.Struct("<Q")


def send(stream: socket.socket, message: object) -> None:
    """Send any object that can be pickled."""
    payload = pickle.dumps(message)
    stream.sendall(_LENGTH.pack(len(payload)) + payload)


def receive(stream: socket.socket) -> Any:
    """Receive one message.

    Raises
    ------
    EOFError, ConnectionResetError
        The other end is closed.
    """
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return pickle.loads(_exactly(stream, length))  # noqa: S301 - both ends are this program


def _exactly(stream: socket.socket, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        piece = stream.recv(nbytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def serve(descriptor: int) -> None:
    """Execute a test's requests until the channel closes or a request is None. Runs in the peer."""
    from crossmem.conformance import actions  # noqa: PLC0415 - only in the peer

    with socket.socket(fileno=descriptor) as stream:
        stream.set_inheritable(False)
        _guarded(stream, 0, START_TIMEOUT_S, actions.begin, receive(stream), {})
        while True:
            try:
                request = receive(stream)
            except (EOFError, ConnectionResetError):
                return
            if request is None:
                return
            number, function, args, kwargs, limit_s = request
            _guarded(stream, number, limit_s, function, args, kwargs)


def _guarded(
    stream: socket.socket,
    number: int,
    limit_s: float,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    # If a call takes longer than ``limit_s``, the peer ends itself. For a test's call, ``limit_s``
    # is the time for which the test waits, plus ``GRACE_S``. So the test reports a missing reply
    # before the peer ends.
    faulthandler.dump_traceback_later(limit_s, exit=True)
    pid = os.getpid()
    is_result, trace = True, ""
    try:
        value = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - it is raised again in the test process
        is_result, value, trace = False, error, traceback.format_exc()
    if os.getpid() != pid:
        # The function has forked, and this child must end. Here, a call of faulthandler would never
        # return: it would wait for the timer's thread, which a forked child does not have.
        os._exit(70)
    faulthandler.cancel_dump_traceback_later()
    try:
        send(stream, (number, is_result, value, trace))
    except Exception as error:  # noqa: BLE001 - the value cannot be pickled
        failure = RuntimeError(f"{function.__name__}: cannot send {value!r}: {error!r}")
        send(stream, (number, False, failure, trace))
