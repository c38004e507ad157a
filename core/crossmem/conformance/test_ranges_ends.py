# SPDX-License-Identifier: Apache-2.0
"""Laws C17 to C20 and C23 for address ranges: close, fork, threads, exit, read-only access."""

import pickle
import random
import time
import warnings
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions, probes, resources
from crossmem.conformance.forks import in_child
from crossmem.conformance.harness import Allocate, FreshPeer, Imports, capacity_of
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.test_closed import BYTES, Use, dropped, refuses
from crossmem.conformance.test_exit import NOTHING, last_words, report_at_exit
from crossmem.driver import TracingDriver

pytestmark = pytest.mark.crossmem_not_of_blocks("address ranges map only whole allocations")

NBYTES = 5000

needs_ranges = pytest.mark.crossmem_requires("address_ranges")

RANGE: dict[str, Use] = {
    "ptr": lambda addresses: addresses.ptr,
    "map": lambda addresses: addresses.map(actions.objects["a"], at=0),
    "with": lambda addresses: addresses.__enter__(),
}


# C17: closed ------------------------------------------------------------------------------


@needs_ranges
def test_c17_memory_stays_while_a_range_shows_it(
    device: crossmem.Device, imports: Imports, peer: Peer
) -> None:
    allocation, imported = device.allocate(NBYTES), imports.of(peer, "a", NBYTES)
    for memory, end, options in (
        (allocation, allocation.free, ({}, {"busy": "raise"}, {"busy": "wait", "timeout": 5})),
        (imported, imported.close, ({},)),
    ):
        addresses = imports.range_for(memory)
        piece = addresses.map(memory, at=0)
        for option in options:
            with pytest.raises(crossmem.BusyError):
                end(**option)
        with pytest.raises(crossmem.BusyError):
            addresses.release()
        piece.write(b"still")

        assert piece.read(5) == b"still"
        assert not memory.closed

        piece.unmap()
        end()

        assert memory.closed


@needs_ranges
@pytest.mark.crossmem_core
def test_c17_an_unmapped_piece_and_a_released_range(allocate: Allocate, peer: Peer) -> None:
    peer.call(actions.import_, "i", allocate(NBYTES).export().to_bytes())
    peer.call(actions.place_alone, "p", "r", "i")
    peer.call(actions.unmap, "p", "p")
    for _ in range(2):
        peer.call(actions.call, "r", "release")
    peer.call(actions.allocate, "a", NBYTES)
    peer.call(refuse_when_closed)


def refuse_when_closed() -> None:
    """Check, in a peer, that the closed piece and the closed range refuse their operations."""
    refuses(BYTES, actions.objects["p"])
    refuses(RANGE, actions.objects["r"])


@needs_ranges
def test_c17_closed_memory_is_not_mapped(
    allocate: Allocate, imports: Imports, peer: Peer, tracer: TracingDriver
) -> None:
    freed, closed = allocate(NBYTES), imports.of(peer, "a", NBYTES)
    addresses = imports.range_for(freed)
    freed.free()
    closed.close()
    before = tracer.calls["map_at"]
    for memory in (freed, closed):
        with pytest.raises(crossmem.ClosedError):
            addresses.map(memory, at=0)

    assert tracer.calls["map_at"] == before


@needs_ranges
@pytest.mark.crossmem_requires("host_visible")
def test_c17_nothing_is_unmapped_in_a_range_under_a_live_view(
    allocate: Allocate, imports: Imports
) -> None:
    allocation = allocate(NBYTES, b"seen")
    piece = imports.range_for(allocation).map(allocation, at=0)
    view = piece.view()
    with pytest.raises(crossmem.BusyError):
        piece.unmap()

    assert bytes(view[:4]) == b"seen"

    view.release()
    piece.unmap()


