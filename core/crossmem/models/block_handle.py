# SPDX-License-Identifier: Apache-2.0
"""The handle of a block of a pool, or of a part of the block."""

import struct
from binascii import crc32
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from typing_extensions import override

from crossmem.errors import InvalidSizeError
from crossmem.guards import check_part
from crossmem.models.handle import (
    HEADER,
    MAGIC,
    VERSION,
    ShareableHandle,
    arena_handle,
    block_readers,
)
from crossmem.models.handle_core import FLAG_BLOCK, FLAG_READONLY, MIN_CORE_NBYTES, refuse

__all__ = ["BLOCK_ALIGNMENT", "BLOCK_START", "BlockHandle", "PoolCore"]

# offset and length of the part; index, generation and size of the block
_BODY: Final = struct.Struct("<QQIQQ")
# slot of the first block, distance between blocks in units of BLOCK_ALIGNMENT
_GEOMETRY: Final = struct.Struct("<II")
BLOCK_ALIGNMENT: Final = 64
"""The distance between two blocks is a multiple of this number of bytes."""
BLOCK_START: Final = HEADER.size + _BODY.size
"""The bytes of a handle from this offset on are the same in all handles of a pool."""
_MIN_NBYTES: Final = BLOCK_START + MIN_CORE_NBYTES + _GEOMETRY.size

Fields = tuple[int, int, int, int, int]
"""Offset and length of the part; index, generation and size of the block."""
_POOL, _FIELDS, _BYTES = range(3)


