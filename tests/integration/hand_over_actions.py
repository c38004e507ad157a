# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of queues."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.sharing.queues import place as place_module
from crossmem.sharing.queues.layout import SLEEPING
from crossmem.sharing.queues.place import Place

if TYPE_CHECKING:
    from tests.integration import pool_life_actions, word_actions
else:
    import pool_life_actions
    import word_actions

objects = actions.objects


def make(name: str, depth: int, nbytes: int, **options: Any) -> dict[str, bytes]:
    """Make a queue of host memory; return the bytes of the handle of each role."""
    objects[name] = queue = crossmem.device("host").queue(depth, nbytes, **options)
    return {role: queue.export(role=role).to_bytes() for role in ("produce", "consume")}


def open_(name: str, blob: bytes) -> None:
    """Open another process's queue."""
    objects[name] = crossmem.open_queue(blob)


def stats(name: str) -> crossmem.QueueStats:
    """Return the state of a queue."""
    found: crossmem.QueueStats = objects[name].stats()
    return found


def sessions(name: str) -> int:
    """Return the number of open sessions, after a look of the owner."""
    stats(name)
    opened = objects[name]._record.opened
    return sum(opened.member(place) > 0 for place in range(opened.terms.places))


def produce(blob: bytes, path: str, name: str, most: int) -> int:
    """Put items that say who put them, and record each before and after."""
    chance = random.Random(name)
    with crossmem.open_queue(blob) as queue, Path(path).open("ab", buffering=0) as log:
        for number in range(most):
            item = f"{name}:{number}".encode()
            while True:
                try:
                    buffer = queue.allocate(timeout=60)
                    break
                except crossmem.QueueFullError:
                    # Nothing can be dropped now.
                    time.sleep(1e-3)
            buffer.write(item)
            buffer.data_length, buffer.user_data = len(item), item
            log.write(b"try " + item + b"\n")
            queue.put(buffer)
            log.write(b"put " + item + b"\n")
            if chance.random() < 0.05:
                time.sleep(chance.random() * 2e-3)
    return most


def consume(blob: bytes, path: str, seed: int) -> int:
    """Record all items until the end of the queue; return how many showed other bytes."""
    chance, wrong = random.Random(seed), 0
    with crossmem.open_queue(blob) as queue, Path(path).open("ab", buffering=0) as log:
        for buffer in queue:
            item = buffer.user_data
            log.write(item + f" {buffer.delivery_count}\n".encode())
            wrong += buffer.read(buffer.data_length) != item
            if chance.random() < 0.1:
                time.sleep(chance.random() * 2e-3)
            wrong += buffer.read(buffer.data_length) != item
            buffer.release()
    return wrong


def count_free(blob: bytes, rings: int, depth: int, timeout: float) -> int:
    """Take so many rings, and return how many buffers of them are free or become free."""
    with contextlib.ExitStack() as opened:
        taken = []
        for _ in range(rings):
            queue = opened.enter_context(crossmem.open_queue(blob))
            with contextlib.suppress(crossmem.QueueFullError):
                for _ in range(depth):
                    taken.append(queue.allocate(timeout=timeout))  # noqa: PERF401 - keeps those before
        for buffer in taken:
            buffer.release()
        return len(taken)


# Deaths at a chosen access --------------------------------------------------------------------


class CountedWords(word_actions.CountedWords):
    """Words of a ring or place, whose accesses by subscripts are numbered."""

    def cast(self, kind: Any) -> memoryview:
        """Return the same memory in other items."""
        return self.view.cast("B").cast(kind)


def count(fatal: int) -> None:
    """Number each access to shared words from now on; die right before the ``fatal``-th."""
    wrap = word_actions.number(fatal, signal.SIGKILL)
    # Before a sleep there is one look, because all of them are the same.
    setattr(place_module, "_SPIN_S", 0.0)  # noqa: B010 - mypy knows modules
    begin = Place.__init__

    def note(place: Place) -> None:
        wrapped = wrap(place.words)
        place.words = CountedWords(wrapped.view, wrapped._note)  # type: ignore[assignment]

    def init(self: Place, *arguments: Any) -> None:
        begin(self, *arguments)
        note(self)

    pytest.MonkeyPatch().setattr(Place, "__init__", init)
    for one in objects.values():
        record = getattr(one, "_record", None)
        for place in (getattr(record, "producer", None), getattr(record, "consumer", None)):
            if place is not None:
                note(place)


