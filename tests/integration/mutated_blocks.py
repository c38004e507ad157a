# SPDX-License-Identifier: Apache-2.0
"""Two programs of test_mutated_handles.py: one with pools, and one that attaches wrong blocks.

``python mutated_blocks.py export`` prints the handles of its blocks, waits for a line, checks its
memory and prints what it found. ``python mutated_blocks.py import COUNT SEED`` reads handles from
its standard input, tries COUNT mutations of them and prints what happened.
"""

import json
import random
import struct
import sys
import time
from binascii import crc32
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import crossmem
from crossmem.models import BlockHandle
from crossmem.models.block_handle import BLOCK_START
from crossmem.models.handle import HEADER
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.blocks import PoolImports
from crossmem.sharing.importer.messages import discard, reserve

if TYPE_CHECKING:
    from tests.integration import mutated_handles
else:
    import mutated_handles

BODY_NBYTES = 36
GEOMETRY_NBYTES = 8
# Everything that the handle of an allocation has after its part comes after the body, too.
MOVED = 16 + BODY_NBYTES - 32
NUMBERS = [
    ("version", 4, "<H"), ("flags", 6, "<H"), ("total", 8, "<I"),
    ("offset", 16, "<Q"), ("length", 24, "<Q"), ("index", 32, "<I"), ("generation", 36, "<Q"),
    ("nbytes", 44, "<Q"),
    *((name, at + MOVED, layout) for name, at, layout in mutated_handles.NUMBERS if at >= 32),
]  # fmt: skip
FIELDS = [
    (16, 24), (24, 32), (32, 36), (36, 44), (44, 52), (16, 52), (32, 44),
    *((first + MOVED, last + MOVED) for first, last in mutated_handles.FIELDS if first >= 32),
]  # fmt: skip
NBYTES = 5000
SETTLED_WITHIN_S = 5.0
THREADS_END_WITHIN_S = 0.5


