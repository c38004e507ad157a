# SPDX-License-Identifier: Apache-2.0
"""Blocks of pools. A block has the methods of an allocation, and lies in its pool's allocation."""

import copyreg
import time
from sys import gettrace
from typing import Any, ClassVar, Final

from typing_extensions import override

from crossmem.control.arenas import Arena
from crossmem.control.leases import Holder
from crossmem.control.records import Allow
from crossmem.errors import BusyError, ConfigurationError, InvalidHandleError, UnsupportedError
from crossmem.guards import check_choice, check_flag, check_timeout, shorten
from crossmem.models import Access, BlockHandle, ReadyHandle, ShareableHandle
from crossmem.sharing.base.memory import Memory
from crossmem.sharing.base.process import Process, drain
from crossmem.sharing.base.streams import Landing
from crossmem.sharing.exporter.allocation import Busy
from crossmem.sharing.importer.pickling import attach_again
from crossmem.sharing.pools.block_record import BlockRecord

__all__ = ["Block", "check_own_block", "name_pids"]

_DEFER: Final = "defer"
_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.005


class Block(Memory):
    """One block of a pool. Made by :meth:`crossmem.Pool.allocate`; a context manager.

    A block has the methods of an allocation. :meth:`free` returns the block to the pool. The pool
    allocates the block again when no process and no message holds it.

    Attributes
    ----------
    nbytes
        Requested size, in bytes.
    device
        The device that holds the memory.
    """

    __slots__ = ("_pointer",)

    _pointer: int

    _is_block: ClassVar = True
    _ended_by: ClassVar = "free"

    _record: BlockRecord | None

    @override
    def __repr__(self) -> str:
        record = self._record
        if record is None:
            return f"<Block of {self.nbytes} bytes on {self.device.name}, freed>"
        pool = record.pool
        return (
            f"<Block {record.index} of {self.nbytes} bytes in pool {pool.number} "
            f"on {self.device.name}>"
        )

    @property
    def capacity(self) -> int:
        """Size of each block of the pool, in bytes."""
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        return record.pool.stride

    @property
    @override
    def ptr(self) -> int:
        """Address of the first byte in this process, for calls of the vendor's API."""
        if self._record is None or not self._process.is_usable:
            raise self._ended()
        return self._pointer

    def export(
        self,
        *,
        allow: Allow | None = None,
        access: Access | None = None,
        lease: bool = True,
        synchronize: bool = True,
        stream: Any = None,
    ) -> ShareableHandle:
        """Return a handle with which other processes import this block.

        A second export returns an equal handle (C3), unless ``stream`` is passed or the first
        handle was withdrawn.

        Parameters
        ----------
        allow, access
            None, or the same values as for the pool. Other values are refused, because each
            importer can access all blocks of the pool.
        lease
            Must be True.
        synchronize
            If True, wait for the device work issued so far (C21). There is no wait if an earlier
            call has waited and returned the same handle.
        stream
            As for :meth:`crossmem.Allocation.export`.

        Raises
        ------
        UnsupportedError
            An argument differs from the settings of the pool, or the device has no streams.
        DriverError
            The vendor's call failed.
        ClosedError, ForkedProcessError
            The block was freed, or a forked child made this call.
        """
        record, process = self._record, self._process
        if record is None or process.is_inherited or process.is_closed:
            raise self._ended()
        arena = record.arena
        if allow is not None or access is not None or lease is not True:
            _check_choices(arena, allow, access, lease=lease)
        if stream is not None:
            base = self.export(synchronize=False)
            return self.device._ready_handle(base, stream, arena.export.allow)
        if record.handle is not None:
            return record.handle
        is_ready = True
        if arena.wait_for_work is not None:
            is_ready, device = synchronize, self.device
            if synchronize:
                device.driver.synchronize(device.ordinal)
        index, nbytes = record.index, self.nbytes
        view, at = arena.words, arena.at + index
        if gettrace() is None:
            generation = self._begin(record, view, at)
        else:
            with process.state:
                generation = self._begin(record, view, at)
        # No lock is needed, because another thread that exports the block makes an equal handle.
        handle = BlockHandle(arena.core, (0, nbytes, index, generation, nbytes))
        if is_ready and record.generation == generation:
            # No thread has withdrawn the handle since _begin().
            record.handle = handle
        return handle

    def _begin(self, record: BlockRecord, view: memoryview, at: int) -> int:
        """Return the generation of the block's handles. The first call begins that generation."""
        # One step: no signal handler and no other thread interrupts this function.
        if self._record is None:
            raise self._ended()
        generation = record.generation
        if not generation:
            view[at] = record.generation = generation = view[at] + 1 | 1
        return generation

    def withdraw(self, handle: ShareableHandle | bytes | bytearray | memoryview) -> None:
        """Withdraw a handle: refuse importers that do not hold the block yet (C28).

        The block stays allocated for its holders. The next :meth:`export` returns a new handle.

        Parameters
        ----------
        handle
            A handle that :meth:`export` returned, or a slice of one.

        Raises
        ------
        InvalidHandleError
            The handle does not belong to this block.
        ClosedError, ForkedProcessError
            The block was freed, or a forked child made this call.
        """
        drain()
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        if not isinstance(handle, ShareableHandle):
            handle = ShareableHandle.from_bytes(handle)
        if isinstance(handle, ReadyHandle):
            handle = handle.base
        is_mine = isinstance(handle, BlockHandle) and handle.pool == record.arena.core
        if not is_mine or handle.export != record.index + 1:
            msg = (
                f"export {handle.export} of allocation {handle.allocation} of process "
                f"{handle.owner.pid} is not an export of {self!r}"
            )
            hint = "withdraw a handle through the block that exported it"
            raise InvalidHandleError(msg, operation="withdraw", hint=hint)
        arena, generation = record.arena, handle.generation
        view, at = arena.words, arena.at + record.index
        # A free() that waits for holders may retire the generation and then restore it. That
        # free() holds this lock during both steps.
        with self._process.state:
            # One step: no signal handler and no other thread runs in the rest of this method.
            if self._record is None:
                # Another thread has freed the block, and the pool may have allocated it again.
                raise self._ended()
            if generation == record.generation:
                # The word moves to a generation that no handle has yet, so all handles go stale.
                record.handle = None
                view[at] = record.generation = view[at] + 1 | 1

    def free(
        self, *, busy: Busy = "defer", timeout: float | None = None, stream: Any = None
    ) -> None:
        """Return the block to its pool. A second call does nothing.

        The block's handles are stale as soon as this method returns (C6).

        Parameters
        ----------
        busy
            What to do if processes or messages hold the block. ``"defer"``: return at once; the
            pool allocates the block again after the last holder releases it. ``"raise"``: raise and
            change nothing. ``"wait"``: wait until all holders release it.
        timeout
            Time limit of ``"wait"`` in seconds; None: ``CROSSMEM_TIMEOUT``.
        stream
            The only stream of this process whose work uses the block: a stream of CuPy, PyTorch or
            torch-npu, or the vendor's handle of a stream. The pool allocates the block again after
            the stream has done the work that was issued before this call. The pool does not wait
            for other work of the device.

        Raises
        ------
        BusyError
            A view of the block is alive, or another thread reads or writes the block. Also raised
            if a process or message holds the block, unless ``busy`` is ``"defer"``. In each case,
            nothing has changed.
        UnsupportedError
            The device has no streams. Nothing has changed.
        """
        if timeout is None and busy is _DEFER and stream is None:
            self._end()
            return
        record, process = self._record, self._process
        if record is None or not process.is_usable:
            # In a forked child, this call raises if the block was not freed.
            super()._end()
            return
        check_choice("busy", busy, ("defer", "raise", "wait"), "free")
        wait_s = check_timeout(timeout, default_s=process.settings.timeout_s)
        landing = None if stream is None else self.device._landing_of(stream)
        if busy != "defer":
            self._await_holders(record, wait_s if busy == "wait" else 0.0, landing)
        elif landing is None:
            self._end()
        else:
            self._end_on(record, landing)

    def _end_on(self, record: BlockRecord, landing: Landing) -> None:
        record.landing = landing
        try:
            super()._end()
        finally:
            if self._record is record:
                # The block was not freed. Work that is issued later needs a new landing.
                del record.landing

    @override
    def _end(self) -> None:
        record, process = self._record, self._process
        if record is not None and gettrace() is None:
            arena, pool, one = record.arena, record.pool, (record.index,)
            is_full = len(arena.freed) + 1 >= arena.batch
            # One step: no signal handler and no other thread runs in this branch, so it needs no
            # lock. A thread first sets ``copies`` or ``_anchor`` for a copy or view, and then reads
            # ``_record``. So this branch sees the copy or view, or the thread sees the block's end.
            if not (
                is_full
                or self._record is None
                or process.is_inherited
                or process.is_closed
                or pool.ready
                or pool.idle
                or pool.copies
                or self._is_lent
                or self._anchor is not None
                or arena.waiting
                or arena.reserved
                or arena.is_closing
            ):
                generation = record.generation
                if generation:
                    arena.words[arena.at + record.index] = generation + 1
                if generation or arena.wait_for_work is not None:
                    arena.freed += one
                else:
                    # The block was never exported, so no process can hold it.
                    arena.free += one
                record.is_done = True
                self._record = None
                self.__class__ = self._when_ended
                return
        super()._end()

    def _await_holders(self, record: BlockRecord, wait_s: float, landing: Landing | None) -> None:
        """Free the block when it has no holder; raise if it still has one after the wait."""
        arena, index, call = record.arena, record.index, object()
        view, at = arena.words, arena.at + index
        deadline, pause_s = time.monotonic() + wait_s, _FIRST_PAUSE_S
        try:
            # From here on, no thread frees the block without the lock.
            arena.waiting[call] = None
            while True:
                if not arena.is_held(index):
                    with self._process.state:
                        self._refuse_if_used("free")
                        if self._record is None:
                            break  # Another thread has freed the block.
                        # One step. Later exports get this generation; retiring it makes them stale.
                        generation = record.generation
                        if is_retired := not generation:
                            # The block has no handle, so no barrier is necessary.
                            generation = record.generation = view[at] + 1 | 1
                            view[at] = generation + 1
                        try:
                            is_retired = is_retired or arena.retire_if_idle(index, generation)
                        except BaseException:
                            # After an exception, the word says whether the block is retired.
                            is_retired = view[at] == generation + 1
                            raise
                        finally:
                            # The lock has been held since _refuse_if_used(), so no view has begun.
                            if is_retired:
                                if landing is not None:
                                    record.landing = landing
                                # No call of _detach(): at a call, a signal handler may raise.
                                self._record, self.__class__ = None, self._when_ended
                                self._process.deferred.ready[record] = None
                    if is_retired:
                        break
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    found = arena.holders([index])
                    way = "unmap it in that process" if found else "receive or discard the message"
                    msg = f"{self!r} is held by {name_pids(found)}"
                    raise BusyError(msg, operation="free", hint=f'{way}, or free with busy="defer"')
                time.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            arena.waiting.pop(call, None)
        self._release(record)


