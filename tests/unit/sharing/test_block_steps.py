# SPDX-License-Identifier: Apache-2.0
"""The hot paths of blocks take no lock, and leave no gap for other threads, handlers and forks."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import crossmem
from crossmem import Block, Pool
from crossmem.models import BlockHandle
from crossmem.sharing.base import process as processes
from crossmem.sharing.base.process import Process, current
from crossmem.sharing.importer.block_holds import ArenaImport, BlockHold
from crossmem.sharing.importer.block_mapping import attach_bytes
from crossmem.sharing.importer.blocks import PoolImports
from crossmem.sharing.importer.messages import discard, reserve

NBYTES = 4096


@pytest.fixture
def pool() -> Iterator[Pool]:
    with crossmem.device("host").pool(NBYTES, 4) as pool:
        yield pool


def exported(pool: Pool) -> tuple[Block, BlockHandle, bytes]:
    block = pool.allocate()
    handle = block.export()
    assert isinstance(handle, BlockHandle)
    return block, handle, handle.to_bytes()


def arena_of(handle: BlockHandle) -> ArenaImport:
    found = current().part(PoolImports).arenas
    return found[handle.pool.shared, None, False]


def at_once(call: Callable[[], Any], count: int = 6) -> list[Any]:
    """Call something in threads that yield before every bytecode; return what it returned."""
    results: list[Any] = []
    together = threading.Barrier(count)

    def give_way(frame: FrameType, event: str, _argument: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            time.sleep(0)
        return give_way

    def run() -> None:
        together.wait()
        sys.settrace(give_way)
        try:
            results.append(call())
        finally:
            sys.settrace(None)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return results


def test_a_step_that_found_a_freed_block_vouches_for_no_other(pool: Pool) -> None:
    with exported(pool)[0] as kept, crossmem.attach(kept.export().to_bytes()):
        block, handle, blob = exported(pool)
        arena = arena_of(handle)
        block.free()
        # Under the lock nothing is released, so the hold of the step stays.
        with current().state:
            assert attach_bytes(arena, blob) is None
            second = BlockHold(arena, handle.index)

            assert not second.take(handle.generation)

            BlockHold.leave_to_others(second)
        crossmem.collect()
        assert handle.index not in arena.holders
        assert arena.row[arena.at + handle.index] == 0


def test_a_live_block_in_a_message_does_not_wait(pool: Pool) -> None:
    block, handle, _ = exported(pool)
    number = reserve([handle])[0]
    for _ in range(4):
        exported(pool)[0].free()

    # The rows were read, and the message's block is live.
    assert pool.stats().waiting == 0
    assert pool.stats().live == 1

    discard([(handle, number)])
    block.free()


def test_a_block_is_not_freed_between_the_check_and_the_copy(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, _, _ = exported(pool)
    checks: list[bool] = []

    def free() -> None:
        with contextlib.suppress(crossmem.BusyError):
            block.free()

    freeing = threading.Thread(target=free)

    def is_usable(process: Process) -> bool:
        checks.append(True)
        # The second check comes right before the copy.
        if len(checks) == 2:
            freeing.start()
            freeing.join(0.2)
            checks.append(block.closed)
        return not (process.is_closed or process.is_inherited)

    with monkeypatch.context() as patch:
        patch.setattr(Process, "is_usable", property(is_usable))
        assert len(block.read()) == NBYTES
    freeing.join()

    assert checks[2] is False
    block.free()


def test_threads_that_export_at_once_get_one_handle(pool: Pool) -> None:
    for _ in range(20):
        block = pool.allocate()

        handles = at_once(block.export)

        assert len(set(handles)) == 1
        with crossmem.attach(handles[0].to_bytes()):
            block.free()


def test_threads_that_attach_at_once_hold_until_the_last_unmap(pool: Pool) -> None:
    block, handle, blob = exported(pool)
    crossmem.attach(blob).unmap()
    arena = arena_of(handle)

    mappings = at_once(lambda: crossmem.attach(blob))
    kept = mappings.pop()
    for one in mappings:
        one.unmap()

    assert arena.row[arena.at + handle.index] == handle.generation
    at_once(kept.unmap)
    assert arena.row[arena.at + handle.index] == 0
    assert handle.index not in arena.holders
    block.free()


def test_a_hold_that_ended_meanwhile_is_not_kept(pool: Pool) -> None:
    block, handle, blob = exported(pool)
    with crossmem.attach(blob) as mapping:
        arena, first = arena_of(handle), mapping._record
        assert isinstance(first, BlockHold)
        second = BlockHold(arena, handle.index)
        assert second.take(handle.generation)
        first.is_done = True

        assert second.leave_to_others()

        assert handle.index not in arena.holders
        assert arena.row[arena.at + handle.index] == 0
        first.is_done = False
        arena.holders[handle.index] = first
    block.free()


def test_a_forked_child_has_no_open_pool(pool: Pool) -> None:
    block, handle, blob = exported(pool)
    with crossmem.attach(blob):
        assert handle.pool.shared in processes.open_pools

        child = os.fork()
        if not child:
            os._exit(len(processes.open_pools))

        assert os.waitpid(child, 0)[1] == 0
    block.free()


def test_an_exited_state_has_no_open_pool() -> None:
    program = (
        "import atexit, crossmem; from crossmem.sharing.base import process as processes\n"
        "atexit.register(lambda: print(len(processes.open_pools)))\n"
        "pool = crossmem.device('host').pool(4096, 2); block = pool.allocate()\n"
        "mapping = crossmem.attach(block.export().to_bytes())\n"
        "print(len(processes.open_pools)); mapping.unmap(); block.free()\n"
        "processes.current().shut_down()\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert found.stdout.split() == ["1", "0"], found.stderr
