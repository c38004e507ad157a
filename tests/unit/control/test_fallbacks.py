# SPDX-License-Identifier: Apache-2.0
"""What stands in where the kernel has no better way, and what refuses nonsense early."""

import ctypes
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import crossmem
from crossmem.control import processes
from crossmem.control.link import Link, raise_if_dead
from crossmem.control.wire import (
    MAX_PAYLOADS,
    Grant,
    ProtocolError,
    Refusal,
    Status,
    pack_grant,
    pack_refusals,
    unpack_ids,
    unpack_replies,
)
from crossmem.models import ProcessIdentity, process_start_time

NOBODY = 65534
EXIT_THREAD = 60
"""The system call that ends one thread."""
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 6.5, which knows no SO_PEERPIDFD."""
    monkeypatch.setattr(processes, "_SO_PEERPIDFD", 9999)


@pytest.mark.usefixtures("old_kernel")
def test_a_peer_is_found_by_pid_and_start_time(pair: Pair) -> None:
    start_time = process_start_time("self")
    assert start_time is not None
    pidfd = processes.open_peer(pair[0], os.getpid(), start_time)
    assert pidfd is not None

    assert not processes.is_dead(pidfd)

    os.close(pidfd)


@pytest.mark.usefixtures("old_kernel")
def test_a_reused_pid_is_not_the_peer(pair: Pair) -> None:
    with pytest.raises(ProcessLookupError, match="reused"):
        processes.open_peer(pair[0], os.getpid(), 1)


@pytest.fixture
def fresh_answer() -> Iterator[None]:
    """What this kernel can do is found out anew, before and after the test."""
    processes._lease_end.cache_clear()
    yield
    processes._lease_end.cache_clear()


@pytest.mark.usefixtures("fresh_answer")
def test_the_capability_says_which_peers_can_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.lease_end() == "process"

    # Before Linux 6.5, peers without a pid here have no pidfd, though the kernel has pidfds.
    monkeypatch.setattr(processes, "_SO_PEERPIDFD", 9999)
    processes._lease_end.cache_clear()
    assert processes.lease_end() == "process-if-visible"

    # Before Linux 5.3, no process has one.
    monkeypatch.setattr(processes, "_SYS_PIDFD_OPEN", 9999)
    processes._lease_end.cache_clear()
    assert processes.lease_end() == "connection"


@pytest.mark.usefixtures("fresh_answer")
def test_without_a_descriptor_the_weakest_promise_is_made_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(processes, "_pidfd_open", fail)
        assert processes.lease_end() == "connection"

    assert processes.lease_end() == "process"


@pytest.mark.usefixtures("old_kernel")
def test_a_peer_that_proc_does_not_show_cannot_be_watched(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is hidden (hidepid), or /proc shows another pid namespace: it is not dead for that."""
    shown = {os.getpid(): 1, "self": 1, 1: None}
    monkeypatch.setattr(processes, "process_start_time", shown.__getitem__)
    assert processes.open_peer(pair[0], 1, 1) is None

    # Whose pid it is in /proc, nobody knows.
    shown = {os.getpid(): 2, "self": 1, 1: 5}
    monkeypatch.setattr(processes, "process_start_time", shown.__getitem__)
    assert processes.open_peer(pair[0], 1, 1) is None


@pytest.mark.usefixtures("old_kernel")
def test_an_invisible_peer_cannot_be_watched(pair: Pair) -> None:
    assert processes.open_peer(pair[0], 0, 0) is None


def test_without_a_pidfd_the_connection_tells_of_the_end(pair: Pair) -> None:
    ours, theirs = pair
    link = Link(ProcessIdentity.of_this_process(), ours, None)

    assert link.is_open

    theirs.send(b"x")

    assert link.is_open

    link.take()
    theirs.close()

    assert not link.is_open
    assert not link.send_now(b"x")
    assert link.is_broken


def test_replies_that_end_early_are_refused() -> None:
    body = pack_grant(Grant(7, 1, True, 2, 3, 0, (b"vendor",)), b"s" * 16, b"context")

    assert next(unpack_replies(body))[:7] == (7, 1, True, 2, 3, 0, (b"vendor",))

    for size in range(1, len(body)):
        with pytest.raises(ProtocolError):
            list(unpack_replies(body[:size]))


def test_payloads_without_end_are_refused_unread() -> None:
    grant = Grant(7, 1, True, 2, 3, 0, (b"",) * (MAX_PAYLOADS + 1))

    with pytest.raises(ProtocolError, match="1025 payloads"):
        list(unpack_replies(pack_grant(grant, b"s" * 16, b"context")))


