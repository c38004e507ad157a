# SPDX-License-Identifier: Apache-2.0
"""The benchmark's jobs with many imports, allocations or importers, and a job without importers.

A job is a pair of functions: one runs in the producer, the other at the same time in the consumer.
"""

import os
import resource
from pathlib import Path
from threading import active_count
from types import MappingProxyType
from typing import Any, Final

import crossmem
from crossmem.bench.jobs import Context, Halves, timed
from crossmem.control import rows, segments
from crossmem.control.arenas import BATCH
from crossmem.control.leases import Holder, Row
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.slots import SlotTable
from crossmem.driver import Exported
from crossmem.sharing.base.process import current

__all__ = ["SCALE_JOBS"]


def _descriptors() -> dict[str, int]:
    """Count this process's descriptors, and the sockets among them."""
    kinds = {"all": 0, "sockets": 0}
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # the listing's own descriptor, now closed
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
    """Attach all parts of the allocations, and keep all mappings open at the same time.

    Return how long some early calls and some late calls of ``attach`` took, and how long it took to
    close one mapping. Also return the number of mappings, the number of threads while all mappings
    were open, and the numbers of descriptors before and after the calls of ``attach``.
    """
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
    """Set the limit on descriptors so that ``room`` are free. Then allocate until a call fails.

    Stop after ``2 * room`` allocations if no call fails. Return the number of allocations, the type
    of the error, and whether the error's text names the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memories: list[Any] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors()["all"] + room, hard))
    failure: Exception | None = None
    try:
        while len(memories) < 2 * room:
            memories.append(context.peer.create(nbytes))
    except Exception as error:  # noqa: BLE001 - the result has the error's type
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


def _produce_rows(context: Context, *, importers: int, repeats: int) -> dict[str, Any]:
    """Measure how long the exporter takes to read the rows of many importers for one export.

    This process makes all rows itself, and no row holds the export.
    """
    memory = context.peer.create(4096)
    handle = crossmem.ShareableHandle.from_bytes(context.peer.export(memory))
    table, unit = SlotTable(), Unit(handle.allocation, None, lambda: None)
    export = Export(unit, handle, Allow(), Exported(), slot=table.take())
    unit.exports[handle.export] = export
    for number in range(importers):
        made: list[int] = []
        row = segments.create("crossmem-row", made, is_written_by_maker=False)
        os.close(made[0])
        export.rows[Row(Holder(number, 0), row, 0)] = row.words
    times = [timed(lambda: rows.is_held(unit))[0] for _ in range(repeats)]
    table.close()
    context.peer.free(memory)
    return {"read": times}


def _produce_block_rows(context: Context, *, importers: int, batches: int) -> dict[str, Any]:
    """Measure the duration of the calls that free blocks of a pool with many importers.

    This process makes the importers' rows itself, and no row holds a block.
    """
    pool = crossmem.device(context.peer.device).pool(4096, 2 * BATCH)
    first = pool.allocate()
    first.export()
    server = current().server
    assert server is not None
    (arena,) = (one for one in server.leases.pools.arenas.values() if one.blocks == 2 * BATCH)
    for number in range(importers):
        made: list[int] = []
        row = segments.create("crossmem-row", made, is_written_by_maker=False)
        os.close(made[0])
        arena.export.rows[Row(Holder(number, 0), row, 0)] = row.words
    times = []
    for _ in range(batches):
        blocks = [pool.allocate() for _ in range(BATCH)]
        for block in blocks:
            block.export()

        def free_all(freed: list[crossmem.Block] = blocks) -> None:
            for block in freed:
                block.free()

        times.append(timed(free_all)[0] / BATCH)
    first.free()
    pool.close()
    return {"free": times}


def _produce_loop(context: Context, *, nbytes: int, count: int) -> dict[str, Any]:
    """Measure how long it takes to create, export and free memory that nobody imports."""
    peer = context.peer

    def live() -> None:
        memory = peer.create(nbytes)
        peer.export(memory)
        peer.free(memory)

    return {"each": [timed(live)[0] for _ in range(count)]}


def _consume_nothing(context: Context, **_: Any) -> dict[str, Any]:  # noqa: ARG001 - see Half
    return {}


SCALE_JOBS: Final[Halves] = MappingProxyType(
    {
        "parts": (_produce_parts, _consume_parts),
        "separate": (_produce_separate, _consume_separate),
        "exhaust": (_produce_exhaust, _consume_nothing),
        "rows": (_produce_rows, _consume_nothing),
        "block-rows": (_produce_block_rows, _consume_nothing),
        "loop": (_produce_loop, _consume_nothing),
    }
)
"""The producer's and the consumer's half of each job."""
