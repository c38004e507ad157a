# SPDX-License-Identifier: Apache-2.0
"""Law C13: the exporter decides which processes may import, and reports denials."""

import os
import tempfile

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.forks import in_child
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver
from crossmem.models import Event, EventKind
from crossmem.plugin import hookimpl
from crossmem.sharing.base.process import current

_NBYTES = 4096
_NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

_events: list[Event] = []


class _Observer:
    """A plugin that records every event."""

    @hookimpl
    def crossmem_event(self, event: Event) -> None:
        _events.append(event)


def observe() -> None:
    """Start to record the events of this process."""
    current().registry.register(_Observer(), name="events-of-the-kit")


def denials() -> list[Event]:
    """Return the recorded events of denied imports."""
    return [event for event in _events if event.kind is EventKind.DENIED]


def _info_of(handle: crossmem.ShareableHandle) -> crossmem.ExportInfo:
    (info,) = (one for one in crossmem.exports() if one.handle == handle)
    return info


@pytest.mark.crossmem_core
def test_c13_any_process_of_the_same_user_is_admitted(
    allocate: Allocate, peer: Peer, peer2: Peer
) -> None:
    handle = allocate(_NBYTES, b"data").export()
    for one in (peer, peer2):
        one.call(actions.attach, "mapped", handle.to_bytes())
        assert one.call(actions.read, "mapped", 4) == b"data"

    info = _info_of(handle)
    assert {(lease.pid, lease.uid) for lease in info.leases} == {
        (peer.pid, os.geteuid()),
        (peer2.pid, os.geteuid()),
    }
    assert info.denied == 0


@pytest.mark.crossmem_core
def test_c13_pids_narrow(allocate: Allocate, peer: Peer, peer2: Peer) -> None:
    allow = crossmem.Allow(pids=frozenset({peer.pid}))
    handle = allocate(_NBYTES, b"data", allow=allow).export(allow=allow)

    peer.call(actions.attach, "mapped", handle.to_bytes())
    for refused in (actions.attach, actions.import_):
        with pytest.raises(crossmem.AccessDeniedError, match=str(peer2.pid)):
            peer2.call(refused, "never", handle.to_bytes())

    assert peer.call(actions.read, "mapped", 4) == b"data"
    info = _info_of(handle)
    assert [lease.pid for lease in info.leases] == [peer.pid]
    assert info.denied == 2


def test_c13_nobody_is_admitted_where_no_pid_is(allocate: Allocate, peer: Peer) -> None:
    allow = crossmem.Allow(pids=frozenset())
    handle = allocate(_NBYTES, allow=allow).export(allow=allow)

    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(actions.attach, "never", handle.to_bytes())

    # ``allow`` does not apply to the exporter itself.
    crossmem.attach(handle).unmap()


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
def test_c13_a_refused_process_reaches_no_driver_and_holds_nothing(
    allocate: Allocate, peer: Peer, peer2: Peer
) -> None:
    allocation = allocate(_NBYTES)
    good, refused = allocation.export(), allocation.export(allow=crossmem.Allow(pids=frozenset()))
    before = peer.call(actions.calls)

    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(actions.attach, "never", refused.to_bytes())
    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(actions.attach_many, ["a", "b"], [good.to_bytes(), refused.to_bytes()])

    after = peer.call(actions.calls)
    assert after.get("map", 0) == before.get("map", 0)
    assert peer.call(actions.live)["imports"] == 0
    peer2.call(actions.attach, "mapped", good.to_bytes())
    peer2.call(actions.unmap, "mapped")
    allocation.free(busy="raise")


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
def test_c13_each_handle_admits_whom_its_own_export_admits(
    allocate: Allocate, peer: Peer, peer2: Peer
) -> None:
    allocation = allocate(_NBYTES)
    mine, theirs = (
        allocation.export(allow=crossmem.Allow(pids=frozenset({one.pid}))).to_bytes()
        for one in (peer, peer2)
    )
    assert mine != theirs

    for one, own, foreign in ((peer, mine, theirs), (peer2, theirs, mine)):
        one.call(actions.attach, "mapped", own)
        # A process that holds the memory is refused if the handle does not admit the process.
        with pytest.raises(crossmem.AccessDeniedError):
            one.call(actions.attach, "never", foreign)
        one.call(actions.unmap, "mapped")


