# SPDX-License-Identifier: Apache-2.0
"""Tasks of one event loop that wait for the same queue take turns."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

import crossmem
from crossmem.conformance.resources import descriptors

TASKS = 5
ITEMS = 200


@pytest.fixture
def queue() -> Iterator[crossmem.Queue]:
    with crossmem.device("host").queue(2, 64) as found:
        yield found


def test_each_task_that_waits_gets_its_share(queue: crossmem.Queue) -> None:
    received: Counter[int] = Counter()
    is_done = asyncio.Event()

    async def receive(task: int) -> None:
        while True:
            with await queue.get_async():
                received[task] += 1
            if sum(received.values()) == ITEMS:
                is_done.set()

    async def exchange() -> None:
        tasks = [asyncio.create_task(receive(task)) for task in range(TASKS)]
        for number in range(ITEMS):
            await queue.put_async(b"%d" % number, copy="allow")
            await asyncio.sleep(0)
        await is_done.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(exchange(), 60))

    assert min(received[task] for task in range(TASKS)) > ITEMS // TASKS // 2


def test_many_tasks_that_wait_need_one_descriptor(queue: crossmem.Queue) -> None:
    async def wait() -> int:
        tasks = [asyncio.create_task(queue.get_async()) for _ in range(100)]
        await asyncio.sleep(0.05)
        count = len(descriptors())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return count - len(descriptors())

    assert asyncio.run(wait()) == 1
    assert not queue._consumer().turns
