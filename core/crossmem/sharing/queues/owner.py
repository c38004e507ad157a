# SPDX-License-Identifier: Apache-2.0
"""The owner's side of a queue: its memory, its places, and the entries that it hands out.

The lease server's thread calls :meth:`QueueOwner.tend` after each change. It only reads and writes
words, so a busy owner delays the entries that were left to it, and nothing else.
"""

import os
from collections import deque
from collections.abc import Iterable
from typing import Final

from crossmem.control import words
from crossmem.control.records import Allow, Export
from crossmem.driver import Exported
from crossmem.locks import Rank, ordered_lock
from crossmem.models import Access
from crossmem.sharing.base.devices import LocalDevice, find_device
from crossmem.sharing.base.memory import usage_of
from crossmem.sharing.base.process import Process
from crossmem.sharing.exporter.allocation import Allocation, allocate
from crossmem.sharing.queues import layout
from crossmem.sharing.queues.bells import ring
from crossmem.sharing.queues.layout import SESSION
from crossmem.sharing.queues.opened import CLOSED, FINISHED, Opened, Terms
from crossmem.sharing.timelines.cell import VALUE

__all__ = ["QueueOwner", "Segment"]

_HOST: Final = "host"


class Segment:
    """Words of a queue in host memory of its owner: control, a ring or a place.

    Parameters
    ----------
    process, allow
        This process, and those that may open the queue.
    nbytes
        Size in bytes.
    """

    def __init__(self, process: Process, allow: Allow | None, nbytes: int) -> None:
        self.memory: Allocation = allocate(process, find_device(process, _HOST, None), nbytes)
        self.view = self.memory.view()
        self.view[:] = bytes(len(self.view))
        self.words = self.view.cast("Q")
        self.allow = allow
        self.bell: list[int] = []

    def export(self, access: Access) -> Export:
        """Return the export with that access."""
        handle = self.memory.export(allow=self.allow, access=access)
        leases = self.memory._process.start_server().leases
        return leases.exports.get(handle.allocation, handle.export)

    def close(self) -> None:
        """Free the memory when the others have closed it, and close the eventfd."""
        self.words.release()
        self.view.release()
        self.memory.free()
        while self.bell:
            os.close(self.bell.pop())


