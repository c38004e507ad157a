# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of withdrawn exports and of imports that end with their owners."""

import mmap
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.control import link, threads
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.record import Allocations


def withdraw(name: str, blob: bytes) -> None:
    """Withdraw an export of a named allocation."""
    actions.objects[name].withdraw(blob)


def kept_of_exports() -> tuple[int, int, int]:
    """Return how many exports this process knows, and the slots in use, and the free ones."""
    server = current().server
    assert server is not None
    leases = server.leases
    return len(current().part(Allocations).exported), len(leases.granted), len(leases.slots.free)


def withdraw_each(flag: Path, blobs: Path, times: int) -> None:
    """Offer one handle after another, and say in shared memory which were withdrawn."""
    with (
        flag.open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as words,
        crossmem.device("emulated:0").allocate(4096) as allocation,
        memoryview(words).cast("Q") as shared,
    ):
        for turn in range(1, times + 1):
            handle = allocation.export()
            blobs.with_suffix(".new").write_bytes(turn.to_bytes(8, "little") + handle.to_bytes())
            blobs.with_suffix(".new").rename(blobs)
            # An importer has begun with it, and is somewhere on the way.
            while shared[1] < turn:
                pass
            allocation.withdraw(handle)
            shared[0] = turn
        # Let go before the allocation ends.
        shared[0] = times


def attach_withdrawn(flag: Path, blobs: Path, times: int) -> tuple[int, int]:
    """Attach what is offered; return how often that worked, and how often too late."""
    worked = late = 0
    with flag.open("r+b") as file, mmap.mmap(file.fileno(), 0) as words:
        shared = memoryview(words).cast("Q")
        turn = 0
        while turn < times:
            while not blobs.exists():
                pass
            data = blobs.read_bytes()
            turn, blob = int.from_bytes(data[:8], "little"), data[8:]
            shared[1] = turn
            while True:
                was_withdrawn = shared[0] >= turn
                try:
                    crossmem.attach(blob).unmap()
                except crossmem.StaleHandleError:
                    break
                worked += 1
                late += was_withdrawn
            # The exporter writes the next one once it has seen that this one is stale.
            while turn < times and blobs.read_bytes()[:8] == data[:8]:
                pass
        shared.release()
    return worked, late


def use_no_pidfds() -> None:
    """Let this process be one on a kernel that has no pidfds of peers."""
    pytest.MonkeyPatch().setattr(link, "open_peer", lambda *_: None)


def break_unmap(error: Exception) -> None:
    """Let the next unmapping fail."""
    driver: Any = actions.tracer()
    inner = driver.unmap

    def failing(*arguments: Any) -> None:
        driver.unmap = inner
        raise error

    driver.unmap = failing


def attach_without_threads(blob: bytes) -> str:
    """Ask for an import that ends with its owner where no thread can be had."""

    def start(*_: Any) -> int:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "start_new_thread", start)
        try:
            crossmem.attach(blob, on_owner_death="release")
        except crossmem.DriverError as error:
            return str(error)
    return ""


def is_closed(name: str) -> bool:
    """Return whether a named object is closed, which is no call of crossmem."""
    closed: bool = actions.objects[name].closed
    return closed
