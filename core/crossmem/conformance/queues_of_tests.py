# SPDX-License-Identifier: Apache-2.0
"""Helpers of the queue tests, for the test's process and for peers.

As in ``actions``, each process keeps its objects under names. Most tests put numbered items
into a queue. The producer and the number of an item determine its data, so each consumer can check
the data.
"""

import random
import struct
import sys
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol, cast

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.ends import ends
from crossmem.control import words
from crossmem.models.queue_handle import QueueRole

__all__ = [
    "NBYTES",
    "Item",
    "MakeQueue",
    "allocate",
    "allocate_all",
    "check_free",
    "check_stats",
    "disable_polling",
    "get",
    "get_each",
    "get_rest",
    "handle_of",
    "make",
    "numbers_of",
    "open_",
    "put",
    "scribble",
    "stats",
    "take",
    "user_data_of",
]

NBYTES: Final = 4096
"""Capacity of a test's buffer, in bytes."""
_LABEL: Final = struct.Struct("<II")
_USER_NBYTES: Final = 96

# After a test, its buffers are released before its queues are closed, because a queue with buffers
# in hand cannot be closed.
ends[:0] = [(crossmem.SharedBuffer, "release"), (crossmem.Queue, "close")]


class MakeQueue(Protocol):
    """The type of the fixture ``make_queue``."""

    def __call__(self, depth: int = 4, nbytes: int = NBYTES, **options: Any) -> crossmem.Queue:
        """Make a queue, which is closed after the test."""
        ...


class Item(NamedTuple):
    """A received item with correct data."""

    who: int
    """The number that the test gave to the producer."""
    number: int
    deliveries: int
    """How often the item was delivered."""


def numbers_of(items: Iterable[Item], who: int = 0) -> list[int]:
    """Return the numbers of a producer's items, in the order of ``items``."""
    return [one.number for one in items if one.who == who]


def _find(name: str | crossmem.Queue) -> crossmem.Queue:
    found: crossmem.Queue = actions.objects[name] if isinstance(name, str) else name
    return found


def _data_of(label: bytes, number: int) -> bytes:
    return (label * 16)[: number % 128]


# Objects under names ----------------------------------------------------------------------


def make(name: str, depth: int = 4, **options: Any) -> dict[str, bytes]:
    """Make a queue. Return a dict from each role to the bytes of the handle for this role."""
    made = actions.objects[name] = actions.device().queue(depth, NBYTES, **options)
    return {role: made.export(role=role).to_bytes() for role in ("produce", "consume")}


def handle_of(queue: crossmem.Queue, role: str) -> bytes:
    """Return the bytes of a queue's handle for a role."""
    return queue.export(role=cast("QueueRole", role)).to_bytes()


def open_(name: str, handle: Any, **options: Any) -> None:
    """Open another process's queue."""
    actions.objects[name] = crossmem.open_queue(handle, device=actions.device(), **options)


# Items ------------------------------------------------------------------------------------


def put(
    name: str | crossmem.Queue,
    numbers: Iterable[int],
    *,
    who: int = 0,
    timeout: float | None = None,
) -> None:
    """Put items with these numbers."""
    for number in numbers:
        put_buffer(name, _find(name).allocate(timeout=timeout), number, who=who)


def put_buffer(
    name: str | crossmem.Queue, buffer: crossmem.SharedBuffer, number: int, *, who: int = 0
) -> None:
    """Fill a buffer with the data of an item, and put it."""
    label = _LABEL.pack(who, number)
    data = _data_of(label, number)
    buffer.write(data)
    buffer.data_length, buffer.user_data = len(data), label
    _find(name).put(buffer)


def read_item(buffer: crossmem.SharedBuffer) -> Item:
    """Check the data of the item in a buffer, and return the item."""
    label = user_data_of(buffer, _LABEL.size)

    assert len(label) == _LABEL.size, f"the buffer has no item; its user data is {label!r}"

    who, number = _LABEL.unpack(label)
    data = buffer.read(buffer.data_length)

    assert data == _data_of(label, number), f"item {number} of {who} has {data[:40]!r}"
    return Item(who, number, buffer.delivery_count)