def _reduce_block(block: Block) -> tuple[Any, ...]:
    return attach_again, (block.export().to_bytes(), False)


# As with an allocation, unpickling attaches the memory.
copyreg.pickle(Block, _reduce_block)


def name_pids(holders: dict[Holder, int], in_messages: int = 0) -> str:
    """Return a text with the holders of blocks, and the number of blocks that each one holds."""
    if not holders and not in_messages:
        return "a message that nobody received"
    ordered = sorted(holders.items(), key=lambda one: (-one[1], one[0].pid))
    shown = [f"process {one.pid} ({count})" for one, count in ordered[:3]]
    if more := len(ordered) - len(shown):
        shown.append(f"{more} more processes")
    if in_messages:
        shown.append(f"messages that nobody received ({in_messages})")
    return ", ".join(shown)


def check_own_block(
    process: Process, handle: ShareableHandle, allow: object, access: object
) -> None:
    """Refuse to export this process's own block with settings that differ from the pool's.

    Raises
    ------
    UnsupportedError
        A setting differs from that of the pool.
    """
    arena = process.start_server().leases.pools.arenas.get(handle.allocation)
    if isinstance(arena, Arena):
        _check_choices(arena, allow, access)


def _check_choices(arena: Arena, allow: object, access: object, *, lease: object = True) -> None:
    check_flag("lease", lease, "export")
    if access is not None:
        check_choice("access", access, ("rw", "ro"), "export")
    if allow is not None and not isinstance(allow, Allow):
        msg = f"allow must be a crossmem.Allow or None, not {shorten(allow)}"
        raise ConfigurationError(msg, operation="export")
    refused = None
    if not lease:
        refused = "raw handles of single blocks"
    elif allow is not None and allow != arena.export.allow:
        refused = "a separate allow for one block"
    elif access is not None and access != arena.export.handle.access:
        refused = "a separate access for one block"
    if refused is not None:
        msg = f"a pool does not offer {refused}: each importer can access all blocks of the pool"
        hint = "pass allow and access to device.pool(), or use device.allocate()"
        raise UnsupportedError(msg, hint=hint, operation="export")