class Pool:
    """A pool whose whole memory has known contents, with blocks in all states."""

    def __init__(self, device: crossmem.Device, nbytes: int, blocks: int, **options: Any) -> None:
        self.pool = device.pool(nbytes, blocks, **options)
        whole = [self.pool.allocate() for _ in range(blocks)]
        self.base = min(one.ptr for one in whole)
        self.capacity = self.pool.block_nbytes * blocks
        handle = whole[0].export()
        self.contents = contents_of(handle, self.capacity)
        for one in whole:
            start = one.ptr - self.base
            one.write(self.contents[start : start + one.nbytes])
        for one in whole[1:]:
            one.free()
        whole[0].free()
        self.live = [self.pool.allocate(nbytes - 10 * n) for n in range(blocks // 2)]
        withdrawn = self.live[-1].export()
        self.live[-1].withdraw(withdrawn)
        self.stale = [handle, withdrawn]
        self.handles = [one.export() for one in self.live]
        self.handles.append(self.handles[0].slice(100, 1000))

    def is_damaged(self) -> bool:
        """Whether a live block shows something else."""
        return any(
            one.read() != self.contents[one.ptr - self.base :][: one.nbytes] for one in self.live
        )

    def close(self) -> None:
        """Free everything."""
        for one in self.live:
            one.free()
        self.pool.close()


def contents_of(handle: crossmem.ShareableHandle, nbytes: int) -> bytes:
    """Return what the memory of a pool shows."""
    return mutated_handles.pattern(mutated_handles.tag_of(handle), nbytes)


def make_pools() -> list[Pool]:
    """Make pools of one geometry, and others."""
    device, other = crossmem.device("emulated:0"), crossmem.device("emulated:1")
    return [
        Pool(device, NBYTES, 8),
        Pool(device, NBYTES, 8),
        Pool(device, NBYTES, 8, access="ro"),
        Pool(device, 2 * NBYTES, 4),
        Pool(other, NBYTES, 8),
    ]


def export() -> None:
    pools = make_pools()
    handles = [one for pool in pools for one in (*pool.handles, *pool.stale)]
    print(json.dumps([one.to_bytes().hex() for one in handles]), flush=True)
    sys.stdin.readline()

    def held() -> int:
        found = [one.pool.stats() for one in pools]
        return sum(len(one.holders) + one.waiting + one.in_messages for one in found)

    end = time.monotonic() + SETTLED_WITHIN_S
    while held() and time.monotonic() < end:
        time.sleep(0.01)
    report = {"damaged": sum(one.is_damaged() for one in pools), "leased": held()}
    print(json.dumps(report), flush=True)
    for one in pools:
        one.close()


class BlockMutator(mutated_handles.Mutator):
    """Makes wrong handles of blocks from right ones."""

    numbers = NUMBERS
    fields = FIELDS
    names = mutated_handles.NAMES + MOVED
    lengths = mutated_handles.Mutator.lengths + MOVED
    tail = GEOMETRY_NBYTES

    def __init__(self, blobs: list[bytes], chance: random.Random) -> None:
        super().__init__(blobs, chance)
        # More of what only handles of blocks have.
        self.kinds += [self.forge_block, self.forge_block, self.forge_geometry]

    def forge_block(self, blob: bytearray) -> bytearray:
        """Forge a part that the pool may have: another block, generation or size."""
        offset, length, index, generation, nbytes = struct.unpack_from("<QQIQQ", blob, 16)
        for _ in range(self.chance.choice((1, 1, 2))):
            what = self.chance.randrange(4)
            if what == 0:
                index = self.chance.randrange(10)
            elif what == 1:
                generation = max(0, generation + self.chance.choice((-4, -2, -1, 1, 2, 4, 1 << 40)))
            elif what == 2:
                nbytes = self.chance.choice((1, NBYTES, 5056, 5057, 10_048, 1 << 40))
            else:
                offset = self.chance.choice((0, 1, 4999, 5055, 5056, (1 << 64) - 1))
                length = self.chance.choice((0, 1, 5000, 5056, (1 << 64) - 1))
        struct.pack_into("<QQIQQ", blob, 16, offset, length, index, generation, nbytes)
        return blob

    def forge_geometry(self, blob: bytearray) -> bytearray:
        """Forge the slot of the first block, and the distance between blocks."""
        at = len(blob) - GEOMETRY_NBYTES
        slot, units = struct.unpack_from("<II", blob, at)
        if self.chance.random() < 0.6:
            near = (slot + one for one in (-10, -2, -1, 1, 2, 10))
            slot = self.chance.choice((*near, 0, 1, (1 << 20) - 1, 1 << 20, (1 << 32) - 1))
        else:
            units = self.chance.choice((0, 1, units - 1, units + 1, 2 * units, (1 << 32) - 1))
        if self.chance.random() < 0.3:
            other = self.chance.choice(self.blobs)
            blob[at:] = other[-GEOMETRY_NBYTES:]
            return blob
        struct.pack_into("<II", blob, at, slot % (1 << 32), units % (1 << 32))
        return blob

    @override
    def seal(self, blob: bytearray) -> bytes:
        # The header, the bytes that all handles of the pool share, and then the others.
        at = mutated_handles.CHECKSUM
        if len(blob) >= at + 4:
            blob[at : at + 4] = bytes(4)
            start = crc32(blob[BLOCK_START:], crc32(blob[: HEADER.size]))
            checksum = crc32(blob[HEADER.size : BLOCK_START], start)
            blob[at : at + 4] = struct.pack("<I", checksum)
        return bytes(blob)


class BlockImporter(mutated_handles.Importer):
    """Tries wrong handles of blocks and says what should not have happened."""

    imported: Any = None
    """The import object of the attempt, if it made one."""
    is_first_right = False
    """Whether the attempt attaches a right handle, too, which may call a driver."""

    @override
    def begin(self, blobs: list[bytes]) -> None:
        self.own_pools = make_pools()
        own = [one.to_bytes() for pool in self.own_pools for one in pool.handles]
        stale = [one.to_bytes() for pool in self.own_pools for one in pool.stale]
        self.mutate = BlockMutator([*blobs, *own, *stale], self.chance)
        self.handles = []
        self.live: set[tuple[bytes, int, int]] = set()
        for blob in (*blobs, *own):
            handle = crossmem.ShareableHandle.from_bytes(blob)
            assert isinstance(handle, BlockHandle)
            # Some of them are stale.
            with suppress(crossmem.StaleHandleError), crossmem.attach(handle):
                self.handles.append(handle)
                self.live.add(life_of(handle))

    @override
    def attach(self, blob: bytes, options: dict[str, Any]) -> Any:
        way = self.chance.randrange(6)
        self.is_first_right = way == 0
        if way in {1, 2}:
            # The bytes take a way of their own, once the pool is open.
            return super().attach(blob, options)
        if way == 0:
            known = self.chance.choice(self.handles)
            first, mapping = crossmem.attach_many([known, blob], **options)
            first.unmap()
            return mapping
        handle = crossmem.ShareableHandle.from_bytes(blob)
        if way == 3:
            self.imported = crossmem.import_handle(handle, **options)
            return self.imported.map()
        if way == 4:
            (number,) = reserve([handle])
            discard([(handle, number)])
        return crossmem.attach(handle, **options)

    @override
    def detach(self, mapping: Any) -> None:
        super().detach(mapping)
        if self.imported is not None:
            self.imported.close()
            self.imported = None

    @override
    def may_call(self, error: crossmem.CrossmemError) -> bool:
        # Only a word of the open pool says that a handle of this pool is stale.
        return self.is_first_right or isinstance(error, crossmem.StaleHandleError)

    @override
    def check(self, mapping: Any, kind: str, blob: bytes, options: dict[str, Any]) -> None:
        handle = crossmem.ShareableHandle.from_bytes(blob)
        assert isinstance(handle, BlockHandle)
        if life_of(handle) not in self.live:
            self.problem("is a block that does not live", kind, blob, options, None)
        start = handle.index * handle.pool.stride + handle.offset
        expected = contents_of(handle, start + handle.length)[start:]
        if mapping.read() != expected or mapping.nbytes != handle.length:
            self.problem("shows other bytes", kind, blob, options, None)
        if handle.access == "ro" and not mapping.readonly:
            self.problem("became writable", kind, blob, options, None)
        known = {pool.base: pool.capacity for pool in self.own_pools}
        for tracer in self.tracers:
            known |= tracer.mapped
        if start + mapping.nbytes > known.get(mapping.ptr - start, 0):
            self.problem("lies outside of the pool", kind, blob, options, None)

    @override
    def let_go(self) -> None:
        super().let_go()
        current().part(PoolImports).close_idle()

    @override
    def footprint(self) -> dict[str, Any]:
        self.let_go()
        # The thread that looks at open pools ends when none is left.
        time.sleep(THREADS_END_WITHIN_S)
        return super().footprint()

    @override
    def end(self) -> None:
        for pool in self.own_pools:
            stats = pool.pool.stats()
            if pool.is_damaged() or stats.holders or stats.waiting or stats.in_messages:
                self.problems.append(f"own pool was changed: {stats}")
            pool.close()


def life_of(handle: BlockHandle) -> tuple[bytes, int, int]:
    """Return what is the same in all handles of one life of a block."""
    return handle.pool.shared, handle.index, handle.generation


def main() -> None:
    if sys.argv[1] == "export":
        export()
        return
    blobs = [bytes.fromhex(one) for one in json.loads(sys.stdin.readline())]
    print(json.dumps(BlockImporter(blobs, int(sys.argv[3])).run(int(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
