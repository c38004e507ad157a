# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of shared words: count their accesses, and die at one of them."""

import contextlib
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.control import link, words
from crossmem.control.client import OwnerConnection
from crossmem.control.holds import HoldTable
from crossmem.control.link import Link
from crossmem.control.registry import LeaseRegistry
from crossmem.control.segments import HEADER_WORDS, WORDS
from crossmem.sharing.base import devices
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter import record
from crossmem.sharing.exporter.record import Allocations
from crossmem.sharing.importer.table import ImportTable
from crossmem.sharing.timelines.record import TimelineRecord

ACCESSES: tuple[str, ...] = ("load", "store", "observe", "any_of", "barrier", "fence")

_made: list[str] = []
"""The accesses since :func:`count`."""


class CountedWords:
    """Words whose accesses by subscripts are numbered, too."""

    def __init__(self, view: memoryview, note: Callable[[str], None]) -> None:
        self.view = view
        self._note = note

    def __getitem__(self, index: Any) -> Any:
        self._note("load")
        return self.view[index]

    def __setitem__(self, index: int, word: int) -> None:
        self._note("store")
        self.view[index] = word


def count(fatal: int = 0, death: int = signal.SIGKILL) -> None:
    """Number each access to shared words from now on; end or stop right before the ``fatal``-th."""
    number(fatal, death)


def number(fatal: int, death: int) -> Callable[[memoryview], CountedWords]:
    """As :func:`count`; return what makes the subscripts of words count, too."""

    def note(name: str) -> None:
        _made.append(name)
        if len(_made) == fatal:
            os.kill(os.getpid(), death)

    def counted(name: str, access: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            note(name)
            return access(*(getattr(one, "view", one) for one in arguments))

        return call

    for name in ACCESSES:
        setattr(words, name, counted(name, getattr(words, name)))
    for one in actions.objects.values():
        timeline = getattr(one, "_record", None)
        if isinstance(timeline, TimelineRecord):
            # The hot paths use subscripts.
            timeline.words = cast("memoryview", CountedWords(timeline.words, note))
    return lambda view: CountedWords(view, note)


def counted() -> int:
    """Return how many accesses there were since :func:`count`."""
    return len(_made)


def made() -> list[str]:
    """Return the accesses since :func:`count`."""
    return list(_made)


def live() -> int:
    """Return how many allocations this process has not given back, and do nothing about it."""
    return len(current().part(Allocations).live)


def free_if_idle(name: str) -> bool:
    """Free memory unless it is leased; whether that was so."""
    try:
        actions.free(name, busy="raise")
    except crossmem.BusyError:
        return True
    return False


def free_soon(name: str, timeout_s: float) -> bool:
    """Free memory, waiting for its leases; whether time was over."""
    try:
        actions.free(name, busy="wait", timeout=timeout_s)
    except crossmem.BusyError:
        return True
    return False


def scribble(name: str, times: int, seed: int) -> None:
    """Write random words into the row through which an exporter's memory is held here."""
    connection = actions.objects[name]._record.record.connection
    assert isinstance(connection, OwnerConnection)
    ((_control, row, _is_fenced),) = connection._holds._segments.values()
    randomness = random.Random(seed)
    for _ in range(times):
        # Most of them where slots are in use, so that they matter.
        at = randomness.choice(
            [HEADER_WORDS + randomness.randrange(64), randomness.randrange(WORDS)]
        )
        row.words[at] = randomness.choice([0, 1, randomness.getrandbits(64)])


def mute_hints() -> None:
    """Let no message of this process say that a lease has ended."""
    pytest.MonkeyPatch().setattr(Link, "send_now", lambda _self, _message: False)


def interrupt_hints() -> None:
    """Let a handler raise where this process would say that a lease has ended."""

    def interrupt(_self: Link, _message: bytes) -> bool:
        raise KeyboardInterrupt

    pytest.MonkeyPatch().setattr(Link, "send_now", interrupt)


def is_interrupted_by_unmap(name: str) -> bool:
    """Unmap memory, and tell whether a handler raised."""
    try:
        actions.unmap(name)
    except KeyboardInterrupt:
        return True
    return False


def close_while_another_is_leased(first: bytes, second: bytes) -> None:
    """Close the import of one export while another of the same memory is being leased."""
    one = crossmem.import_handle(first)
    request = OwnerConnection.request

    def requested(self: OwnerConnection, *arguments: Any, **options: Any) -> Any:
        answers = request(self, *arguments, **options)
        closing = threading.Thread(target=one.close)
        closing.start()
        closing.join()
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnerConnection, "request", requested)
        actions.objects["two"] = crossmem.import_handle(second)


