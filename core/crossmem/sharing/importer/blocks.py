# SPDX-License-Identifier: Apache-2.0
"""Imports of the blocks of pools: a hold and arithmetic, once the pool's arena is open here.

The first block of a pool is attached by importing the pool's arena, which asks the owner. The arena
stays open until the owner closes the pool or dies, so later blocks ask nobody.
"""

import time
from contextlib import suppress
from typing import ClassVar, Final

from typing_extensions import override

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.control.link import Deadline
from crossmem.control.segments import HEADER_WORDS, SLOTS
from crossmem.control.threads import PassingThread
from crossmem.control.wire import Refusal, Status
from crossmem.errors import OwnerGoneError
from crossmem.guards import check_timeout
from crossmem.models import BlockHandle
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.forks import keep_from_children
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.importer.errors import error_of
from crossmem.sharing.importer.mapping import (
    Import,
    Mapping,
    Readonly,
    children_of,
    record_of_import,
)
from crossmem.sharing.importer.record import Use
from crossmem.sharing.importer.remote import RemoteImport
from crossmem.sharing.importer.request import check_readonly, request_of
from crossmem.sharing.importer.table import ImportTable
from crossmem.sharing.importer.watcher import end_with_owner

__all__ = ["BlockHold", "BlockImport", "PoolImports", "hold_block", "mapping_of"]

_LOOK_S: Final = 0.5
"""How often an attach looks whether the owner lives."""
_TIDY_S: Final = 0.2
"""How often pools are looked at that their owner may have closed."""
_ASK_S: Final = 5.0
"""How long an owner may take to answer whether it is still the program that made the pool."""


class ArenaImport:
    """The arena of a pool, open in this process.

    Parameters
    ----------
    use
        Keeps it open.
    handle
        Any block's.
    base
        Address of the first block.
    """

    def __init__(self, use: Use, handle: BlockHandle, base: int) -> None:
        record = use.record
        assert record is not None  # noqa: S101 - it is open
        self.use = use
        self.record = record
        self.pool = pool = handle.pool
        self.base = base
        self.control, self.row, self.is_fenced = record.words_of(use.core, pool.slot)
        self.at = HEADER_WORDS + pool.slot % SLOTS
        """Index of the first block's word."""
        self.holders: dict[int, set[BlockHold]] = {}
        """By block, who holds it. The word in the row says whether anybody does."""
        self.is_open = True
        """False once this process gives the arena back. Guarded by the lock of the state."""
        self.is_asynchronous = not record.device.capabilities.host_visible
        """Whether work of the device may still use a block when its mapping ends."""
        self.look_at = 0.0
        """When the next attach looks whether the owner lives."""

    def look(self) -> None:
        """See whether the owner lives, and is still the program that made the pool.

        Raises
        ------
        OwnerGoneError
            It does not, or is not.
        """
        self.look_at = time.monotonic() + _LOOK_S
        record, handle = self.record, self.pool.arena
        if not isinstance(record, RemoteImport) or record.connection is None:
            return
        connection = record.connection
        if not connection.is_owner_alive:
            raise _gone(handle.owner.pid, "died")
        if connection.is_connected:
            return
        # Exec keeps pid and pidfd, and closes the connection, as a server with too many does.
        device = record.device
        answers = connection.request(
            (handle,),
            (0,),
            reported=device.driver.peer_identity(),
            deadline=Deadline(_ASK_S),
        )
        connection.give_back(answers)
        if isinstance(answers[0], Refusal):
            raise error_of(answers[0], handle)

    @property
    def is_unwanted(self) -> bool:
        """Whether the owner waits for this process to close the arena, or is dead."""
        slot = self.at - 1
        with suppress(ValueError):
            if words.load(self.control, slot) == words.load(self.row, slot):
                return not self.record.is_owner_alive
        return True

    @property
    def is_held(self) -> bool:
        """Whether this process holds a block. The lock of the state is held."""
        return any(list(self.holders.values()))


class BlockHold(Use):
    """One user of a block: an import object, a mapping, or both in one."""

    __slots__ = ("arena", "index")

    arena: ArenaImport

    def __init__(self, process: Process, arena: ArenaImport, index: int) -> None:
        self.is_done = False
        self.process = process
        self.core = arena.use.core
        self.record = arena.record
        self.parent = None
        self.children = None
        self.ends_with_owner = False
        self.arena = arena
        self.index = index

    def take(self, generation: int) -> bool:
        """Hold the block; False if the owner has freed it, or has withdrawn the generation.

        The record's user gives it back in both cases. The lock of the state is held.
        """
        arena, index = self.arena, self.index
        at = arena.at + index
        row = arena.row
        # In this order: a signal handler that ends a hold of its own meanwhile leaves the word.
        holders = arena.holders.get(index)
        if holders is None:
            holders = arena.holders.setdefault(index, set())
        holders.add(self)
        word = words.load(row, at)
        if word:
            # Who has a freed block mapped can map it again.
            return word == generation
        words.store(row, at, generation)
        if arena.is_fenced:
            words.fence()
        return words.observe(arena.control, at) == generation

    @override
    def leave_to_others(self) -> bool:
        if self.arena.is_asynchronous or self.parent is not None:
            return False
        return self._end()

    def _end(self) -> bool:
        """End the hold; False if the owner waits for a message. The lock of the state is held."""
        arena, index = self.arena, self.index
        at = arena.at + index
        holders, row = arena.holders[index], arena.row
        if not IS_ORDERED:
            words.release()
        word = words.load(row, at)
        holders.discard(self)
        # No signal handler, which may begin to hold, runs between this question and the store.
        if holders or not word:
            self.is_done = True
            return True
        words.store(row, at, 0)
        if arena.is_fenced:
            words.fence()
        is_awaited = words.load(arena.control, at) > word + 1
        self.is_done = not is_awaited
        return not is_awaited

    @override
    def give_back(self, *, blocking: bool) -> None:
        """End the hold, after the running work of the device."""
        if self.is_done:
            return
        arena = self.arena
        failure = wait_for_work(arena.record.device) if arena.is_asynchronous else None
        with self.process.state:
            if arena.is_open and not self.is_done:
                is_told = self._end()
            else:
                is_told = True
            if self.parent is not None and self.parent.children is not None:
                self.parent.children.discard(self)
            self.is_done = True
        if not is_told:
            arena.record.hint(arena.pool.slot + self.index)
        if failure is not None:
            raise failure


