# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of timelines. :func:`actions.call` calls their methods."""

import dataclasses
import os
import random
import threading
import time
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.sharing.base.process import current
from crossmem.sharing.timelines import timeline
from crossmem.sharing.timelines.cell import CARE, IDENTITY, SEQUENCE, VALUE, WAITING


def make(name: str, **options: Any) -> bytes:
    """Make a timeline of host memory, and return the bytes of its handle."""
    actions.objects[name] = made = crossmem.device("host").timeline(**options)
    return made.export().to_bytes()


def make_on_device(name: str, value: int, level: Any = None) -> bytes:
    """Make a timeline of the device under test, with a value."""
    actions.objects[name] = made = actions.device().timeline(level)
    if level == "event":
        made.signal(value, stream=0)
    else:
        made.signal(value)
    return made.export().to_bytes()


def open_(name: str, blob: bytes, **options: Any) -> None:
    """Open another process's timeline."""
    actions.objects[name] = crossmem.open_timeline(blob, **options)


def close(*names: str) -> None:
    """Close timelines, and forget them."""
    for name in names:
        actions.objects.pop(name).close()


def close_and_release(name: str) -> None:
    """Close a timeline, and return when no thread of this process still releases its page."""
    close(name)
    deferred = current().deferred
    while deferred.ready:
        crossmem.collect()


def words(name: str) -> dict[str, int]:
    """Return the words by which a timeline wakes sleepers."""
    cell = actions.objects[name]._record.cell
    return {"value": cell.read(VALUE), "waiting": cell.read(WAITING), "moved": cell.read(SEQUENCE)}


def await_sleeper(name: str, seconds: float = 20.0) -> bool:
    """Return whether a thread of any process sets the flag of sleepers within that time."""
    cell = actions.objects[name]._record.cell
    end = time.monotonic() + seconds
    while not cell.read(WAITING):
        if time.monotonic() > end:
            return False
        time.sleep(1e-4)
    return True


# Ping-pong --------------------------------------------------------------------------------


def echo(theirs: str, mine: str, count: int) -> list[int]:
    """Answer each value of another process's timeline with the same one of this process's.

    Returns
    -------
    list of int
        Values that were wrong: a value that came out of order, or that shrank.
    """
    seen, answer, wrong = actions.objects[theirs], actions.objects[mine], []
    last = 0
    for value in range(1, count + 1):
        found = seen.wait(value, timeout=30)
        # The other side goes on only after the answer.
        if found != value or found < last:
            wrong.append(found)
        last = found
        answer.signal(value)
    return wrong


def serve(mine: str, theirs: str, count: int) -> list[int]:
    """Signal each value, and wait for its answer; return the answers that were wrong."""
    own, answers, wrong = actions.objects[mine], actions.objects[theirs], []
    for value in range(1, count + 1):
        own.signal(value)
        if answers.wait(value, timeout=30) != value:
            wrong.append(value)
    return wrong


def follow(name: str, last: int) -> list[int]:
    """Return each value that is seen until the last one, which is signalled without a pause."""
    one, seen = actions.objects[name], [0]
    while seen[-1] < last:
        seen.append(one.wait(seen[-1] + 1, timeout=30))
        assert one.value >= seen[-1]
    return seen


def race(name: str, first: int, last: int) -> None:
    """Signal values as fast as possible."""
    one = actions.objects[name]
    for value in range(first, last + 1):
        one.signal(value)


# Waiting and waking -----------------------------------------------------------------------


def seconds_of_wait(name: str, value: int, timeout: float) -> tuple[str, float]:
    """Wait, and return the name of the error, or "reached", and when that was known."""
    try:
        actions.objects[name].wait(value, timeout=timeout)
    except crossmem.CrossmemError as error:
        return type(error).__name__, time.monotonic()
    return "reached", time.monotonic()


