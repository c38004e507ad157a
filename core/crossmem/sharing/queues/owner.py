# SPDX-License-Identifier: Apache-2.0
"""The owner of a queue: it opens and ends sessions, and hands out entries that were left to it.

The lease server's thread calls :meth:`QueueOwner.tend` when a process rings the owner's bell, and
when a producer or consumer dies. The method only reads and writes words, and rings bells. An owner
that is busy with other work delays only the entries that were left to it, and the beginnings and
ends of sessions. After a change of sessions, the method reads all entries again. So the method
need not know at which step a peer has died.
"""

import os
from collections.abc import Collection
from contextlib import suppress

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.control.limits import name_limit
from crossmem.control.records import Allow
from crossmem.locks import Rank, ordered_lock
from crossmem.models import process_start_time
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.queues.layout import (
    CLOSED,
    END,
    ENDED,
    FINISHED,
    GIVEN_UP,
    HANDED,
    JOINED,
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
    """A queue that this process owns.

    Parameters
    ----------
    process, device
        This process, and the device of the buffers.
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
        """Whether :meth:`finish` was called. The queue then does not wait for further producers."""
        self._unjoined: set[tuple[int, int]] = set()
        """Pairs (ring, session) for the sessions that ended before the producer's ``join()`` was
        complete. :meth:`_end` does not count these sessions."""
        self._revoked: dict[int, int | None] = {}
        """The pids of processes whose roles were revoked, and their start times."""
        self._suspects: set[int] = set()
        """Rings and places whose process may have died or lost its roles."""
        self._turns = [0, 0]
        """The numbers of the producer and consumer at which :meth:`_give` begins to search."""
        self._is_tending = False
        self._changes = 0
        """Number of changes of sessions and of the word END. Each of ``_announced``, ``_woken``
        and ``_handed_out`` belongs to one step of :meth:`tend`, and is the number of changes that
        this step has handled. If a step was interrupted, the next call of :meth:`tend` repeats the
        step."""
        self._announced = self._woken = 0
        self._handed_out = -1
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
        """Open and end sessions, hand out waiting entries, and end the queue if its end is due."""
        with self._lock:
            if self.opened.end == CLOSED:
                return
            if self._is_tending:
                # This call runs in a signal handler, which has interrupted another call of the
                # method. The lease server's thread will call the method again.
                ring(self.opened.owner_bell)
                return
            try:
                self._is_tending = True
                # A process that asks for a session waits until ROUND is 0 again.
                words.store(self._control, ROUND, 1)
                self._change_sessions()
                changes = self._changes
                if changes != self._announced:
                    words.release()
                    words.store(self._control, SESSIONS, self._control[SESSIONS] + 1)
                    # After the barrier, either a producer sees that a session has ended, or this
                    # call sees the entry that the producer gave to that session.
                    words.barrier()
                    self._announced = changes
                is_changed, self._handed_out = changes != self._handed_out, -1
                is_settled = self.terms.delivery == "each" or self._hand_out(is_changed=is_changed)
                self._end(is_settled=is_settled)
                self._handed_out = changes
            finally:
                # A signal handler can raise only at a call or at a backward jump. In this block,
                # the only such place is the call of release(). So both stores always happen.
                try:
                    if not IS_ORDERED:
                        words.release()
                finally:
                    self._is_tending = False
                    self._control[ROUND] = 0
        changes = self._changes
        if changes != self._woken:
            self._wake_all()
            self._woken = changes

    def _wake_all(self) -> None:
        for place in range(self.terms.places):
            self.opened.wake(place)

    def _change_sessions(self) -> None:
        suspects, self._suspects = self._suspects, set()
        try:
            for place in range(self.terms.places):
                self._change_session(place, is_suspect=place in suspects)
        except BaseException:
            self._suspects |= suspects
            raise

    def _change_session(self, place: int, *, is_suspect: bool) -> None:
        terms, control, segment = self.terms, self._control, self.opened.segments[place]
        at, is_producer = terms.member(place), place < terms.producers
        member, wish = control[at], words.observe(segment, WISH)
        if member % 2:
            if wish == member and not (is_suspect and self._has_gone(place)):
                return
            self._changes += 1
            if is_producer:
                if words.observe(segment, JOINED) != member:
                    self._unjoined.add((place, member))
                words.store(control, terms.stop(place), self.opened.tail(place))
            else:
                self._recover(target_of(place - terms.producers, member))
            words.release()
            words.store(control, at, member + 1)
        elif wish == member + 1 and not (is_producer and self.opened.end):
            self._changes += 1
            if self._has_gone(place):
                words.store(control, terms.denied(place), wish)
                return
            if is_producer:
                words.store(control, terms.stop(place), MAX_STAMP)
            words.release()
            words.store(control, at, wish)

    def _has_gone(self, place: int) -> bool:
        """Whether a ring or place belongs to no process, or to one whose roles were revoked."""
        export, leases = self.segments.exclusive[place], self.process.start_server().leases
        with leases.lock:
            slot, number = export.slot, export.handle.export
            pids = {one.holder.pid for one in export.unit.leases.values() if one.export == number}
            if slot is not None:
                rows = list(export.rows.items())
                pids |= {row.holder.pid for row, held in rows if words.load(held, slot.at)}
        return not pids or any(self._is_revoked(pid) for pid in pids)

    def _is_revoked(self, pid: int) -> bool:
        """Whether the roles of a process were revoked.

        The start time distinguishes the process from a later process with the same pid.
        """
        if pid not in self._revoked:
            return False
        try:
            return process_start_time(pid) == self._revoked[pid]
        except OSError:
            # Without a free descriptor, the start time is unknown. The process counts as revoked.
            return True

    def revoke(self, pid: int) -> None:
        """Take all roles from a process."""
        with name_limit("open"):
            self._revoked[pid] = process_start_time(pid)
        self._suspects.update(range(self.terms.places))
        self.tend()

    def _recover(self, target: int) -> None:
        """Recover the unreleased entries of a session that ends, or count them as lost."""
        terms, control = self.terms, self._control
        consumer = (target >> 48) - 1
        for one in self._published.all():
            if one.target != target or self._published.is_released(one, consumer):
                continue
            is_read = self._published.is_read(one, consumer)
            # After ENDED, no other consumer waits for an entry. So entries that this consumer has
            # not read are lost, too.
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
        """Hand waiting entries to consumers with room. Return False if an entry delays the end."""
        terms, control, published = self.terms, self._control, self._published
        rings = published.rings
        for is_last_try in (False, True):
            tails = [self.opened.tail(producer) for producer in range(terms.producers)]
            for producer, tail in enumerate(tails):
                published.read(producer, tail, is_changed=is_changed)
            published.forget_old(is_changed=is_changed)
            self._give()
            for producer, ring_ in enumerate(rings):
                left = ring_.waiting
                # If an entry was published after the reading of the tails, it counts as undecided.
                # The next call handles it.
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
            # A consumer that released a buffer before it saw WANT has not rung the owner's bell.
            # So the loop looks for releases once more.
            words.barrier()
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
        # A producer leaves this set if its next entry is not ready, or if no consumer has room for
        # its entries. So such a producer delays no other producer.
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
            handed, key = terms.handed(consumer), (producer, one.stamp)
            position = control[handed]
            at = terms.hand(consumer, position)
            words.store(control, at, one.stamp)
            words.store(control, at + 1, producer | one.buffer << 8 | one.deliveries << 32)
            words.store(
                control, terms.decision(producer, one.buffer), one.stamp << 8 | consumer + 1
            )
            target = target_of(consumer, opened.consumer(consumer))
            known, given = (target, one.deliveries), one._replace(target=target, is_handed=True)
            words.release()
            # One step: no signal handler and no other thread runs between the next assignments.
            control[handed] = position + 1
            published.given[key] = known
            published.rings[producer].given[one.buffer] = given
            opened.wake(terms.producers + consumer)

    # The end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the queue as soon as the present producers have left."""
        self._is_finished = True
        self.tend()

    def _end(self, *, is_settled: bool) -> None:
        """End the queue if no producer is left, and no further producer is expected."""
        terms, end = self.terms, self.opened.end
        members = [self._control[terms.member(one)] for one in range(terms.producers)]
        came = sum((one + 1) // 2 for one in members) - len(self._unjoined)
        if any(one % 2 for one in members) or not (self._is_finished or came >= terms.producers):
            return
        if not end and terms.redeliver:
            words.store(self._control, END, FINISHED)
            # From now on, entries that consumers hold also delay the end. While there are such
            # entries, each release rings the owner's bell.
            is_settled = self._hand_out(is_changed=True)
        found = ENDED if is_settled else FINISHED
        if found != end:
            self._changes += 1
            words.release()
            words.store(self._control, END, found)

    def close(self) -> None:
        """Close the queue: no further entry is put or handed out. A second call changes nothing."""
        with self._lock:
            words.store(self._control, END, CLOSED)
        self._wake_all()


def _next(turn: int, several: Collection[int]) -> int:
    """Return the smallest number that is at least ``turn``; else the smallest of all numbers."""
    return min(several, key=lambda one: (one < turn, one))
