# SPDX-License-Identifier: Apache-2.0
"""Descriptors that another user leaves unread are counted, and nothing is kept for ever."""

import resource
import socket
from collections.abc import Iterator

import pytest

from crossmem.control.in_flight import InFlight

OTHER = 4000
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> InFlight:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (2000, 2000))
    return InFlight(0)


def test_a_user_gets_more_when_it_has_read(in_flight: InFlight, pair: Pair) -> None:
    ours, theirs = pair
    assert in_flight.has_room(OTHER, 10_000)
    ours.send(b"reply")
    in_flight.note(ours, OTHER, 400)

    assert in_flight.has_room(OTHER, 100)
    assert not in_flight.has_room(OTHER, 101)
    assert in_flight.has_room(OTHER + 1, 400)

    theirs.recv(100)
    assert in_flight.has_room(OTHER, 400)


@pytest.mark.parametrize("how", ["reads", "closes"])
def test_a_connection_is_closed_once_its_peer_has_no_use_for_it(
    in_flight: InFlight, pair: Pair, how: str
) -> None:
    ours, theirs = pair
    ours.send(b"reply")
    in_flight.note(ours, OTHER, 1)
    in_flight.close(ours)
    assert ours.fileno() >= 0
    assert in_flight.is_closing
    if how == "reads":
        theirs.recv(100)
    else:
        theirs.close()

    in_flight.forget_read()

    assert ours.fileno() < 0
    assert not in_flight.is_closing


def test_a_connection_without_unread_descriptors_is_closed_at_once(
    in_flight: InFlight, pair: Pair
) -> None:
    in_flight.close(pair[0])

    assert pair[0].fileno() < 0
