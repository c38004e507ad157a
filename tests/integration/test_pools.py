# SPDX-License-Identifier: Apache-2.0
"""Pools beside processes that stop, spin, fork, exec, exit, die, or write rubbish."""

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions, forks
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.control.slots import SlotTable

if TYPE_CHECKING:
    from tests.integration import pool_actions, word_actions
    from tests.integration.conftest import StartPeer
else:
    import pool_actions
    import word_actions

NBYTES = 4096
BLOCKS = 6
AT_ONCE_S = 0.05 * SLOWNESS
"""More than any attach that asks nobody takes; less than one that waits for somebody."""


@pytest.fixture
def owner(start_peer: "StartPeer") -> Peer:
    """Return the owner of ``pool``."""
    found = start_peer(tracing=False, fresh=True, CROSSMEM_EXIT_WAIT="60")
    found.call(pool_actions.make, "pool", NBYTES, BLOCKS)
    return found


@pytest.fixture
def importer(start_peer: "StartPeer") -> Peer:
    return start_peer(tracing=False, fresh=True)


def give(owner: Peer, *names: str) -> dict[str, bytes]:
    """Let the owner give blocks, each full of its name."""
    return {name: owner.call(pool_actions.give, name, "pool", name.encode()) for name in names}


def stats_of(owner: Peer) -> Any:
    return owner.call(pool_actions.stats, "pool")


def comes_to(owner: Peer, **expected: object) -> bool:
    """Whether the blocks of the pool come to be used like that, within a second."""

    def wrong() -> list[object]:
        stats = stats_of(owner)
        assert stats.free + stats.live + stats.waiting == BLOCKS
        found = {name: getattr(stats, name) for name in expected}
        return [] if found == expected else [found]

    return settle(wrong, within=1 + SLOWNESS) == []


def closes_within_a_second(owner: Peer) -> bool:
    """Whether the memory of a closed pool is given back, with no call of anybody."""
    return settle(lambda: [1] * owner.call(word_actions.live), within=1 + SLOWNESS) == []


# Others that stop, spin or die --------------------------------------------------------------------


def test_a_stopped_importer_delays_its_blocks_and_no_others(
    owner: Peer, importer: Peer, start_peer: "StartPeer"
) -> None:
    other = start_peer(tracing=False)
    blobs = give(owner, "a", "b", "c")
    importer.call(actions.attach, "a", blobs["a"])
    other.call(actions.attach, "b", blobs["b"])
    importer.stop()
    for name in "abc":
        owner.call(actions.free, name)

    assert comes_to(owner, free=BLOCKS - 2, waiting=2, holders={importer.pid: 1, other.pid: 1})
    other.call(actions.unmap, "b")
    assert comes_to(owner, free=BLOCKS - 1, waiting=1, holders={importer.pid: 1})
    assert owner.call(pool_actions.fill, "pool", b"z") == BLOCKS - 1

    importer.cont()
    assert importer.call(pool_actions.shown, "a") == b"a"
    importer.call(actions.unmap, "a")
    assert comes_to(owner, free=BLOCKS, waiting=0, holders={})


@pytest.mark.parametrize("owner_does", ["stands still", "spins"])
def test_nobody_waits_for_an_owner_to_attach_or_unmap(
    owner: Peer, importer: Peer, owner_does: str
) -> None:
    blobs = give(owner, "a", "b", "c")
    importer.call(actions.attach, "a", blobs["a"])
    if owner_does == "spins":
        spinning = owner.start(actions.busy, 3.0)
    else:
        owner.stop()

    took_s = [importer.call(pool_actions.seconds_of_attach, blob) for blob in blobs.values()]

    # A look at the owner is due at the first one, and asks nobody either.
    assert max(took_s) < AT_ONCE_S, took_s
    if owner_does == "spins":
        spinning.result()
    else:
        owner.cont()
    importer.call(actions.unmap, "a")
    assert comes_to(owner, live=3, holders={})


@pytest.mark.parametrize("ends", ["keep", "release"])
def test_the_owners_death(owner: Peer, importer: Peer, ends: str) -> None:
    blobs = give(owner, "a", "b", "c", "d")
    importer.call(actions.attach, "a", blobs["a"], on_owner_death=ends)
    importer.call(actions.import_, "b", blobs["b"], on_owner_death=ends)
    importer.call(actions.map_, "b mapped", "b")
    owner.kill()

    def survivors() -> list[str]:
        return [
            name
            for name in ("a", "b", "b mapped")
            if not importer.call(actions.attribute, name, "closed")
        ]

    if ends == "release":
        assert settle(survivors, within=1 + SLOWNESS) == []
    else:
        alive = settle(lambda: [1] * importer.call(actions.attribute, "a", "owner_alive"), within=1)
        assert alive == []
        assert importer.call(pool_actions.shown, "a") == b"a"
        assert importer.call(pool_actions.shown, "b mapped") == b"b"
    time.sleep(0.5)
    for blob in (blobs["c"], blobs["d"], blobs["c"]):
        with pytest.raises(crossmem.OwnerGoneError):
            importer.call(actions.attach, "never", blob)
    if ends == "keep":
        importer.call(actions.unmap, "a", "b mapped")
        importer.call(actions.close, "b")
    # Nothing of the pool is left open.
    assert settle(lambda: [1] * importer.call(pool_actions.open_pools), within=1 + SLOWNESS) == []


