# SPDX-License-Identifier: Apache-2.0
"""Log lines about peers are few, whatever peers do."""

import logging
import time
from typing import Any

import pytest

from crossmem.control import peer_log


def test_a_peer_makes_one_line_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = peer_log.PeerLog(logging.getLogger(__name__))
    for _ in range(7):
        log.warning(12, "it talks")
    log.warning(13, "it talks, too")
    now[0] += 1
    log.warning(12, "it still talks")

    assert [one.getMessage() for one in caplog.records] == [
        "process 12: it talks",
        "process 13: it talks, too",
        "process 12: it still talks (6 more lines about it were left out)",
    ]


def test_peers_without_end_take_bounded_memory() -> None:
    log: Any = peer_log.PeerLog(logging.getLogger(__name__))
    for pid in range(1, 3000):
        log.warning(pid, "it talks")

    assert len(log._written) <= 1024


def test_peers_without_end_make_ten_lines_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = peer_log.PeerLog(logging.getLogger(__name__))
    for pid in range(1, 101):
        log.warning(pid, "it talks")
    now[0] += 1
    log.warning(1000, "it talks")

    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == 11
    assert lines[-1] == "process 1000: it talks (90 other lines were left out)"