def test_the_number_of_a_thread_is_no_living_owner() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    this = ProcessIdentity.of_this_process()
    try:
        assert thread.native_id is not None
        with pytest.raises(ProcessLookupError):
            processes.open_owner(this._replace(pid=thread.native_id), this)
    finally:
        ended.set()
        thread.join()


def dying_child(lives_s: float) -> ProcessIdentity:
    """Fork a process whose first thread ends at once, and whose second one ends later."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"%d" % (process_start_time("self") or 0))
        threading.Timer(lives_s, os._exit, (0,)).start()
        ctypes.CDLL(None).syscall(EXIT_THREAD, 0)
    start_time = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    while process_start_time(child) is not None:
        time.sleep(0.001)
    return ProcessIdentity.of_this_process()._replace(pid=child, start_time=start_time)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
def test_an_owner_whose_first_thread_is_gone_is_dying() -> None:
    owner, this = dying_child(0.1), ProcessIdentity.of_this_process()
    assert processes.open_owner(owner, this) is None

    with pytest.raises(crossmem.OwnerGoneError):
        raise_if_dead(owner, this, 60.0)

    os.waitpid(owner.pid, 0)


def test_refusals_survive_the_wire() -> None:
    refusal = Refusal(Status.DENIED, "user 7 is not admitted")

    assert list(unpack_replies(pack_refusals(refusal))) == [refusal]

    with pytest.raises(ProtocolError):
        unpack_ids(b"12345")


@pytest.mark.parametrize("names", [{"pids": 5}, {"uids": ["root"]}, {"pids": [True]}])
def test_access_lists_hold_numbers(names: dict[str, object]) -> None:
    with pytest.raises(crossmem.ConfigurationError, match="collection of integers"):
        crossmem.Allow(**names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uid_map", "is_told_apart"),
    [
        ("0 0 4294967295", True),
        ("0 0 1000\n1000 2000 4294966295", True),
        ("0 100000 65536", False),
        ("65534 1000 1", False),
        ("", False),
    ],
)
def test_the_number_of_users_without_one_is_nobodys(
    uid_map: str, *, is_told_apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, overflow_uid = tmp_path / "uid_map", tmp_path / "overflowuid"
    shown.write_text(uid_map)
    overflow_uid.write_text("4711\n")
    monkeypatch.setattr(processes, "_UID_MAP", shown)
    monkeypatch.setattr(processes, "_OVERFLOW_UID", overflow_uid)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    admitted = crossmem.Allow(uids=[4711, 7])

    assert processes.own_uid() == (4711 if is_told_apart else None)
    assert (admitted.refuses(1, 4711, None) is None) is is_told_apart
    assert admitted.refuses(1, 7, None) is None
    assert "no number of its own" in str(crossmem.Allow().refuses(1, 4711, None))

    # Without a descriptor to look, nobody is taken for anybody.
    shown.unlink()
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)

    assert processes.own_uid() is None


def test_arguments_of_the_wrong_type_are_refused() -> None:
    with crossmem.device("emulated:0").allocate(10) as allocation:
        handle = allocation.export()
        with pytest.raises(crossmem.ConfigurationError, match="device must be"):
            crossmem.attach(handle, device=3)  # type: ignore[arg-type]
        with pytest.raises(crossmem.ConfigurationError, match="readonly must be"):
            crossmem.attach(handle, readonly=[])  # type: ignore[arg-type]
        with pytest.raises(crossmem.ConfigurationError, match="busy must be"):
            allocation.free(busy="perhaps")  # type: ignore[arg-type]
        with pytest.raises(crossmem.ConfigurationError, match="access must be"):
            allocation.export(access=[])  # type: ignore[arg-type]
        with pytest.raises(crossmem.ConfigurationError, match="allow must be"):
            allocation.export(allow=3)  # type: ignore[arg-type]
        with pytest.raises(crossmem.UnsupportedError, match="'pigeon'; it has: memfd"):
            crossmem.device("emulated:0", mechanism="pigeon")
        with pytest.raises(crossmem.UnsupportedError, match="raw handles"):
            allocation.export(lease=False)
        with pytest.raises(AttributeError, match="immutable"):
            handle.offset = 3
        with pytest.raises(AttributeError, match="immutable"):
            del handle.offset


def test_what_a_peer_says_is_shortened_and_escaped() -> None:
    reason = "\x1b[2Jno lease\nTraceback: é" + "x" * 5000

    (refusal,) = unpack_replies(pack_refusals(Refusal(Status.FAILED, reason)))

    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("\\x1b[2Jno lease\\nTraceback: é")
    assert len(refusal.reason) <= 303
    assert refusal.reason.isprintable()
