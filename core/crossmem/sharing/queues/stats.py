# SPDX-License-Identifier: Apache-2.0
"""The state of a queue at one moment."""

from collections.abc import Iterator
from dataclasses import dataclass

from crossmem.control import words
from crossmem.sharing.queues import layout
from crossmem.sharing.queues.opened import Opened

__all__ = ["QueueStats", "members_of", "stats_of"]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of a queue at one moment.

    Attributes
    ----------
    producers, consumers
        Number of producers, and number of consumers that get new entries.
    put
        Number of entries that were put.
    dropped
        Number of entries that producers dropped.
    lost
        Number of entries that were lost at the end of their consumers' sessions.
    redelivered
        Number of entries that the owner took back for another delivery. The owner takes back an
        entry if its consumer has received it, and the consumer's session ends before the release.
        Always 0 without ``redeliver``.
    waiting
        Number of entries that wait until a consumer has room for them. Always 0 if ``delivery`` is
        ``"each"``.
    lag
        Number of unread entries of each consumer. The key is the consumer's number.
    """

    producers: int
    consumers: int
    put: int
    dropped: int
    lost: int
    redelivered: int
    waiting: int
    lag: dict[int, int]


def members_of(opened: Opened) -> tuple[int, int]:
    """Return the number of producers, and the number of consumers that get new entries."""
    terms, places = opened.terms, opened.segments[opened.terms.producers :]
    producers = sum(opened.member(one) > 0 for one in range(terms.producers))
    consumers = sum(
        0 < opened.consumer(one) == words.observe(place, layout.READS)
        for one, place in enumerate(places)
    )
    return producers, consumers


def stats_of(opened: Opened) -> QueueStats:
    """Return the state of a queue."""
    terms, control = opened.terms, opened.control
    rings, places = opened.segments[: terms.producers], opened.segments[terms.producers :]
    tails = [opened.tail(one) for one in range(terms.producers)]
    producers, consumers = members_of(opened)
    lag = {
        one: max(0, control[terms.handed(one)] - place[layout.HANDED])
        for one, place in enumerate(places)
        if opened.consumer(one)
    }
    for producer, tail in enumerate(tails):
        for one, count in _unread(opened, producer, tail, list(lag)):
            lag[one] += count
    return QueueStats(
        producers=producers,
        consumers=consumers,
        put=sum(tails),
        dropped=sum(words.load(one, layout.DROPS) for one in rings),
        lost=words.load(control, layout.LOST),
        redelivered=words.load(control, layout.REDELIVERED),
        waiting=words.load(control, layout.WAITING),
        lag=lag,
    )


def _unread(
    opened: Opened, producer: int, tail: int, consumers: list[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs (consumer, count) for one ring.

    The sum of a consumer's counts is the number of the consumer's unread entries in the ring.
    Entries that the owner handed out to the consumer are not counted.
    """
    terms, ring = opened.terms, opened.segments[producer]
    reads = {one: opened.segments[terms.producers + one][terms.read(producer)] for one in consumers}
    if terms.delivery == "each":
        for one, read in reads.items():
            yield one, max(0, tail - read)
        return
    targets = {layout.target_of(one, opened.consumer(one)): one for one in consumers}
    for buffer in range(terms.depth):
        at = terms.entry(buffer)
        consumer = targets.get(ring[at + layout.TARGET])
        if consumer is not None and reads[consumer] < ring[at] <= tail:
            yield consumer, 1
