# SPDX-License-Identifier: Apache-2.0
"""What comes in between: signal handlers and finalisers, in a thread that has a lock."""

import gc
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.conformance import resources
from crossmem.conformance.interrupts import Interrupted, Interrupts
from crossmem.conformance.pool import settle
from crossmem.control.client import OwnerConnection
from crossmem.plugin import Registry
from crossmem.sharing.base import process
from crossmem.sharing.base.array_index import ArrayIndex
from crossmem.sharing.importer import attach
from crossmem.sharing.importer.record import State, Use
from crossmem.sharing.importer.table import ImportTable

COUNTED = tuple(f"{Path(crossmem.__file__).parent}/{one}/" for one in ("control", "sharing"))


def ends_meanwhile(lock: Any, step: Callable[[], object]) -> bool:
    """Whether a step in another thread ends while this one has a lock."""
    ended = threading.Event()

    def run() -> None:
        step()
        ended.set()

    thread = threading.Thread(target=run)
    with lock:
        thread.start()
        has_ended = ended.wait(5)
    thread.join()
    return has_ended


def pidfds() -> int:
    """Return how many processes this one watches."""
    return sum("[pidfd]" in one for one in resources.descriptors())


def test_a_first_call_may_be_interrupted_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[process.Process] = []

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(process, "Registry", Registry)
        made.append(process.current())
        return Registry(*arguments)

    monkeypatch.setattr(process, "_current", None)
    monkeypatch.setattr(process, "Registry", interrupted)
    begin = threading.Thread(target=lambda: made.append(process.current()), daemon=True)
    begin.start()
    begin.join(5)

    assert len(made) == 2
    assert made[0] is made[1] is process.current()


def test_what_comes_is_noted_while_another_thread_looks() -> None:
    # Whoever looks may have come upon a finaliser that waits for the lock of who adds.
    index = ArrayIndex(threading.RLock())
    allocation: Any = type("Block", (), {"nbytes": 8, "closed": False})()
    anchor: Any = type("ViewAnchor", (), {})()

    assert ends_meanwhile(index._lock, lambda: index.add(allocation, 16, anchor))
    assert index.find(16, 8) is allocation

    other: Any = type("Block", (), {"nbytes": 8, "closed": False})()
    index.add(other, 32, anchor)
    found: list[Any] = []
    # Who adds keeps no lock.
    looking = threading.Thread(target=lambda: found.append(index.find(32, 8)), daemon=True)
    looking.start()
    looking.join(5)
    assert found == [other]


def test_an_interrupt_takes_no_use_from_another_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **options: Any) -> crossmem.Mapping:
        made = crossmem.Mapping(*arguments, **options)
        assert made.nbytes == 4
        raise KeyboardInterrupt

    def attach_and_drop(handle: crossmem.ShareableHandle) -> None:
        with pytest.raises(KeyboardInterrupt):
            crossmem.attach(handle)
        gc.collect()

    with crossmem.device("emulated:0").allocate(4) as allocation:
        handle = allocation.export()
        with crossmem.attach(handle) as kept:
            assert kept._record is not None
            record = kept._record.record
            assert record is not None
            monkeypatch.setattr(attach, "Mapping", interrupted)
            with pytest.warns(ResourceWarning, match="without unmap"):
                attach_and_drop(handle)
            crossmem.collect()

            assert (len(record.uses), len(record.mapped_uses)) == (1, 1)
            assert record.state is State.OPEN


def test_nothing_waits_for_the_server_in_the_middle_of_changing_leases() -> None:
    with crossmem.device("emulated:0").allocate(1) as allocation:
        allocation.export()
        server = process.current().server
        assert server is not None
        # As a finaliser does that comes in between.
        with server.leases.lock:
            assert crossmem.collect() == 0
            assert len(crossmem.exports()) >= 1


