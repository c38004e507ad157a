# SPDX-License-Identifier: Apache-2.0
"""The jobs that run for every peer.

A job is a pair of functions. One function runs in the producer, and the other function runs in the
consumer at the same time. The two processes communicate over a channel. Each process measures the
seconds that its own operations take. The job ``"check"`` returns no times: it checks that both
processes share the memory.

The producer sends a token for each allocation: the bytes by which the consumer finds the memory.
All peers transfer the token in the same way. Two of the measured times include this transfer and
the consumer's reply: the time ``"total"`` of the job ``"life"``, and the time of the job
``"churn"``. The other times do not include them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

from crossmem.bench.channel import Channel
from crossmem.bench.peer import Peer

__all__ = ["JOBS", "Context", "Half", "Halves", "timed"]


@dataclass(slots=True)
class Context:
    """The environment of a job.

    Parameters
    ----------
    peer
        The instance of a subclass of :class:`Peer` that this process uses.
    channel
        The channel to the other process.
    kept
        Objects that one job stores for a later job.
    """

    peer: Peer
    channel: Channel
    kept: dict[str, Any] = field(default_factory=dict)


Half = Callable[..., dict[str, Any]]
"""One of the two functions of a job. The function takes a :class:`Context` and keywords, and
returns a dict of JSON values."""

Halves = Mapping[str, tuple[Half, Half]]
"""The producer's and the consumer's half of each job. The key is the job's name."""


def timed(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """Call a function; return its time in seconds, and its result."""
    start = perf_counter()
    result = function(*args)
    return perf_counter() - start, result


def _produce_check(context: Context, *, nbytes: int) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    memory = peer.create(nbytes)
    with peer.view(memory) as view:
        view[:8], view[-8:] = b"producer", b"the tail"
    channel.send(peer.export(memory))
    channel.receive()
    answer = b"consumer"
    if not peer.is_read_only:
        with peer.view(memory) as view:
            answer = bytes(view[:8])
    peer.free(memory)
    return {"answered": answer == b"consumer"}


def _consume_check(context: Context, *, nbytes: int) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    mapping = peer.attach(channel.receive())
    with peer.view(mapping) as view:
        seen = bytes(view[:8]), bytes(view[nbytes - 8 : nbytes])
        if not peer.is_read_only:
            view[:8] = b"consumer"
    channel.send(b"written")
    peer.detach(mapping)
    return {"seen": seen == (b"producer", b"the tail")}


def _produce_life(context: Context, *, nbytes: int, count: int, budget_s: float) -> dict[str, Any]:
    peer, channel, clock = context.peer, context.channel, perf_counter
    creates, exports, frees, totals = [], [], [], []
    end = clock() + budget_s
    for _ in range(count):
        t0 = clock()
        memory = peer.create(nbytes)
        t1 = clock()
        token = peer.export(memory)
        t2 = clock()
        channel.send(token)
        channel.receive()
        t3 = clock()
        peer.free(memory)
        t4 = clock()
        creates.append(t1 - t0)
        exports.append(t2 - t1)
        frees.append(t4 - t3)
        totals.append(t4 - t0)
        del memory
        if t4 > end:
            break
    channel.end()
    return {"create": creates, "export": exports, "free": frees, "total": totals}


def _consume_life(context: Context, **_: Any) -> dict[str, Any]:
    peer, channel, clock = context.peer, context.channel, perf_counter
    attaches, detaches = [], []
    for token in channel.stream():
        t0 = clock()
        mapping = peer.attach(token)
        t1 = clock()
        peer.detach(mapping)
        t2 = clock()
        channel.send(b"done")
        attaches.append(t1 - t0)
        detaches.append(t2 - t1)
        del mapping
    return {"attach": attaches, "detach": detaches}


def _produce_churn(context: Context, *, nbytes: int, count: int) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    start = perf_counter()
    for _ in range(count):
        memory = peer.create(nbytes)
        channel.send(peer.export(memory))
        channel.receive()
        peer.free(memory)
    each = (perf_counter() - start) / count
    channel.end()
    return {"each": each}


def _consume_churn(context: Context, **_: Any) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    for token in channel.stream():
        peer.detach(peer.attach(token))
        channel.send(b"done")
    return {}


def _produce_held(context: Context, *, nbytes: int, count: int) -> dict[str, Any]:
    """Do each step for all allocations before the next step. Return each step's mean time.

    Some peers delay work, and do the work of many allocations in a single call. The mean over all
    calls includes the time of this work. The median would not include it.
    """
    peer, channel = context.peer, context.channel
    create_s, memories = timed(lambda: [peer.create(nbytes) for _ in range(count)])
    export_s, tokens = timed(lambda: [peer.export(memory) for memory in memories])
    channel.send_all(tokens)
    channel.receive()

    def free_all() -> None:
        for memory in memories:
            peer.free(memory)

    free_s, _ = timed(free_all)
    return {"create": create_s / count, "export": export_s / count, "free": free_s / count}


def _consume_held(context: Context, **_: Any) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    tokens = channel.receive_all()
    attach_s, mappings = timed(lambda: [peer.attach(token) for token in tokens])

    def detach_all() -> None:
        for mapping in mappings:
            peer.detach(mapping)

    detach_s, _ = timed(detach_all)
    channel.send(b"detached")
    return {"attach": attach_s / len(tokens), "detach": detach_s / len(tokens)}


JOBS: Final[Halves] = MappingProxyType(
    {
        "check": (_produce_check, _consume_check),
        "life": (_produce_life, _consume_life),
        "churn": (_produce_churn, _consume_churn),
        "held": (_produce_held, _consume_held),
    }
)
"""The producer's and the consumer's half of each job."""
