# SPDX-License-Identifier: Apache-2.0
"""Imports of blocks, which need no request to the owner while the pool's arena is open.

An attach may name a device, and may request read-only access. For each combination of the two, the
first attach requests the arena from the owner. The arena stays open at least until the owner closes
the pool, exits or dies. Later attaches send a request only in two cases: the connection was lost,
or the block was freed although a message still had a reservation for it.
"""

import time
from itertools import chain
from typing import ClassVar, Final

from typing_extensions import override

from crossmem.control.link import Deadline
from crossmem.control.threads import PassingThread
from crossmem.errors import StaleHandleError
from crossmem.guards import check_timeout
from crossmem.models import BlockHandle
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.forks import keep_from_children, kept
from crossmem.sharing.base.process import Part, Process, current, open_pools
from crossmem.sharing.importer.block_holds import (
    ASK_S,
    ArenaImport,
    BlockHold,
    Holders,
    LinkedHold,
    all_of,
)
from crossmem.sharing.importer.errors import not_of_the_pool
from crossmem.sharing.importer.mapping import Readonly
from crossmem.sharing.importer.record import State, Use
from crossmem.sharing.importer.request import check_readonly, request_of
from crossmem.sharing.importer.table import ImportTable

__all__ = ["PoolImports", "hold_block"]

_TIDY_S: Final = 0.2
"""Seconds between two checks for pools that were closed, and for pools whose owners have died."""
_USUAL: Final = (None, False)
"""In most attaches, the caller names no device and does not request read-only access. These
attaches have a fast path."""


class _Holders(Holders):
    """The holders of each block of one pool, shared by all open arenas of the pool."""

    __slots__ = ("arenas",)

    def __init__(self) -> None:
        super().__init__()
        self.arenas = 0
        """How many of the arenas in :attr:`PoolImports.arenas` belong to this pool."""