def test_a_handler_that_comes_in_under_a_lock_leaves_to_others_or_to_the_next_call() -> None:
    with crossmem.device("emulated:0").allocate(4) as allocation:
        handle = allocation.export()
        kept, other = crossmem.import_handle(handle), crossmem.import_handle(handle)
        assert kept._record is not None
        record = kept._record.record
        assert record is not None
        ready = process.current().deferred.ready
        # As a signal handler does that comes in between.
        with process.current().state:
            other.close()
            assert len(record.uses) == 1
            kept.close()
            assert kept.closed
            assert len(ready) == 1
            assert record.state.value == "open"
        crossmem.collect()

        # Another thread may be about to give it back.
        assert settle(lambda: [*ready, *[record.state] * (record.state is not State.CLOSED)]) == []


def test_what_another_thread_kept_from_being_given_back_waits_for_no_call() -> None:
    with crossmem.device("emulated:0").allocate(4) as allocation:
        imported = crossmem.import_handle(allocation.export())
        use = imported._record
        assert use is not None
        record = use.record
        assert record is not None
        has_lock, may_go = threading.Event(), threading.Event()

        def work() -> None:
            with record.lock:
                has_lock.set()
                may_go.wait(10)

        thread = threading.Thread(target=work)
        thread.start()
        has_lock.wait(10)
        with pytest.warns(ResourceWarning, match="without close"):
            del imported
        crossmem.collect()
        assert use in process.current().deferred.ready
        may_go.set()
        thread.join()

        # Nothing of crossmem is called here.
        assert settle(lambda: [] if use.is_done else ["it is not given back"]) == []


def test_an_interrupt_while_a_dead_owner_is_forgotten_keeps_no_descriptor(tmp_path: Path) -> None:
    # Locks that assert their order are Python, where signal handlers run for ever here.
    user: Any = type("User", (), {"state": threading.RLock()})()
    table = ImportTable(user)
    this = process.current().identity

    # Its pidfd tells of its end, reaped or not.
    ended = os.fork()
    if not ended:
        os._exit(0)

    def forget_with_an_interrupt_at(number: int) -> bool:
        connection = OwnerConnection(this, this, tmp_path, user.state)
        connection.lock = user.state
        connection._pidfd = os.pidfd_open(ended)
        table._connections[this] = connection
        interrupts = Interrupts(number, counts)
        with suppress(Interrupted), interrupts:
            table.forget_dead_owners()
        table.forget_dead_owners()
        assert table._connections == {}, interrupts.place
        assert pidfds() == before, interrupts.place
        return interrupts.count >= number

    def counts(path: str) -> bool | None:
        return True if path.startswith(COUNTED) else None

    before = pidfds()
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    try:
        assert sum(1 for _ in takewhile(forget_with_an_interrupt_at, itertools.count(1))) > 10
    finally:
        os.waitpid(ended, 0)


def test_giving_up_waits_for_no_other_thread() -> None:
    with crossmem.device("emulated:0").allocate(8) as memory:
        mapping = crossmem.attach(memory.export())
        assert mapping._record is not None
        record = mapping._record.record
        assert record is not None
        use = Use(process.current(), b"")
        use.record = record
        record.uses.add(use)

        is_over = ends_meanwhile(
            record.lock, lambda: attach._give_up(process.current(), (use,), KeyboardInterrupt())
        )

        assert is_over
        assert settle(lambda: [] if use.is_done else ["kept"]) == []
        mapping.unmap()


def test_an_interrupted_map_keeps_no_import_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_record: Any, _use: Any, *, remappable: bool) -> int:
        raise KeyboardInterrupt

    def map_and_close() -> None:
        with pytest.raises(KeyboardInterrupt), imported:
            imported.map()
        closed.append(imported.closed)

    closed: list[bool] = []
    with crossmem.device("emulated:0").allocate(8) as memory:
        first = crossmem.attach(memory.export())
        imported = crossmem.import_handle(memory.export())
        assert first._record is not None
        record = first._record.record
        assert record is not None
        monkeypatch.setattr(type(record), "map", interrupted)
        ends_meanwhile(record.lock, map_and_close)
        first.unmap()

    assert closed == [True]
