# SPDX-License-Identifier: Apache-2.0
"""Peers that are forked from a warm process are as good as interpreters of their own."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossmem.conformance import actions, servers
from crossmem.conformance.forkserver import ForkServerError
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.servers import preload

VARIABLE = "A_VARIABLE_OF_THIS_TEST"


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer("emulated:0", tracing=False) as one:
        yield one


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have servers of this test alone, because it kills them."""
    before = dict(servers._servers)
    servers._servers.clear()
    yield
    for server in servers._servers.values():
        server.close()
    servers._servers.clear()
    servers._servers.update(before)


def descriptors() -> list[str]:
    return sorted(one.name for one in Path("/proc/self/fd").iterdir())


def is_imported(name: str) -> bool:
    return name in sys.modules


def variable(name: str) -> str | None:
    return os.environ.get(name)


def groups() -> tuple[int, int]:
    return os.getpid(), os.getpgid(0)


def write_and_exit(text: str, code: int) -> None:
    print(text, flush=True)
    sys.exit(code)


def parent() -> int:
    return os.getppid()


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_a_peer_ends_as_it_says(fresh: bool) -> None:
    with Peer("emulated:0", tracing=False, fresh=fresh) as one:
        one.start(write_and_exit, "last words", 3)

        assert one.wait_exit() == 3
        assert one.exitcode == 3
        assert one.output() == "last words\n"


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_a_killed_peer_is_told(fresh: bool) -> None:
    with Peer("emulated:0", tracing=False, fresh=fresh) as one:
        pending = one.start(signal.pause)
        one.kill()

        assert one.exitcode == -signal.SIGKILL
        with pytest.raises(PeerDiedError):
            pending.result()


def test_a_stopped_peer_goes_on(peer: Peer) -> None:
    peer.stop()
    pending = peer.start(actions.pid)

    assert not pending.is_done()
    peer.cont()
    assert pending.result() == peer.pid


def test_each_leads_a_group_of_its_own(peer: Peer) -> None:
    assert peer.call(groups) == (peer.pid, peer.pid)


def test_forked_peers_share_a_parent_and_no_state() -> None:
    with Peer("emulated:0", tracing=False) as one, Peer("emulated:0", tracing=False) as two:
        one.call(actions.allocate, "memory", 1)

        assert one.call(parent) == two.call(parent) != os.getpid()
        with pytest.raises(KeyError):
            two.call(actions.read, "memory")


def test_variables_of_crossmem_need_no_server_of_their_own(peer: Peer) -> None:
    with Peer("emulated:0", tracing=False, environment={"CROSSMEM_TIMEOUT": "7"}) as other:
        assert other.call(variable, "CROSSMEM_TIMEOUT") == "7"
        assert peer.call(variable, "CROSSMEM_TIMEOUT") is None
        assert other.call(parent) == peer.call(parent)


def test_other_variables_are_there_from_the_start(own_server: None, peer: Peer) -> None:
    with Peer("emulated:0", tracing=False, environment={VARIABLE: "x"}) as other:
        assert other.call(variable, VARIABLE) == "x"
        assert other.call(parent) != peer.call(parent)


def test_modules_are_imported_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_module_of_a_test.py").touch()
    monkeypatch.setattr(servers, "_preloaded", dict(servers._preloaded))
    # Only a server that has not started yet can find it.
    monkeypatch.setattr(servers, "_servers", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    preload("some_module_of_a_test")
    with Peer("emulated:0", tracing=False) as one:
        assert one.call(is_imported, "some_module_of_a_test")
    for server in servers._servers.values():
        server.close()


def test_nothing_is_left_of_a_peer(peer: Peer) -> None:
    before = descriptors()
    with Peer("emulated:0", tracing=False) as one:
        one.call(actions.allocate, "memory", 1)

    assert descriptors() == before


def test_a_server_that_was_killed_leaves_peers_that_can_be_ended(own_server: None) -> None:
    before = descriptors()
    with Peer("emulated:0", tracing=False) as one:
        (server,) = servers._servers.values()
        server._process.kill()
        server._process.wait()

        assert one.call(actions.pid) == one.pid
        with pytest.raises(ForkServerError):
            one.wait_exit()

    # The next one has another server.
    with Peer("emulated:0", tracing=False) as other:
        assert other.call(actions.pid) == other.pid
    assert len(descriptors()) <= len(before) + 2


def test_a_forked_child_of_the_test_keeps_no_server(peer: Peer) -> None:
    found = [server.descriptor for server in servers._servers.values()]
    pid = os.fork()
    if not pid:
        kept: Any = [one for one in found if Path(f"/proc/self/fd/{one}").exists()]
        os._exit(len(kept))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert peer.call(actions.pid) == peer.pid
