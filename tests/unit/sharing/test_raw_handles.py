# SPDX-License-Identifier: Apache-2.0
"""Raw handles that come back to the process that made them, while other threads are at work."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import crossmem
from crossmem.conformance.speed import SLOWNESS
from crossmem.sharing.exporter import raw
from crossmem.sharing.importer import table

NBYTES = 4096
DEADLINE_S = 20 * SLOWNESS


@pytest.fixture
def device() -> crossmem.Device:
    """Return a device whose exports fit into bytes."""
    return crossmem.device("hip:0", runtime="emulated")


@pytest.fixture
def memory(device: crossmem.Device) -> Iterator[crossmem.Allocation]:
    allocation = device.allocate(NBYTES)
    yield allocation
    allocation.free()


class Task:
    """A step in another thread, with its result or what it raised."""

    def __init__(self, step: Callable[..., object], *arguments: Any, **options: Any) -> None:
        self.outcome: Any = None
        self._step = partial(step, *arguments, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._step()
        except crossmem.CrossmemError as error:
            self.outcome = error

    def ends(self, timeout_s: float = DEADLINE_S) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


class Gate:
    """Stands before an import's look at a raw handle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.was_reached = threading.Event()
        self.opens = threading.Event()
        original = raw.publish_raw

        def publish_raw(*arguments: Any) -> None:
            self.was_reached.set()
            assert self.opens.wait(DEADLINE_S)
            original(*arguments)

        monkeypatch.setattr(table, "publish_raw", publish_raw)


def begin_to_free(memory: crossmem.Allocation) -> tuple[Task, crossmem.Import]:
    """Let another thread wait until an import is closed, to free the memory then."""
    lease = crossmem.import_handle(memory.export(), device=memory.device)
    freeing = Task(memory.free, busy="wait", timeout=DEADLINE_S)
    assert not freeing.ends(0.05)
    return freeing, lease


def test_a_handle_is_imported_for_the_first_time_while_a_free_waits(
    memory: crossmem.Allocation,
) -> None:
    raw = memory.export(lease=False)
    freeing, lease = begin_to_free(memory)

    with lease, crossmem.attach(raw, device=memory.device, timeout=1) as mapping:
        assert mapping.nbytes == NBYTES

    assert freeing.ends()
    assert freeing.outcome is None


def test_a_handle_that_was_imported_before_is_imported_while_a_free_waits(
    memory: crossmem.Allocation,
) -> None:
    raw = memory.export(lease=False)
    crossmem.import_handle(raw, device=memory.device).close()
    freeing, lease = begin_to_free(memory)

    with lease, crossmem.attach(raw, device=memory.device, timeout=1) as again:
        assert again.nbytes == NBYTES

    assert freeing.ends()
    assert freeing.outcome is None


def test_memory_that_is_freed_at_the_last_moment_is_stale(
    memory: crossmem.Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, gate = memory.export(lease=False), Gate(monkeypatch)
    importing = Task(crossmem.import_handle, raw, device=memory.device)
    assert gate.was_reached.wait(DEADLINE_S)

    freeing = Task(memory.free)

    assert freeing.ends()
    gate.opens.set()
    assert importing.ends()
    assert isinstance(importing.outcome, crossmem.StaleHandleError)


def test_raw_handles_of_one_memory_are_imported_beside_each_other(
    memory: crossmem.Allocation,
) -> None:
    first = memory.export(lease=False)
    second = memory.export(lease=False, allow=crossmem.Allow(uids=[12345]))
    memory.write(b"data")

    with (
        crossmem.attach(first, device=memory.device) as one,
        crossmem.attach(second, device=memory.device) as two,
    ):
        assert one.read(4) == two.read(4) == b"data"
