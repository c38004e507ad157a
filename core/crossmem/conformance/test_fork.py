# SPDX-License-Identifier: Apache-2.0
"""Law C18: the operations of a forked child, and the resources that it must not keep."""

import gc
import multiprocessing
import os
import pickle
import threading
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.forks import (
    in_child,
    remember_descriptors,
    sleeping_child,
    unexpected_descriptors,
)
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.driver import Driver, TracingDriver
from crossmem.sharing.base.process import current

_NBYTES = 4096


def _set_up(blob: bytes) -> None:
    """Make an allocation, an import, two mappings and a device for a child to inherit."""
    actions.offer("allocation", _NBYTES, b"parent's")
    actions.attach("mapping", blob)
    actions.import_("imported", blob)
    actions.map_("mapped", "imported")
    actions.objects["device"] = actions.device()


@pytest.mark.parametrize(
    ("name", "method", "args"),
    [
        ("allocation", "export", ()),
        ("allocation", "read", ()),
        ("allocation", "write", (b"x",)),
        ("allocation", "view", ()),
        ("allocation", "free", ()),
        ("allocation", "__enter__", ()),
        ("imported", "map", ()),
        ("imported", "close", ()),
        ("imported", "__enter__", ()),
        ("mapping", "read", ()),
        ("mapping", "write", (b"x",)),
        ("mapping", "view", ()),
        ("mapping", "unmap", ()),
        ("mapped", "unmap", ()),
        ("mapping", "__enter__", ()),
        ("device", "allocate", (1,)),
        ("device", "synchronize", ()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.crossmem_core
def test_c18_inherited_objects_refuse_to_work(
    allocate: Allocate, peer: Peer, name: str, method: str, args: tuple[Any, ...]
) -> None:
    blob = allocate(_NBYTES).export().to_bytes()
    peer.call(_set_up, blob)

    with pytest.raises(crossmem.ForkedProcessError, match="fork") as caught:
        peer.call(in_child, actions.call, name, method, *args)

    assert str(peer.pid) in str(caught.value)
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("allocation", "ptr"),
        ("allocation", "capacity"),
        ("imported", "owner_alive"),
        ("mapping", "ptr"),
        ("mapping", "owner_alive"),
    ],
)
def test_c18_inherited_objects_tell_no_address_and_no_state(
    allocate: Allocate, peer: Peer, name: str, attribute: str
) -> None:
    peer.call(_set_up, allocate(_NBYTES).export().to_bytes())

    with pytest.raises(crossmem.ForkedProcessError):
        peer.call(in_child, actions.attribute, name, attribute)


def test_c18_an_inherited_device_takes_no_import(allocate: Allocate, peer: Peer) -> None:
    blob = allocate(_NBYTES).export().to_bytes()
    peer.call(_set_up, blob)

    with pytest.raises(crossmem.ForkedProcessError):
        peer.call(in_child, _attach_on_inherited_device, blob)


def _attach_on_inherited_device(blob: bytes) -> None:
    crossmem.attach(blob, device=actions.objects["device"])


def test_c18_the_child_keeps_no_descriptor_thread_or_memory(
    allocate: Allocate, fresh_peer: FreshPeer, capabilities: crossmem.Capabilities
) -> None:
    peer = fresh_peer(fresh=True, tracing=False)
    peer.call(remember_descriptors)
    peer.call(_set_up, allocate(_NBYTES).export().to_bytes())

    assert peer.call(in_child, unexpected_descriptors) == []
    assert peer.call(in_child, resources.threads) == ["MainThread"]
    assert peer.call(in_child, resources.lease_words) == []
    # If the CPU can address shared memory, the child may inherit mappings of it. The child never
    # keeps descriptors of shared memory.
    assert peer.call(in_child, resources.shared_nbytes, only_open=True) == 0
    assert capabilities.host_visible or peer.call(in_child, resources.shared_nbytes) == 0


@pytest.mark.crossmem_core
def test_c18_the_child_keeps_nothing_alive(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    allocation = allocate(_NBYTES)
    peer = fresh_peer()
    peer.call(_set_up, allocation.export().to_bytes())
    # The child lives on, and its inherited objects must not keep a lease.
    peer.call(in_child, actions.pid, stays=True)

    peer.call(actions.unmap, "mapped", "mapping")
    peer.call(actions.close, "imported")
    allocation.free(busy="wait", timeout=1)
    peer.call(actions.free, "allocation", busy="raise")

    assert peer.call(actions.live)["blocks"] == 0


def test_c18_dropping_what_was_inherited_changes_nothing(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(_NBYTES, b"exporter")
    peer.call(_set_up, allocation.export().to_bytes())
    before = peer.call(actions.calls)

    peer.call(in_child, _drop_everything)

    assert peer.call(actions.read, "allocation", 8) == b"parent's"
    assert peer.call(actions.read, "mapping", 8) == b"exporter"
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy="raise")
    after = peer.call(actions.calls)
    assert all(after.get(name, 0) == before.get(name, 0) for name in ("free", "unmap", "close"))


def _drop_everything() -> None:
    actions.objects.clear()
    gc.collect()
    crossmem.collect()


def test_c18_a_child_that_ends_normally_takes_nothing_with_it(
    allocate: Allocate, peer: Peer
) -> None:
    allocation = allocate(_NBYTES, b"exporter")
    peer.call(_set_up, allocation.export().to_bytes())

    assert peer.call(_run_forked_child_to_its_end) == 0

    assert peer.call(actions.read, "allocation", 8) == b"parent's"
    assert peer.call(actions.read, "mapping", 8) == b"exporter"
    with crossmem.attach(peer.call(actions.export, "allocation")) as mapping:
        assert mapping.read(8) == b"parent's"


def _run_forked_child_to_its_end() -> int | None:
    # A child of multiprocessing runs finalisers at its end. The parent's finalisers must do nothing
    # in the child.
    process = multiprocessing.get_context("fork").Process(target=actions.pid)
    process.start()
    process.join(30)
    return process.exitcode


# Calls that a child may make for itself -----------------------------------------------------


@pytest.mark.crossmem_requires("fork_safe")
@pytest.mark.crossmem_core
def test_c18_a_child_imports_for_itself(allocate: Allocate, peer: Peer) -> None:
    blob = allocate(_NBYTES, b"exporter").export().to_bytes()
    peer.call(_set_up, blob)
    parents = peer.call(actions.export, "allocation")

    assert peer.call(in_child, _attach_and_read, blob) == b"exporter"
    assert peer.call(in_child, _attach_and_read, parents) == b"parent's"
    assert peer.call(in_child, in_child, _attach_and_read, parents) == b"parent's"


@pytest.mark.crossmem_requires("fork_safe")
def test_c18_a_childs_leases_are_its_own(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    allocation = allocate(_NBYTES)
    blob = allocation.export().to_bytes()
    peer = fresh_peer()
    peer.call(_set_up, blob)
    child = peer.call(in_child, _attach_and_tell_pid, blob, stays=True)

    assert child != peer.pid
    assert _holders_of(blob) == {child, peer.pid}
    peer.kill()
    assert settle(lambda: _others_than(child, blob)) == []
    # This call kills the child, which is in the peer's process group.
    peer.destroy()
    allocation.free(busy="wait", timeout=SOON_S)


@pytest.mark.crossmem_requires("fork_safe")
def test_c18_a_child_exports_for_itself(fresh_peer: FreshPeer) -> None:
    peer = fresh_peer()
    parents = peer.call(actions.offer, "allocation", _NBYTES, b"parent's")
    blob = peer.call(in_child, _offer_after_dropping, stays=True)

    with crossmem.attach(blob) as mapping, crossmem.attach(parents) as other:
        assert mapping.read(7) == b"child's"
        assert other.read(8) == b"parent's"
        assert mapping.handle.owner.pid != other.handle.owner.pid
        assert mapping.owner_alive


@pytest.mark.crossmem_requires("fork_safe")
def test_c18_forking_while_other_threads_import_hangs_nobody(
    allocate: Allocate, peer: Peer
) -> None:
    blob = allocate(_NBYTES, b"exporter").export().to_bytes()
    peer.call(_set_up, blob)

    assert peer.call(_fork_among_threads, blob, 25, within=120) == [b"exporter"] * 25


@pytest.mark.crossmem_core
def test_c18_a_child_of_a_backend_that_cannot_be_forked_is_told_to_spawn(
    allocate: Allocate, peer: Peer, capabilities: crossmem.Capabilities
) -> None:
    if capabilities.fork_safe:
        pytest.skip("the device's capability fork_safe is true")
    blob = allocate(_NBYTES).export().to_bytes()
    peer.call(_set_up, blob)

    for attempt in (_attach_and_read, _allocate):
        with pytest.raises(crossmem.ForkedProcessError, match="spawn"):
            peer.call(in_child, attempt, blob)


_loaded: list[int] = []


class _Unforkable(TracingDriver):
    """A driver that is not fork-safe. It records the processes that have loaded it."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        _loaded.append(os.getpid())

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> crossmem.Capabilities:
        said = super().capabilities(ordinal, mechanism)
        return replace(said, fork_safe=False)


def test_c18_a_backend_that_cannot_be_forked_is_not_even_asked(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    peer = fresh_peer(tracing=False)
    peer.call(_use_unforkable)
    blob = allocate(_NBYTES).export().to_bytes()
    refused, loaded = peer.call(in_child, _attempts, blob)

    assert refused == ["ForkedProcessError"] * 3
    assert loaded == [peer.pid]

    refused, loaded = peer.call(in_child, in_child, _attempts, blob)

    assert refused == ["ForkedProcessError"] * 3
    assert loaded == [peer.pid]


def _use_unforkable() -> None:
    current().registry.adapt(_Unforkable)
    actions.objects["device"] = actions.device()


def _attempts(blob: bytes) -> tuple[list[str], list[int]]:
    refused = []
    for attempt in (
        actions.device,
        lambda: crossmem.attach(blob),
        lambda: pickle.loads(pickle.dumps(actions.objects["device"])),  # noqa: S301
    ):
        try:
            attempt()
        except crossmem.CrossmemError as error:
            refused.append(type(error).__name__)
    return refused, list(_loaded)


@pytest.mark.parametrize("with_handlers", [True, False], ids=["fork", "raw-fork"])
def test_c18_the_parent_works_on(
    allocate: Allocate, fresh_peer: FreshPeer, *, with_handlers: bool
) -> None:
    blob = allocate(_NBYTES, b"exporter").export().to_bytes()
    peer = fresh_peer(fresh=True)
    peer.call(_set_up, blob)
    peer.call(sleeping_child, with_handlers=with_handlers)

    peer.call(actions.write, "mapping", b"EXPORTER")
    assert peer.call(_attach_and_read, blob) == b"EXPORTER"
    with crossmem.attach(peer.call(actions.export, "allocation")) as mapping:
        assert mapping.read(8) == b"parent's"
        assert mapping.owner_alive
    assert peer.call(actions.violations) == []


def _attach_and_read(blob: bytes) -> bytes:
    with crossmem.attach(blob) as mapping:
        return mapping.read(8)


def _attach_and_tell_pid(blob: bytes) -> int:
    actions.attach("child's", blob)
    return os.getpid()


def _offer_after_dropping() -> bytes:
    actions.objects.clear()
    return actions.offer("child's", _NBYTES, b"child's")


def _allocate(blob: bytes) -> None:
    actions.allocate("child's", _NBYTES)


def _holders_of(blob: bytes) -> set[int]:
    handle = crossmem.ShareableHandle.from_bytes(blob)
    return {
        lease.pid for info in crossmem.exports() if info.handle == handle for lease in info.leases
    }


def _others_than(pid: int, blob: bytes) -> list[str]:
    return [f"held by {one}" for one in _holders_of(blob) ^ {pid}]


def _fork_among_threads(blob: bytes, count: int) -> list[bytes]:
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            crossmem.attach(blob).unmap()
            with actions.device().allocate(1) as allocation:
                allocation.export()

    workers = [threading.Thread(target=churn) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        return [in_child(_attach_and_read, blob) for _ in range(count)]
    finally:
        done.set()
        for worker in workers:
            worker.join(10)
