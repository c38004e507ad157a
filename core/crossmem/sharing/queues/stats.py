# SPDX-License-Identifier: Apache-2.0
"""The state of a queue at one moment."""

from dataclasses import dataclass

from crossmem.control import words
from crossmem.sharing.queues import layout
from crossmem.sharing.queues.place import Opened

__all__ = ["QueueStats", "stats_of"]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of a queue at one moment.

    Attributes
    ----------
    producers, consumers
        Number of processes that produce and consume.
    put
        Number of entries that were put.
    dropped
        Number of entries that producers dropped.
    lost
        Number of entries that were lost with dead consumers.
    redelivered
        Number of entries that were delivered again.
    waiting
        Number of entries that wait for a consumer with room; 0 with ``delivery="each"``.
    lag
        Number of entries that each consumer has not read yet, of those that it will get. The key is
        the consumer's number.
    """

    producers: int
    consumers: int
    put: int
    dropped: int
    lost: int
    redelivered: int
    waiting: int
    lag: dict[int, int]


def stats_of(opened: Opened) -> QueueStats:
    """Return the state of a queue."""
    terms, control = opened.terms, opened.control
    rings, places = opened.segments[: terms.producers], opened.segments[terms.producers :]
    tails = [opened.tail(one) for one in range(terms.producers)]
    return QueueStats(
        producers=sum(opened.member(one) > 0 for one in range(terms.producers)),
        consumers=sum(
            0 < opened.consumer(one) == words.observe(place, layout.READS)
            for one, place in enumerate(places)
        ),
        put=sum(tails),
        dropped=sum(words.load(one, layout.DROPS) for one in rings),
        lost=words.load(control, layout.LOST),
        redelivered=words.load(control, layout.REDELIVERED),
        waiting=words.load(control, layout.WAITING),
        lag={
            one: max(0, control[terms.handed(one)] - place[layout.HANDED])
            + sum(_unread(opened, one, producer, tail) for producer, tail in enumerate(tails))
            for one, place in enumerate(places)
            if opened.consumer(one)
        },
    )


def _unread(opened: Opened, consumer: int, producer: int, tail: int) -> int:
    """Return the number of a producer's entries that a consumer has not read in the ring."""
    terms = opened.terms
    ring, place = opened.segments[producer], opened.segments[terms.producers + consumer]
    read = place[terms.read(producer)]
    if terms.delivery == "each":
        return max(0, tail - read)
    target = layout.target_of(consumer, opened.consumer(consumer))
    entries = [terms.entry(buffer) for buffer in range(terms.depth)]
    return sum(read < ring[at] <= tail and ring[at + layout.TARGET] == target for at in entries)