def lease_own_memory_interrupted(nbytes: int) -> list[object]:
    """Attach own memory while a handler raises; return what holds it after all was closed."""
    allocation = crossmem.device("emulated:0").allocate(nbytes)
    handle = allocation.export()
    lease_to_myself = LeaseRegistry.lease_to_myself
    is_first = True
    claimed = threading.Event()
    others: list[threading.Thread] = []

    def attach() -> None:
        crossmem.attach(handle).unmap()

    def leased(self: LeaseRegistry, *arguments: Any) -> Any:
        nonlocal is_first
        refusal = lease_to_myself(self, *arguments)
        if is_first:
            is_first = False
            others.append(threading.Thread(target=attach))
            others[0].start()
            # The other thread waits for the import that this one is opening.
            claimed.wait(0.2)
            raise KeyboardInterrupt
        return refusal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaseRegistry, "lease_to_myself", leased)
        with contextlib.suppress(KeyboardInterrupt):
            attach()
        others[0].join()
    crossmem.collect()
    found: list[object] = [lease for info in crossmem.exports() for lease in info.leases]
    allocation.free()
    return found


def refuse_to_free(seconds: float) -> None:
    """Let the device's work last so long that no memory can be freed meanwhile."""
    until, wait_for_work = time.monotonic() + seconds, devices.wait_for_work

    def wait(device: Any) -> Any:
        if time.monotonic() < until:
            raise crossmem.BusyError("the device's work is being captured")
        return wait_for_work(device)

    pytest.MonkeyPatch().setattr(record, "wait_for_work", wait)


def lock_memory(name: str, seconds: float) -> None:
    """Let another thread work on memory for some time."""
    lock, is_locked = actions.objects[name]._record.lock, threading.Event()

    def work() -> None:
        with lock:
            is_locked.set()
            time.sleep(seconds)

    threading.Thread(target=work, daemon=True).start()
    is_locked.wait()


def import_two_and_one_again(first: bytes, second: bytes) -> bool:
    """Import two exports, close the first and import it again; whether they share an opening."""
    one, two = crossmem.import_handle(first), crossmem.import_handle(second)
    records = [each._record.record for each in (one, two)]  # type: ignore[union-attr]
    one.close()
    actions.objects["one"], actions.objects["two"] = crossmem.import_handle(first), two
    return records[0] is records[1]


def never_hold() -> None:
    """Let each hold find that the exporter has moved on; each reply comes before this sleeps."""
    hold = HoldTable.hold
    patch = pytest.MonkeyPatch()
    patch.setattr(link, "_SPIN_S", 5.0)

    def held(self: HoldTable, *arguments: Any) -> bool:
        hold(self, *arguments)
        return False

    patch.setattr(HoldTable, "hold", held)


def attach_interrupted(blob: bytes) -> bool:
    """Attach where the exporter has moved on once, and a handler raises as that is given back."""
    hold, give_back = HoldTable.hold, OwnerConnection.give_back
    calls: list[str] = []

    def held(self: HoldTable, *arguments: Any) -> bool:
        calls.append("hold")
        return hold(self, *arguments) and calls.count("hold") > 1

    def given_back(self: OwnerConnection, answers: Any) -> None:
        calls.append("give back")
        if calls.count("give back") == 1:
            raise KeyboardInterrupt
        give_back(self, answers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HoldTable, "hold", held)
        patch.setattr(OwnerConnection, "give_back", given_back)
        try:
            crossmem.attach(blob)
        except KeyboardInterrupt:
            return True
    return False


def free_each_at_once(flag: Path, blobs: Path, times: int) -> int:
    """Free memory the moment its importer has closed it; return how often that was refused."""
    device, refused = crossmem.device("emulated:0"), 0
    with flag.open("r+b") as file, mmap.mmap(file.fileno(), 0) as seen:
        for turn in range(1, times + 1):
            allocation = device.allocate(4096)
            blobs.with_suffix(".new").write_bytes(allocation.export().to_bytes())
            blobs.with_suffix(".new").rename(blobs)
            while seen[0] != turn:
                pass
            try:
                allocation.free(busy="raise")
            except crossmem.BusyError:
                refused += 1
                allocation.free()
    return refused


def attach_each(flag: Path, blobs: Path, times: int) -> None:
    """Attach and unmap each memory that is offered, and say so in shared memory."""
    with flag.open("r+b") as file, mmap.mmap(file.fileno(), 0) as seen:
        for turn in range(1, times + 1):
            while not blobs.exists():
                pass
            blob = blobs.read_bytes()
            blobs.unlink()
            crossmem.attach(blob).unmap()
            seen[0] = turn


def rows_of(blob: bytes) -> tuple[int, bool]:
    """Return the mode that this process's row says, and whether it uses fences."""
    owner = crossmem.ShareableHandle.from_bytes(blob).owner
    connection = current().part(ImportTable)._connections[owner]
    ((_control, row, is_fenced),) = connection._holds._segments.values()
    return row.words[0], is_fenced


def seconds_of_free(name: str, timeout_s: float) -> float:
    """Free memory, waiting for its leases, and return how long that took."""
    start = time.monotonic()
    actions.free(name, busy="wait", timeout=timeout_s)
    return time.monotonic() - start
