# SPDX-License-Identifier: Apache-2.0
"""Copies trees from another node. The bytes travel through Ray's object store.

A task on the sender's node attaches the tree's memory and yields the bytes of the arrays in pieces
of at most 16 MiB. The receiver allocates memory with crossmem and writes the pieces into it. Arrays
that overlap also overlap in the copy.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pickle import PickleBuffer
from typing import Any, Final

from crossmem.arrays.copy_ranges import CopyRange, find_range, pack_ranges
from crossmem.errors import UnsupportedError
from crossmem.models import ShareableHandle
from crossmem.ray.session import import_ray, is_answering_thread, waiting
from crossmem.sharing.base.devices import runtime_in_use
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import drain
from crossmem.sharing.device import device
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.importer.attach import attach_many
from crossmem.trees.building import build
from crossmem.trees.message import Message, Row

__all__ = ["copy_from", "read_out"]

_PIECE_NBYTES: Final = 16 * 2**20
_PIECES: Final = 4
"""The largest number of pieces in transit. This number limits the space that a tree takes in the
object store."""


def copy_from(origin: str, blob: bytes) -> Any:
    """Return a copy of the tree that a message describes.

    Parameters
    ----------
    origin
        Ray's id of the sender's node, where the memory lies.
    blob
        The wire form of the message.

    Raises
    ------
    UnsupportedError
        The calling thread is the one on which Ray deserialises awaited objects. That thread must
        not wait for Ray.
    CrossmemError
        The import on the other node failed, or this node has no room for the copy.
    """
    if is_answering_thread():
        msg = "`await` and ObjectRef.future() use a thread of Ray that must not wait for a copy"
        raise UnsupportedError(
            msg,
            operation="receive",
            hint="use `await asyncio.to_thread(ray.get, ref)`, or pass ref as an argument",
        )
    ray = import_ray()
    message = Message.from_bytes(blob)
    extents: list[list[tuple[int, int]]] = [[] for _ in message.handles]
    for row in message.rows:
        if row.handle is not None and row.layout.extent is not None:
            extents[row.handle].append(row.layout.extent)
    ranges = [pack_ranges(own) for own in extents]
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(origin, soft=False)
    parts = [[(covered.low, covered.high) for covered in own] for own in ranges]
    memories = []
    with waiting():
        pieces = _task().options(scheduling_strategy=place).remote(blob, parts)
        for handle, own in zip(message.handles, ranges, strict=True):
            memory = _allocate(handle, own)
            for covered in own:
                for offset in range(0, covered.high - covered.low, _PIECE_NBYTES):
                    (piece,) = ray.get(next(pieces))
                    memory.write(piece, offset=covered.start + offset)
            memories.append(memory)
    rows = tuple(_moved(row, ranges) for row in message.rows)
    return build(message._replace(rows=rows), memories)


def _allocate(handle: ShareableHandle, ranges: list[CopyRange]) -> Allocation:
    """Return new memory for the given ranges, on the first device of the handle's backend."""
    home = device(f"{handle.backend}:0", runtime=runtime_in_use(drain(), handle.backend))
    memory = home.allocate(ranges[-1].end)
    leave_to_views(memory)
    return memory


def read_out(blob: bytes, parts: list[list[tuple[int, int]]]) -> Iterator[list[PickleBuffer]]:
    """Yield the bytes of the given parts, in pieces. This function runs as a Ray task.

    Parameters
    ----------
    blob
        The wire form of the message.
    parts
        For each handle of the message, the start and end offset of each part to copy.
    """
    with ExitStack() as stack:
        mappings = attach_many(Message.from_bytes(blob).handles)
        for mapping in mappings:
            stack.callback(mapping.unmap)
        for mapping, own in zip(mappings, parts, strict=True):
            for low, high in own:
                for offset in range(low, high, _PIECE_NBYTES):
                    nbytes = min(_PIECE_NBYTES, high - offset)
                    # Ray sends this buffer out of band, so the pickle contains no copy of it.
                    yield [PickleBuffer(mapping.read(nbytes, offset=offset))]


@cache
def _task() -> Any:
    options = {"num_cpus": 0, "_generator_backpressure_num_objects": _PIECES}
    return import_ray().remote(**options)(read_out)


def _moved(row: Row, ranges: list[list[CopyRange]]) -> Row:
    """Return the row of the array in the copy. Only the array's offset differs from ``row``."""
    layout = row.layout
    if row.handle is None or layout.extent is None:
        return row
    own = ranges[row.handle]
    covered = own[find_range(own, layout.extent[0])]
    return row._replace(layout=layout.at(layout.offset - covered.low + covered.start))
