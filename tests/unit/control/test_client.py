# SPDX-License-Identifier: Apache-2.0
"""The importer's connection with exporters that no real server is like."""

import time
from pathlib import Path
from typing import Any

from crossmem.conformance.speed import SLOWNESS
from crossmem.control.client import OwnerConnection
from crossmem.models import ProcessIdentity


class Flood:
    """A link on which there is always one message more."""

    has_messages = True
    is_broken = False

    def __init__(self) -> None:
        self.begun = time.monotonic()

    def take(self) -> tuple[bytes, list[int], bool]:
        assert time.monotonic() - self.begun < 5 * SLOWNESS, "it is read without end"
        return b"one more", [], False


def test_a_flood_of_late_replies_takes_no_longer_than_allowed(tmp_path: Path) -> None:
    this = ProcessIdentity.of_this_process()
    connection: Any = OwnerConnection(this, this, tmp_path)
    connection._link = Flood()
    connection._late_replies = True

    connection.tend(0.1)

    assert time.monotonic() - connection._link.begun >= 0.1