def test_a_dead_importer_frees_what_it_held(owner: Peer, importer: Peer) -> None:
    blobs = give(owner, *"abcdef")
    for name, blob in blobs.items():
        importer.call(actions.attach, name, blob)
        owner.call(actions.free, name)
    waiting = owner.start(pool_actions.seconds_of_allocate, "next", "pool", 20.0)
    time.sleep(0.2)
    importer.kill()

    assert waiting.result() < 1 + SLOWNESS
    assert comes_to(owner, live=1, free=BLOCKS - 1, waiting=0, holders={})


def test_an_exit_ends_holds_before_the_owner_sees_it(owner: Peer, importer: Peer) -> None:
    blobs = give(owner, "mapped", "imported", "kept")
    importer.call(actions.attach, "mapped", blobs["mapped"])
    importer.call(actions.import_, "imported", blobs["imported"])
    looking = owner.start(pool_actions.is_held_after_exit, "mapped", importer.pid, 20.0)
    time.sleep(0.1)
    importer.exit()

    assert not looking.result()
    for name in blobs:
        owner.call(actions.free, name, busy="raise")
    assert comes_to(owner, live=0, holders={})


def test_who_waits_for_a_block_is_told_at_once(owner: Peer, importer: Peer) -> None:
    for name, blob in give(owner, *"abcdef").items():
        importer.call(actions.attach, name, blob)
        owner.call(actions.free, name)
    took_s = []
    for name in "abcde":
        waiting = owner.start(pool_actions.seconds_of_allocate, f"next {name}", "pool", 20.0)
        time.sleep(0.1)
        importer.call(actions.unmap, name)
        took_s.append(waiting.result() - 0.1)

    # Without the message, each of them would wait for up to half a second.
    assert min(took_s) < 0.1 * SLOWNESS, took_s
    with pytest.raises(crossmem.OutOfMemoryError, match=f"held by process {importer.pid}"):
        owner.call(pool_actions.give, "none", "pool")


# Forks and exec -----------------------------------------------------------------------------------

FORKED = "ForkedProcessError"


def test_a_child_of_an_importer_has_no_blocks(owner: Peer, importer: Peer) -> None:
    blobs = give(owner, "a", "b")
    importer.call(actions.attach, "a", blobs["a"])
    importer.call(actions.import_, "b", blobs["b"])
    address = importer.call(pool_actions.pointer, "a")
    assert importer.call(pool_actions.is_mapped, address)

    found = importer.call(forks.in_child, pool_actions.child_of, ["a", "b"], [address], blobs["a"])

    assert set(found["outcomes"].values()) == {FORKED}, found
    assert found["mapped"] == []
    assert found["read"] == b"a"
    assert importer.call(pool_actions.shown, "a") == b"a"
    importer.call(actions.unmap, "a")
    importer.call(actions.close, "b")
    assert comes_to(owner, live=2, holders={})


def test_a_child_of_an_owner_has_no_blocks(owner: Peer, importer: Peer) -> None:
    blobs = give(owner, "a", "b")
    importer.call(actions.attach, "a", blobs["a"])
    address = owner.call(pool_actions.pointer, "a")
    assert owner.call(pool_actions.is_mapped, address)

    found = owner.call(
        forks.in_child, pool_actions.child_of, ["pool", "a", "b"], [address], blobs["a"]
    )

    assert set(found["outcomes"].values()) == {FORKED}, found
    assert found["mapped"] == []
    assert found["read"] == b"a"
    assert comes_to(owner, live=2, holders={importer.pid: 1})


@pytest.mark.parametrize("with_handlers", [False, True], ids=["c-fork", "os.fork"])
@pytest.mark.parametrize("role", ["owner", "importer"])
def test_a_child_keeps_no_block(
    owner: Peer, importer: Peer, role: str, *, with_handlers: bool
) -> None:
    blobs = give(owner, "a")
    importer.call(actions.attach, "a", blobs["a"])
    parent = owner if role == "owner" else importer
    child = parent.call(forks.sleeping_child, with_handlers=with_handlers)
    try:
        parent.kill()

        if role == "importer":
            owner.call(actions.free, "a")
            assert comes_to(owner, free=BLOCKS, holders={})
            return
        assert importer.call(pool_actions.shown, "a") == b"a"
        time.sleep(0.5)
        with pytest.raises(crossmem.OwnerGoneError):
            importer.call(actions.attach, "again", give_late(blobs["a"]))
    finally:
        os.kill(child, signal.SIGKILL)


