# SPDX-License-Identifier: Apache-2.0
"""The jobs that run only for the peer crossmem; :mod:`crossmem.bench.jobs` explains jobs."""

import os
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

import crossmem
from crossmem.bench.jobs import Context, Halves, timed
from crossmem.bench.peer_floor import FloorPeer

__all__ = ["CROSSMEM_JOBS"]

# The benchmark counts the system calls of the loop in _consume_marked. One call of getpgid marks
# the beginning of the loop, and another call marks its end. getpgid changes nothing, and the loop
# does not call it.
_MARK: Final = os.getpgid

_COPIED_NBYTES: Final = 64 << 20
"""One timing copies an array repeatedly, but copies at most this number of bytes in all. If the
array is larger, one timing copies it once."""


def _fresh(blob: bytes) -> bytes:
    """Return a copy of the bytes. Like bytes from a channel, the copy has no cached hash."""
    return bytes(bytearray(blob))


def _produce_batch(context: Context, *, nbytes: int, count: int, **_: Any) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    memories = [peer.create(nbytes) for _ in range(2 * count)]
    channel.send_all([peer.export(memory) for memory in memories])
    channel.receive()
    for memory in memories:
        peer.free(memory)
    return {}


def _consume_batch(context: Context, *, batch_first: bool, **_: Any) -> dict[str, Any]:
    channel = context.channel
    tokens = channel.receive_all()
    half = len(tokens) // 2
    times: dict[str, float] = {}
    mappings: list[crossmem.Mapping] = []

    def singly() -> list[crossmem.Mapping]:
        return [crossmem.attach(token) for token in tokens[:half]]

    def together() -> list[crossmem.Mapping]:
        return crossmem.attach_many(tokens[half:])

    order = [("many", together), ("single", singly)]
    for name, attach in order if batch_first else reversed(order):
        seconds, made = timed(attach)
        times[name] = seconds / half
        mappings += made
    for mapping in mappings:
        mapping.unmap()
    channel.send(b"done")
    return times


def _produce_repeats(context: Context, *, nbytes: int, count: int) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    memories = [peer.create(nbytes) for _ in range(count)]
    first = [timed(memory.export)[0] for memory in memories]
    repeated = [timed(memory.export)[0] for memory in memories]
    channel.send_all([memory.export().to_bytes() for memory in memories])
    channel.receive()
    for memory in memories:
        peer.free(memory)
    return {"export first": first, "export repeated": repeated}


def _consume_repeats(context: Context, **_: Any) -> dict[str, Any]:
    """Measure the times of first and of repeated calls that import or attach memory."""
    channel = context.channel
    blobs = channel.receive_all()
    handles = [crossmem.ShareableHandle.from_bytes(blob) for blob in blobs]
    half = len(handles) // 2
    times: dict[str, list[float]] = {}

    def each(name: str, function: Any, arguments: list[Any]) -> list[Any]:
        results = []
        times[name] = taken = []
        for argument in arguments:
            seconds, result = timed(function, argument)
            taken.append(seconds)
            results.append(result)
        return results

    def close(name: str, made: list[Any]) -> None:
        each(name, lambda item: item.unmap() if hasattr(item, "unmap") else item.close(), made)

    # kept and kept_mappings keep the leases of the first imports during the repetitions below.
    kept = each("import first", crossmem.import_handle, handles[:half])
    kept_mappings = each("attach first", crossmem.attach, handles[half:])
    mapped = handles[half:]
    parts = [handle.slice(64, 128) for handle in mapped]
    new_parts = [handle.slice(128, 256).to_bytes() for handle in mapped]
    close("close", each("import repeated", crossmem.import_handle, mapped))
    close("unmap", each("attach repeated", crossmem.attach, mapped))
    for name, source in (
        ("import repeated, bytes", [_fresh(blob) for blob in blobs[half:]]),
        ("import part", parts),
        ("import part, new bytes", [_fresh(blob) for blob in new_parts]),
    ):
        close("", each(name, crossmem.import_handle, source))
    for name, source in (
        ("attach repeated, bytes", [_fresh(blob) for blob in blobs[half:]]),
        ("attach part", parts),
    ):
        close("", each(name, crossmem.attach, source))
    del times[""]
    for item in kept:
        item.close()
    for mapping in kept_mappings:
        mapping.unmap()
    channel.send(b"done")
    return times