class BlockImport(Import):
    """A block of another process's pool, held here: it stays until this is closed."""

    __slots__ = ()

    handle: BlockHandle
    _record: BlockHold | None

    @override
    def map(self) -> Mapping:
        """Give the block an address in this process; see :meth:`Import.map`."""
        parent = record_of_import(self)[0]
        assert isinstance(parent, BlockHold)  # noqa: S101 - made so
        process = self._process
        hold = BlockHold(process, parent.arena, parent.index)
        try:
            with process.state:
                # Another thread may have closed the import.
                record_of_import(self)
                hold.parent = parent
                children_of(parent).add(hold)
                # The import holds the block, of whatever generation.
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


class PoolImports(Part):
    """The pools of other processes that are open here."""

    closing: ClassVar = -2

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.arenas: dict[tuple[bytes, LocalDevice | str | None, bool], ArenaImport] = {}
        """By what the handles of the pool have in common, device, and whether it is read-only."""
        self._thread = PassingThread(self._turn, self._is_needed)

    def open(
        self,
        handle: BlockHandle,
        device: LocalDevice | str | None,
        readonly: Readonly,
        timeout: float | None,
    ) -> ArenaImport:
        """Return the arena of a block's pool, importing it at the first call."""
        key = handle.pool.shared, device, readonly is True
        arena = self.arenas.get(key)
        if arena is not None and arena.is_open:
            return arena
        process = self._process
        whole = handle.pool.arena
        timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
        check_readonly(readonly)
        request = request_of(process, whole, device, readonly)
        use = Use(process, whole.core)
        try:
            process.part(ImportTable).acquire((request,), (use,), timeout_s)
            record = use.record
            assert record is not None  # noqa: S101 - acquire() has set it
            base = record.map(use, remappable=False)
            if record.device.capabilities.host_visible:
                keep_from_children(base, whole.capacity)
            arena = ArenaImport(use, handle, base)
            with process.state:
                known = self.arenas.get(key)
                if known is None or not known.is_open:
                    # From here on the part gives it back.
                    self.arenas[key] = arena
                    known = arena
        finally:
            if arena is None or self.arenas.get(key) is not arena:
                process.deferred.ready[use] = None
                process.drain()
        self._thread.start()
        return known

    def _is_needed(self) -> bool:
        return bool(self.arenas)

    def _turn(self) -> None:
        self._thread.bell.wait(_TIDY_S)
        self.tend()

    @override
    def tend(self) -> None:
        """Give back the arenas that their owners wait for, if no block of them is held here."""
        process = self._process
        for key, arena in list(self.arenas.items()):
            if not arena.is_unwanted:
                continue
            with process.state:
                if arena.is_held:
                    continue
                arena.is_open = False
                process.deferred.ready[arena.use] = None
                self.arenas.pop(key, None)
            process.drain()

    @override
    def close_at_exit(self) -> None:
        """End the thread. The table of imports closes the arenas."""
        self._thread.stop()


def hold_block(
    process: Process,
    handle: BlockHandle,
    device: LocalDevice | str | None,
    readonly: Readonly,
    timeout: float | None,
    holds: list[BlockHold],
    reservation: int = 0,
) -> BlockHold:
    """Hold a block, and append the hold to ``holds``, whose user ends it if this raises.

    Raises
    ------
    CrossmemError
        As :func:`crossmem.import_handle`.
    """
    pools = process.part(PoolImports)
    while True:
        arena = pools.open(handle, device, readonly, timeout)
        if time.monotonic() >= arena.look_at:
            arena.look()
        hold = BlockHold(process, arena, handle.index)
        holds.append(hold)
        with process.state:
            if not arena.is_open:
                hold.is_done = True
                continue
            is_held = hold.take(handle.generation)
        if is_held:
            return hold
        holds.pop()
        process.deferred.ready[hold] = None
        process.drain()
        if reservation:
            reserved = arena.record.reserved_generation(handle, reservation, Deadline(_ASK_S))
            holds.append(hold := BlockHold(process, arena, handle.index))
            with process.state:
                is_held = hold.take(reserved)
            if is_held:
                return hold
        arena.look()
        raise error_of(Refusal(Status.STALE, ""), handle)


def mapping_of(hold: BlockHold, handle: BlockHandle, readonly: Readonly) -> Mapping:
    """Return a mapping of a block that is held."""
    arena = hold.arena
    base = arena.base + handle.index * handle.pool.stride
    is_readonly = arena.record.access == "ro" or readonly is not False
    return Mapping(hold, arena.record, handle, base, readonly=is_readonly)


def _gone(pid: int, what: str) -> OwnerGoneError:
    msg = f"process {pid}, which owns this pool, {what}"
    return OwnerGoneError(msg, hint="make a new pool in a living process, and send new handles")
