# SPDX-License-Identifier: Apache-2.0
"""The objects by which an application holds blocks of another process: imports and mappings."""

import struct
from binascii import crc32
from time import monotonic
from typing import ClassVar, Final

from typing_extensions import override

from crossmem.models import BlockHandle, ShareableHandle
from crossmem.models.handle import HEADER
from crossmem.sharing.importer.block_holds import ArenaImport, BlockHold, LinkedHold
from crossmem.sharing.importer.mapping import (
    Import,
    Mapping,
    Readonly,
    children_of,
    record_of_import,
)
from crossmem.sharing.importer.watcher import end_with_owner

__all__ = ["BlockImport", "BlockMapping", "attach_bytes", "mapping_of"]

_unpack: Final = struct.Struct("<12sIQQIQQ").unpack_from


class BlockImport(Import):
    """A hold on a block of another process's pool, which lasts until this object is closed."""

    __slots__ = ()

    handle: BlockHandle
    _record: LinkedHold | None

    @override
    def map(self) -> Mapping:
        """Give the block an address in this process; see :meth:`Import.map`."""
        parent = record_of_import(self)[0]
        assert isinstance(parent, BlockHold)  # noqa: S101 - made so
        process = self._process
        hold = LinkedHold(parent.arena, parent.index)
        try:
            with process.state:
                # Another thread may have closed the import.
                record_of_import(self)
                hold.parent = parent
                children_of(parent).add(hold)
                # The import already holds the block, so the result of take() does not matter.
                hold.take(self.handle.generation)
                # A signal handler may have closed it since.
                record_of_import(self)
            mapping = mapping_of(hold, self.handle, self.readonly)
            if parent.ends_with_owner:
                end_with_owner(mapping, hold, hold)
            return mapping
        except BaseException:
            process.deferred.ready[hold] = None
            process.drain()
            raise


class BlockMapping(Mapping):
    """A block at an address of this process."""

    __slots__ = ("_named",)

    _is_block: ClassVar = True

    _record: BlockHold | None

    def __init__(
        self,
        hold: BlockHold,
        named: ShareableHandle | bytes,
        nbytes: int,
        pointer: int,
        readonly: bool,  # noqa: FBT001
    ) -> None:
        arena = hold.arena
        self._process = arena.process
        self.device = arena.device
        self.nbytes = nbytes
        self.readonly = readonly
        self._usage = arena.usage
        self._anchor = None
        self._is_lent = False
        self._is_left = False
        self._pointer = pointer
        self._named = named
        # The last statement: from here on, the finaliser of this object ends the hold.
        self._record = hold

    @property
    @override
    def handle(self) -> ShareableHandle:  # type: ignore[override]
        """The handle of the mapped part."""
        named = self._named
        return ShareableHandle.from_bytes(named) if isinstance(named, bytes) else named

    @override
    def rename(self, handle: ShareableHandle) -> None:
        self._named = handle


def mapping_of(hold: BlockHold, handle: BlockHandle, readonly: Readonly) -> Mapping:
    """Return a mapping for a hold."""
    arena = hold.arena
    pointer = arena.base + handle.index * arena.pool.stride + handle.offset
    is_readonly = arena.is_readonly or readonly is not False
    return BlockMapping(hold, handle, handle.length, pointer, is_readonly)


def attach_bytes(arena: ArenaImport, blob: bytes) -> BlockMapping | None:
    """Attach a block of this pool by the bytes of its handle; None if that takes a message.

    After the first attach of a pool, every attach takes this path. It makes no system call.
    """
    head, checksum, offset, length, index, generation, nbytes = _unpack(blob)
    pool = arena.pool
    end = offset + length
    if (
        head != pool.head
        or crc32(blob[HEADER.size :], pool.head_checksum) != checksum
        or not offset < end <= nbytes <= pool.stride
        or index >= pool.blocks
        or not generation % 2
        or monotonic() >= arena.look_at
    ):
        return None
    hold = arena.hold_kind(arena, index)
    try:
        with arena.process.state:
            if not arena.is_open:
                return None
            if not hold.take(generation):
                BlockHold.leave_to_others(hold)
                return None
        pointer = arena.base + index * pool.stride + offset
        return BlockMapping(hold, blob, length, pointer, arena.is_readonly)
    except BaseException:
        arena.process.deferred.ready[hold] = None
        arena.process.drain()
        raise
