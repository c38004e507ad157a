# SPDX-License-Identifier: Apache-2.0
"""The end of a peer, and nothing else."""

import os
from typing import Any

import pytest

from crossmem.conformance.peers import Peer


@pytest.mark.parametrize(("state", "groups"), [(b"S", 0), (b"", 1)], ids=["reused", "free"])
def test_a_dead_peer_ends_only_its_own_group(
    monkeypatch: pytest.MonkeyPatch, state: bytes, groups: int
) -> None:
    peer, killed = Peer("host", tracing=False), list[Any]()
    peer.kill()
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda *of: killed.append(of))
        # Another process has got the pid, or no process has it.
        patch.setattr(Peer, "_state", lambda _: state)

        peer.destroy()

    assert [pid for pid, _signal in killed] == [peer.pid] * groups
