# SPDX-License-Identifier: Apache-2.0
"""The holds of this process on blocks. This process's row has one word for each block."""

import time
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Final

from typing_extensions import override

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.control.client import OwnerConnection
from crossmem.control.link import Deadline
from crossmem.control.segments import BLOCKS_AT, HEADER_WORDS, SLOTS
from crossmem.control.wire import Refusal
from crossmem.driver import streams_of
from crossmem.errors import OwnerGoneError
from crossmem.models import BlockHandle
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.streams import Landing
from crossmem.sharing.importer.errors import error_of, not_of_the_pool
from crossmem.sharing.importer.own import OwnImport
from crossmem.sharing.importer.record import Use
from crossmem.sharing.importer.remote import RemoteImport

__all__ = ["ASK_S", "ArenaImport", "BlockHold", "Holders", "LinkedHold", "all_of"]

_LOOK_S: Final = 0.5
"""For this many seconds after a successful :meth:`ArenaImport.look`, an attach does not begin with
another call of that method."""
ASK_S: Final = 5.0
"""Time limit, in seconds, of a request about an open pool. Such a request asks whether the owner
still has the pool, or asks for the generation of a block that a message has reserved."""


class ArenaImport:
    """The arena of a pool, open in this process.

    Parameters
    ----------
    use
        The use that keeps the arena open.
    handle
        The handle of any block of the pool.
    holders
        The holders of each block. While a block has a holder, its word in the row is not 0.
        Exception: :meth:`BlockHold.take` adds the holder before it writes the word, and a signal
        handler may run between these two steps. All imports of one pool share the row and the
        holders, including imports that are read-only or for other devices.
    """

    def __init__(self, use: Use, handle: BlockHandle, holders: "Holders") -> None:
        record = use.record
        assert record is not None  # noqa: S101 - the arena is open
        self.process = use.process
        self.use = use
        self.record = record
        self.usage = record.usage
        self.device = record.device
        self.pool = pool = handle.pool
        self.base = 0
        """Address of the first block; 0 before the arena is mapped."""
        self.control, self.row, self.is_fenced = record.words_of(use.core, pool.slot - BLOCKS_AT)
        self.at = HEADER_WORDS + pool.slot % SLOTS
        """Index of the first block's word."""
        self.holders = holders
        # The hot paths read only attributes of this object.
        self.stride, self.blocks = pool.stride, pool.blocks
        self.head, self.start = pool.head, pool.start
        self.ready, self.idle = self.process.deferred.ready, self.process.deferred.idle
        self.copies = self.usage.copies
        self.is_open = True
        """False after this process has released the arena, and while a thread checks whether it can
        release the arena. Written under the lock of the state."""
        self.is_readonly = record.access == "ro"
        self.is_asynchronous = not record.device.capabilities.host_visible
        """Whether work of the device may still use a block when the mapping of the block ends."""
        has_streams = streams_of(record.device.driver) is not None
        self.hold_kind = LinkedHold if self.is_asynchronous or has_streams else BlockHold
        self.is_plain = IS_ORDERED and not self.is_fenced and self.hold_kind is BlockHold
        """Whether a hold begins and ends without a fence and without a wait for the device."""
        self.awaited: list[int] = []
        """Blocks whose hold has ended, and for which the owner waits for a hint."""
        self.look_at = 0.0
        """After this time, the next attach checks the owner first, unless this process already
        holds the block."""
        connection = record.connection if isinstance(record, RemoteImport) else None
        self.link = None if connection is None else connection.open_link
        """The connection to the program that made the pool."""
        if words.load(self.control, self.at - 1) != pool.stride:
            raise not_of_the_pool()

    def look(self) -> None:
        """Check whether the owner lives, and is still the program that made the pool.

        Raises
        ------
        CrossmemError
            The owner is dead, does not reply, refuses a new lease on the pool, or now runs another
            program.
        """
        now = time.monotonic()
        if isinstance(self.record, RemoteImport) and self.record.connection is not None:
            self._ask(self.record, self.record.connection)
        # If _ask() raises, look_at keeps its earlier value. Then the next attach checks again.
        self.look_at = now + _LOOK_S

    def _ask(self, record: RemoteImport, connection: OwnerConnection) -> None:
        handle = self.pool.arena
        if not connection.is_owner_alive:
            raise _gone(handle.owner.pid, "died")
        link = connection.open_link
        if link is not None and link is self.link:
            return
        # The earlier connection is closed. There are several possible causes: for example, the
        # owner's server had too many connections, or the owner called exec, which keeps pid and
        # pidfd. The reply to a new request shows whether the owner still has the pool.
        device = record.device
        answers = connection.request(
            (handle,),
            (0,),
            reported=device.driver.peer_identity(),
            deadline=Deadline(ASK_S),
        )
        connection.give_back(answers)
        if isinstance(answers[0], Refusal):
            raise error_of(answers[0], handle)
        self.link = connection.open_link

    @property
    def is_unwanted(self) -> bool:
        """Whether the owner is dead, or waits until this process closes the arena."""
        if self.record.is_retired:
            return True
        slot = self.at - BLOCKS_AT
        is_own = isinstance(self.record, OwnImport)
        if is_own or words.load(self.control, slot) == words.load(self.row, slot):
            return not self.record.is_owner_alive
        return True

    def has(self, index: int, generation: int) -> bool:
        """Whether this process holds this generation of the block."""
        return words.load(self.row, self.at + index) == generation

    @property
    def is_held(self) -> bool:
        """Whether a block is held through this object. The caller holds the lock of the state."""
        some = chain.from_iterable(map(all_of, list(self.holders.values())))
        return any(one.arena is self for one in some)

    def send_hints(self) -> None:
        """Send the hints for which the owner waits."""
        # The IndexError of an empty list ends the loop. A check of the list before each pop() does
        # not suffice, because another thread may take the last entry after the check.
        with suppress(IndexError):
            while True:
                self.record.hint(self.pool.slot + self.awaited.pop())