class PoolImports(Part):
    """The pools from which this process imports blocks: other processes' pools and its own."""

    closing: ClassVar = -2

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.arenas: dict[tuple[bytes, LocalDevice | str | None, bool], ArenaImport] = {}
        """The open arenas. A key has three parts: the bytes that all handles of a pool have in
        common, the device, and whether read-only access was requested."""
        self._holders: dict[bytes, _Holders] = {}
        """The holders of the blocks of each pool. The key is the bytes that all handles of the pool
        have in common."""
        self._thread = PassingThread(self._turn, self._is_needed)

    def open(
        self,
        handle: BlockHandle,
        device: LocalDevice | str | None,
        readonly: Readonly,
        timeout: float | None,
        reservation: int = 0,
    ) -> ArenaImport:
        """Return a pool's arena. The first call for a key of :attr:`arenas` imports the arena.

        ``reservation`` is the number of a message's reservation, or 0 if there is no reservation.
        An owner that is exiting accepts only imports with a reservation.

        Raises
        ------
        InvalidHandleError
            The handle names blocks that its pool does not have, or the handle's flags are wrong.
        CrossmemError
            As for :func:`crossmem.import_handle`.
        """
        key = handle.pool.shared, device, readonly is True
        arena = self.arenas.get(key)
        if arena is not None and arena.is_open:
            if arena.pool.head != handle.pool.head:
                # The flags of the handle are wrong. The owner checks the flags only at the
                # first attach.
                raise not_of_the_pool()
            return arena
        process = self._process
        whole = handle.pool.arena
        timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
        check_readonly(readonly)
        request = request_of(process, whole, device, readonly, reservation)
        request = request._replace(pool=handle.pool)
        use = Use(process, whole.core)
        try:
            process.part(ImportTable).acquire((request,), (use,), timeout_s)
            record = use.record
            assert record is not None  # noqa: S101 - acquire() has set it
            new = _Holders()
            # The constructor checks the handle, so it is called before the driver maps the arena.
            arena = ArenaImport(use, handle, new)
            arena.base = base = record.map(use, remappable=False)
            if record.device.capabilities.host_visible:
                keep_from_children(base, whole.capacity)
            with process.state:
                known, holders, shared = self.arenas.get(key), self._holders, key[0]
                if known is None:
                    # No signal handler runs in this ``if`` block.
                    if shared not in holders:
                        holders[shared] = new
                    arena.holders = new = holders[shared]
                    new.arenas += 1
                    # From here on, this object releases the arena.
                    self.arenas[key] = known = arena
                    if key[1:] == _USUAL and not process.is_closed:
                        open_pools[key[0]] = arena
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
        """Release each unused arena whose owner is dead or waits for the release."""
        self.close_idle(only_unwanted=True)

    def close_idle(self, *, only_unwanted: bool = False) -> None:
        """Release the arenas of which this process holds no block.

        With ``only_unwanted``, release only arenas whose owner is dead or waits for the release.
        """
        process = self._process
        for key, arena in list(self.arenas.items()):
            if only_unwanted and not arena.is_unwanted:
                continue
            shared, base, is_usual = key[0], arena.base, key[1:] == _USUAL
            ready = process.deferred.ready
            with process.state:
                try:
                    # The flag is cleared before the holds are read. So an attach that takes no
                    # lock sees the cleared flag, or this method sees the hold of that attach.
                    arena.is_open = False
                    is_held = arena.is_held
                except BaseException:
                    arena.is_open = True
                    raise
                # A signal handler may have closed the arena. No handler runs in the rest of this
                # ``with`` block.
                if key not in self.arenas or self.arenas[key] is not arena:
                    continue
                if is_held:
                    arena.is_open = True
                    continue
                ready[arena.use] = None
                del self.arenas[key]
                if is_usual and shared in open_pools:
                    del open_pools[shared]
                if base in kept:
                    del kept[base]
                holders = self._holders[shared]
                holders.arenas -= 1
                if not holders.arenas:
                    del self._holders[shared]
            process.drain()

    @override
    def close_at_exit(self) -> None:
        """End the thread, close the arenas, and end the holds on their blocks."""
        open_pools.clear()
        self._thread.stop()
        process = self._process
        process.part(ImportTable).close_records()
        for arena in list(self.arenas.values()):
            if arena.record.state is not State.CLOSED:
                # A view uses the memory, or a vendor's call in another thread uses it.
                continue
            with process.state:
                # The words of the holds are unmapped soon, so no further attach may use them.
                arena.is_open = False
                for hold in chain.from_iterable(map(all_of, list(arena.holders.values()))):
                    if hold.arena is arena:
                        BlockHold.leave_to_others(hold)
            arena.send_hints()


def hold_block(
    handle: BlockHandle,
    device: LocalDevice | str | None,
    readonly: Readonly,
    timeout: float | None,
    holds: list[BlockHold],
    reservation: int = 0,
    *,
    is_linked: bool = False,
) -> BlockHold:
    """Hold a block, and return the hold.

    The call appends each hold that it begins to ``holds``. If the call raises, the caller ends all
    holds in the list.

    Raises
    ------
    CrossmemError
        As for :func:`crossmem.import_handle`.
    """
    process = current()
    pools = process.part(PoolImports)
    while True:
        arena = pools.open(handle, device, readonly, timeout, reservation)
        if time.monotonic() >= arena.look_at and not arena.has(handle.index, handle.generation):
            arena.look()
        kind = LinkedHold if is_linked else arena.hold_kind
        hold = kind(arena, handle.index)
        holds.append(hold)
        with process.state:
            if not arena.is_open:
                # Another thread has just released this arena.
                hold.is_done = True
                continue
            if hold.take(handle.generation):
                return hold
            BlockHold.leave_to_others(hold)
        tried = 0
        while reservation:
            reserved = arena.record.reserved_generation(handle, reservation, Deadline(ASK_S))
            if reserved == tried:
                break
            hold = kind(arena, handle.index)
            holds.append(hold)
            with process.state:
                if hold.take(reserved):
                    return hold
                BlockHold.leave_to_others(hold)
            # The block has got another generation since the reply, so the owner is asked again.
            tried = reserved
        arena.look()
        msg = f"the handle was withdrawn, or its owner (pid {handle.owner.pid}) freed the block"
        hint = "keep the block until all readers have received it"
        raise StaleHandleError(msg, operation="import", backend=handle.backend, hint=hint)