@dataclass(frozen=True, slots=True)
class PoolCore:
    """The contents that are the same in all handles of a pool.

    Parameters
    ----------
    arena
        The handle of the pool's memory.
    slot
        The slot of the first block. The slots of the other blocks follow it.
    stride
        Bytes from one block to the next. Each block has this capacity.
    blocks
        Number of blocks.
    shared
        The last bytes of each handle, which encode the pool.
    head
        The first twelve bytes of each handle.
    start
        The checksum of the header and of ``shared``. In this calculation, the header's own checksum
        field is 0. :meth:`BlockHandle.to_bytes` continues this checksum over the other bytes of a
        handle.
    """

    arena: ShareableHandle
    slot: int
    stride: int
    blocks: int
    shared: bytes
    head: bytes
    start: int

    @classmethod
    def of(cls, arena: ShareableHandle, slot: int, stride: int) -> "PoolCore":
        """Return the common contents of the handles of a pool with this arena and geometry."""
        core = arena.core
        shared = core[2:] + _GEOMETRY.pack(slot, stride // BLOCK_ALIGNMENT)
        flags = FLAG_BLOCK | int.from_bytes(core[:2], "little")
        header = HEADER.pack(MAGIC, VERSION, flags, BLOCK_START + len(shared), 0)
        blocks = arena.nbytes // stride
        return cls(arena, slot, stride, blocks, shared, header[:-4], crc32(shared, crc32(header)))


class BlockHandle(ShareableHandle):
    """An immutable name for a part of a block of a pool, valid in any process of the host.

    The part may be the whole block.
    """

    __slots__ = ("_parts",)

    _parts: list[Any]
    """The pool, the :data:`Fields` of this handle, and the wire form or None. One list holds all
    three, because each write to an attribute of an immutable object costs a call."""

    def __init__(self, pool: PoolCore, fields: Fields, blob: bytes | None = None) -> None:
        """Make a handle of a part of a block.

        Only the owner of the pool gives a block a new generation. Another process takes the
        generation in ``fields`` from a handle that the owner made.
        """
        _set_parts(self, [pool, fields, blob])

    # The following attributes are properties, so that the constructor stores fewer values.
    _core = property(attrgetter("pool.arena._core"))

    @property
    def pool(self) -> PoolCore:
        """The contents that are the same in all handles of the pool."""
        pool: PoolCore = self._parts[_POOL]
        return pool

    @property
    def _fields(self) -> Fields:
        fields: Fields = self._parts[_FIELDS]
        return fields

    @property
    @override
    def offset(self) -> int:  # type: ignore[override]
        """Start of the part, counted in bytes from the start of the block."""
        return self._fields[0]

    @property
    @override
    def length(self) -> int:  # type: ignore[override]
        """Length of the part, in bytes."""
        return self._fields[1]

    @property
    def index(self) -> int:
        """Index of the block in the pool."""
        return self._fields[2]

    @property
    @override
    def generation(self) -> int:  # type: ignore[override]
        """The generation of the block when the owner made this handle.

        If the block has a later generation now, the handle is stale.
        """
        return self._fields[3]

    @property
    @override
    def export(self) -> int:  # type: ignore[override]
        """The number of the block's export: the index plus 1, because 0 is the arena's export."""
        return self._fields[2] + 1

    @property
    @override
    def nbytes(self) -> int:  # type: ignore[override]
        """Requested size of the whole block, in bytes."""
        return self._fields[4]

    @property
    @override
    def capacity(self) -> int:  # type: ignore[override]
        """Reserved size of the whole block, in bytes."""
        return self.pool.stride

    @override
    def slice(self, offset: int, nbytes: int) -> "BlockHandle":
        start, length = check_part(offset, nbytes, limit=self.length)
        if not length:
            msg = "a part must have at least 1 byte"
            raise InvalidSizeError(msg, operation="slice", backend=self.backend)
        return BlockHandle(self.pool, (self.offset + start, length, *self._fields[2:]))

    @override
    def to_bytes(self) -> bytes:
        pool: PoolCore
        blob: bytes | None
        pool, fields, blob = parts = self._parts
        if blob is None:
            body = _pack_body(*fields)
            blob = _pack_head(pool.head, crc32(body, pool.start)) + body + pool.shared
            parts[_BYTES] = blob
        return blob

    @override
    def _more_json(self) -> dict[str, int]:
        return {"block": self.index, "generation": self.generation}

    @override
    def __repr__(self) -> str:
        part = "" if self.length == self.nbytes else f" part [{self.offset}, +{self.length}) of"
        return (
            f"<ShareableHandle {self.digest}:{part} {self.nbytes} bytes, block {self.index} of the "
            f"pool {self.allocation} of pid {self.owner.pid}, {self.backend}/{self.mechanism} on "
            f"{self.device}, {self.access}>"
        )


# A handle refuses attribute assignments. The descriptor of a ``__slots__`` attribute accepts them.
_set_parts: Final = BlockHandle.__dict__["_parts"].__set__
_pack_body: Final = _BODY.pack
_pack_head: Final = struct.Struct("<12sI").pack


def _decode_block(blob: bytes) -> BlockHandle:
    """Decode the wire form of a block's handle. All bytes are untrusted."""
    if len(blob) < _MIN_NBYTES:
        raise refuse(f"{len(blob)} bytes, expected at least {_MIN_NBYTES}")
    head = blob[: HEADER.size - 4]
    pool = _decode_pool(blob[BLOCK_START:], head)
    checksum = int.from_bytes(blob[HEADER.size - 4 : HEADER.size], "little")
    # The checksum must cover the shared bytes as they were received. pool.start is not used here,
    # because it covers the shared bytes as PoolCore.of() packs them.
    start = crc32(blob[BLOCK_START:], crc32(head + bytes(4)))
    if crc32(blob[HEADER.size : BLOCK_START], start) != checksum:
        raise refuse("the checksum does not match; the bytes were damaged on the way")
    fields = offset, length, index, generation, nbytes = _BODY.unpack_from(blob, HEADER.size)
    if not (0 < length <= nbytes - offset and nbytes <= pool.stride and index < pool.blocks):
        raise refuse(
            f"part [{offset}, {offset + length}) of block {index} of {nbytes} bytes does not exist"
        )
    if not generation % 2:
        raise refuse(f"generation {generation} is not odd")
    return BlockHandle(pool, fields, blob)


# A process decodes many handles of few pools, so decoded pools are cached.
@lru_cache(maxsize=256)
def _decode_pool(shared: bytes, head: bytes) -> PoolCore:
    _magic, _version, flags, total, _checksum = HEADER.unpack(head + bytes(4))
    if total != BLOCK_START + len(shared) or flags & ~(FLAG_BLOCK | FLAG_READONLY):
        raise refuse(f"the header's length {total} is wrong, or its flags {flags:#x} are invalid")
    arena = arena_handle(shared[: -_GEOMETRY.size], flags & FLAG_READONLY)
    slot, units = _GEOMETRY.unpack_from(shared, len(shared) - _GEOMETRY.size)
    stride = units * BLOCK_ALIGNMENT
    if arena.export:
        raise refuse(f"a pool has only export 0, not {arena.export}")
    if not 0 < stride <= arena.nbytes:
        raise refuse(f"a pool of {arena.nbytes} bytes cannot have blocks of {stride} bytes")
    return PoolCore.of(arena, slot, stride)


block_readers.append(_decode_block)