class BlockHold(Use):
    """The hold of one user of a block. The user is a mapping, or an import object."""

    __slots__ = ("arena", "index", "is_sure")

    # Most holds use these class attributes, so the constructor does not set them.
    parent: Use | None = None
    children: set[object] | None = None
    ends_with_owner = False
    landing: Landing | None = None
    process = property(attrgetter("arena.process"))
    record = property(attrgetter("arena.record"))
    core = property(attrgetter("arena.use.core"))

    def __init__(self, arena: ArenaImport, index: int) -> None:
        self.is_done = False
        self.arena = arena
        self.index = index
        self.is_sure = False
        """Whether the owner is certain to see the hold."""

    def take(self, generation: int) -> bool:
        """Hold the block, and return whether the hold is valid.

        The hold is invalid if the owner has freed the block or withdrawn the generation. Exception:
        the hold is valid if another hold of this process keeps that generation. The caller must end
        an invalid hold. The caller holds the lock of the state.
        """
        arena, index = self.arena, self.index
        at = arena.at + index
        row = arena.row
        # This hold is added before the word is read. In the reverse order, a signal handler between
        # the two steps could end the block's only other hold, and so clear the word after the read.
        self._enter(arena.holders)
        word = words.load(row, at)
        if not word:
            words.store(row, at, generation)
            if arena.is_fenced:
                words.fence()
        if words.observe(arena.control, at) == generation:
            if word and word != generation:
                # The row has the generation of a withdrawn handle, so write the new generation.
                words.store(row, at, generation)
            self.is_sure = True
        else:
            # The owner has freed the block or withdrawn the generation. If another hold of this
            # process keeps the generation in the row, the owner does not reuse the block, so this
            # process may map the block again. A hold whose take() was interrupted does not count,
            # because the owner may not have seen that hold.
            others = all_of(arena.holders.get(index, ()))
            self.is_sure = word == generation and any(one.is_sure for one in others)
        return self.is_sure

    @override
    def leave_to_others(self) -> bool:
        """End the hold. Return True if nothing is left to do, False if a hint must still be sent.

        The caller holds the lock of the state.
        """
        arena, index = self.arena, self.index
        at, row, holders = arena.at + index, arena.row, arena.holders
        if not IS_ORDERED:
            words.release()
        while True:
            seen = holders.get(index, ())
            left: tuple[BlockHold, ...] | BlockHold
            left = tuple([one for one in all_of(seen) if not (one is self or one.is_done)])
            if len(left) == 1:
                left = left[0]
            # One step: no signal handler and no other thread runs from this check to the last store
            # into ``holders`` or ``row``.
            if seen is (holders[index] if index in holders else ()):  # noqa: SIM401 - no call
                break
        if left:
            holders[index] = left
            self.is_done = True
            return True
        if seen:
            del holders[index]
        word = row[at]
        if not word:
            # The word is 0 already, because a signal handler raised in an earlier call: in take(),
            # before take() wrote the word, or in this method, after this method cleared the word.
            self.is_done = True
            return True
        row[at] = 0
        if arena.is_fenced:
            words.fence()
        # No signal handler runs from the assignment of is_awaited to the assignment of is_done, so
        # the hint is not added twice.
        is_awaited = words.load(arena.control, at) > word + 1
        if is_awaited:
            arena.awaited += (index,)
        self.is_done = True
        return not is_awaited

    def _enter(self, holders: "Holders") -> None:
        """Add this hold to the holders of its block."""
        index = self.index
        while True:
            seen = holders.get(index, ())
            several = (*all_of(seen), self)
            now = several if seen else self
            # No signal handler and no other thread runs between this check and the store.
            if seen is (holders[index] if index in holders else ()):  # noqa: SIM401 - no call
                holders[index] = now
                return

    @override
    def give_back(self, *, blocking: bool) -> None:
        """End the hold when no running work of the device uses the block any more.

        The queue of deferred work may contain other holds for the same device. After one wait for
        the device, this method ends these holds, too. Their mappings and imports ended before the
        wait, so the wait covers the work that uses their blocks.
        """
        failure, ended = None, [self]
        if not self.is_done:
            device = self.arena.record.device
            if self.landing is not None and self.is_needed(self.landing):
                return
            if self.landing is None and self.arena.is_asynchronous:
                ready = list(self.process.deferred.ready)
                ended = [one for one in ready if isinstance(one, BlockHold) and one.is_of(device)]
                failure = wait_for_work(device)
            with self.process.state:
                for one in (self, *ended):
                    one.leave()
        for arena in {one.arena for one in (self, *ended)}:
            arena.send_hints()
        if failure is not None:
            raise failure

    def is_of(self, device: LocalDevice) -> bool:
        """Whether this hold can end after a wait for the running work of a device."""
        return self.arena.is_asynchronous and self.arena.record.device is device

    def leave(self) -> None:
        """End the hold. A second call does nothing. The caller holds the lock of the state."""
        if self.is_done:
            return
        if self.arena.is_open:
            BlockHold.leave_to_others(self)
        if self.parent is not None and self.parent.children is not None:
            self.parent.children.discard(self)
        self.is_done = True


