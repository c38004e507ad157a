# SPDX-License-Identifier: Apache-2.0
"""The end of adoptions: crossmem keeps the memory's owner object until the last lease has ended."""

import gc
import weakref

import pytest

import crossmem
from crossmem.conformance import actions, probes, strangers
from crossmem.conformance.forks import in_child
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.strangers import MakeStranger, Owner, let_go, needs_foreign, took
from crossmem.driver import TracingDriver
from crossmem.sharing.base.process import current

pytestmark = pytest.mark.crossmem_not_of_blocks("adopted memory lies in no pool")


@needs_foreign
@pytest.mark.crossmem_core
def test_c09_the_owner_is_kept_until_the_last_lease_ends(
    stranger: MakeStranger, peer: Peer, peer2: Peer, tracer: TracingDriver
) -> None:
    memory, owner = stranger(1, b"kept"), Owner()
    kept = weakref.ref(owner)
    adopted = memory.adopt(owner=owner)
    del owner
    gc.collect()
    assert kept() is not None
    blob = adopted.export().to_bytes()
    for one in (peer, peer2):
        one.call(actions.attach, "m", blob)
    frees = tracer.calls["free"]
    adopted.free()
    peer.call(actions.unmap, "m")
    crossmem.collect()

    assert kept() is not None
    assert peer2.call(actions.read, "m", 4) == b"kept"
    assert [one.waiting for one in crossmem.exports() if one.handle.to_bytes() == blob] == [True]

    peer2.call(actions.unmap, "m")

    assert settle(lambda: let_go(kept)) == []
    assert tracer.calls["free"] == frees
    assert memory.read(4) == b"kept"


@needs_foreign
def test_c09_without_leases_the_owner_goes_at_once(stranger: MakeStranger) -> None:
    memory, owner = stranger(1, b"stays"), Owner()
    kept = weakref.ref(owner)
    with memory.adopt(owner=owner) as adopted:
        adopted.export()
        del owner
        assert kept() is not None

    assert kept() is None
    assert memory.read(5) == b"stays"


