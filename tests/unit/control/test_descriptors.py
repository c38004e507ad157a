# SPDX-License-Identifier: Apache-2.0
"""Descriptors of peers that take long to close."""

import os
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from crossmem.conformance.forks import in_child
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.control import descriptors

PATIENCE_S = 10 * SLOWNESS


class Slow:
    """A connection whose close waits."""

    open_now = 0
    most = 0
    lock = threading.Lock()

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.closed = 0

    def close(self) -> None:
        with Slow.lock:
            Slow.open_now += 1
            Slow.most = max(Slow.most, Slow.open_now)
        self.gate.wait(PATIENCE_S)
        self.closed += 1
        with Slow.lock:
            Slow.open_now -= 1


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    Slow.most = 0
    made = threading.Event()
    yield made
    made.set()
    assert settle(lambda: list(map(repr, descriptors._closers))) == []


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def close_and_tell(connection: socket.socket, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Close a connection; return whether that was left to a thread."""
    aside: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(descriptors, "close_aside", aside.append)
        descriptors.close_connection(connection)
    assert (connection.fileno() < 0) == (not aside)
    return bool(aside)


@pytest.mark.parametrize("is_peer_there", [True, False])
@pytest.mark.parametrize("has_sent", [True, False])
def test_a_connection_without_messages_is_closed_at_once(
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_peer_there: bool,
    has_sent: bool,
) -> None:
    ours, theirs = pair
    if has_sent:
        # The kernel tells us once that the peer has not read it.
        ours.send(b"unread")
    if not is_peer_there:
        theirs.close()

    assert not close_and_tell(ours, monkeypatch)


@pytest.mark.parametrize("is_peer_there", [True, False])
@pytest.mark.parametrize("messages", [[b"x"], [b""], [b"", b""]], ids=["byte", "empty", "two"])
def test_a_connection_with_messages_is_closed_aside(
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    messages: list[bytes],
    *,
    is_peer_there: bool,
) -> None:
    ours, theirs = pair
    for one in messages:
        theirs.send(one)
    theirs.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0]))])
    if not is_peer_there:
        theirs.close()

    assert close_and_tell(ours, monkeypatch)


def test_a_connection_that_refuses_descriptors_is_closed_at_once(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    descriptors.refuse(ours)
    if not descriptors.refuses(ours):
        pytest.skip("this kernel cannot refuse descriptors (before Linux 6.16)")
    theirs.send(b"unread")

    assert not close_and_tell(ours, monkeypatch)


def test_few_threads_close_much(gate: threading.Event) -> None:
    slow = [Slow(gate) for _ in range(30)]
    start = time.monotonic()
    for one in slow:
        closing: list[Any] = [one]
        descriptors.close_aside(closing)
        descriptors.close_aside(closing)

    assert time.monotonic() - start < PATIENCE_S / 2
    assert len(descriptors._closers) == 8
    gate.set()
    assert settle(lambda: [one for one in slow if not one.closed]) == []
    assert [one.closed for one in slow] == [1] * 30
    assert Slow.most <= 8


def test_a_forked_child_closes_what_it_inherited(gate: threading.Event) -> None:
    busy: list[Any] = [[Slow(gate)] for _ in range(8)]
    for one in busy:
        descriptors.close_aside(one)
    assert settle(lambda: [] if Slow.open_now == 8 else ["some wait"]) == []
    mine, other = os.pipe()
    descriptors.close_aside([other])

    pipe = os.fstat(other).st_ino

    def still_open() -> list[str]:
        with suppress(OSError):
            return ["pipe"] if os.fstat(other).st_ino == pipe else []
        return []

    try:
        assert in_child(settle, still_open) == []
    finally:
        gate.set()
        os.close(mine)


def test_without_threads_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> int:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    first, second = socket.socketpair()
    with monkeypatch.context() as patch:
        patch.setattr(descriptors, "start_new_thread", no_thread)
        descriptors.close_aside([first])
    assert first.fileno() >= 0

    descriptors.close_aside([second])

    assert settle(lambda: [str(one) for one in (first, second) if one.fileno() >= 0]) == []
