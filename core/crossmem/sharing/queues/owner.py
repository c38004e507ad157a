# SPDX-License-Identifier: Apache-2.0
"""The owner's side of a queue: its sessions, and the entries that it hands out.

The lease server's thread calls :meth:`QueueOwner.tend` when somebody rings the owner's bell or
dies. It only reads and writes words, so a busy owner delays the entries that were left to it, and
nothing else. Each call looks at all words again, so it does not matter where a peer has died.
"""

import os
from collections import Counter
from contextlib import suppress
from typing import Final, NamedTuple

from crossmem.control import words
from crossmem.control.records import Allow
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.queues.layout import (
    CLOSED,
    DROPPING,
    END,
    ENDED,
    FINISHED,
    GIVEN_UP,
    HANDED,
    LATE,
    LOST,
    MAX_STAMP,
    READY,
    REDELIVERED,
    ROUND,
    SESSIONS,
    TARGET,
    WAITING,
    WANT,
    WANTED,
    WISH,
    Terms,
    target_of,
)
from crossmem.sharing.queues.segments import Segments

__all__ = ["QueueOwner"]

_HOST: Final = "host"


class _Entry(NamedTuple):
    """A published entry that was not dropped."""

    producer: int
    stamp: int
    buffer: int
    target: int
    """The consumer that has it, 0 if none has."""
    is_handed: bool
    """Whether the owner has handed it to that consumer."""
    deliveries: int
    """How often it was delivered, the next time included."""


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
        self._lock = ordered_lock(Rank.STATE)
        self._is_finished = False
        """Whether no further producer will come."""
        self._revoked: set[int] = set()
        """The pids of processes without any role."""
        self._suspects: set[int] = set()
        """Places of which a process has died, or has lost its roles."""
        self._given: dict[tuple[int, int], tuple[int, int]] = {}
        """By producer and stamp: target and count of the entries that passed through here."""
        self._turns = [0, 0]
        """The producer and the consumer that come next."""
        self.segments = Segments(process, device, terms, allow)
        self.opened = self.segments.opened
        self._control = self.opened.control
        try:
            self.segments.watch(self._answer, self._suspect)
        except BaseException:
            self.segments.free()
            raise

    # Sessions -----------------------------------------------------------------------------

    def _answer(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.opened.owner_bell)
        self.tend()

    def _suspect(self, place: int) -> None:
        self._suspects.add(place)
        self.tend()

    def tend(self) -> None:
        """Open and end sessions, hand out entries that were left here, and end the queue."""
        with self._lock:
            if self.opened.end == CLOSED:
                return
            # A process that joins waits until the round is over.
            words.store(self._control, ROUND, 1)
            try:
                is_changed = self._change_sessions()
                if is_changed:
                    words.release()
                    words.store(self._control, SESSIONS, self._control[SESSIONS] + 1)
                    # After the barrier, a producer sees that a consumer has gone, or its entry is
                    # seen.
                    words.barrier()
                is_settled = self.terms.delivery == "each" or self._hand_out()
                is_changed |= self._end(is_settled=is_settled)
            finally:
                words.release()
                words.store(self._control, ROUND, 0)
        if is_changed:
            self._wake_all()

    def _wake_all(self) -> None:
        for place in range(self.terms.places):
            self.opened.wake(place)

    def _change_sessions(self) -> bool:
        terms, control, is_changed = self.terms, self._control, False
        suspects, self._suspects = self._suspects, set()
        for place, segment in enumerate(self.opened.segments):
            at, is_producer = terms.member(place), place < terms.producers
            member, wish = control[at], words.observe(segment, WISH)
            if member % 2:
                if wish == member and not (place in suspects and self._has_gone(place)):
                    continue
                if is_producer:
                    words.store(control, terms.stop(place), self.opened.tail(place))
                else:
                    self._recover(target_of(place - terms.producers, member))
                words.release()
                words.store(control, at, member + 1)
                is_changed = True
            elif wish == member + 1 and not (is_producer and self.opened.end):
                if self._has_gone(place):
                    words.store(control, terms.denied(place), wish)
                else:
                    if is_producer:
                        words.store(control, terms.stop(place), MAX_STAMP)
                    words.release()
                    words.store(control, at, wish)
                is_changed = True
        return is_changed

    def _has_gone(self, place: int) -> bool:
        """Whether no process has a place, or one that may not have it."""
        export, leases = self.segments.exclusive[place], self.process.start_server().leases
        with leases.lock:
            slot, number = export.slot, export.handle.export
            pids = {one.holder.pid for one in export.unit.leases.values() if one.export == number}
            if slot is not None:
                rows = list(export.rows.items())
                pids |= {row.holder.pid for row, held in rows if words.load(held, slot.at)}
        return not pids or bool(pids & self._revoked)

    def revoke(self, pid: int) -> None:
        """Take all roles from a process."""
        self._revoked.add(pid)
        self._suspects.update(range(self.terms.places))
        self.tend()

    def _recover(self, target: int) -> None:
        """Take the entries of a session that ends: others get them, or they are lost."""
        terms, control = self.terms, self._control
        consumer = (target >> 48) - 1
        place = self.opened.segments[terms.producers + consumer]
        for one in self._entries():
            if one.target != target or self._is_released(one, consumer):
                continue
            if one.is_handed:
                is_read = words.load(place, terms.held(one.producer, one.buffer)) == one.stamp
            else:
                is_read = words.load(place, terms.read(one.producer)) >= one.stamp
            if is_read and not terms.redeliver:
                at = terms.decision(one.producer, one.buffer)
                words.store(control, at, one.stamp << 8 | GIVEN_UP)
                words.store(control, LOST, control[LOST] + 1)
                self._given.pop((one.producer, one.stamp), None)
                continue
            self._given[one.producer, one.stamp] = 0, one.deliveries + is_read
            words.store(control, REDELIVERED, control[REDELIVERED] + is_read)

    # Entries ------------------------------------------------------------------------------

    def _entries(self) -> list[_Entry]:
        """Return all published entries that the owner has not given up, in order."""
        found, terms = [], self.terms
        for producer in range(terms.producers):
            segment, tail = self.opened.segments[producer], self.opened.tail(producer)
            is_open = self.opened.member(producer)
            for buffer in range(terms.depth):
                at = terms.entry(buffer)
                stamp = segment[at] & ~DROPPING
                if (
                    not 0 < stamp <= tail
                    or self._control[terms.decision(producer, buffer)] == stamp << 8 | GIVEN_UP
                    or not (is_open or segment[at + READY] >= segment[at + WANTED])
                ):
                    continue
                known = self._given.get((producer, stamp))
                target, count = known or (segment[at + TARGET], 1)
                if not 0 < target >> 48 <= terms.consumers:
                    target = 0
                found.append(_Entry(producer, stamp, buffer, target, known is not None, count))
        return sorted(found)

    def _is_released(self, one: _Entry, consumer: int) -> bool:
        return self.opened.released(consumer, one.producer, one.buffer) == one.stamp

    def _is_ready(self, one: _Entry) -> bool:
        """Whether consumers can read an entry now: no stream and no producer works on it."""
        segment, at = self.opened.segments[one.producer], self.terms.entry(one.buffer)
        # A producer that died before it dropped the entry leaves its mark.
        is_whole = segment[at] == one.stamp or not self.opened.member(one.producer)
        return is_whole and segment[at + READY] >= segment[at + WANTED]

    def _hand_out(self) -> bool:
        """Give the entries that no consumer has to those with room; whether all are settled."""
        terms, control = self.terms, self._control
        for is_last_try in (False, True):
            tails = [self.opened.tail(producer) for producer in range(terms.producers)]
            entries = self._entries()
            live = {one[:2] for one in entries}
            self._given = {key: one for key, one in self._given.items() if key in live}
            waiting: dict[int, list[_Entry]] = {}
            taken: Counter[tuple[int, int]] = Counter()
            for one in entries:
                consumer = (one.target >> 48) - 1
                if one.target and self._is_released(one, consumer):
                    continue
                session = self.opened.consumer(consumer) if one.target else 0
                if session and one.target == target_of(consumer, session):
                    taken[consumer, one.producer] += 1
                else:
                    waiting.setdefault(one.producer, []).append(one)
            self._give(waiting, taken)
            for producer in range(terms.producers):
                left = waiting.get(producer)
                # Entries that were published since are looked at in the next call.
                words.store(
                    control, terms.decided(producer), left[0].stamp - 1 if left else tails[producer]
                )
            words.store(control, WAITING, sum(map(len, waiting.values())))
            is_settled = not control[WAITING]
            if terms.redeliver and self.opened.end:
                is_settled &= not taken.total()
            are_late = any(left and not self._is_ready(left[0]) for left in waiting.values())
            words.store(control, WANT, LATE if are_late else not is_settled)
            if is_settled or is_last_try:
                break
            # A consumer that released before it saw that word rings no bell.
            words.barrier()
        return is_settled

    def _give(self, waiting: dict[int, list[_Entry]], taken: Counter[tuple[int, int]]) -> None:
        """Hand entries out as long as a consumer has room, in turns of producers and consumers."""
        terms, control, opened = self.terms, self._control, self.opened
        present = [one for one in range(terms.consumers) if opened.consumer(one)]

        def has_room(consumer: int, producer: int) -> bool:
            place = opened.segments[terms.producers + consumer]
            unread = control[terms.handed(consumer)] - words.observe(place, HANDED)
            return max(taken[consumer, producer], unread) < terms.prefetch

        while True:
            # A producer whose entries are not ready or not released delays no other one.
            rooms = {
                producer: found
                for producer, left in waiting.items()
                if left
                and self._is_ready(left[0])
                and (found := [one for one in present if has_room(one, producer)])
            }
            if not rooms:
                return
            producer = _next(self._turns[0], list(rooms))
            consumer = _next(self._turns[1], rooms[producer])
            self._turns = [producer + 1, consumer + 1]
            one = waiting[producer].pop(0)
            taken[consumer, producer] += 1
            position = control[terms.handed(consumer)]
            at = terms.hand(consumer, position)
            words.store(control, at, one.stamp)
            words.store(control, at + 1, producer | one.buffer << 8 | one.deliveries << 32)
            words.store(
                control, terms.decision(producer, one.buffer), one.stamp << 8 | consumer + 1
            )
            target = target_of(consumer, opened.consumer(consumer))
            self._given[producer, one.stamp] = target, one.deliveries
            words.release()
            words.store(control, terms.handed(consumer), position + 1)
            opened.wake(terms.producers + consumer)

    # The end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the queue when the producers have closed: no further one will come."""
        self._is_finished = True
        self.tend()

    def _end(self, *, is_settled: bool) -> bool:
        """End the queue if no producer is left and no further one will come."""
        terms, end = self.terms, self.opened.end
        members = [self._control[terms.member(one)] for one in range(terms.producers)]
        came = sum((one + 1) // 2 for one in members)
        if any(one % 2 for one in members) or not (self._is_finished or came >= terms.producers):
            return False
        if not end and self.terms.redeliver:
            words.store(self._control, END, FINISHED)
            # From now on, the owner wants to know of each release.
            is_settled = self._hand_out()
        words.release()
        words.store(self._control, END, ENDED if is_settled else FINISHED)
        return self.opened.end != end

    def close(self) -> None:
        """Close the queue: nothing can be put any more. A second call does nothing."""
        with self._lock:
            words.store(self._control, END, CLOSED)
        self._wake_all()


def _next(turn: int, several: list[int]) -> int:
    """Return the first one from a turn on, or the first of all."""
    return min(several, key=lambda one: (one < turn, one))
