# SPDX-License-Identifier: Apache-2.0
"""Laws C1 to C8, C21 and C25 for adopted memory, which another library has allocated."""

import pytest

import crossmem
from crossmem.conformance import actions, probes, strangers
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.conformance.strangers import MakeStranger, needs_foreign, took
from crossmem.driver import TracingDriver

pytestmark = pytest.mark.crossmem_not_of_blocks("adopted memory lies in no pool")


@needs_foreign
@pytest.mark.crossmem_core
def test_c01_adopted_memory_is_seen_by_others(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(2, b"by a framework")
    with memory.adopt() as adopted:
        peer.call(actions.attach, "m", adopted.export().to_bytes())

        assert peer.call(actions.read, "m", 14) == adopted.read(14) == b"by a framework"

        peer.call(actions.write, "m", b"by an importer")

        assert memory.read(14) == adopted.read(14) == b"by an importer"

        adopted.write(b"by the adopter")

        assert memory.read(14) == peer.call(actions.read, "m", 14) == b"by the adopter"

        peer.call(actions.unmap, "m")


@needs_foreign
def test_c01_a_part_of_foreign_memory_is_where_it_is(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(2)
    data = pattern(6000, 3)
    for at, nbytes in ((1, 1), (777, 4099), (0, 10), (memory.nbytes - 5, 5)):
        start = min(at, memory.nbytes - len(data))
        memory.write(data, offset=start)
        with memory.adopt(nbytes, at=at, neighbours="expose") as adopted:
            assert adopted.ptr == memory.ptr + at
            assert adopted.read() == data[at - start :][:nbytes]

            peer.call(actions.attach, "m", adopted.export().to_bytes())

            assert peer.call(actions.read, "m") == data[at - start :][:nbytes]

            peer.call(actions.write, "m", b"!", offset=nbytes - 1)

            assert memory.read(1, offset=at + nbytes - 1) == b"!"

            peer.call(actions.unmap, "m")


@needs_foreign
def test_c02_sizes_are_what_was_adopted_and_what_the_vendor_has(stranger: MakeStranger) -> None:
    memory = stranger(2)
    with memory.adopt(100, at=50, neighbours="expose") as adopted:
        handle = adopted.export()

        assert (adopted.nbytes, adopted.capacity) == (100, memory.nbytes)
        assert (handle.offset, handle.length) == (50, 100)
        assert (handle.nbytes, handle.capacity) == (memory.nbytes, memory.nbytes)
        (info,) = (one for one in crossmem.exports() if one.handle == handle)
        assert (info.nbytes, info.capacity) == (100, memory.nbytes)


@needs_foreign
def test_c03_one_vendor_export_however_many_adoptions(
    stranger: MakeStranger, tracer: TracingDriver
) -> None:
    memory = stranger(1)
    before = dict(tracer.calls)
    parts = [memory.adopt(64, at=64 * number, neighbours="expose") for number in range(20)]
    handles = [one.export() for one in parts]

    assert [one.export() for one in parts] == handles
    calls = took(tracer, before)
    assert (calls["inspect"], calls["adopt"], calls["export"]) == (20, 1, 1)
    assert "disown" not in calls

    for one in parts:
        one.free()
    calls = took(tracer, before)
    assert (calls["disown"], calls["release_export"]) == (1, 1)
    assert "free" not in calls

    # After the last adoption has ended, a new adoption makes a new vendor export.
    with memory.adopt() as adopted:
        adopted.export()
    assert took(tracer, before)["export"] == 2


@needs_foreign
def test_c04_parts_of_adopted_memory(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(1, pattern(1000, 5))
    with memory.adopt(500, at=100, neighbours="expose") as adopted:
        part = adopted.export().slice(10, 20)
        for offset, nbytes in ((-1, 1), (500, 1), (0, 501), (499, 2)):
            with pytest.raises(crossmem.InvalidSizeError):
                adopted.export().slice(offset, nbytes)
            with pytest.raises(crossmem.InvalidSizeError):
                adopted.read(nbytes, offset=offset)
        peer.call(actions.attach, "m", part.to_bytes())

        assert peer.call(actions.read, "m") == pattern(1000, 5)[110:130]

        peer.call(actions.unmap, "m")


@needs_foreign
def test_c05_handles_of_the_same_foreign_memory_differ(stranger: MakeStranger) -> None:
    memory = stranger()
    with memory.adopt() as one, memory.adopt() as other:
        first, second = one.export(), other.export()

        assert first != second
        assert (first.allocation, first.secret) != (second.allocation, second.secret)

    with memory.adopt() as again:
        assert again.export() not in {first, second}


@needs_foreign
def test_c06_what_was_given_up_is_stale_though_its_neighbour_is_not(
    stranger: MakeStranger, peer: Peer
) -> None:
    memory = stranger(1, b"first, second")
    one, other = (memory.adopt(6, at=at, neighbours="expose") for at in (0, 7))
    first, second = one.export().to_bytes(), other.export().to_bytes()
    peer.call(actions.attach, "second", second)
    one.free()
    for action in (actions.attach, actions.import_):
        with pytest.raises(crossmem.StaleHandleError):
            peer.call(action, "first", first)

    assert peer.call(actions.read, "second") == b"second"

    peer.call(actions.attach, "again", second)
    peer.call(actions.unmap, "second", "again")
    other.free()
    with pytest.raises(crossmem.StaleHandleError):
        peer.call(actions.attach, "second", second)


@needs_foreign
def test_c07_adoptions_of_one_block_are_opened_once(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(1, pattern(1024, 1))
    parts = [memory.adopt(64, at=64 * number, neighbours="expose") for number in range(8)]
    blobs = [one.export().to_bytes() for one in parts]
    before = peer.call(actions.calls)
    names = [f"m{number}" for number in range(8)]
    peer.call(actions.attach_many, names[:4], blobs[:4])
    for name, blob in zip(names[4:6], blobs[4:6], strict=True):
        peer.call(actions.attach, name, blob)
    for name, blob in zip(names[6:], blobs[6:], strict=True):
        peer.call(actions.import_, f"i{name}", blob)
        peer.call(actions.map_, name, f"i{name}")

    def calls() -> list[int]:
        after = peer.call(actions.calls)
        return [
            after.get(name, 0) - before.get(name, 0)
            for name in ("import_", "map", "unmap", "close")
        ]

    assert calls() == [1, 1, 0, 0]

    for name in names[:7]:
        peer.call(actions.unmap, name)
    peer.call(actions.close, "im6")

    assert calls() == [1, 1, 0, 0]
    assert peer.call(actions.read, "m7") == pattern(1024, 1)[-64 - 512 : -512]

    peer.call(actions.unmap, "m7")
    peer.call(actions.close, "im7")

    assert calls() == [1, 1, 1, 1]

    for one in parts:
        one.free(busy="raise")


@needs_foreign
def test_c07_the_memory_can_be_opened_again(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(1, b"data")
    with memory.adopt() as adopted:
        blob = adopted.export().to_bytes()
        for _ in range(3):
            peer.call(actions.import_, "i", blob)
            for _ in range(2):
                peer.call(actions.map_, "m", "i")
                assert peer.call(actions.read, "m", 4) == b"data"
                peer.call(actions.unmap, "m")
            peer.call(actions.close, "i")


@needs_foreign
def test_c08_ones_own_adopted_memory_is_no_import(
    stranger: MakeStranger, tracer: TracingDriver
) -> None:
    memory = stranger(1, b"..data")
    with memory.adopt(4, at=2, neighbours="expose") as adopted:
        before = dict(tracer.calls)
        with crossmem.attach(adopted.export()) as mapping:
            assert mapping.ptr == adopted.ptr == memory.ptr + 2
            assert mapping.read() == b"data"
        assert not {"import_", "map"} & set(took(tracer, before))


@needs_foreign
@pytest.mark.crossmem_core
def test_c21_work_on_adopted_memory_issued_before_the_export_is_seen(
    fresh_peer: FreshPeer, peer: Peer
) -> None:
    owner = fresh_peer()
    owner.call(strangers.make_stranger, "memory", 1, b"early")
    owner.call(actions.call, "memory", "adopt", keep="a")
    owner.call(probes.issue_work, "a", b"later")
    peer.call(actions.attach, "m", owner.call(actions.export, "a"))

    assert peer.call(actions.read, "m", 5) == b"later"

    peer.call(actions.unmap, "m")
    owner.call(actions.free, "a")
    owner.call(strangers.end_stranger, "memory")


@pytest.mark.crossmem_requires("foreign_memory", "raw_handles")
def test_c25_adopted_memory_has_raw_handles(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(1, b"..data")
    with memory.adopt(4, at=2, neighbours="expose") as adopted:
        handle = adopted.export(lease=False)
        peer.call(actions.attach, "m", handle.to_bytes())

        assert handle.raw
        assert peer.call(actions.read, "m") == b"data"

        peer.call(actions.unmap, "m")