def waits_in_threads(name: str, value: int, timeout: float, count: int) -> list[str]:
    """Wait in several threads; return how each wait ended."""
    ends: list[str] = []
    threads = [
        threading.Thread(target=lambda: ends.append(seconds_of_wait(name, value, timeout)[0]))
        for _ in range(count)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return ends


def signal_at_random(name: str, base: int, count: int, seed: int, longest_s: float) -> list[float]:
    """Signal the values behind ``base`` after random pauses; return when each was signalled."""
    one, randomness, times = actions.objects[name], random.Random(seed), [0.0]
    for value in range(base + 1, base + count + 1):
        end = time.perf_counter() + randomness.random() * longest_s
        while time.perf_counter() < end:
            # So short that a sleep would be longer.
            pass
        times.append(time.monotonic())
        one.signal(value)
    return times


def wakes(name: str, base: int, last: int) -> list[tuple[int, float]]:
    """Wait for each value behind ``base``; return what was reached, and when that was known."""
    one, found, value = actions.objects[name], [], base
    while value < last:
        value = one.wait(value + 1, timeout=60)
        found.append((value, time.monotonic()))
    return found


def wait_in_a_forked_child(name: str) -> dict[str, str]:
    """Return the error of each method in a forked child."""
    mine = actions.objects[name]
    calls = {
        "value": lambda: mine.value,
        "void": lambda: mine.void,
        "owner_alive": lambda: mine.owner_alive,
        "export": mine.export,
        "signal": lambda: mine.signal(5),
        "wait": lambda: mine.wait(1, timeout=0.01),
        "done": lambda: mine.done(1),
        "wait_for_readers": lambda: mine.wait_for_readers(1, timeout=0.01),
        "close": mine.close,
        "with": mine.__enter__,
    }
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        found = []
        for one, call in calls.items():
            try:
                call()
                found.append(f"{one}=nothing")
            except Exception as error:  # noqa: BLE001 - its name is the answer
                found.append(f"{one}={type(error).__name__}")
        os.write(writing, " ".join([*found, f"repr={mine!r}".replace(" ", "_")]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return dict(one.split("=", 1) for one in text.split())


def forge(name: str, blob: bytes) -> bytes:
    """Return a handle that names memory of this process as that of a timeline."""
    handle = crossmem.TimelineHandle.from_bytes(blob)
    page = actions.objects[name] = crossmem.device("host").allocate(4096)
    page.write(handle.identity.to_bytes(8, "little"), offset=8 * IDENTITY)
    return dataclasses.replace(handle, memory=page.export().slice(0, 64)).to_bytes()


# Accesses, one by one ---------------------------------------------------------------------


def look_once() -> None:
    """Let a wait look once before it sleeps, so that few accesses are to be tried."""
    pytest.MonkeyPatch().setattr(timeline, "_SPINS", (None,))


def wait_in_vain(name: str, value: int) -> bool:
    """Return whether a wait that looks once is in vain."""
    try:
        actions.objects[name].wait(value, timeout=0)
    except crossmem.WaitTimeoutError:
        return True
    return False


def late_readers(name: str, value: int) -> bool:
    """Return whether readers have not acknowledged a value."""
    try:
        actions.objects[name].wait_for_readers(value, timeout=0)
    except crossmem.WaitTimeoutError:
        return True
    return False


def set_waiting(name: str) -> None:
    """Set the flag of sleepers, as one does that is not asleep yet."""
    cell = actions.objects[name]._record.cell
    cell.words[CARE], cell.words[WAITING] = 2, 1


def signal_again(name: str, value: int) -> bool:
    """Return whether a value that does not grow is refused."""
    try:
        actions.objects[name].signal(value)
    except crossmem.ConfigurationError:
        return True
    return False


def open_and_wait(name: str, blob: bytes) -> None:
    """Open a timeline, and look whether any value was signalled."""
    open_(name, blob)
    actions.objects[name].wait(1, timeout=0)
