# SPDX-License-Identifier: Apache-2.0
"""The objects by which an application holds blocks of a pool: imports and mappings."""

import struct
from binascii import crc32
from sys import gettrace
from time import monotonic
from typing import ClassVar, Final

from typing_extensions import override

from crossmem.models import BlockHandle, ShareableHandle
from crossmem.models.block_handle import BLOCK_START
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
_BODY_START: Final = HEADER.size
_new: Final = object.__new__


class BlockImport(Import):
    """An import of a block of a pool. The block is held until the import is closed."""

    __slots__ = ()

    handle: BlockHandle
    _record: LinkedHold | None

    @override
    def map(self) -> Mapping:
        """Map the block at an address in this process; see :meth:`Import.map`."""
        parent = record_of_import(self)[0]
        assert isinstance(parent, BlockHold)  # noqa: S101 - the record of a BlockImport is a hold
        process = self._process
        hold = LinkedHold(parent.arena, parent.index)
        try:
            with process.state:
                # If another thread has closed the import, this call raises.
                record_of_import(self)
                hold.parent = parent
                children_of(parent).add(hold)
                # The import already holds the block, so the result of take() does not matter.
                hold.take(self.handle.generation)
                # If a signal handler has closed the import in the meantime, this call raises.
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
        # This statement comes last: it makes the finaliser of this object responsible for the hold.
        self._record = hold

    @override
    def _end(self) -> None:
        hold, process = self._record, self._process
        if type(hold) is BlockHold and gettrace() is None:
            arena, index = hold.arena, hold.index
            at, row, holders = arena.at + index, arena.row, arena.holders
            # From this condition to ``is_done = True``, the code has no call and no loop. So no
            # signal handler and no other thread runs in between, and no lock is needed. A thread
            # that begins a copy or a view first sets a field that this condition checks, and then
            # reads ``_record`` again. So either this branch sees the copy or view, or that thread
            # sees that the mapping ended.
            if not (
                self._record is None
                or process.is_inherited
                or process.is_closed
                or arena.ready
                or arena.idle
                or arena.copies
                or self._is_lent
                or self._anchor is not None
                or not arena.is_plain
                or index not in holders
                or holders[index] is not hold
            ):
                word = row[at]
                row[at] = 0
                del holders[index]
                self._record = None
                self.__class__ = self._when_ended
                hold.is_done = True
                if arena.control[at] <= word + 1:
                    return
                # The owner waits for a hint.
                arena.ready[hold] = None
                arena.awaited += (index,)
                process.deferred.run(hold)
                return
        super()._end()

    @property
    @override
    def handle(self) -> ShareableHandle:  # type: ignore[override]
        """The handle of the mapped part."""
        named = self._named
        return ShareableHandle.from_bytes(named) if isinstance(named, bytes) else named

    @override
    def _rename(self, handle: ShareableHandle) -> None:
        self._named = handle


def mapping_of(hold: BlockHold, handle: BlockHandle, readonly: Readonly) -> Mapping:
    """Return a mapping for a hold."""
    arena = hold.arena
    pointer = arena.base + handle.index * arena.pool.stride + handle.offset
    is_readonly = arena.is_readonly or readonly is not False
    return BlockMapping(hold, handle, handle.length, pointer, is_readonly)


def attach_bytes(arena: ArenaImport, blob: bytes) -> BlockMapping | None:
    """Attach a block of an open pool by the bytes of the block's handle, without a system call.

    Return None if the caller must take the general path, for example to check the owner or to
    report an error.
    """
    head, checksum, offset, length, index, generation, nbytes = _unpack(blob)
    stride = arena.stride
    if (
        head != arena.head
        or crc32(blob[_BODY_START:BLOCK_START], arena.start) != checksum
        or not offset < offset + length <= nbytes <= stride
        or index >= arena.blocks
        or not generation & 1
        or monotonic() >= arena.look_at
    ):
        return None
    pointer = arena.base + index * stride + offset
    if arena.is_plain and gettrace() is None:
        # Both objects are made before the step below, which must not contain a call.
        hold = _new(BlockHold)
        hold.is_done = False
        hold.arena = arena
        hold.index = index
        hold.is_sure = True
        mapping = _new(BlockMapping)
        mapping._process = arena.process
        mapping.device = arena.device
        mapping.nbytes = length
        mapping.readonly = arena.is_readonly
        mapping._usage = arena.usage
        mapping._anchor = None
        mapping._is_lent = False
        mapping._is_left = False
        mapping._pointer = pointer
        mapping._named = blob
        row, at, holders = arena.row, arena.at + index, arena.holders
        # One step: no signal handler and no other thread runs before the mapping is returned.
        if arena.is_open and index not in holders and not row[at]:
            holders[index] = hold
            row[at] = generation
            if arena.control[at] == generation:
                mapping._record = hold
                return mapping
            # The generation has changed, possibly before the owner could see this hold. So the hold
            # does not prove that the owner keeps the block.
            hold.is_sure = False
            arena.ready[hold] = None
            arena.process.drain()
            return None
    return _attach_held(arena, blob, index, generation, length, pointer)


def _attach_held(
    arena: ArenaImport, blob: bytes, index: int, generation: int, length: int, pointer: int
) -> BlockMapping | None:
    """Attach a block while holding the lock ``process.state``.

    :func:`attach_bytes` calls this function if this process already holds the block, if the hold
    needs a fence or a wait for the device, or if a trace function, such as a debugger's, is set.
    Return None if the caller must take the general path.
    """
    process = arena.process
    hold = arena.hold_kind(arena, index)
    try:
        with process.state:
            if not arena.is_open:
                return None
            if not hold.take(generation):
                BlockHold.leave_to_others(hold)
                return None
        return BlockMapping(hold, blob, length, pointer, arena.is_readonly)
    except BaseException:
        arena.ready[hold] = None
        process.drain()
        raise