def put(name: str, *items: bytes) -> None:
    """Put items."""
    for item in items:
        buffer = objects[name].allocate(timeout=10)
        buffer.user_data = item
        objects[name].put(buffer)


def get(name: str, timeout: float = 10) -> bytes:
    """Get and release an item."""
    with objects[name].get(timeout=timeout) as buffer:
        item: bytes = buffer.user_data
    return item


def keep(name: str) -> None:
    """Get an item, and keep it."""
    objects[f"{name} {len(objects)}"] = objects[name].get(timeout=10)


def get_until(name: str, last: bytes, timeout: float = 10) -> list[bytes]:
    """Get items until one of them, and return all."""
    found = [get(name, timeout)]
    while found[-1] != last:
        found.append(get(name, timeout))
    return found


def get_all(name: str) -> list[bytes]:
    """Get what is there."""
    found = []
    with contextlib.suppress(crossmem.QueueEmptyError):
        while True:
            found.append(get(name, 0))
    return found


def wait_in_vain(name: str) -> None:
    """Sleep until nothing has come."""
    with contextlib.suppress(crossmem.QueueEmptyError):
        objects[name].get(timeout=0.01)


def close(name: str) -> None:
    """Close a queue."""
    objects.pop(name).close()


def end_of(name: str, verb: str) -> tuple[str, float]:
    """Put or get until that raises; return the error's name and how long the last call took."""
    while True:
        began = time.monotonic()
        try:
            if verb == "get":
                get(name)
            else:
                put(name, b"late")
        except crossmem.CrossmemError as error:
            return type(error).__name__, time.monotonic() - began


# Hostile peers ----------------------------------------------------------------------------


def scribble(name: str, times: int, seed: int) -> None:
    """Write rubbish into all words that this process may write, except the wish for a session."""
    record = objects[name]._record
    place: Place = record.producer or record.consumer
    mine, chance, opened = place.words, random.Random(seed), place.opened
    for turn in range(times):
        at = chance.choice((chance.randrange(1, 16), chance.randrange(1, len(mine))))
        tail = opened.tail(0) + chance.randrange(-9, 9)
        small = chance.randrange(70)
        mine[at] = chance.choice(
            (
                0,
                1,
                small,
                max(0, tail),
                2**63 | max(0, tail),
                (small << 48) | small,
                2**48 - 1 + small,
                2**64 - 1,
                chance.getrandbits(64),
                chance.getrandbits(48),
            )
        )
        if turn % 50 == 0:
            os.eventfd_write(opened.owner_bell, 1)
            for bell in opened.bells:
                os.eventfd_write(bell, 1)


def put_all(name: str, first: int, count: int) -> None:
    """Put honest items, numbered, with their number in the buffer, too."""
    for number in range(first, first + count):
        buffer = objects[name].allocate(timeout=30)
        buffer.user_data = b"honest:%d" % number
        buffer.write(buffer.user_data)
        buffer.data_length = len(buffer.user_data)
        objects[name].put(buffer)


def get_honest(name: str, last: int) -> list[int]:
    """Get items until an honest one with that number, and return the numbers of honest ones."""
    found: list[int] = []
    while not found or found[-1] != last:
        with objects[name].get(timeout=30) as buffer:
            data, user_data = buffer.read(buffer.data_length), buffer.user_data
            assert len(user_data) <= 96
            if user_data.startswith(b"honest:") and data == user_data:
                found.append(int(user_data[7:]))
    return found


def steps_of_puts(name: str, items: int) -> tuple[list[str], int, int]:
    """Put items; return the calls to the kernel, the barriers, and the calls of core."""
    steps = pool_life_actions.Steps().count(lambda: put(name, *[b"item"] * items))
    return steps.kernel, steps.barriers, steps.calls.total()


def steps_of_gets(name: str, items: int) -> tuple[list[str], int, int]:
    """Get and release items; return as :func:`steps_of_puts`."""

    def get_all_of_them() -> None:
        for _ in range(items):
            assert get(name) == b"item"

    steps = pool_life_actions.Steps().count(get_all_of_them)
    return steps.kernel, steps.barriers, steps.calls.total()


def sleepers(name: str) -> int:
    """Return how many consumers sleep."""
    opened = objects[name]._record.opened
    places = opened.segments[opened.terms.producers :]
    return sum(one[SLEEPING] for one in places)