@pytest.mark.crossmem_not_of_blocks("an event describes the whole pool, not one block")
def test_c13_a_denial_is_reported(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    exporter.call(observe)
    blob = exporter.call(
        actions.offer, "memory", _NBYTES, allow=crossmem.Allow(pids=frozenset({1}))
    )
    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(actions.attach, "never", blob)

    # The lease server replies to the peer before it notifies observers, so the test waits.
    assert settle(lambda: [] if exporter.call(denials) else ["no denial was reported"]) == []
    (event,) = exporter.call(denials)
    handle = crossmem.ShareableHandle.from_bytes(blob)
    assert (event.backend, event.device) == (handle.backend, handle.device)
    assert (event.allocation, event.nbytes) == (handle.allocation, _NBYTES)
    assert (event.owner_pid, event.peer_pid) == (exporter.pid, peer.pid)
    assert str(peer.pid) in event.detail
    (info,) = exporter.call(actions.exports)
    assert info.denied == 1
    assert info.leases == ()


@needs_root
@pytest.mark.crossmem_requires("fork_safe")
@pytest.mark.crossmem_core
def test_c13_other_users_are_refused(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    handle = allocate(_NBYTES).export()
    stranger = fresh_peer()
    stranger.call(actions.allocate, "warm", 1)

    with pytest.raises(crossmem.AccessDeniedError, match=f"user {_NOBODY}"):
        stranger.call(in_child, actions.attach, "never", handle.to_bytes(), uid=_NOBODY)

    assert _info_of(handle).denied == 1
    assert _info_of(handle).leases == ()


@needs_root
@pytest.mark.crossmem_requires("fork_safe", "other_users")
@pytest.mark.crossmem_core
def test_c13_uids_widen(allocate: Allocate, peer: Peer, fresh_peer: FreshPeer) -> None:
    allow = crossmem.Allow(uids=frozenset({_NOBODY}))
    handle = allocate(_NBYTES, b"data", allow=allow).export(allow=allow)
    blob = handle.to_bytes()
    stranger = fresh_peer()
    stranger.call(actions.allocate, "warm", 1)

    assert stranger.call(in_child, _attach_and_read, blob, uid=_NOBODY, stays=True) == b"data"
    assert [lease.uid for lease in _info_of(handle).leases] == [_NOBODY]
    # The exporter's own user is still admitted, and a third user is not.
    peer.call(actions.attach, "mapped", blob)
    with pytest.raises(crossmem.AccessDeniedError, match=f"user {_NOBODY - 1}"):
        stranger.call(in_child, actions.attach, "never", blob, uid=_NOBODY - 1)

    stranger.destroy()
    assert settle(lambda: [] if len(_info_of(handle).leases) == 1 else ["leased"]) == []


@needs_root
@pytest.mark.crossmem_requires("fork_safe", "other_users")
def test_c13_pids_narrow_other_users_too(
    allocate: Allocate, peer: Peer, fresh_peer: FreshPeer
) -> None:
    allow = crossmem.Allow(pids=frozenset({peer.pid}), uids=frozenset({_NOBODY}))
    handle = allocate(_NBYTES, allow=allow).export(allow=allow)
    stranger = fresh_peer()
    stranger.call(actions.allocate, "warm", 1)

    peer.call(actions.attach, "mapped", handle.to_bytes())
    with pytest.raises(crossmem.AccessDeniedError, match="process"):
        stranger.call(in_child, actions.attach, "never", handle.to_bytes(), uid=_NOBODY)


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
def test_c13_foreign_uids_are_declined(
    allocate: Allocate, capabilities: crossmem.Capabilities, tracer: TracingDriver
) -> None:
    if capabilities.other_users:
        pytest.skip("the device's capability other_users is true")
    allocation = allocate(_NBYTES)
    before = dict(tracer.calls)

    with pytest.raises(crossmem.UnsupportedError, match="other_users"):
        allocation.export(allow=crossmem.Allow(uids={os.geteuid(), os.geteuid() + 1}))

    assert tracer.calls == before
    allocation.export(allow=crossmem.Allow(uids={os.geteuid()}))


@pytest.mark.crossmem_not_of_blocks(
    "a pool starts root's lease server, which refuses the run directory of another user"
)
@needs_root
@pytest.mark.crossmem_requires("fork_safe")
def test_c13_not_even_root_is_admitted_to_another_users_memory(fresh_peer: FreshPeer) -> None:
    with tempfile.TemporaryDirectory(prefix="crossmem-") as folder:
        # The exporter's run directory must belong to the exporter's user. It does not lie in one of
        # pytest's own folders, because they are closed to other users.
        os.chown(folder, _NOBODY, _NOBODY)
        exporter = fresh_peer(CROSSMEM_RUN_DIR=folder)
        exporter.call(actions.allocate, "warm", 1)
        blob = exporter.call(in_child, actions.offer, "memory", _NBYTES, uid=_NOBODY, stays=True)

        with pytest.raises(crossmem.AccessDeniedError, match="user 0"):
            crossmem.attach(blob)
        exporter.destroy()


def _attach_and_read(blob: bytes) -> bytes:
    actions.attach("mapped", blob)
    return actions.read("mapped", 4)
