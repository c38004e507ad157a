# SPDX-License-Identifier: Apache-2.0
"""The record of a timeline: its resources, their release, and the waits of streams."""

from typing import Final

from typing_extensions import override

from crossmem.control.barrier import IS_ORDERED, IS_REGISTERED
from crossmem.driver.recording import call_into
from crossmem.errors import ClosedError, CrossmemError, OwnerGoneError
from crossmem.locks import Rank, ordered_lock
from crossmem.models import TimelineHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.process import Process
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.timelines.cell import IDENTITY, ISSUED, VALUE, VOID, Awaited, Cell
from crossmem.sharing.timelines.events import EventLevel
from crossmem.sharing.timelines.levels import HostLevel, Level, WordLevel
from crossmem.sharing.timelines.memory import Page, Pages
from crossmem.sharing.timelines.readers import Readers, ReaderWord
from crossmem.sharing.timelines.watcher import StreamWatcher

__all__ = ["IS_FENCED", "TimelineRecord"]

IS_FENCED: Final = not (IS_ORDERED and IS_REGISTERED)
"""Whether accesses to a cell need fences. The methods of :class:`Cell` execute the fences."""
_LEVELS: Final = {"host": HostLevel, "word": WordLevel}


class TimelineRecord(Record):
    """The resources of a timeline: its words, and the vendor's resources for its streams."""

    __slots__ = (
        "cell",
        "handle",
        "is_ended",
        "is_own",
        "last",
        "level",
        "lock",
        "mapping",
        "page",
        "process",
        "reader",
        "words",
    )

    def __init__(
        self,
        process: Process,
        handle: TimelineHandle,
        cell: Cell,
        device: LocalDevice,
        source: Page | Mapping,
    ) -> None:
        super().__init__()
        self.process = process
        self.handle = handle
        self.cell = cell
        self.lock = ordered_lock(Rank.ALLOCATION)
        """Held during driver calls for this timeline."""
        self.is_own = isinstance(source, Page)
        """Whether this record belongs to the ``Timeline`` that signals. A ``Timeline`` that was
        opened from a handle does not signal, even in the same process."""
        self.page = source if isinstance(source, Page) else None
        """The timeline's page, if :attr:`is_own` is true; None after the release."""
        self.mapping = source if isinstance(source, Mapping) else None
        """The timeline's mapping, if :attr:`is_own` is false; None after the release."""
        self.reader: ReaderWord | None = None
        """The word for this process's acknowledgements; None before the first acknowledgement."""
        self.words = cell.words
        self.is_ended = False
        """Whether this record has voided the timeline. False if :attr:`is_own` is false."""
        self.last = VOID
        """VOID if every signal needs the lock. Else the current value: a signal that names no
        stream then needs no lock. :meth:`Timeline.signal` takes the lock unless the new value is
        larger than this attribute. Every valid new value is smaller than VOID."""
        self.allow_stores()
        self.level: Level
        if handle.level == "event":
            maker = self._maker(device)
            self.level = EventLevel(process, device, cell, is_own=self.is_own, maker=maker)
        else:
            self.level = _LEVELS[handle.level](process, device, cell)

    @property
    def known(self) -> int:
        """The largest value that was signalled, or that a stream of this process has awaited."""
        awaited = self.process.part(Readers).awaited
        return max(self.level.issued, awaited.get(self.handle.identity, 0))

    def allow_stores(self) -> None:
        """Let signals that name no stream store their values without taking the lock.

        Do nothing if a stream may still write the value, or if signals of this timeline always need
        the lock. The caller holds the lock.
        """
        is_one_store = self.is_own and self.handle.level != "event" and not IS_FENCED
        if is_one_store and not self.is_ended:
            value = self.words[VALUE]
            if self.words[ISSUED] <= value:
                self.last = value

    def _maker(self, device: LocalDevice) -> EventLevel | None:
        """Return the ``level`` of the record with which this process signals this timeline.

        Return None if this process does not signal the timeline, or signals the timeline with a
        driver that is not the driver of ``device``.
        """
        for one in list(self.process.part(Pages).signalled):
            if isinstance(one, TimelineRecord) and one.handle == self.handle:
                level = one.level
                if isinstance(level, EventLevel) and level.device.driver is device.driver:
                    return level
        return None

    @property
    def device(self) -> LocalDevice:
        """The device whose streams the timeline object uses."""
        return self.level.device

    @property
    def is_owner_alive(self) -> bool:
        """Whether the process that signals the timeline still runs."""
        return self.mapping is None or self.mapping.owner_alive

    @property
    def is_closed(self) -> bool:
        """Whether the signalling process has closed the timeline. The value then becomes void."""
        return self.cell.read(IDENTITY) != self.handle.identity

    def check(self) -> None:
        """Raise if no value will be signalled any more.

        Raises
        ------
        ClosedError, OwnerGoneError
            The signalling process closed the timeline, or is dead.
        """
        pid = self.handle.memory.owner.pid
        if self.is_closed:
            msg = f"process {pid}, which signals this timeline, closed it"
            raise ClosedError(msg, operation="wait")
        if not self.is_owner_alive:
            msg = f"process {pid}, which signals this timeline, is dead"
            raise OwnerGoneError(msg, operation="wait")

    def refuse_void(self, reached: int) -> None:
        """Raise if a wait has ended because no value will be signalled any more.

        Raises
        ------
        ClosedError, OwnerGoneError
            As for :meth:`check`.
        """
        if reached >= VOID:
            self.check()
            pid = self.handle.memory.owner.pid
            msg = f"process {pid}, which signals this timeline, died before it signalled the value"
            raise OwnerGoneError(msg, operation="wait")

    def hold(self, awaited: Awaited, stream: int) -> None:
        """Let the later work of a stream wait until a value is reached."""
        level = self.level
        if level.blocks_host:
            # prepare() waits without the lock, because a thread that signals needs the lock.
            self.refuse_void(level.prepare(awaited))
            with self.lock:
                level.wait(awaited.value, stream)
            return
        level.streams  # noqa: B018 - raises if the device has no streams
        if awaited.value <= self.cell.read(VALUE) < VOID:
            # The value is reached, so there is no wait, even if the signalling process is dead.
            return
        self.check()
        watcher = self.process.part(StreamWatcher)
        before = watcher.watch(self, awaited.value)
        try:
            with self.lock:
                awaited.check()
                level.wait(awaited.value, stream)
                known, identity = self.process.part(Readers).awaited, self.handle.identity
                known[identity] = max(known.get(identity, 0), awaited.value)
        except CrossmemError:
            watcher.forget(self, awaited.value, before)
            raise

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Release the timeline's resources as soon as nothing uses the resources any more.

        If this process signals the timeline, void the timeline first.
        """
        deferred = self.process.deferred
        taken: list[bool] = []
        try:
            call_into(taken, self.lock.acquire, blocking)
            if not taken[0] or self.is_done:
                return
            if self.page is not None and not self.is_ended:
                if self._has_work():
                    is_left = self in deferred.waiting
                    if (is_left or not blocking) and not self.process.is_exiting:
                        # A wait for the work could last for ever, because the work may itself wait
                        # for a signal of this thread. So the reaper releases the words later.
                        deferred.waiting.add(self)
                        deferred.start_reaper()
                        return
                    # This call first waits for the work, because a stream must not overwrite the
                    # void value.
                    wait_for_work(self.device)
                self._end_own()
            if self._is_in_use():
                deferred.waiting.add(self)
                deferred.start_reaper()
                return
            if self.reader is not None:
                self.reader.leave()
            self.process.part(Readers).awaited.pop(self.handle.identity, None)
            self.level.close()
            if self.page is not None:
                self.process.part(Pages).leave(self.page, self)
            self.is_done = True
            self.page = self.mapping = None
        finally:
            if taken and taken[0]:
                self.lock.release()
        deferred.waiting.discard(self)

    def _has_work(self) -> bool:
        """Whether streams of this process may still write the value."""
        level = self.level
        if level.device.driver in self.process.stuck:
            return False
        try:
            return level.is_unsure or level.issued > level.reached
        except CrossmemError:
            return True

    def _end_own(self) -> None:
        """Void the timeline, so that all waits end. A second call changes nothing."""
        self.last = VOID
        self.cell.write(IDENTITY, 0)
        # VALUE is written before ISSUED. In the other order, an interrupted call could leave ISSUED
        # larger than VALUE, and waiters would poll instead of sleep.
        self.cell.write(VALUE, VOID)
        self.cell.write(ISSUED, VOID)
        self.is_ended = True

    def _is_in_use(self) -> bool:
        """Whether streams or other processes still use the vendor's resources or the words."""
        if self.process.part(StreamWatcher).is_needed(self):
            return True
        # An event must not be destroyed before the processes that opened it have closed it.
        return self.handle.level == "event" and self.page is not None and not self.page.retire()
