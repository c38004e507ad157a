# SPDX-License-Identifier: Apache-2.0
"""The owner's side of a queue: its sessions, and the entries that it hands out.

The lease server's thread calls :meth:`QueueOwner.tend` when a process rings the owner's bell, and
when a producer or consumer dies. The method only reads and writes words, and rings bells. A busy
owner delays only the entries that were left to the owner, and the beginnings and ends of sessions.
Each call reads all words again, so a peer may die at any step.
"""

import os
from collections.abc import Collection
from contextlib import suppress

from crossmem.control import words
from crossmem.control.records import Allow
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.queues.layout import (
    CLOSED,
    END,
    ENDED,
    FINISHED,
    GIVEN_UP,
    HANDED,
    LATE,
    LOST,
    MAX_STAMP,
    REDELIVERED,
    ROUND,
    SESSIONS,
    WAITING,
    WANT,
    WISH,
    Terms,
    target_of,
)
from crossmem.sharing.queues.opened import ring
from crossmem.sharing.queues.published import Published
from crossmem.sharing.queues.segments import Segments

__all__ = ["QueueOwner"]


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
        self._turns = [0, 0]
        """The producer and the consumer whose turn is next."""
        self._is_tending = False
        self._is_known = False
        """Whether the last call of :meth:`_hand_out` was not interrupted."""
        self.segments = Segments(process, device, terms, allow)
        self.opened = self.segments.opened
        self._control = self.opened.control
        self._published = Published(self.opened)
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
            if self._is_tending:
                # A signal handler runs inside this method. The server's thread tends again.
                ring(self.opened.owner_bell)
                return
            # A process that asked for a session waits until ROUND is 0 again.
            words.store(self._control, ROUND, 1)
            try:
                self._is_tending = True
                is_changed = self._change_sessions()
                if is_changed:
                    words.release()
                    words.store(self._control, SESSIONS, self._control[SESSIONS] + 1)
                    # After the barrier, a producer sees the end of a session, or this call sees
                    # the entry that the producer gave to that session.
                    words.barrier()
                is_settled = self.terms.delivery == "each" or self._hand_out(is_changed=is_changed)
                is_changed |= self._end(is_settled=is_settled)
            finally:
                self._is_tending = False
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
        for one in self._published.all():
            if one.target != target or self._published.is_released(one, consumer):
                continue
            is_read = self._published.is_read(one, consumer)
            # After the end, the other consumers do not wait for entries any more.
            if not terms.redeliver and (is_read or self.opened.end == ENDED):
                at = terms.decision(one.producer, one.buffer)
                words.store(control, at, one.stamp << 8 | GIVEN_UP)
                words.store(control, LOST, control[LOST] + 1)
                self._published.given.pop((one.producer, one.stamp), None)
                continue
            self._published.given[one.producer, one.stamp] = 0, one.deliveries + is_read
            words.store(control, REDELIVERED, control[REDELIVERED] + is_read)

    # Entries ------------------------------------------------------------------------------

    def _hand_out(self, *, is_changed: bool) -> bool:
        """Hand waiting entries to consumers with room; return whether the queue could end now."""
        terms, control, published = self.terms, self._control, self._published
        rings = published.rings
        is_changed, self._is_known = is_changed or not self._is_known, False
        for is_last_try in (False, True):
            tails = [self.opened.tail(producer) for producer in range(terms.producers)]
            for producer, tail in enumerate(tails):
                published.read(producer, tail, is_changed=is_changed)
            published.forget_old(is_changed=is_changed)
            self._give()
            for producer, ring_ in enumerate(rings):
                left = ring_.waiting
                # The next call handles the entries that were published after the tails were read.
                words.store(
                    control, terms.decided(producer), left[0].stamp - 1 if left else tails[producer]
                )
            words.store(control, WAITING, sum(len(one.waiting) for one in rings))
            is_settled = not control[WAITING]
            if terms.redeliver and self.opened.end:
                is_settled &= not any(one.given for one in rings)
            are_late = any(one.waiting and not published.is_ready(one.waiting[0]) for one in rings)
            words.store(control, WANT, LATE if are_late else not is_settled)
            if is_settled or is_last_try:
                break
            # A consumer that released before it saw WANT has rung no bell. So the loop repeats.
            words.barrier()
        self._is_known = True
        return is_settled

    def _give(self) -> None:
        """Hand out entries while a consumer has room. Producers and consumers take turns."""
        terms, control, opened = self.terms, self._control, self.opened
        published = self._published
        taken = published.taken()
        places = opened.segments[terms.producers :]
        # The hand of a consumer has room for ``prefetch`` entries.
        unread = {
            one: control[terms.handed(one)] - words.observe(places[one], HANDED)
            for one in range(terms.consumers)
            if opened.consumer(one)
        }
        # A producer whose entries are not ready or not released delays no other producer.
        waiting = [one.waiting for one in published.rings]
        left = {producer for producer, entries in enumerate(waiting) if entries}
        while left:
            producer = _next(self._turns[0], left)
            rooms = [
                one for one in unread if max(taken[one, producer], unread[one]) < terms.prefetch
            ]
            if not rooms or not published.is_ready(waiting[producer][0]):
                left.discard(producer)
                continue
            consumer = _next(self._turns[1], rooms)
            self._turns = [producer + 1, consumer + 1]
            one = waiting[producer].popleft()
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
            published.given[producer, one.stamp] = target, one.deliveries
            handed = one._replace(target=target, is_handed=True)
            published.rings[producer].given[one.buffer] = handed
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
            is_settled = self._hand_out(is_changed=True)
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
