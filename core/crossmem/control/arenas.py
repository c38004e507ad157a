# SPDX-License-Identifier: Apache-2.0
"""The owner's side of a pool: the free blocks, and the freed blocks that still have holders.

Each block has a slot, like the export of an allocation. The slot's generation is odd from the first
export of the block until the block is freed. Before the owner reuses a block that was exported, the
owner executes a barrier and reads the rows. After the barrier, each importer that saw the old
generation has written that generation into its row. One barrier serves many freed blocks.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any, Final

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.control.leases import Holder
from crossmem.control.records import Export, Unit
from crossmem.control.registry import LeaseRegistry
from crossmem.control.segments import BLOCKS_AT, SLOTS
from crossmem.control.slots import Slot
from crossmem.control.wire import Refusal, Status
from crossmem.driver import Exported
from crossmem.errors import CrossmemError
from crossmem.models import BlockHandle, EventKind, PoolCore

__all__ = ["BATCH", "Arena"]

BATCH: Final = 32
"""Number of freed blocks after which the owner reads the rows. In a small pool, half of the pool's
blocks is enough."""
_FRESH: Final = 64
"""Maximum number of never-allocated blocks that enter the free list at once."""
_LOOK_S: Final = 1e-3
"""The longest wait, in seconds, between two checks whether the work of a stream is complete."""
_SPREAD: Final = 4
"""Maximum number of words per checked block in a range that is compared with zeros as a whole."""
_ZEROS: Final = memoryview(bytes(8 * _SPREAD * BATCH)).cast("Q")
_STALE: Final = Refusal(Status.STALE, "the block was freed")


class Arena:
    """The blocks of one pool. Any thread may call the methods.

    Parameters
    ----------
    registry
        The exports and leases of this process.
    export
        The one export of the pool's memory.
    stride
        Bytes from one block to the next.
    wait_for_work
        Waits for the running work of this process on the device; None if the device needs no wait.

    Raises
    ------
    DriverError, OutOfMemoryError, OSError
        No descriptor is free, no memory for a control segment is left, or memfds are missing.
    """

    def __init__(
        self,
        registry: LeaseRegistry,
        export: Export,
        stride: int,
        wait_for_work: Callable[[], object] | None,
    ) -> None:
        self.registry = registry
        self.export = export
        self.wait_for_work = wait_for_work
        self.blocks = export.handle.nbytes // stride
        self.batch = max(1, min(BATCH, self.blocks // 2))
        self.free: list[int] = []
        """Free blocks. The last one is allocated next."""
        self.fresh = 0
        """The first block that has never been in the free list."""
        self.freed: list[int] = []
        """Blocks that were freed since the last read of the rows. Their handles are stale."""
        self.held: dict[int, None] = {}
        """Freed blocks that were held, or used by work of a stream, at their last check."""
        self.streamed: dict[int, Callable[[], bool]] = {}
        """Freed blocks whose work was issued on one stream, each with a function that returns
        whether the work is complete."""
        self.reserved: dict[int, Unit] = {}
        """The lease unit of each block that a message has reserved. The key is the block. The unit
        leaves this table when the block is free again."""
        self.waiting: dict[object, None] = {}
        """Calls that wait for a free block, or until the holders of a block release it. While a
        call waits, each thread that frees a block takes the lock of the process's state."""
        self.is_closing = False
        """Whether the pool was closed, and allocates no more blocks."""
        self._reclaims = 0
        """Number of calls that have moved freed blocks to the other lists."""
        with registry.lock:
            slot = registry.slots.take_range(self.blocks + BLOCKS_AT)
            slot.move_on(is_live=True)
            words.store(slot.words, slot.at + 1, stride)
            export.slot = slot
            export.is_arena = True
            registry.granted[slot.number] = export
            self.words = slot.words
            self.at = slot.at + BLOCKS_AT
            """Index of the first block's word."""
            self.core = PoolCore.of(export.handle, slot.number + BLOCKS_AT, stride)
            self.which = slot.number // SLOTS
            """Number of the control segment."""
            # This statement comes last: other code uses the arena as soon as the table has it.
            registry.pools.arenas[export.handle.allocation] = self

    @property
    def live(self) -> int:
        """Number of blocks that are allocated and not freed."""
        while True:
            # If a reclaim or refill happens between these reads, the loop repeats all of them.
            number, fresh = self._reclaims, self.fresh
            live = fresh - len(self.free) - len(self.freed) - len(self.held)
            if number == self._reclaims and fresh == self.fresh:
                return live

    # The life of a block ----------------------------------------------------------------------

    def refill(self) -> bool:
        """Move never-allocated blocks to the free list; return False if no such block is left."""
        first = self.fresh
        last = min(self.blocks, first + _FRESH)
        with self.registry.lock:
            if first == self.fresh:
                # No signal handler runs between these two statements.
                self.free += range(last - 1, first - 1, -1)
                self.fresh = last
        return last > first

    def retire(self, index: int, generation: int) -> None:
        """Refuse new holds of a generation of a block. A second call does nothing."""
        words.store(self.words, self.at + index, generation + 1)
        if self.reserved:
            unit = self.reserved.get(index)
            if unit is not None:
                unit.is_retired = True

    def retire_if_idle(self, index: int, generation: int) -> bool:
        """Retire a block if it has no holder; return whether it was retired.

        Raises
        ------
        DriverError
            The kernel refuses the barrier. The block is not retired.
        """
        with self.registry.lock:
            is_idle = False
            try:
                self.retire(index, generation)
                words.barrier()
                is_idle = not self.is_held(index)
                return is_idle
            finally:
                if not is_idle:
                    words.store(self.words, self.at + index, generation)
                    unit = self.reserved.get(index)
                    if unit is not None:
                        unit.is_retired = False

    def reclaim(self, *, all_of_them: bool = False) -> int:
        """Move the freed blocks that nothing uses any more to the free list; return their number.

        Parameters
        ----------
        all_of_them
            Also check the blocks in :attr:`held`.

        Raises
        ------
        DriverError, BusyError
            The kernel refuses the barrier, or this process cannot wait for the device's work now.
            The blocks do not become free, and a later call checks them again.
        """
        while (moved := self._reclaim(all_of_them=all_of_them)) is None:
            pass
        return moved

    def _reclaim(self, *, all_of_them: bool) -> int | None:
        """Do the work of :meth:`reclaim`; return None if another call moved blocks meanwhile."""
        # Blocks that are freed during the waits are left to the next call.
        number, looked_at = self._reclaims, tuple(self.freed)
        first = slice(len(looked_at))
        if all_of_them:
            looked_at += tuple(self.held)
        if not looked_at:
            return 0
        running = self._running(looked_at)
        if self.wait_for_work is not None and not self.streamed.keys() >= set(looked_at):
            self.wait_for_work()
        with self.registry.lock:
            held = self.held
            words.barrier()
            busy = self._busy(looked_at) | running
            idle, still = looked_at, {}
            if busy:
                # ``busy`` may also contain live blocks, which messages reserve.
                idle = tuple([one for one in looked_at if one not in busy])
                still = dict.fromkeys([one for one in looked_at if one in busy])
            if self.streamed:
                # If a signal handler raises in this loop, some blocks have lost their functions. So
                # the next call waits for the device.
                for one in idle:
                    self.streamed.pop(one, None)
            if idle and not IS_ORDERED:
                # This processor reorders stores: an importer's last store to the block may become
                # visible after the 0 that ended the hold. The second barrier orders the two stores.
                words.barrier()
            # No other thread and no signal handler runs between the following statements.
            if number != self._reclaims:
                return None
            self._reclaims = number + 1
            del self.freed[first]
            self.free += idle
            if all_of_them:
                self.held = still
            elif still:
                held |= still
            events = self.registry.events
            if idle and events.registry.observed:
                text = f"{len(idle)} of {self.blocks} blocks"
                events.note(EventKind.RECLAIMED, self.export, 0, text)
        return len(idle)

    def _running(self, indices: Sequence[int]) -> set[int]:
        """Return the given blocks whose work on a stream is not complete."""
        running: set[int] = set()
        for one in indices if self.streamed else ():
            has_ended = self.streamed.get(one)
            try:
                if has_ended is not None and not has_ended():
                    running.add(one)
            except CrossmemError:
                # The vendor's query failed, so the caller waits for the device.
                self.streamed.pop(one, None)
        return running

    def _busy(self, indices: Sequence[int]) -> set[int]:
        """Return the given blocks that a row holds, and all blocks that a message reserves.

        Also forget the units of freed blocks that nothing holds. The caller holds the lock.
        """
        busy: set[int] = set()
        least, most = min(indices), max(indices) + 1
        at, count = self.at + least, most - least
        is_dense = count <= _SPREAD * len(indices)
        look: Any = None
        for row in self._rows():
            # To compare two ranges takes a fifth of the time that reading the single words takes.
            if is_dense and row[at : at + count] == _ZEROS[:count]:
                continue
            first = self.at
            look = look or itemgetter(first, *[first + index for index in indices])
            busy.update(compress(indices, look(row)[1:]))
        for index, unit in list(self.reserved.items()) if self.reserved else ():
            if unit.leases or unit.pins:
                busy.add(index)
            elif unit.is_retired and index not in busy:
                self.registry.forget(unit)
                self.reserved.pop(index, None)
        return busy

    def _rows(self) -> list[memoryview]:
        own = self.registry.pools.own_rows.get(self.which)
        rows = list(self.export.rows.values())
        return rows if own is None else [*rows, own]

    # Waiting ----------------------------------------------------------------------------------

    def is_held(self, index: int) -> bool:
        """Whether a row, a message or this process itself holds a block at this moment."""
        with self.registry.lock:
            unit = self.reserved.get(index)
            is_reserved = unit is not None and bool(unit.leases or unit.pins)
            return is_reserved or words.any_of(self._rows(), self.at + index)

    def wait(self, timeout_s: float) -> None:
        """Wait until a block is freed, a hold on a freed block ends, or the pool is closed.

        A holder of a freed block sends a hint when it releases the block. A stream sends no hint.
        So the method returns after at most 1 ms if work of a stream uses a freed block.
        """
        waiter = object()
        try:
            self.waiting[waiter] = None
            with self.registry.lock:
                for index in list(self.held):
                    at = self.at + index
                    words.store(self.words, at, words.load(self.words, at) + 2)
                # An importer that ended its hold before it saw the new generation sends no hint.
                # After the barrier, the next read of the row sees the 0 that ended the hold.
                words.barrier()
            limit_s = min(timeout_s, _LOOK_S) if self.streamed else timeout_s
            self.registry.wait(self._is_something_idle, limit_s)
        finally:
            self.waiting.pop(waiter, None)

    def stop(self) -> None:
        """Allocate no more blocks, and wake the threads that wait for a block."""
        self.is_closing = True
        self.ring()

    def _is_something_idle(self) -> bool:
        held = list(self.held)
        if self.free or self.freed or self.is_closing:
            return True
        busy = self._busy(held) if held else set()
        return any(one not in busy and one not in self.streamed for one in held)

    def tell(self) -> None:
        """Report reclaimed blocks to the observers. The caller holds no lock."""
        self.registry.events.tell()

    def ring(self) -> None:
        """Make the threads in :meth:`wait` check their condition again."""
        if self.waiting:
            self.registry.hint(())

    def holders(self, indices: Iterable[int] | None = None) -> dict[Holder, int]:
        """Return how many of the given blocks, or of all blocks, each process holds."""
        found: dict[Holder, int] = {}
        with self.registry.lock:
            rows = [(row.holder, one) for row, one in self.export.rows.items()]
            own = self.registry.pools.own_rows.get(self.which)
            if own is not None:
                rows.append((self.registry.myself, own))
            for holder, one in rows:
                first = self.at
                some = one[first : first + self.fresh] if indices is None else ()
                chosen = some or [words.load(one, first + index) for index in indices or ()]
                count = len(chosen) - list(chosen).count(0)
                if count:
                    found[holder] = found.get(holder, 0) + count
        return found

    def in_messages(self) -> list[int]:
        """Return the blocks that unreceived messages reserve."""
        with self.registry.lock:
            return [index for index, unit in list(self.reserved.items()) if unit.leases]

    # Messages ---------------------------------------------------------------------------------

    def enter(self, index: int, generation: int, holder: Holder) -> Refusal | None:
        """Add a block's export to the registry, so that a message can reserve the block.

        Return a refusal for a withdrawn handle, for a handle of an earlier allocation of the block,
        and for a freed block that ``holder`` does not hold. The caller holds the lock.
        """
        if not 0 <= index < self.fresh or not generation % 2:
            return _STALE
        at = self.at + index
        now = words.load(self.words, at)
        is_live = now == generation
        is_held = is_live or generation in self._words_of(holder, at)
        if now % 2 and not is_live:
            # The block has a later odd generation. The owner does not allocate a held block again.
            # So if ``holder`` holds the block, the generation shows that the handle was withdrawn.
            return Refusal(Status.WITHDRAWN, "the handle was withdrawn") if is_held else _STALE
        known = self.reserved.get(index)
        if known is not None:
            (export,) = known.exports.values()
            if is_live and not export.has(generation):
                # The export's other generations belong to withdrawn handles.
                export.generations += (generation,)
            return None if export.has(generation) else _STALE
        if not is_held:
            return _STALE
        pool = self.core
        unit = Unit(self.export.unit.allocation, None, self.ring)
        unit.was_granted = True
        fields = 0, pool.stride, index, generation, pool.stride
        handle = BlockHandle(pool, fields)
        export = Export(unit, handle, self.export.allow, Exported())
        export.slot = Slot(pool.slot + index, self.words, at, length=0)
        export.rows = self.export.rows
        export.generations = (generation,)
        self.registry.exports.add(export)
        self.reserved[index] = unit
        # This load comes after the unit is added. A thread that frees the block stores the new
        # generation and then reads ``reserved``. So at least one thread sees the other's store.
        unit.is_retired = words.load(self.words, at) != generation
        return None

    def _words_of(self, holder: Holder, at: int) -> list[int]:
        if holder is self.registry.myself:
            own = self.registry.pools.own_rows.get(self.which)
            return [] if own is None else [words.load(own, at)]
        found = self.export.rows.items()
        return [words.load(one, at) for row, one in found if row.holder is holder]

    def close(self) -> None:
        """Refuse later reservations of blocks. A second call does nothing.

        The slots are released with the arena's export.
        """
        with self.registry.lock:
            self.registry.pools.arenas.pop(self.export.handle.allocation, None)
