# SPDX-License-Identifier: Apache-2.0
"""Laws C7 and C8: how often a process calls the vendor to open memory.

For imported memory, the process makes one such call. For its own memory, it makes none.
"""

from collections import Counter
from collections.abc import Callable

import pytest

import crossmem
from crossmem.conformance import actions, blocks, probes
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver, readonly_alias_of

NBYTES = 5000


class Calls:
    """Counts the driver calls of one process."""

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        self._read = read
        self._before = read()

    def made(self) -> Counter[str]:
        """Return how often each driver method was called since the counts were last read."""
        now = self._read()
        made = Counter(now)
        made.subtract(self._before)
        self._before = now
        return +made


def calls_of(peer: Peer) -> Calls:
    """Return a counter of a peer's driver calls."""
    return Calls(lambda: peer.call(actions.calls))


def leases(blob: bytes) -> int:
    """Return the number of leases on an export of this process."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    return sum(len(one.leases) for one in crossmem.exports() if one.handle == handle)


# C7: counted ------------------------------------------------------------------------------


@pytest.mark.crossmem_not_of_blocks(
    "the vendor opens a pool as a whole, so vendor calls cannot be counted for one block"
)
@pytest.mark.crossmem_core
def test_c07_the_exact_calls_of_a_whole_life(
    device: crossmem.Device, fresh_peer: FreshPeer
) -> None:
    owner, importer = fresh_peer(), fresh_peer()
    for one in (owner, importer):
        one.call(probes.start_journal)
    blob = owner.call(actions.offer, "a", NBYTES)

    assert owner.call(probes.journal) == ["allocate", "synchronize", "export"]

    importer.call(actions.import_, "i", blob)
    importer.call(actions.map_, "m", "i")

    assert importer.call(probes.journal) == ["import_", "map"]

    importer.call(actions.unmap, "m")
    importer.call(actions.close, "i")

    assert importer.call(probes.journal) == ["synchronize", "unmap", "close"]

    owner.call(actions.free, "a", busy="wait")

    assert owner.call(probes.journal) == ["synchronize", "release_export", "free"]

    again = owner.call(actions.offer, "a", NBYTES)
    importer.call(probes.journal)
    importer.call(actions.attach, "m", again)
    importer.call(actions.unmap, "m")

    assert importer.call(probes.journal) == ["import_", "map", "synchronize", "unmap", "close"]


@pytest.mark.crossmem_not_of_blocks(
    "the vendor opens a pool as a whole, so vendor calls cannot be counted for one block"
)
@pytest.mark.crossmem_core
def test_c07_many_imports_make_one_vendor_open(allocate: Allocate, peer: Peer) -> None:
    handle = allocate(NBYTES, b"counted").export()
    calls = calls_of(peer)
    for number in range(5):
        peer.call(actions.import_, f"i{number}", handle if number % 2 else handle.to_bytes())
        peer.call(actions.map_, f"m{number}", f"i{number}")

    assert calls.made() == {"import_": 1, "map": 1}

    for number in range(4):
        peer.call(actions.unmap, f"m{number}")
        peer.call(actions.close, f"i{number}")

    assert calls.made() == {}
    assert peer.call(actions.read, "m4", 7) == b"counted"

    peer.call(actions.unmap, "m4")
    peer.call(actions.close, "i4")
    made = calls.made()
    made.pop("synchronize")
    made.pop("copy")

    assert made == {"unmap": 1, "close": 1}


def test_c07_parts_and_attaches_share_the_open(allocate: Allocate, peer: Peer) -> None:
    handle = allocate(NBYTES, b"0123456789").export()
    calls = calls_of(peer)
    peer.call(actions.attach, "whole", handle.to_bytes())
    parts = [handle.slice(offset, 10) for offset in range(50)]
    names = [f"part{number}" for number in range(50)]
    peer.call(actions.attach_many, names[:25], parts[:25])
    for name, part in zip(names[25:], parts[25:], strict=True):
        peer.call(actions.attach, name, part)

    assert calls.made() == {"import_": 1, "map": 1}

    peer.call(actions.unmap, "whole", *names[1:])

    assert peer.call(actions.read, names[0]) == b"0123456789"

    peer.call(actions.unmap, names[0])
    peer.call(blocks.close_idle)

    assert calls.made()["close"] == 1


@pytest.mark.crossmem_not_of_blocks("a block has only one export")
def test_c07_exports_of_one_allocation_share_the_open(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES)
    everybody = allocation.export().to_bytes()
    one = allocation.export(allow=crossmem.Allow(pids=[peer.pid])).to_bytes()
    calls = calls_of(peer)
    peer.call(actions.attach_many, "ab", [everybody, one])

    assert calls.made() == {"import_": 1, "map": 1}
    assert len({peer.call(actions.attribute, name, "ptr") for name in "ab"}) == 1

    peer.call(actions.unmap, "a", "b")

    assert calls.made()["close"] == 1


@pytest.mark.crossmem_requires("readonly_imports")
def test_c07_each_access_is_an_open_of_its_own(allocate: Allocate, peer: Peer) -> None:
    blob = allocate(NBYTES).export().to_bytes()
    calls = calls_of(peer)
    for number in range(2):
        peer.call(actions.attach, f"rw{number}", blob)
        peer.call(actions.attach, f"ro{number}", blob, readonly=True)

    assert calls.made() == {"import_": 2, "map": 2}


def test_c07_the_memory_stays_until_the_last_close(device: crossmem.Device, peer: Peer) -> None:
    allocation = device.allocate(NBYTES)
    allocation.write(b"stays")
    blob = allocation.export().to_bytes()
    peer.call(actions.import_, "i", blob)
    peer.call(actions.attach, "m", blob)
    peer.call(actions.import_, "part", crossmem.ShareableHandle.from_bytes(blob).slice(1, 1))
    for method, name in (("unmap", "m"), ("close", "part")):
        with pytest.raises(crossmem.BusyError):
            allocation.free(busy="raise")

        assert leases(blob) == 1

        peer.call(actions.call, name, method)

    assert leases(blob) == 1

    peer.call(actions.map_, "again", "i")

    assert peer.call(actions.read, "again", 5) == b"stays"

    peer.call(actions.unmap, "again")
    peer.call(actions.close, "i")

    assert settle(lambda: ["leased"] * leases(blob)) == []

    allocation.free(busy="raise")


@pytest.mark.crossmem_not_of_blocks(
    "the vendor maps a whole pool, so no mapping belongs to one block"
)
def test_c07_unmapped_and_mapped_again(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"before")
    peer.call(actions.import_, "i", allocation.export().to_bytes())
    calls = calls_of(peer)
    for _ in range(3):
        peer.call(actions.map_, "m", "i")
        peer.call(actions.map_, "n", "i")
        peer.call(actions.unmap, "m", "n")

    assert calls.made() == {"map": 3, "synchronize": 3, "unmap": 3}

    peer.call(actions.map_, "m", "i")

    assert peer.call(actions.read, "m", 6) == b"before"

    peer.call(actions.unmap, "m")


@pytest.mark.crossmem_not_of_blocks(
    "the vendor opens a pool as a whole, so vendor calls cannot be counted for one block"
)
def test_c07_imported_again_after_everything_was_closed(allocate: Allocate, peer: Peer) -> None:
    blob = allocate(NBYTES, b"again").export().to_bytes()
    calls = calls_of(peer)
    for _ in range(3):
        peer.call(actions.attach, "m", blob)

        assert peer.call(actions.read, "m", 5) == b"again"

        peer.call(actions.unmap, "m")

    made = calls.made()

    assert (made["import_"], made["close"]) == (3, 3)


# C8: own ----------------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c08_ones_own_memory_under_another_name(allocate: Allocate, tracer: TracingDriver) -> None:
    allocation = allocate(NBYTES)
    handle = allocation.export()
    calls = Calls(actions.calls)
    with (
        crossmem.attach(handle.to_bytes()) as mapping,
        crossmem.import_handle(handle.slice(100, 50)) as imported,
        imported.map() as part,
    ):
        assert mapping.ptr == allocation.ptr
        assert part.ptr == allocation.ptr + 100
        assert mapping.owner_alive

        assert calls.made() == {}

        part.write(b"own", offset=1)

    assert allocation.read(3, offset=101) == b"own"
    assert not {"import_", "map", "unmap", "close"} & set(calls.made())


def test_c08_an_own_import_keeps_the_memory(device: crossmem.Device, tracer: TracingDriver) -> None:
    allocation = device.allocate(NBYTES)
    allocation.write(b"kept")
    before = tracer.live["blocks"]
    mapping = crossmem.attach(allocation.export())
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy="raise")
    allocation.free()
    crossmem.collect()

    assert mapping.read(4) == b"kept"
    assert tracer.live["blocks"] == before

    mapping.unmap()
    crossmem.collect()

    assert tracer.live["blocks"] == before - 1


@pytest.mark.crossmem_requires("readonly_imports")
@pytest.mark.crossmem_core
def test_c08_a_read_only_mapping_of_ones_own_memory(
    allocate: Allocate, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES, b"mine")
    handle = allocation.export()
    if readonly_alias_of(tracer.inner) is None:
        with pytest.raises(crossmem.UnsupportedError):
            crossmem.attach(handle, readonly=True)
        return
    before = tracer.calls["import_"]
    with crossmem.attach(handle.slice(1, 3), readonly=True) as mapping:
        assert mapping.readonly
        assert mapping.ptr != allocation.ptr + 1
        assert mapping.read() == b"ine"

        with pytest.raises(crossmem.AccessDeniedError):
            mapping.write(b"x")
        allocation.write(b"ours")

        assert mapping.read() == b"urs"

    assert tracer.calls["import_"] == before
    blocks.close_idle()
    assert tracer.calls["map_readonly"] == tracer.calls["unmap_readonly"] > 0


def test_c08_advisory_read_only_of_ones_own_memory(allocate: Allocate) -> None:
    allocation = allocate(NBYTES)
    with crossmem.attach(allocation.export(), readonly="advisory") as mapping:
        assert mapping.ptr == allocation.ptr

        with pytest.raises(crossmem.AccessDeniedError):
            mapping.write(b"x")
