# SPDX-License-Identifier: Apache-2.0
"""What producer and consumer do where thousands of imports and allocations live at once."""

import resource
from pathlib import Path
from threading import active_count
from types import MappingProxyType
from typing import Any, Final

import crossmem
from crossmem.bench.jobs import Context, Halves, timed

__all__ = ["SCALE_JOBS"]


def _descriptors() -> dict[str, int]:
    """Count this process's descriptors and, among them, its sockets."""
    kinds = {"all": 0, "sockets": 0}
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # the descriptor of this listing
            continue
        kinds["all"] += 1
        kinds["sockets"] += target.startswith("socket:")
    return kinds


def _produce_parts(context: Context, *, allocations: int, parts: int) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    memories = [peer.create(parts * 4096) for _ in range(allocations)]
    channel.send_all([peer.export(memory) for memory in memories])
    channel.receive()
    for memory in memories:
        peer.free(memory)
    return {}


def _consume_parts(context: Context, *, allocations: int, parts: int) -> dict[str, Any]:
    """Hold many imports of few allocations; see what they cost and what they occupy."""
    handles = [crossmem.ShareableHandle.from_bytes(blob) for blob in context.channel.receive_all()]
    wholes = crossmem.attach_many(handles)
    before = _descriptors()
    pieces = [handle.slice(4096 * i, 4096) for handle in handles for i in range(parts)]
    times, live = [], []
    for piece in pieces:
        seconds, mapping = timed(crossmem.attach, piece)
        times.append(seconds)
        live.append(mapping)
    after = _descriptors()
    threads = active_count()

    def close_all() -> None:
        for mapping in live:
            mapping.unmap()

    close_s, _ = timed(close_all)
    for mapping in wholes:
        mapping.unmap()
    context.channel.send(b"done")
    edge = len(times) // 100
    return {
        "live": allocations * parts,
        "early": times[9 : 9 + edge],
        "late": times[-edge:],
        "close": close_s / len(live),
        "before": before,
        "after": after,
        "threads": threads,
    }


def _produce_separate(context: Context, *, nbytes: int, count: int) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    create_s, memories = timed(lambda: [peer.create(nbytes) for _ in range(count)])
    channel.send_all([peer.export(memory) for memory in memories])
    channel.receive()

    def free_all() -> None:
        for memory in memories:
            peer.free(memory)

    free_s, _ = timed(free_all)
    return {"create": create_s / count, "free": free_s / count}


def _consume_separate(context: Context, *, count: int, **_: Any) -> dict[str, Any]:
    tokens = context.channel.receive_all()
    before = _descriptors()
    attach_s, mappings = timed(crossmem.attach_many, tokens)
    after = _descriptors()

    def unmap_all() -> None:
        for mapping in mappings:
            mapping.unmap()

    unmap_s, _ = timed(unmap_all)
    context.channel.send(b"done")
    return {
        "attach": attach_s / count,
        "unmap": unmap_s / count,
        "descriptors": after["all"] - before["all"],
    }


def _produce_exhaust(context: Context, *, nbytes: int, room: int) -> dict[str, Any]:
    """Allocate under a low descriptor limit until it refuses, and say how it did."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memories: list[Any] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors()["all"] + room, hard))
    failure: Exception | None = None
    try:
        while len(memories) < 2 * room:
            memories.append(context.peer.create(nbytes))
    except Exception as error:  # noqa: BLE001 - which error it is, is the question
        failure = error
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for memory in memories:
            context.peer.free(memory)
    text = f"{failure} {getattr(failure, 'hint', '')}"
    return {
        "made": len(memories),
        "error": type(failure).__name__,
        "typed": isinstance(failure, crossmem.CrossmemError),
        "names_limit": "RLIMIT_NOFILE" in text or "ulimit" in text,
    }


def _consume_nothing(context: Context, **_: Any) -> dict[str, Any]:  # noqa: ARG001 - a half
    return {}


SCALE_JOBS: Final[Halves] = MappingProxyType(
    {
        "parts": (_produce_parts, _consume_parts),
        "separate": (_produce_separate, _consume_separate),
        "exhaust": (_produce_exhaust, _consume_nothing),
    }
)
"""Producer's and consumer's half of every job, by its name."""
