# SPDX-License-Identifier: Apache-2.0
"""An object is closed in one thread while another thread is inside a call of the same object."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from halts import DEADLINE_S, Halt

import crossmem
from crossmem import Block, ClosedError, OwnerUnresponsiveError, Pool
from crossmem.sharing.importer.record import ImportRecord
from crossmem.sharing.timelines.timeline import Timeline

pytestmark = pytest.mark.usefixtures("nothing_left")


def allocate_all(pool: Pool) -> list[Block]:
    return [pool.allocate() for _ in range(pool.blocks)]


@pytest.mark.parametrize("exported", [False, True])
def test_a_thread_that_waits_for_a_block_gets_none_of_a_closed_pool(
    threads: ThreadPoolExecutor, *, exported: bool
) -> None:
    pool = crossmem.device("host").pool(4096, 2)
    blocks = allocate_all(pool)
    if exported:
        for block in blocks:
            block.export()
    waiter = threads.submit(pool.allocate, timeout=10 * DEADLINE_S)
    while not pool._record.arena.waiting:  # type: ignore[union-attr]
        pass
    pool.close()

    with pytest.raises(ClosedError, match="closed"):
        waiter.result(DEADLINE_S)
    for block in blocks:
        block.write(b"alive")
        block.free()


def test_a_thread_between_its_check_and_its_block_gets_none_of_a_closed_pool(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, halt = crossmem.device("host").pool(4096, 2), Halt()
    monkeypatch.setattr(Pool, "_wait_for_block", halt.before(Pool._wait_for_block))
    caller = threads.submit(pool.allocate)
    assert halt.reached.wait(DEADLINE_S)
    pool.close()
    with crossmem.device("host").allocate(8192) as other:
        other.write(b"other")
        halt.left.set()

        with pytest.raises(ClosedError):
            caller.result(DEADLINE_S)
        assert other.read(5) == b"other"


@pytest.mark.parametrize("call", ["signal", "done", "wait_for_readers", "wait"])
def test_a_timeline_that_is_closed_inside_a_call(
    call: str, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    halt = Halt()
    with crossmem.device("host").timeline() as made:
        made.signal(1)
        opened = crossmem.open_timeline(made.export())
        one = opened if call in {"done", "wait"} else made
        monkeypatch.setattr(Timeline, "_usable", halt.after(Timeline._usable))
        # A NumPy-like value leaves the hot paths.
        number = type("Number", (), {"__index__": lambda _: 2})()
        caller = threads.submit(getattr(one, call), number)
        assert halt.reached.wait(DEADLINE_S)
        one.close()
        opened.close()
        # The new timeline may have the words of the closed one.
        with crossmem.device("host").timeline() as new:
            halt.left.set()

            with pytest.raises(ClosedError):
                caller.result(DEADLINE_S)
            assert new.value == 0


def test_an_import_that_another_thread_closes_slowly_times_out(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    halt = Halt()
    with crossmem.device("host").allocate(4096) as memory:
        handle = memory.export()
        mapping = crossmem.attach(handle)
        monkeypatch.setattr(ImportRecord, "close", halt.before(ImportRecord.close))
        closer = threads.submit(mapping.unmap)
        assert halt.reached.wait(DEADLINE_S)

        with pytest.raises(OwnerUnresponsiveError, match="another thread"):
            crossmem.attach(handle, timeout=0.01)
        halt.left.set()
        closer.result(DEADLINE_S)
        crossmem.attach(handle).unmap()