def take(name: str | crossmem.Queue, keep: str, *, timeout: float | None = None) -> Item:
    """Get an item, keep its buffer under a name, and return the item."""
    buffer = actions.objects[keep] = _find(name).get(timeout=timeout)
    return read_item(buffer)


def get(name: str | crossmem.Queue, *, timeout: float | None = None) -> Item:
    """Get an item, release its buffer, and return the item."""
    with _find(name).get(timeout=timeout) as buffer:
        return read_item(buffer)


def get_each(name: str | crossmem.Queue, count: int, *, timeout: float | None = None) -> list[Item]:
    """Get ``count`` items, release their buffers, and return the items."""
    return [get(name, timeout=timeout) for _ in range(count)]


def get_rest(name: str | crossmem.Queue) -> list[Item]:
    """Get items and release their buffers until the queue ends; return the items."""
    found = []
    for buffer in _find(name):
        with buffer:
            found.append(read_item(buffer))
    return found


def allocate(name: str | crossmem.Queue, keep: str, *, timeout: float | None = 0) -> int:
    """Allocate a buffer and keep it under a name; return its address."""
    buffer = actions.objects[keep] = _find(name).allocate(timeout=timeout)
    return buffer.ptr


def allocate_all(name: str | crossmem.Queue) -> list[crossmem.SharedBuffer]:
    """Allocate and return all free buffers."""
    found: list[crossmem.SharedBuffer] = []
    while True:
        try:
            found.append(_find(name).allocate())
        except crossmem.QueueFullError:
            return found


def check_free(name: str | crossmem.Queue, count: int) -> None:
    """Check the number of free buffers. Skip vendors' queues, which make buffers on demand."""
    if not _find(name).device.capabilities.vendor_queues:
        assert count_free(name) == count


def count_free(name: str | crossmem.Queue) -> int:
    """Return the number of free buffers."""
    found = allocate_all(name)
    for one in found:
        one.release()
    return len(found)


def stats(name: str | crossmem.Queue) -> crossmem.QueueStats:
    """Return the state of a queue."""
    return _find(name).stats()


def check_stats(name: str | crossmem.Queue, **expected: int) -> None:
    """Check fields of a queue's state. Skip vendors' queues, which have no ``stats()``."""
    queue = _find(name)
    if not queue.device.capabilities.vendor_queues:
        found = queue.stats()
        assert {key: getattr(found, key) for key in expected} == expected


def user_data_of(buffer: crossmem.SharedBuffer, nbytes: int) -> bytes:
    """Return a buffer's user data without the padding of a vendor's queue.

    The producer has set ``nbytes`` bytes. A vendor's queue pads them with zeros to 96 bytes.
    """
    found = buffer.user_data
    if buffer.device.capabilities.vendor_queues:
        assert len(found) == _USER_NBYTES
        assert not any(found[nbytes:])
        return found[:nbytes]
    return found


# Faults -----------------------------------------------------------------------------------


def disable_polling() -> None:
    """Disable the periodic checks in a wait, so that only a bell or the timeout ends the sleep.

    Call this function only in a fresh peer, because nothing enables the checks again.
    """
    for module in list(sys.modules.values()):
        if module.__name__.startswith("crossmem.sharing.queues") and hasattr(module, "LOOK_S"):
            vars(module)["LOOK_S"] = 1e5


def scribble(name: str, seed: int) -> None:
    """Write rubbish into the ring and the place that this process has in a queue."""
    chosen = random.Random(seed)
    record = actions.objects[name]._record
    for place in filter(None, (record.producer, record.consumer)):
        small = (0, 1, 2, 3, 8, 2**48 + 1, 2**64 - 1)
        for index in range(len(place.words)):
            rubbish = chosen.choice((*small, chosen.getrandbits(64)))
            words.store(place.words, index, rubbish)