@needs_foreign
def test_c09_each_adoption_keeps_its_own_owner(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger()
    owners = [Owner(), Owner()]
    kept = [weakref.ref(one) for one in owners]
    first, second = (
        memory.adopt(8, at=8 * number, neighbours="expose", owner=owner)
        for number, owner in enumerate(owners)
    )
    owners.clear()
    peer.call(actions.attach, "first", first.export().to_bytes())
    peer.call(actions.attach, "second", second.export().to_bytes())
    first.free()
    second.free()
    # The importer's driver has one import for both adoptions, and still needs this import for the
    # second adoption. Nevertheless, the owner object of the first adoption must be released.
    peer.call(actions.unmap, "first")

    assert settle(lambda: let_go(kept[0])) == []
    assert kept[1]() is not None

    peer.call(actions.unmap, "second")

    assert settle(lambda: let_go(kept[1])) == []


@needs_foreign
def test_c09_a_lease_ends_after_the_device_is_done(
    stranger: MakeStranger, fresh_peer: FreshPeer
) -> None:
    memory = stranger()
    importer = fresh_peer()
    with (
        memory.adopt(8, neighbours="expose") as first,
        memory.adopt(8, at=8, neighbours="expose") as second,
    ):
        importer.call(actions.attach, "first", first.export().to_bytes())
        importer.call(actions.attach, "second", second.export().to_bytes())
        importer.call(probes.start_journal)
        importer.call(actions.unmap, "first")

        assert importer.call(probes.journal) == ["synchronize"]

        importer.call(actions.unmap, "second")

        assert importer.call(probes.journal) == ["synchronize", "unmap", "close"]


@needs_foreign
@pytest.mark.crossmem_core
def test_c09_freeing_can_raise_or_wait(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(1, b"data")
    adopted = memory.adopt()
    peer.call(actions.attach, "m", adopted.export().to_bytes())
    with pytest.raises(crossmem.BusyError, match=str(peer.pid)):
        adopted.free(busy="raise")
    with pytest.raises(crossmem.BusyError):
        adopted.free(busy="wait", timeout=0.05)

    assert adopted.read(4) == b"data"

    peer.call(actions.unmap, "m")
    adopted.free(busy="wait", timeout=5)

    assert adopted.closed


@needs_foreign
def test_c10_giving_up_one_adoption_affects_no_other(
    stranger: MakeStranger, peer: Peer, tracer: TracingDriver
) -> None:
    memory = stranger(1, b"data")
    one, other = memory.adopt(), memory.adopt()
    blob = other.export().to_bytes()
    peer.call(actions.attach, "m", blob)
    one.export()
    before = dict(tracer.calls)
    one.free()

    assert took(tracer, before) == {}
    assert peer.call(actions.read, "m", 4) == other.read(4) == b"data"

    peer.call(actions.unmap, "m")
    peer.call(actions.attach, "again", blob)

    assert peer.call(actions.read, "again", 4) == b"data"

    peer.call(actions.unmap, "again")
    other.free(busy="raise")


@needs_foreign
def test_c11_a_killed_importer_keeps_no_owner(
    stranger: MakeStranger, fresh_peer: FreshPeer
) -> None:
    memory, owner = stranger(), Owner()
    kept = weakref.ref(owner)
    adopted = memory.adopt(owner=owner)
    del owner
    importer = fresh_peer()
    importer.call(actions.attach, "m", adopted.export().to_bytes())
    adopted.free()
    assert kept() is not None

    importer.destroy()

    assert settle(lambda: let_go(kept)) == []


@needs_foreign
@pytest.mark.parametrize("method", ["inspect", "adopt", "export"])
def test_c16_a_failed_call_leaves_nothing(fresh_peer: FreshPeer, peer: Peer, method: str) -> None:
    owner = fresh_peer()
    owner.call(strangers.make_stranger, "memory", 1, b"next")
    owner.call(probes.fail_once, method)
    with pytest.raises(crossmem.DriverError, match="EIO"):
        owner.call(strangers.adopt, "a", "memory")
    if method == "export":
        owner.call(actions.free, "a")

    assert not any(owner.call(actions.live).values())

    peer.call(actions.attach, "m", owner.call(strangers.adopt, "b", "memory"))

    assert peer.call(actions.read, "m", 4) == b"next"

    peer.call(actions.unmap, "m")
    owner.call(actions.free, "b")
    assert not any(owner.call(actions.live).values())
    owner.call(strangers.end_stranger, "memory")


@needs_foreign
def test_c16_a_refused_end_is_tried_again(fresh_peer: FreshPeer) -> None:
    owner = fresh_peer()
    owner.call(strangers.make_stranger, "memory", 1, b"data")
    owner.call(strangers.adopt, "a", "memory")
    owner.call(probes.fail_once, "disown")
    with pytest.raises(crossmem.DriverError, match="EIO"):
        owner.call(actions.free, "a")
    owner.call(actions.collect)

    assert not any(owner.call(actions.live).values())
    assert owner.call(actions.violations) == []
    assert owner.call(strangers.adopt, "b", "memory")

    owner.call(actions.free, "b")
    owner.call(strangers.end_stranger, "memory")


@needs_foreign
def test_c16_a_refused_close_is_tried_again(stranger: MakeStranger, fresh_peer: FreshPeer) -> None:
    memory = stranger(1, b"data")
    importer = fresh_peer()
    with (
        memory.adopt(4, neighbours="expose") as one,
        memory.adopt(4, at=4, neighbours="expose") as other,
    ):
        importer.call(actions.attach, "m", one.export().to_bytes())
        importer.call(probes.fail_once, "close")
        with pytest.raises(crossmem.DriverError, match="EIO"):
            importer.call(actions.unmap, "m")
        # The importer's driver has one import for both adoptions. The close of this import failed,
        # so the next attach must first repeat the close.
        importer.call(actions.attach, "other", other.export().to_bytes())
        importer.call(actions.unmap, "other")
        importer.call(actions.collect)

        assert not any(importer.call(actions.live).values())
        assert importer.call(actions.violations) == []


@needs_foreign
def test_c17_what_was_given_up_is_closed(stranger: MakeStranger) -> None:
    memory = stranger()
    adopted = memory.adopt()
    adopted.free()
    adopted.free()

    assert adopted.closed
    assert "freed" in repr(adopted)
    for call in (
        lambda: adopted.ptr,
        lambda: adopted.capacity,
        adopted.export,
        adopted.read,
        adopted.view,
        lambda: adopted.write(b"x"),
        adopted.__enter__,
    ):
        with pytest.raises(crossmem.ClosedError):
            call()


@needs_foreign
def test_c17_a_dropped_adoption_lets_its_owner_go(stranger: MakeStranger) -> None:
    memory, owner = stranger(), Owner()
    kept = weakref.ref(owner)
    actions.objects["adopted"] = memory.adopt(owner=owner)
    del owner
    with pytest.warns(ResourceWarning, match="without free"):
        actions.drop("adopted")

    assert let_go(kept) == []


@needs_foreign
def test_c17_an_owner_may_use_crossmem_when_it_ends(stranger: MakeStranger) -> None:
    memory = stranger(1, b"data")
    inner = memory.adopt()
    seen: list[bytes] = []

    class Ending:
        def __del__(self) -> None:
            seen.append(inner.read(4))
            inner.free()
            crossmem.collect()

    memory.adopt(owner=Ending()).free()

    assert seen == [b"data"]
    assert inner.closed


@needs_foreign
def test_c18_inherited_adoptions_refuse_to_work(fresh_peer: FreshPeer) -> None:
    owner = fresh_peer()
    owner.call(strangers.make_stranger, "memory")
    owner.call(strangers.adopt, "a", "memory")
    for method in ("export", "read", "free"):
        with pytest.raises(crossmem.ForkedProcessError, match="fork"):
            owner.call(in_child, actions.call, "a", method)
    with pytest.raises(crossmem.ForkedProcessError, match="fork"):
        owner.call(in_child, strangers.adopt, "b", "memory")
    owner.call(actions.free, "a")
    owner.call(strangers.end_stranger, "memory")


@needs_foreign
def test_c20_an_exit_leaves_the_memory_to_its_owner(fresh_peer: FreshPeer) -> None:
    owner = fresh_peer()
    owner.call(strangers.make_stranger, "memory", 1, b"data")
    owner.call(strangers.adopt, "a", "memory")
    owner.call(strangers.adopt, "b", "memory", 4, neighbours="expose")

    live, violations, data = owner.call(_shut_down)

    assert not any(live.values()), live
    assert (violations, data) == ([], b"data")


def _shut_down() -> tuple[dict[str, int], list[str], bytes]:
    """Shut crossmem down as an exit does. Then read 4 bytes of the foreign memory, and free it.

    Return the tracer's live objects, the tracer's violations, and the 4 bytes.
    """
    stranger, tracer = actions.objects["memory"], actions.tracer()
    current().shut_down()
    data: bytes = stranger.read(4)
    stranger.free()
    return tracer.live, tracer.violations, data