@needs_ranges
def test_c17_dropped_pieces_and_ranges_are_given_back_with_a_warning(
    allocate: Allocate, imports: Imports, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    before = tracer.live
    with pytest.warns(ResourceWarning, match="dropped without release"):
        dropped(lambda: imports.device.reserve(NBYTES))
    crossmem.collect()

    assert tracer.live == before

    # The next ``map`` releases a dropped piece first, so the piece's addresses are free again.
    addresses = imports.device.reserve(NBYTES)
    for _ in range(2):
        with pytest.warns(ResourceWarning, match="dropped without unmap"):
            dropped(lambda: addresses.map(allocation, at=0))
    addresses.release()

    assert tracer.live == before

    # The garbage collector may finalise the objects of a cycle in any order. The piece's record
    # keeps the range and the allocation alive, so they are released after the piece is unmapped.
    with pytest.warns(ResourceWarning, match="dropped without unmap"):
        dropped(lambda: circle(imports.device))
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        crossmem.collect()

    assert tracer.live == before


def circle(device: crossmem.Device) -> None:
    """Leave an allocation, a range and a piece in a cycle that only the garbage collector frees."""
    allocation = device.allocate(NBYTES)
    addresses = device.reserve(NBYTES)
    members: list[Any] = [allocation, addresses, addresses.map(allocation, at=0)]
    members.append(members)


@needs_ranges
def test_c17_ranges_and_pieces_stay_in_their_process(allocate: Allocate, imports: Imports) -> None:
    allocation = allocate(NBYTES)
    addresses = imports.range_for(allocation)
    with addresses.map(allocation, at=0) as piece:
        for one in (addresses, piece):
            with pytest.raises(crossmem.UnsupportedError, match="handle"):
                pickle.dumps(one)


@needs_ranges
@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("method", ["unmap_at", "release"])
def test_c17_what_a_vendor_refuses_to_take_back_it_is_given_later(
    allocate: Allocate, fresh_peer: FreshPeer, method: str, *, is_own: bool
) -> None:
    peer = fresh_peer()
    peer.call(actions.offer, "own", NBYTES, b"stays")
    peer.call(actions.import_, "imported", allocate(NBYTES, b"stays").export().to_bytes())
    before = peer.call(actions.live)
    memory = "own" if is_own else "imported"
    peer.call(actions.place_alone, "p", "r", memory)
    peer.call(probes.fail_once, method)
    if method == "release":
        peer.call(actions.unmap, "p")
    name, end = ("p", "unmap") if method == "unmap_at" else ("r", "release")
    with pytest.raises(crossmem.DriverError, match="EIO"):
        peer.call(actions.call, name, end)

    assert peer.call(actions.attribute, "p", "closed")

    # The failed release has become deferred work, so the next call of crossmem tries it again.
    peer.call(actions.free if is_own else actions.close, memory)
    peer.call(actions.call, "r", "release")
    peer.call(actions.collect)

    assert peer.call(actions.live) == {
        **before,
        **({"blocks": 0, "exports": 0} if is_own else {"imports": 0}),
    }
    assert peer.call(actions.violations) == []


# C18: fork --------------------------------------------------------------------------------

INHERITED: dict[str, dict[str, Use]] = {
    "p": BYTES | {"unmap": lambda piece: piece.unmap()},
    "r": RANGE | {"release": lambda addresses: addresses.release()},
    "device": {"reserve": lambda device: device.reserve(1)},
}


@needs_ranges
@pytest.mark.parametrize(
    ("name", "use"), [(name, use) for name, uses in INHERITED.items() for use in uses]
)
def test_c18_inherited_ranges_and_pieces_refuse_to_work(peer: Peer, name: str, use: str) -> None:
    peer.call(set_up)
    with pytest.raises(crossmem.ForkedProcessError):
        peer.call(in_child, use_inherited, name, use)
    # The parent's objects still work.
    peer.call(actions.unmap, "p")
    peer.call(actions.call, "r", "release")


def set_up() -> None:
    """Make, in a peer, the objects that its child inherits."""
    actions.objects["device"] = actions.device()
    actions.allocate("a", NBYTES)
    actions.place_alone("p", "r", "a")


def use_inherited(name: str, use: str) -> None:
    """Use an inherited object in a peer's child."""
    INHERITED[name][use](actions.objects[name])


@needs_ranges
def test_c18_a_child_keeps_no_memory_of_its_parents_ranges(
    fresh_peer: FreshPeer, capabilities: crossmem.Capabilities
) -> None:
    peer = fresh_peer(tracing=False)
    peer.call(set_up)

    # Host-visible memory stays mapped in the child. So for such memory, the check counts only files
    # that the child has open.
    is_open = capabilities.host_visible
    assert peer.call(in_child, resources.shared_nbytes, only_open=is_open) == 0


# C19: threads -----------------------------------------------------------------------------


@needs_ranges
def test_c19_threads_map_and_unmap_in_one_range(
    imports: Imports, peer: Peer, tracer: TracingDriver
) -> None:
    memories = [imports.of(peer, f"a{number}", 1, bytes([number])) for number in range(4)]
    addresses = imports.range_for(*memories)
    places = range(0, addresses.nbytes, capacity_of(memories[0]))

    def churn(seed: int) -> int:
        choose = random.Random(seed)
        mapped = 0
        for _ in range(30):
            number = choose.randrange(4)
            try:
                with addresses.map(memories[number], at=choose.choice(places)) as piece:
                    mapped += piece.read(1) == bytes([number])
            except crossmem.BusyError:
                mapped += 1
        return mapped

    assert actions.in_threads(8, churn) == [30] * 8
    assert tracer.violations == []


@needs_ranges
def test_c19_one_thread_wins_a_place(
    allocate: Allocate, imports: Imports, tracer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation = allocate(NBYTES)
    addresses = imports.range_for(allocation)
    before = tracer.calls["map_at"]
    map_at = tracer.map_at

    def slowly(*args: Any) -> Any:
        time.sleep(0.05)
        return map_at(*args)

    monkeypatch.setattr(tracer, "map_at", slowly)
    results = actions.in_threads(8, lambda _: addresses.map(allocation, at=0))
    (piece,) = (one for one in results if isinstance(one, crossmem.Piece))

    assert sum(isinstance(one, crossmem.BusyError) for one in results) == 7
    assert tracer.calls["map_at"] == before + 1

    # One of these calls unmaps the piece. The others do nothing.
    assert actions.in_threads(8, lambda _: piece.unmap()) == [None] * 8


# C20: exit --------------------------------------------------------------------------------


@needs_ranges
@pytest.mark.parametrize("is_own", [True, False])
def test_c20_nothing_is_left_of_who_had_a_range(
    allocate: Allocate, fresh_peer: FreshPeer, *, is_own: bool
) -> None:
    allocation = allocate(NBYTES)
    peer = fresh_peer(tracing=False)
    peer.call(report_at_exit)
    peer.call(actions.offer, "own", NBYTES)
    peer.call(actions.import_, "imported", allocation.export().to_bytes())
    peer.call(actions.place_alone, "p", "r", "own" if is_own else "imported")

    assert last_words(peer.exit()) == NOTHING

    allocation.free(busy="raise")


@needs_ranges
@pytest.mark.crossmem_requires("host_visible")
def test_c20_a_piece_that_is_still_viewed_crashes_nobody(fresh_peer: FreshPeer) -> None:
    peer = fresh_peer()
    peer.call(set_up)
    peer.call(actions.call, "p", "view", keep="view")

    peer.exit()


# C23: read-only ---------------------------------------------------------------------------


@needs_ranges
def test_c23_an_advisory_import_is_read_only_in_a_range(imports: Imports, peer: Peer) -> None:
    blob = peer.call(actions.offer, "a", NBYTES, b"read me")
    with (
        crossmem.import_handle(blob, device=imports.device, readonly="advisory") as imported,
        imports.range_for(imported).map(imported, at=0) as piece,
    ):
        assert piece.readonly
        assert piece.read(4) == b"read"

        with pytest.raises(crossmem.AccessDeniedError):
            piece.write(b"x")


@needs_ranges
@pytest.mark.crossmem_requires("readonly_imports", "host_visible")
@pytest.mark.parametrize("attach_first", [True, False])
def test_c23_a_read_only_import_is_enforced_in_a_range(
    allocate: Allocate, fresh_peer: FreshPeer, *, attach_first: bool
) -> None:
    allocation = allocate(NBYTES, b"untouched")
    blob = allocation.export().to_bytes()
    importer = fresh_peer()
    if attach_first:
        importer.call(actions.attach, "m", blob, readonly=True)
    importer.call(actions.import_, "i", blob, readonly=True)
    importer.call(actions.place_alone, "p", "r", "i")

    assert importer.call(actions.attribute, "p", "readonly")
    assert importer.call(actions.read, "p", 9) == b"untouched"

    pointer = importer.call(actions.attribute, "p", "ptr")
    with pytest.raises(PeerDiedError):
        importer.call(actions.poke, pointer, 7)

    assert allocation.read(9) == b"untouched"


@needs_ranges
@pytest.mark.crossmem_requires("readonly_imports")
def test_c23_ones_own_memory_is_not_made_writable_by_a_range(
    allocate: Allocate, imports: Imports, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    addresses = imports.range_for(allocation)
    try:
        imported = crossmem.import_handle(allocation.export(), device=imports.device, readonly=True)
    except crossmem.UnsupportedError:
        pytest.skip("the driver cannot map this process's own memory read-only")
    before = tracer.calls["map_at"]
    with imported, pytest.raises(crossmem.UnsupportedError, match="read-only"):
        addresses.map(imported, at=0)

    assert tracer.calls["map_at"] == before