def give_late(blob: bytes) -> bytes:
    """Return the handle of another block of the pool, which nobody holds."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    assert isinstance(handle, crossmem.models.BlockHandle)
    fields = (0, NBYTES, 1, 1, NBYTES)
    return crossmem.models.BlockHandle(handle.pool, fields).to_bytes()


@pytest.mark.parametrize("then", ["nothing", "a pool"])
def test_the_owner_becomes_another_program(
    owner: Peer, importer: Peer, run_dir: Path, then: str
) -> None:
    blobs = give(owner, "a", "b")
    importer.call(actions.attach, "a", blobs["a"])
    ready = run_dir / "ready"
    owner.start(pool_actions.become, str(ready), then)
    while not ready.exists():
        time.sleep(0.01)
    time.sleep(0.5)

    for _ in range(2):
        with pytest.raises((crossmem.OwnerGoneError, crossmem.StaleHandleError)):
            importer.call(actions.attach, "b", blobs["b"])
    assert importer.call(pool_actions.shown, "a") == b"a"
    importer.call(actions.unmap, "a")
    # The other program answers no calls.
    owner.kill()


def test_an_importer_that_becomes_another_program_holds_until_it_ends(
    owner: Peer, importer: Peer, run_dir: Path
) -> None:
    blobs = give(owner, "a")
    importer.call(actions.attach, "a", blobs["a"])
    ready = run_dir / "ready"
    importer.start(pool_actions.become, str(ready), "nothing")
    while not ready.exists():
        time.sleep(0.01)
    owner.call(actions.free, "a")

    assert comes_to(owner, waiting=1, holders={importer.pid: 1})
    importer.kill()
    assert comes_to(owner, waiting=0, free=BLOCKS, holders={})


def test_importers_cannot_write_control_words(owner: Peer, importer: Peer) -> None:
    blobs = give(owner, "a")
    importer.call(actions.attach, "a", blobs["a"])

    assert not importer.call(pool_actions.can_write_control, blobs["a"])


# The end of owners and pools ----------------------------------------------------------------------


def test_an_owner_waits_at_its_exit(owner: Peer, importer: Peer) -> None:
    blobs = give(owner, "a", "b")
    importer.call(actions.attach, "a", blobs["a"])
    owner.request_exit()
    time.sleep(0.5)

    assert owner.exitcode is None
    assert importer.call(pool_actions.shown, "a") == b"a"
    importer.call(actions.unmap, "a")
    assert owner.wait_exit(within=2 + SLOWNESS) == 0
    assert "leased" not in owner.output()


def test_an_owner_waits_no_longer_than_it_may(start_peer: "StartPeer", importer: Peer) -> None:
    owner = start_peer(tracing=False, fresh=True, CROSSMEM_EXIT_WAIT="0.5")
    owner.call(pool_actions.make, "pool", NBYTES, BLOCKS)
    blobs = give(owner, "a")
    importer.call(actions.attach, "a", blobs["a"])

    output = owner.exit(within=5 + SLOWNESS)

    assert f"process {importer.pid}" in output
    assert importer.call(pool_actions.shown, "a") == b"a"
    time.sleep(0.5)
    with pytest.raises(crossmem.OwnerGoneError):
        importer.call(actions.attach, "again", give_late(blobs["a"]))
    importer.call(actions.unmap, "a")


@pytest.mark.parametrize("last", ["an unmap", "a death", "a free"])
def test_a_closed_pool_gives_its_memory_back(owner: Peer, importer: Peer, last: str) -> None:
    blobs = give(owner, "a", "b")
    importer.call(actions.attach, "a", blobs["a"])
    if last != "a free":
        owner.call(pool_actions.free_all, "ab")
    owner.call(actions.call, "pool", "close")
    time.sleep(0.3)
    assert importer.call(pool_actions.shown, "a") == b"a"
    assert owner.call(word_actions.live) == 1
    if last == "a free":
        # Live blocks of a closed pool are shared as before.
        importer.call(actions.attach, "b", blobs["b"])
        importer.call(actions.unmap, "a", "b")
        owner.call(pool_actions.free_all, "ab")
    elif last == "an unmap":
        importer.call(actions.unmap, "a")
    else:
        importer.kill()

    assert closes_within_a_second(owner)


def test_slots_of_a_closed_pool_are_not_used_before_all_have_left_it(
    owner: Peer, importer: Peer
) -> None:
    for turn in range(3):
        blobs = give(owner, "a")
        importer.call(actions.attach, f"a{turn}", blobs["a"])
        owner.call(pool_actions.free_all, "a")
        owner.call(actions.call, "pool", "close")
        owner.call(pool_actions.make, "pool", NBYTES, BLOCKS)
        blobs = give(owner, "b")
        importer.call(actions.attach, "b", blobs["b"])
        assert importer.call(pool_actions.shown, "b") == b"b"
        assert importer.call(pool_actions.shown, f"a{turn}") == b"a"
        importer.call(actions.unmap, "b")
        assert comes_to(owner, holders={}, live=1)
        owner.call(pool_actions.free_all, "b")
    importer.call(actions.unmap, "a0", "a1", "a2")
    assert settle(lambda: [1] * (owner.call(word_actions.live) - 1), within=1 + SLOWNESS) == []
    used = owner.call(pool_actions.slots_used)
    for _ in range(4):
        assert owner.call(pool_actions.free_if_live, "b") is None
        owner.call(actions.call, "pool", "close")
        owner.call(pool_actions.make, "pool", NBYTES, BLOCKS)
        importer.call(actions.attach, "b", give(owner, "b")["b"])
        importer.call(actions.unmap, "b")
    # Those whose last importer has left are used again: three ended, and four were made since.
    assert owner.call(pool_actions.slots_used) - used <= 2 * (BLOCKS + 2)


def test_ranges_of_slots_are_given_out_again() -> None:
    table = SlotTable()
    ranges = [table.take_range(length) for length in (3, 4, 5)]
    single = table.take()
    table.free_ranges += [(one.number, one.length) for one in ranges]

    whole = table.take_range(12)

    assert (whole.number, single.number) == (0, 12)
    assert table.take_range(2).number == 13
    table.close()


# Rubbish ------------------------------------------------------------------------------------------


def test_rubbish_in_a_row_pins_blocks_at_worst(
    owner: Peer, importer: Peer, start_peer: "StartPeer"
) -> None:
    survivor = start_peer(tracing=False)
    blobs = give(owner, "a", "b")
    survivor.call(actions.attach, "a", blobs["a"])
    importer.call(actions.attach, "b", blobs["b"])
    scribbling = importer.start(pool_actions.scribble, blobs["b"], 300_000, 14, within=120)
    for number in range(100):
        # All blocks may be pinned for a moment.
        if owner.call(pool_actions.give_if_free, "c", "pool", b"c"):
            owner.call(actions.free, "c")
        assert survivor.call(pool_actions.shown, "a") == b"a"
        stats = stats_of(owner)
        assert stats.free + stats.live + stats.waiting == BLOCKS, number
    scribbling.result()
    owner.call(pool_actions.free_all, "ab")

    assert survivor.call(pool_actions.shown, "a") == b"a"
    survivor.call(actions.unmap, "a")
    importer.kill()
    assert comes_to(owner, free=BLOCKS, live=0, waiting=0, holders={})
    assert "Traceback" not in owner.output()
    blob = owner.call(pool_actions.give, "again", "pool", b"n")
    survivor.call(actions.attach, "again", blob)
    assert survivor.call(pool_actions.shown, "again") == b"n"


@pytest.mark.parametrize(("device", "mechanism"), [("hip:0", "legacy"), ("ascend:0", "key")])
def test_holds_that_end_together_wait_once_for_the_device(
    run_dir: Path, tmp_path: Path, device: str, mechanism: str
) -> None:
    places = {"CROSSMEM_RUN_DIR": str(run_dir), "CROSSMEM_EMULATED_STATE": str(tmp_path)}
    owner, importer = (
        Peer(device, runtime="emulated", mechanism=mechanism, environment=places) for _ in range(2)
    )

    def waits() -> int:
        found: int = importer.call(actions.calls).get("synchronize", 0)
        return found

    with owner, importer:
        owner.call(pool_actions.make_here, "pool", NBYTES, BLOCKS)
        blobs = [owner.call(pool_actions.give, name, "pool") for name in "abcd"]
        importer.call(actions.attach_many, "abcd", blobs)
        before = waits()
        importer.call(actions.drop, *"abc")
        importer.call(actions.collect)
        assert waits() == before + 1
        assert owner.call(pool_actions.stats, "pool").holders == {importer.pid: 1}
        owner.call(actions.free, "a")
        with pytest.raises(crossmem.StaleHandleError):
            importer.call(actions.attach_many, "bca", [blobs[1], blobs[2], blobs[0]])
        assert waits() == before + 2
        importer.call(actions.unmap, "d")
        assert waits() == before + 3
        assert owner.call(pool_actions.stats, "pool").holders == {}
