# SPDX-License-Identifier: Apache-2.0
"""The importer's connection with exporters that no real server is like."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem.control.answers import read_reply
from crossmem.control.client import OwnerConnection
from crossmem.control.link import Deadline
from crossmem.control.wire import HEADER, Grant, MessageType, max_pages, pack_grant
from crossmem.errors import OwnerUnresponsiveError
from crossmem.models import ProcessIdentity, ShareableHandle


class Flood:
    """A link on which there is always one message more."""

    has_messages = True
    is_broken = False

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.taken = 0
        self.is_closed = False

    def take(self) -> tuple[bytes, list[int]]:
        assert time.monotonic() - self.begun < 5 * SLOWNESS, "it is read without end"
        self.taken += 1
        return HEADER.pack(MessageType.REPLY, 0, 0, 7) + b"one more", []

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    this = ProcessIdentity.of_this_process()
    made: Any = OwnerConnection(this, this, tmp_path, threading.RLock())
    made._link = Flood()
    return made


def test_a_flood_of_late_replies_takes_no_longer_than_allowed(connection: Any) -> None:
    connection.late_replies.expect(7, 10**9)

    connection.tend(0.1)

    assert time.monotonic() - connection._link.begun >= 0.1


def test_a_late_reply_is_no_longer_than_what_was_asked_for(connection: Any) -> None:
    connection.late_replies.expect(7, 1)
    flood = connection._link

    connection.tend(60)

    assert flood.is_closed
    assert flood.taken == max_pages(1) + 1
    assert connection._link is None


def test_a_reply_that_takes_until_the_deadline_to_read_is_given_up() -> None:
    this = ProcessIdentity.of_this_process()
    handle = ShareableHandle(
        backend="emulated", mechanism="memfd", device="host:0", allocation=1, export=0,
        secret=bytes(16), owner=this, nbytes=1, capacity=4096, access="rw",
    )  # fmt: skip
    record = pack_grant(Grant(0, 1, False, 1, 4096, 0, ()), handle.secret, b"context")

    with pytest.raises(OwnerUnresponsiveError):
        read_reply(this, [handle] * 2, b"context", 2 * record, [], Deadline(0))
    assert len(read_reply(this, [handle] * 2, b"context", 2 * record, [], Deadline(60))) == 2