def _produce_kept(context: Context, *, nbytes: int) -> dict[str, Any]:
    memory = context.peer.create(nbytes)
    context.channel.send(context.peer.export(memory))
    context.kept["kept"] = memory
    return {}


def _consume_kept(context: Context, **_: Any) -> dict[str, Any]:
    """Attach memory, and keep it attached for the job ``"marked"``, which imports it again."""
    handle = crossmem.ShareableHandle.from_bytes(context.channel.receive())
    context.kept["kept"] = handle, crossmem.attach(handle)
    return {"pid": os.getpid()}


def _produce_marked(context: Context, **_: Any) -> dict[str, Any]:
    context.channel.receive()
    context.peer.free(context.kept.pop("kept"))
    return {}


def _consume_marked(context: Context, *, count: int) -> dict[str, Any]:
    handle, mapping = context.kept.pop("kept")
    part = handle.slice(64, 128)
    repeats = range(count)
    _MARK(0)
    for _ in repeats:
        crossmem.import_handle(handle).close()
        crossmem.import_handle(part).close()
    _MARK(0)
    mapping.unmap()
    context.channel.send(b"done")
    return {"imports": 2 * count}


def _produce_bandwidth(
    context: Context, *, nbytes: int, plain_first: bool, **_: Any
) -> dict[str, Any]:
    import numpy as np

    peer, channel = context.peer, context.channel
    floor = context.kept.get("floor")
    if floor is None:
        floor = context.kept["floor"] = FloorPeer("")
        channel.send(floor.serve())
    sources = (floor, peer) if plain_first else (peer, floor)
    memories = [(source, source.create(nbytes)) for source in sources]
    for source, memory in memories:
        with source.view(memory) as view:
            np.frombuffer(view, np.uint8).fill(1)
        channel.send(source.export(memory))
    channel.receive()
    for source, memory in memories:
        source.free(memory)
    return {}


def _consume_bandwidth(
    context: Context, *, nbytes: int, plain_first: bool, repeats: int
) -> dict[str, Any]:
    """Copy between a mapping and a private array, in both directions. Return the seconds per copy.

    The function measures a mapping of crossmem and a plain mapping alternately.
    """
    import numpy as np

    channel = context.channel
    floor = context.kept.get("floor")
    if floor is None:
        floor = context.kept["floor"] = FloorPeer("")
        floor.connect(channel.receive())
    private = np.ones(nbytes, np.uint8)
    sources = {"plain": floor, "crossmem": context.peer}
    order = ["plain", "crossmem"] if plain_first else ["crossmem", "plain"]
    mappings = {name: sources[name].attach(channel.receive()) for name in order}
    arrays = {
        name: np.frombuffer(sources[name].view(mapping), np.uint8)
        for name, mapping in mappings.items()
    }
    inner = range(max(1, _COPIED_NBYTES // nbytes))
    times: dict[str, list[float]] = {}
    for turn in range(-1, repeats):  # the first turn fills the page tables and is not counted
        for name in order if turn % 2 else reversed(order):
            array = arrays[name]
            for direction, target, source in (
                ("read", private, array),
                ("write", array, private),
            ):
                start = perf_counter()
                for _ in inner:
                    np.copyto(target, source)
                seconds = (perf_counter() - start) / len(inner)
                if turn >= 0:
                    times.setdefault(f"{name} {direction}", []).append(seconds)
    del array, target, source
    arrays.clear()
    for name, mapping in mappings.items():
        sources[name].detach(mapping)
    channel.send(b"done")
    return times


CROSSMEM_JOBS: Final[Halves] = MappingProxyType(
    {
        "batch": (_produce_batch, _consume_batch),
        "repeats": (_produce_repeats, _consume_repeats),
        "kept": (_produce_kept, _consume_kept),
        "marked": (_produce_marked, _consume_marked),
        "bandwidth": (_produce_bandwidth, _consume_bandwidth),
    }
)
"""The producer's and the consumer's half of each job."""
