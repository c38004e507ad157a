# SPDX-License-Identifier: Apache-2.0
"""Versions of trees within one process: their memory, and threads that close them."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import crossmem
from crossmem import ClosedError, Shared
from crossmem.conformance.speed import SLOWNESS
from crossmem.locks import forbidden_ranks
from crossmem.sharing.base.process import drain
from crossmem.trees.versions import OwnCell, RemoteCell, new_cell

ONLY = crossmem.Allow(pids=(os.getpid(),))


def exported() -> set[Any]:
    crossmem.collect()
    return {one.handle for one in crossmem.exports()}


@pytest.fixture(autouse=True)
def board() -> Iterator[None]:
    """Have the board that stays, so that what else a test leaves is seen."""
    with crossmem.share(None):
        before = exported()
    yield

    assert exported() == before


def test_versions_of_trees_for_few_leave_no_memory() -> None:
    before = exported()
    for pid in range(2, 12):
        crossmem.share(None, allow=crossmem.Allow(pids=(pid,))).close()
    first, second = crossmem.share(None, allow=ONLY), crossmem.share(None, allow=ONLY)
    first.close()
    assert len(exported()) == len(before) + 1

    assert second.publish() == 1
    second.close()

    assert exported() == before


def test_a_tree_for_few_that_was_closed_says_so() -> None:
    with crossmem.share(None, allow=ONLY) as shared:
        reader, late = (Shared.from_bytes(shared.to_bytes()) for _ in range(2))
        assert reader.version == 0
    for one in (reader, late):
        with pytest.raises(ClosedError, match="closed it"):
            assert one.version
    reader.close()
    del reader, one


def test_publishing_while_another_thread_closes_changes_no_other_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = crossmem.share(None)
    read, others = OwnCell.read, []

    def close_and_share() -> None:
        shared.close()
        # The cell that was given back last is the next one's.
        others.append(crossmem.share(None))

    closing = threading.Thread(target=close_and_share)

    def read_slowly(cell: OwnCell) -> int:
        version = read(cell)
        if cell is shared._cell:
            closing.start()
            closing.join(0.3)
        return version

    monkeypatch.setattr(OwnCell, "read", read_slowly)
    assert shared.publish() == 1
    monkeypatch.undo()
    closing.join()

    (other,) = others
    assert other.version == 0
    other.close()


def test_trees_may_be_closed_while_another_one_gets_its_cell() -> None:
    process, device = drain(), crossmem.device("host")
    cells = [new_cell(process, ONLY, lambda: device) for _ in range(256)]

    def close_all() -> crossmem.Device:
        # As allocating does where trees were dropped.
        for one in cells:
            one.close()
        return device

    last = new_cell(process, ONLY, close_all)

    assert last.read() == 0
    last.close()


def test_memory_for_cells_is_allocated_under_no_lock() -> None:
    process, device, held = drain(), crossmem.device("host"), []

    def look() -> crossmem.Device:
        held.append(forbidden_ranks())
        return device

    cell = new_cell(process, ONLY, look)
    cell.close()

    assert held == [()]


def test_closing_waits_for_no_thread_that_waits_for_what_this_one_has() -> None:
    shared, process, closed = crossmem.share(None), drain(), threading.Event()
    assert process.server is not None

    def close() -> None:
        # As a finaliser does, which the garbage collector runs in any thread.
        with process.server.leases.lock:  # type: ignore[union-attr]
            shared.close()
        closed.set()

    closing = threading.Thread(target=close)
    # As a fork does, before it waits for the server's.
    with process.lock:
        closing.start()
        has_closed = closed.wait(5)
    closing.join()

    assert has_closed
    with pytest.raises(ClosedError):
        assert shared.version


def test_closing_ends_what_waits_for_a_version() -> None:
    mine, errors = crossmem.share(None), []
    other = crossmem.Shared.from_bytes(mine.to_bytes())
    assert other.version == 0

    def wait() -> None:
        try:
            other.wait(0, timeout=60 * SLOWNESS)
        except crossmem.CrossmemError as error:
            errors.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    other.close()
    waiting.join(10)

    assert errors == [ClosedError]
    mine.close()


def test_closing_waits_for_no_thread_that_asks_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, errors = crossmem.share(None), []
    other = crossmem.Shared.from_bytes(mine.to_bytes())
    asking, answered = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> RemoteCell:
        asking.set()
        assert answered.wait(10)
        return RemoteCell(*arguments)

    def look() -> None:
        try:
            other.wait(0, timeout=10 * SLOWNESS)
        except crossmem.CrossmemError as error:
            errors.append(type(error))

    monkeypatch.setattr("crossmem.trees.shared.RemoteCell", slow)
    looking = threading.Thread(target=look)
    looking.start()
    assert asking.wait(10)
    other.close()
    answered.set()
    looking.join()

    assert errors == [ClosedError]
    mine.close()
