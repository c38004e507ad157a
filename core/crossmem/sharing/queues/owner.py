# SPDX-License-Identifier: Apache-2.0
"""The owner's side of a queue: its sessions, and the entries that it hands out.

The lease server's thread calls :meth:`QueueOwner.tend` when a process rings the owner's bell, and
when a producer or consumer dies. The method only reads and writes words, and rings bells. A busy
owner delays only the entries that were left to the owner, and the beginnings and ends of sessions.
Each call reads all words again, so a peer may die at any step.
"""

import os
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

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


class _Entry(NamedTuple):
    """A published entry that was not dropped."""

    producer: int
    stamp: int
    buffer: int
    target: int
    """The consumer and session that have the entry, 0 if no consumer has it."""
    is_handed: bool
    """Whether the owner, not the producer, has determined the target."""
    deliveries: int
    """Number of deliveries, including the present or the next one."""


class QueueOwner:
    """A queue of this process.

    Parameters
    ----------
    process, device
        This process, and the device of the buffers.
    terms
        The declared sizes and rules of the queue.
    allow
        The processes that may open the queue.
    """

    def __init__(
        self, process: Process, device: LocalDevice, terms: Terms, allow: Allow | None
    ) -> None:
        self.process = process
        self.terms = terms
        self._lock = ordered_lock(Rank.STATE)
        self._is_finished = False
        """Whether no further producer will open the queue."""
        self._revoked: set[int] = set()
        """The pids of processes whose roles were revoked."""
        self._suspects: set[int] = set()
        """Rings and places whose process may have died or lost its roles."""
        self._given: dict[tuple[int, int], tuple[int, int]] = {}
        """Entries that the owner has handed out or recovered. A key is (producer, stamp), a value
        (target, delivery count)."""
        self._turns = [0, 0]
        """The producer and the consumer whose turn is next."""
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
        """Open and end sessions, hand out the entries that wait, and end the queue."""
        with self._lock:
            if self.opened.end == CLOSED:
                return
            # A process that asked for a session waits until ROUND is 0 again.
            words.store(self._control, ROUND, 1)
            try:
                is_changed = self._change_sessions()
                if is_changed:
                    words.release()
                    words.store(self._control, SESSIONS, self._control[SESSIONS] + 1)
                    # After the barrier, a producer sees the end of a session, or this call sees
                    # the entry that the producer gave to that session.
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
        """Whether a place has no process, or the roles of its process were revoked."""
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
        """Recover the entries of a session that ends, or count them as lost."""
        terms, control = self.terms, self._control
        consumer = (target >> 48) - 1
        for one in self._entries():
            if one.target != target or self._is_released(one, consumer):
                continue
            is_read = self._is_read(one, consumer)
            # After the end, the other consumers do not wait for entries any more.
            if not terms.redeliver and (is_read or self.opened.end == ENDED):
                at = terms.decision(one.producer, one.buffer)
                words.store(control, at, one.stamp << 8 | GIVEN_UP)
                words.store(control, LOST, control[LOST] + 1)
                self._given.pop((one.producer, one.stamp), None)
                continue
            self._given[one.producer, one.stamp] = 0, one.deliveries + is_read
            words.store(control, REDELIVERED, control[REDELIVERED] + is_read)

    # Entries ------------------------------------------------------------------------------

    def _entries(self) -> list[_Entry]:
        """Return the published entries, by producer and stamp.

        Entries that the owner has given up are left out, and entries of an ended producer whose
        data are incomplete.
        """
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

    def _is_read(self, one: _Entry, consumer: int) -> bool:
        place = self.opened.segments[self.terms.producers + consumer]
        if one.is_handed:
            at = self.terms.held(one.producer, one.buffer)
            return words.load(place, at) == one.stamp
        return words.load(place, self.terms.read(one.producer)) >= one.stamp

    def _is_ready(self, one: _Entry) -> bool:
        """Whether an entry can be read now: no stream fills it, and no producer drops it."""
        segment, at = self.opened.segments[one.producer], self.terms.entry(one.buffer)
        # The mark DROPPING of a dead producer has no effect.
        is_whole = segment[at] == one.stamp or not self.opened.member(one.producer)
        return is_whole and segment[at + READY] >= segment[at + WANTED]

    def _hand_out(self) -> bool:
        """Hand waiting entries to consumers with room; return whether the queue could end now."""
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
                # The next call handles the entries that were published after the tails were read.
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
            # A consumer that released before it saw WANT has rung no bell. So the loop repeats.
            words.barrier()
        return is_settled

    def _give(self, waiting: dict[int, list[_Entry]], taken: Counter[tuple[int, int]]) -> None:
        """Hand out entries while a consumer has room. Producers and consumers take turns."""
        terms, control, opened = self.terms, self._control, self.opened
        places = opened.segments[terms.producers :]
        # The hand of a consumer has room for ``prefetch`` entries.
        unread = {
            one: control[terms.handed(one)] - words.observe(places[one], HANDED)
            for one in range(terms.consumers)
            if opened.consumer(one)
        }
        # A producer whose entries are not ready or not released delays no other producer.
        left = {producer for producer in waiting if waiting[producer]}
        while left:
            producer = _next(self._turns[0], left)
            rooms = [
                one for one in unread if max(taken[one, producer], unread[one]) < terms.prefetch
            ]
            if not rooms or not self._is_ready(waiting[producer][0]):
                left.discard(producer)
                continue
            consumer = _next(self._turns[1], rooms)
            self._turns = [producer + 1, consumer + 1]
            one = waiting[producer].pop(0)
            if not waiting[producer]:
                left.discard(producer)
            taken[consumer, producer] += 1
            unread[consumer] += 1
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
        """End the queue as soon as the present producers have closed."""
        self._is_finished = True
        self.tend()

    def _end(self, *, is_settled: bool) -> bool:
        """End the queue if no producer is left, and no further producer is expected."""
        terms, end = self.terms, self.opened.end
        members = [self._control[terms.member(one)] for one in range(terms.producers)]
        came = sum((one + 1) // 2 for one in members)
        if any(one % 2 for one in members) or not (self._is_finished or came >= terms.producers):
            return False
        if not end and terms.redeliver:
            words.store(self._control, END, FINISHED)
            # With END set, unreleased entries count as unsettled, too, and releases ring the bell.
            is_settled = self._hand_out()
        words.release()
        words.store(self._control, END, ENDED if is_settled else FINISHED)
        return self.opened.end != end

    def close(self) -> None:
        """Close the queue: nothing can be put any more. A second call does nothing."""
        with self._lock:
            words.store(self._control, END, CLOSED)
        self._wake_all()


def _next(turn: int, several: Collection[int]) -> int:
    """Return the smallest number that is not below ``turn``; if there is none, the smallest."""
    return min(several, key=lambda one: (one < turn, one))
