# SPDX-License-Identifier: Apache-2.0
"""An object is closed in one thread while another thread is inside a call of the same object."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from in_use import assert_in_use, in_use

import crossmem
from crossmem import Block, ClosedError, Pool
from crossmem.conformance.speed import SLOWNESS
from crossmem.sharing.timelines.timeline import Timeline

_DEADLINE_S = 20 * SLOWNESS


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = in_use()
    yield
    assert_in_use(before)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


class Halt:
    """Holds a thread inside a call."""

    def __init__(self) -> None:
        self.reached, self.left = threading.Event(), threading.Event()

    def stop(self) -> None:
        self.reached.set()
        assert self.left.wait(_DEADLINE_S)

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def halted(*arguments: Any) -> Any:
            self.stop()
            return call(*arguments)

        return halted


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
    waiter = threads.submit(pool.allocate, timeout=10 * _DEADLINE_S)
    while not pool._record.arena.waiting:  # type: ignore[union-attr]
        pass
    pool.close()

    with pytest.raises(ClosedError, match="closed"):
        waiter.result(_DEADLINE_S)
    for block in blocks:
        block.write(b"alive")
        block.free()


def test_a_thread_between_its_check_and_its_block_gets_none_of_a_closed_pool(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, halt = crossmem.device("host").pool(4096, 2), Halt()
    monkeypatch.setattr(Pool, "_wait_for_block", halt.before(Pool._wait_for_block))
    caller = threads.submit(pool.allocate)
    assert halt.reached.wait(_DEADLINE_S)
    pool.close()
    with crossmem.device("host").allocate(8192) as other:
        other.write(b"other")
        halt.left.set()

        with pytest.raises(ClosedError):
            caller.result(_DEADLINE_S)
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
        usable = Timeline._usable

        def usable_then_halt(self: Timeline) -> Any:
            found = usable(self)
            if not halt.reached.is_set():
                halt.stop()
            return found

        monkeypatch.setattr(Timeline, "_usable", usable_then_halt)
        # A NumPy-like value leaves the hot paths.
        number = type("Number", (), {"__index__": lambda _: 2})()
        caller = threads.submit(getattr(one, call), number)
        assert halt.reached.wait(_DEADLINE_S)
        one.close()
        opened.close()
        # The new timeline may have the words of the closed one.
        with crossmem.device("host").timeline() as new:
            halt.left.set()

            with pytest.raises(ClosedError):
                caller.result(_DEADLINE_S)
            assert new.value == 0