class QueueOwner:
    """A queue of this process.

    Parameters
    ----------
    process, device
        This process, and the device of the buffers.
    terms
        The numbers of the queue.
    allow
        The processes that may open it.
    """

    def __init__(
        self, process: Process, device: LocalDevice, terms: Terms, allow: Allow | None
    ) -> None:
        self.process = process
        self.terms = terms
        shape = terms.shape
        self._lock = ordered_lock(Rank.STATE)
        self._is_closed = False
        self._is_finished = False
        """Whether no further producer will open the queue."""
        self._backlog: deque[tuple[int, int, int, int]] = deque()
        """Producer, stamp, buffer and delivery count of the entries that wait for a consumer."""
        self._handed: dict[tuple[int, int], tuple[int, int, int]] = {}
        """By producer and stamp: target, position and delivery count of entries handed out."""
        self._seen = [0] * terms.producers
        """By producer: number of entries of which the left ones are in the backlog."""
        self._turn = 0
        self.arena: list[Allocation] = []
        self.control = Segment(process, allow, shape.control_nbytes)
        self.rings = [Segment(process, allow, shape.ring_nbytes) for _ in range(terms.producers)]
        self.places = [Segment(process, allow, shape.place_nbytes) for _ in range(terms.consumers)]
        self.arena.append(allocate(process, device, terms.stride * terms.depth * terms.producers))
        self.exclusive: list[Export] = []
        """The exports by which processes take places: of the rings, then of the places."""
        for segment in (*self.rings, *self.places):
            segment.bell.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            shared, own = segment.export("ro"), segment.export("rw")
            exported = shared.exported
            shared.exported = Exported(exported.payloads, (*exported.descriptors, segment.bell[0]))
            own.is_exclusive = True
            own.on_change = shared.on_change = self.tend
            self.exclusive.append(own)
        self.opened = Opened(
            process,
            device,
            terms,
            segments=[one.words for one in (self.control, *self.rings, *self.places)],
            bells=[one.bell[0] for one in (*self.rings, *self.places)],
            base=self.arena[0].ptr,
            usage=usage_of(self.arena[0]),
            tell_owner=lambda _is_producer, _index: self.tend(),
            is_owner_alive=lambda: True,
            kept=None,
        )
        words.store(self.control.words, layout.IDENTITY, terms.identity)

    # Changes of places --------------------------------------------------------------------

    def tend(self) -> None:
        """End the sessions of dead processes, and hand out the entries that were left here."""
        with self._lock:
            if self._is_closed:
                return
            is_changed = self._end_sessions()
            if self.terms.delivery == "one":
                self._hand_out()
            self._finish_if_over()
        if is_changed:
            self.wake_all()

    def wake_all(self) -> None:
        """Wake every process that sleeps, so that it looks again."""
        for segment in (*self.rings, *self.places):
            if segment.bell:
                ring(segment.words, segment.bell[0])

    def _is_held(self, export: Export) -> bool:
        server = self.process.start_server()
        with server.leases.lock:
            number, slot = export.handle.export, export.slot
            if any(one.export == number for one in list(export.unit.leases.values())):
                return True
            return slot is not None and words.any_of(export.rows.values(), slot.at)

    def _end_sessions(self) -> bool:
        shape, control, is_changed = self.opened.shape, self.control.words, False
        for index, segment in enumerate((*self.rings, *self.places)):
            is_producer = index < len(self.rings)
            place = index if is_producer else index - len(self.rings)
            at = shape.ended_producer(place) if is_producer else shape.ended_consumer(place)
            session = words.observe(segment.words, SESSION)
            if is_producer:
                is_new = session % 2 and session > words.load(control, at)
            else:
                # The entries of a consumer that has closed its place go to others, too.
                session -= session % 2 == 0
                is_new = session > words.load(control, at)
            if not is_new or (
                self._is_held(self.exclusive[index])
                and session == words.load(segment.words, SESSION)
            ):
                continue
            words.store(control, at, session)
            is_changed = True
            if not is_producer and self.terms.delivery == "one":
                self._recover(place, session)
        return is_changed

    def _recover(self, consumer: int, session: int) -> None:
        """Take the entries of a consumer that has left: others get them, or they are lost."""
        target, shape = layout.target_of(consumer, session), self.opened.shape
        place, control = self.places[consumer].words, self.control.words
        for producer, stamp, buffer in self._entries():
            found, position, count = self._target(producer, stamp, buffer)
            if found != target or self._is_released(producer, stamp, buffer, place):
                continue
            if position < 0:
                is_read = words.load(place, shape.read(producer)) >= stamp
            else:
                is_read = words.load(place, layout.HANDED) > position
            if not is_read:
                self._backlog.append((producer, stamp, buffer, count))
            elif self.terms.redeliver:
                self._backlog.append((producer, stamp, buffer, count + 1))
                words.store(
                    control, layout.REDELIVERED, words.load(control, layout.REDELIVERED) + 1
                )
            else:
                words.store(control, shape.dropped(producer, buffer), stamp)
                words.store(control, layout.LOST, words.load(control, layout.LOST) + 1)

    # Entries ------------------------------------------------------------------------------

    def _entries(self) -> list[tuple[int, int, int]]:
        """Return producer, stamp and buffer of all published entries, by producer in order."""
        found, shape = [], self.opened.shape
        for producer, segment in enumerate(self.rings):
            tail = words.observe(segment.words, VALUE)
            for buffer in range(self.terms.depth):
                stamp = words.load(segment.words, shape.entry(buffer))
                if 0 < stamp <= tail:
                    found.append((producer, stamp, buffer))
        return sorted(found)

    def _target(self, producer: int, stamp: int, buffer: int) -> tuple[int, int, int]:
        """Return the target of an entry, its position if it was handed out, and its count."""
        handed = self._handed.get((producer, stamp))
        if handed is not None:
            return handed
        at = self.opened.shape.entry(buffer) + layout.TARGET
        return words.load(self.rings[producer].words, at), -1, 1

    def _is_released(self, producer: int, stamp: int, buffer: int, place: memoryview) -> bool:
        """Whether a consumer has released an entry, or the owner has given it up."""
        shape = self.opened.shape
        if words.load(place, shape.released(producer, buffer)) == stamp:
            return True
        return words.load(self.control.words, shape.dropped(producer, buffer)) == stamp

    def _hand_out(self) -> None:
        """Give the entries without a consumer to those that have room."""
        shape, control = self.opened.shape, self.control.words
        entries = self._entries()
        live = {(producer, stamp) for producer, stamp, _buffer in entries}
        self._handed = {one: where for one, where in self._handed.items() if one in live}
        lefts = [words.observe(one.words, layout.LEFT) for one in self.rings]
        for producer, stamp, buffer in entries:
            if (
                self._seen[producer] < stamp <= lefts[producer]
                and not (self._target(producer, stamp, buffer)[0])
            ):
                self._backlog.append((producer, stamp, buffer, 1))
        self._seen = list(map(max, lefts, self._seen))
        for is_last_try in (False, True):
            rooms = self._rooms(entries)
            while self._backlog and any(rooms.values()):
                entry = self._backlog.popleft()
                if entry[:2] in live:
                    self._give(entry, rooms)
            words.store(control, layout.WANT, bool(self._backlog))
            if not self._backlog or is_last_try:
                break
            # A consumer that released before it saw the wish sends no hint.
            words.barrier()
        waiting = {entry[0] for entry in self._backlog}
        for producer in range(self.terms.producers):
            if producer not in waiting:
                words.store(control, shape.caught_up(producer), self._seen[producer])

    def _rooms(self, entries: list[tuple[int, int, int]]) -> dict[int, int]:
        """Return by consumer how many further entries it can have."""
        opened = self.opened
        rooms: dict[int, int] = {}
        for consumer in range(self.terms.consumers):
            if session := opened.session_of(consumer):
                target, place = layout.target_of(consumer, session), opened.places[consumer]
                taken = sum(
                    self._target(producer, stamp, buffer)[0] == target
                    and not self._is_released(producer, stamp, buffer, place)
                    for producer, stamp, buffer in entries
                )
                rooms[consumer] = max(0, self.terms.prefetch - taken)
        return rooms

    def _give(self, entry: tuple[int, int, int, int], rooms: dict[int, int]) -> None:
        """Hand one entry to the next consumer with room."""
        producer, stamp, buffer, count = entry
        opened, shape, control = self.opened, self.opened.shape, self.control.words
        order = sorted(rooms, key=lambda one: (one - self._turn) % self.terms.consumers)
        consumer = next(one for one in order if rooms[one])
        self._turn = consumer + 1
        rooms[consumer] -= 1
        position = words.load(control, shape.hand_tail(consumer))
        at = shape.hand(consumer, position)
        words.store(control, at, stamp)
        words.store(control, at + 1, producer | buffer << 8 | count << 32)
        target = layout.target_of(consumer, opened.session_of(consumer))
        self._handed[producer, stamp] = (target, position, count)
        words.release()
        words.store(control, shape.hand_tail(consumer), position + 1)
        ring(opened.places[consumer], opened.place_bells[consumer])

    # The end ------------------------------------------------------------------------------

    def sessions(self, *, of_producers: bool) -> int:
        """Return how many places are taken."""
        opened, control = self.opened, self.control.words
        if not of_producers:
            return sum(bool(opened.session_of(one)) for one in range(self.terms.consumers))
        found = 0
        for index, segment in enumerate(self.rings):
            session = words.observe(segment.words, SESSION)
            ended = words.load(control, opened.shape.ended_producer(index))
            found += session % 2 and session > ended
        return found

    def finish(self) -> None:
        """End the queue when the producers have closed: no further one will open it."""
        self._is_finished = True
        self.tend()

    def _finish_if_over(self) -> None:
        came = sum((words.load(one.words, SESSION) + 1) // 2 for one in self.rings)
        is_announced = self._is_finished or came >= self.terms.producers
        if not self.opened.end and is_announced and not self.sessions(of_producers=True):
            words.release()
            words.store(self.control.words, layout.END, FINISHED)
            self.wake_all()

    def close(self) -> None:
        """Close the queue: nothing can be put any more. A second call does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            words.release()
            words.store(self.control.words, layout.END, CLOSED)
        self.wake_all()

    def free(self, directories: Iterable[Segment]) -> None:
        """Free the memory when the other processes have closed it."""
        for memory in self.arena:
            memory.free()
        for segment in (self.control, *self.rings, *self.places, *directories):
            segment.close()