Holders = dict[int, BlockHold | tuple[BlockHold, ...]]
"""The holders of each held block. Most blocks have one holder, which is stored without a tuple to
save time and memory."""


def all_of(some: BlockHold | tuple[BlockHold, ...]) -> tuple[BlockHold, ...]:
    """Return the holders of a block as a tuple."""
    return some if isinstance(some, tuple) else (some,)


class LinkedHold(BlockHold):
    """A hold whose end needs more than one store.

    A hold is of this class in each of these cases:

    - The hold belongs to an import object, or to a mapping of an import object.
    - The hold belongs to an object that was made with ``on_owner_death="release"``.
    - The device has streams, or works asynchronously.

    Work that uses the block must end before the hold ends.
    """

    __slots__ = ("children", "ends_with_owner", "landing", "parent")

    def __init__(self, arena: ArenaImport, index: int) -> None:
        super().__init__(arena, index)
        self.parent = None
        self.children = None
        self.ends_with_owner = False
        self.landing = None

    @override
    def leave_to_others(self) -> bool:
        """Leave the end of the hold to :meth:`give_back`, and return False."""
        return False


def _gone(pid: int, what: str) -> OwnerGoneError:
    msg = f"process {pid}, which owns this pool, {what}"
    return OwnerGoneError(msg, hint="make a new pool in a living process, and send new handles")
