# SPDX-License-Identifier: Apache-2.0
"""Law C17: operations of closed objects raise, and live views prevent closing."""

import gc
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import Allocate
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver

NBYTES = 5000

Use = Callable[[Any], object]

BYTES: dict[str, Use] = {
    "ptr": lambda memory: memory.ptr,
    "read": lambda memory: memory.read(0),
    "write": lambda memory: memory.write(b""),
    "copy to": lambda memory: memory.copy_from(memory),
    "view": lambda memory: memory.view(),
    "with": lambda memory: memory.__enter__(),
}
ALLOCATION: dict[str, Use] = BYTES | {
    "capacity": lambda allocation: allocation.capacity,
    "export": lambda allocation: allocation.export(),
}
MAPPING: dict[str, Use] = BYTES | {"owner_alive": lambda mapping: mapping.owner_alive}
IMPORT: dict[str, Use] = {
    "map": lambda imported: imported.map(),
    "owner_alive": lambda imported: imported.owner_alive,
    "with": lambda imported: imported.__enter__(),
}


def refuses(uses: dict[str, Use], closed: Any) -> None:
    """Check that each use of a closed object raises ``ClosedError``.

    Also check that the object's attribute ``closed`` is true, and that ``repr`` works.
    """
    for use in uses.values():
        with pytest.raises(crossmem.ClosedError):
            use(closed)

    assert closed.closed
    assert repr(closed)


@pytest.mark.crossmem_core
def test_c17_a_freed_allocation(device: crossmem.Device) -> None:
    allocation = device.allocate(NBYTES)
    allocation.export()
    allocation.free()
    for busy in ("defer", "raise", "wait"):
        allocation.free(busy=busy)
    refuses(ALLOCATION, allocation)

    assert (allocation.nbytes, allocation.device) == (NBYTES, device)


def use_closed(uses: str, name: str) -> None:
    """Check that the uses of a closed mapping or import raise ``ClosedError``."""
    refuses({"mapping": MAPPING, "import": IMPORT}[uses], actions.objects[name])


@pytest.mark.crossmem_core
def test_c17_an_unmapped_mapping_and_a_closed_import(allocate: Allocate, peer: Peer) -> None:
    blob = allocate(NBYTES).export().to_bytes()
    peer.call(actions.attach, "attached", blob)
    peer.call(actions.import_, "i", blob)
    peer.call(actions.map_, "mapped", "i")
    for name in ("attached", "mapped"):
        peer.call(actions.unmap, name, name)
        peer.call(use_closed, "mapping", name)
    peer.call(actions.close, "i", "i")
    peer.call(use_closed, "import", "i")

    assert peer.call(actions.live)["imports"] == 0


def test_c17_neither_end_of_a_copy_may_be_closed(allocate: Allocate) -> None:
    open_, freed = allocate(NBYTES), allocate(NBYTES)
    freed.free()
    for target, source in ((open_, freed), (freed, open_)):
        with pytest.raises(crossmem.ClosedError):
            target.copy_from(source)
    # The refused copies do not keep the open allocation in use.
    open_.free(busy="raise")


def test_c17_own_imports_close_too(allocate: Allocate) -> None:
    handle = allocate(NBYTES).export()
    with crossmem.import_handle(handle) as imported:
        with imported.map() as mapping:
            pass
        refuses(MAPPING, mapping)
    refuses(IMPORT, imported)


def test_c17_an_import_does_not_close_under_its_mappings(allocate: Allocate, peer: Peer) -> None:
    peer.call(actions.import_, "i", allocate(NBYTES, b"held").export().to_bytes())
    peer.call(actions.map_, "m", "i")
    peer.call(actions.map_, "n", "i")
    for name in "mn":
        with pytest.raises(crossmem.BusyError):
            peer.call(actions.close, "i")

        assert peer.call(actions.read, name, 4) == b"held"

        peer.call(actions.unmap, name)
    peer.call(actions.close, "i")

    assert peer.call(actions.attribute, "i", "closed")


