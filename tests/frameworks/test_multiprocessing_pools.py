# SPDX-License-Identifier: Apache-2.0
"""Blocks of pools, their arrays and their mappings cross queues of multiprocessing."""

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

import crossmem
import crossmem.multiprocessing
from crossmem.conformance.speed import SLOWNESS

crossmem.install()
pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).parent))
queue_actions = pytest.importorskip("queue_actions")

_DEADLINE_S = 60 * SLOWNESS


class Scene:
    """Two queues, and processes that do not survive the test."""

    def __init__(self) -> None:
        self.context: Any = multiprocessing.get_context("spawn")
        self.requests = self.context.Queue()
        self.answers = self.context.Queue()
        self.processes: list[BaseProcess] = []

    def start(self, work: Callable[..., None], *arguments: Any) -> BaseProcess:
        process: BaseProcess = self.context.Process(target=work, args=arguments)
        process.start()
        self.processes.append(process)
        return process

    def echo(self) -> BaseProcess:
        return self.start(queue_actions.echo, self.requests, self.answers)

    def answer(self) -> Any:
        return self.answers.get(timeout=_DEADLINE_S)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    for process in made.processes:
        if process.is_alive():
            process.kill()
        process.join(_DEADLINE_S)
    for queue in (made.requests, made.answers):
        queue.cancel_join_thread()
        queue.close()
    gc.collect()
    crossmem.collect()


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)
        crossmem.collect()


def test_blocks_of_pools_arrive_as_mappings_and_arrays(scene: Scene) -> None:
    scene.echo()
    with crossmem.device("host").pool(4096, 4) as pool, pool.allocate(100) as block:
        block.write(b"abcd")
        scene.requests.put(block)
        assert scene.answer() == ("Mapping", b"abcd", False)
        with crossmem.attach(block.export(), readonly="advisory") as mapping:
            scene.requests.put(mapping)
            assert scene.answer() == ("Mapping", b"abcd", True)
        array = crossmem.empty((5, 5), "float32", pool=pool)
        array[:] = 2
        scene.requests.put(array[1:3])
        name, seen, back = scene.answer()
        back[0, 0] = 7

        assert (name, seen, array[1, 0]) == ("ndarray", 20.0, 7)
        del back, array
        gc.collect()
        until(lambda: pool.stats().live == 1 and not pool.stats().waiting)


def test_a_block_that_is_dropped_right_after_put_arrives(scene: Scene) -> None:
    with crossmem.device("host").pool(4096, 8) as pool:
        for number in range(8):
            array = crossmem.empty(100, "int64", pool=pool)
            array[:] = number
            scene.requests.put(array)
            del array
        # The queue's thread has pickled all of it, and the messages are all that holds the blocks.
        until(lambda: pool.stats().in_messages == 8)
        gc.collect()
        until(lambda: pool.stats().waiting == 8)
        lines = [one for one in crossmem.exports() if one.pool is not None]
        assert [one.pool.waiting for one in lines if one.pool is not None] == [8]
        assert {lease.in_message for one in pool.exports() for lease in one.leases} == {True}
        scene.echo()

        assert [scene.answer()[1] for _ in range(8)] == [100.0 * number for number in range(8)]
        until(lambda: pool.stats().free == 8)
        assert pool.exports() == []


@pytest.mark.parametrize("count", [1, 20])
def test_a_sender_of_blocks_exits_once_all_were_received(
    monkeypatch: pytest.MonkeyPatch, scene: Scene, count: int
) -> None:
    monkeypatch.setenv("CROSSMEM_EXIT_WAIT", "60")
    process = scene.start(queue_actions.send_blocks_and_exit, scene.answers, count)
    if count == 1:
        # It exits before this process has opened the pool.
        time.sleep(2 * SLOWNESS)
    for number in range(count):
        array = scene.answer()
        assert set(array.tolist()) == {number}
        del array
        crossmem.collect()
    process.join(_DEADLINE_S)

    assert process.exitcode == 0


def test_a_discarded_message_lets_its_block_go() -> None:
    with crossmem.device("host").pool(4096, 2) as pool:
        block = pool.allocate()
        pickled = ForkingPickler.dumps(block)
        block.free()
        assert (pool.stats().waiting, pool.stats().in_messages) == (1, 1)
        with pytest.raises(crossmem.StaleHandleError):
            crossmem.attach(pool.exports()[0].handle)
        crossmem.multiprocessing.discard(pickled)

        assert pool.stats() == crossmem.PoolStats(2, 2, 0, 0, {})