@pytest.mark.crossmem_requires("host_visible")
@pytest.mark.parametrize("busy", ["defer", "raise", "wait"])
def test_c17_nothing_is_freed_under_a_live_view(device: crossmem.Device, busy: Any) -> None:
    allocation = device.allocate(NBYTES)
    allocation.write(b"seen")
    view = allocation.view()
    part = view[1:3]
    view.release()
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy=busy)

    assert not allocation.closed
    assert bytes(part) == b"ee"
    assert len(allocation.read()) == NBYTES

    part.release()
    allocation.free(busy=busy)

    assert allocation.closed


@pytest.mark.crossmem_requires("host_visible")
@pytest.mark.crossmem_core
def test_c17_nothing_is_unmapped_under_a_live_view(allocate: Allocate, peer: Peer) -> None:
    blob = allocate(NBYTES, b"seen").export().to_bytes()
    peer.call(actions.attach, "m", blob)
    peer.call(actions.attach, "other", blob)
    peer.call(actions.call, "m", "view", keep="v")
    peer.call(actions.unmap, "other")
    for _ in range(2):
        with pytest.raises(crossmem.BusyError):
            peer.call(actions.unmap, "m")

    assert peer.call(actions.call, "v", "__getitem__", 0) == ord("s")
    assert peer.call(actions.read, "m", 4) == b"seen"

    peer.call(actions.call, "v", "release")
    peer.call(actions.unmap, "m")

    assert peer.call(actions.live)["mappings"] == 0


def dropped(make: Callable[[], object]) -> None:
    """Call a function that creates or drops objects. Then collect garbage."""
    make()
    gc.collect()


@pytest.mark.crossmem_requires("host_visible")
def test_c17_a_view_keeps_its_mapping(
    device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    blob = peer.call(actions.offer, "a", NBYTES, b"kept")
    before = tracer.live
    views = [crossmem.attach(blob).view()]
    gc.collect()
    crossmem.collect()

    assert bytes(views[0][:4]) == b"kept"
    assert tracer.live["mappings"] == before["mappings"] + 1

    with pytest.warns(ResourceWarning, match="without unmap"):
        dropped(views.clear)
    crossmem.collect()

    assert tracer.live == before


def test_c17_dropped_objects_are_given_back_with_a_warning(
    device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    blob = peer.call(actions.offer, "a", NBYTES)
    before = tracer.live
    drops: tuple[Callable[[], object], ...] = (
        lambda: device.allocate(NBYTES),
        lambda: crossmem.attach(blob),
        lambda: crossmem.import_handle(blob),
        lambda: crossmem.import_handle(blob).map(),
    )
    for make in drops:
        with pytest.warns(ResourceWarning, match="was dropped without"):
            dropped(make)
        # collect() releases the resources of the dropped objects.
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            crossmem.collect()

        assert tracer.live == before

    assert settle(lambda: [repr(one) for one in peer.call(actions.exports) if one.leases]) == []


def test_c17_a_with_block_of_an_import_ends_by_its_own_error(peer: Peer) -> None:
    peer.call(actions.offer, "memory", NBYTES)
    blob = peer.call(actions.export, "memory")

    def use() -> None:
        with crossmem.import_handle(blob) as imported:
            kept.append(imported.map())
            raise KeyError("the block")

    kept: list[crossmem.Mapping] = []
    with pytest.raises(KeyError):
        use()

    # The ``with`` block could not close the import, because the import had a mapping. The mapping
    # still works, although the import's object was dropped.
    kept[0].read(1)
    kept.pop().unmap()
    assert settle(lambda: [repr(one) for one in peer.call(actions.exports) if one.leases]) == []


def test_c17_a_pickle_carries_a_handle_and_no_object(allocate: Allocate) -> None:
    allocation = allocate(NBYTES)
    handle = allocation.export()
    with crossmem.import_handle(handle) as imported, imported.map() as mapping:
        with pytest.raises(crossmem.UnsupportedError, match="handle"):
            pickle.dumps(imported)
        for one in (allocation, mapping):
            with pickle.loads(pickle.dumps(one)) as again:  # noqa: S301 - just made
                assert isinstance(again, crossmem.Mapping)
                assert again.handle == handle
    allocation.free()
    with pytest.raises(crossmem.ClosedError):
        pickle.dumps(allocation)
