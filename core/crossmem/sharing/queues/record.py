# SPDX-License-Identifier: Apache-2.0
"""The record of a queue's resources in one process."""

import time
from contextlib import ExitStack, suppress
from threading import get_ident

from typing_extensions import override

from crossmem.models import QueueRole, ShareableHandle
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.queues.consumer import Consumer
from crossmem.sharing.queues.layout import MAX_STAMP, TAIL
from crossmem.sharing.queues.opened import Opened
from crossmem.sharing.queues.opening import Queues
from crossmem.sharing.queues.owner import QueueOwner
from crossmem.sharing.queues.place import PAUSE_S
from crossmem.sharing.queues.places import Places, take_place
from crossmem.sharing.queues.producer import Producer

__all__ = ["QueueRecord"]


class QueueRecord(Places):
    """The resources of a queue in this process.

    Parameters
    ----------
    opened
        The queue.
    mine
        For each role, the handles of the rings or places that this process may take.
    owner
        The owner's side of the queue, if this process owns it.
    """

    __slots__ = ("_releasing", "consumer", "opened", "owner", "producer")

    def __init__(
        self,
        opened: Opened,
        mine: dict[QueueRole, list[ShareableHandle]],
        owner: QueueOwner | None = None,
    ) -> None:
        super().__init__(opened.process, mine)
        self.opened = opened
        self.owner = owner
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None
        self._releasing: int | None = None
        """The thread that is releasing the places."""

    @override
    def has_place(self, role: QueueRole) -> bool:
        """Whether this process has a place for a role."""
        return (self.producer if role == "produce" else self.consumer) is not None

    def produce(self, timeout_s: float) -> Producer:
        """Return this process's producer. The first call takes a ring; see :meth:`join`."""
        while (found := self.producer) is None:
            # If another thread closes the queue after join(), the next call of join() raises.
            self.join("produce", timeout_s)
        return found

    def consume(self, timeout_s: float) -> Consumer:
        """Return this process's consumer. The first call takes a place; see :meth:`join`."""
        while (found := self.consumer) is None:
            # As in produce().
            self.join("consume", timeout_s)
        return found

    @override
    def begin(self, role: QueueRole, timeout_s: float) -> None:
        """Take a ring or place, and begin a session."""
        opened = self.opened
        first = 0 if role == "produce" else opened.terms.producers

        def order() -> list[int]:
            # A ring with an invalid tail can never be used again.
            usable = [
                one
                for one in range(len(self.mine[role]))
                if first or opened.segments[one][TAIL] <= MAX_STAMP
            ]
            return sorted(usable, key=lambda one: opened.member(first + one) > 0)

        index, mapping = take_place(self.process, role, self.mine[role], timeout_s, order)
        index += first
        try:
            self.mappings.append(mapping)
            view = mapping.view()
            if role == "produce":
                producer = Producer(self.opened, index, view, mapping.ptr)
                producer.join(timeout_s)
                # One step: no other thread runs between the check and the assignment. A thread that
                # ends the queue sets a flag before it reads ``producer``. So either that thread
                # sees the producer, or this thread sees the flag.
                if not (self.is_ending or self.is_finished):
                    self.producer = producer
                    return
                producer.leave()
            else:
                consumer = Consumer(self.opened, index, view, mapping.ptr)
                consumer.join(timeout_s)
                # One step, as for a producer.
                if not self.is_ending:
                    self.consumer = consumer
                    return
                consumer.leave()
            self.check_role(role)
        except BaseException:
            # A thread that ends the queue may have taken the mapping from the list already.
            with suppress(ValueError):
                self.mappings.remove(mapping)
            self.leave([mapping])
            self.process.drain()
            raise

    def tended(self) -> Opened:
        """Return the queue. In the owner, first handle the latest changes by other processes."""
        if self.owner is not None:
            # The lease server's thread may not have handled these changes yet.
            self.owner.tend()
        return self.opened

    def finish(self) -> None:
        """End the producer's session.

        In the owner, also let the queue end as soon as its present producers have left.
        """
        self.is_finished = True
        producer = self.producer
        if producer is not None:
            producer.leave()
        if self.owner is not None:
            self.owner.finish()

    @override
    def give_back(self, *, blocking: bool) -> None:
        """End the sessions, and release the segments. In the owner, also close the queue.

        Each segment has a record of its own, which repeats a release that the vendor refused.
        """
        self.is_ending = True
        me = get_ident()
        # The attribute ``_releasing`` replaces a lock, because a thread should hold no lock during
        # the waits and releases below. If a signal handler interrupts the release and calls this
        # method, that call returns at once, and the interrupted release continues afterwards.
        while (other := self._releasing) is not None:
            if other == me or not blocking:
                return
            time.sleep(PAUSE_S)
        # One step: no other thread begins the release between the last check and this statement.
        self._releasing = me
        try:
            if not self.is_done:
                self._release()
        finally:
            self._releasing = None

    def _release(self) -> None:
        owner, places = self.owner, (self.producer, self.consumer)
        for place in places:
            if place is not None:
                # leave_pages() raises if the process cannot wait for the device now. A later call
                # of give_back() then begins the release again.
                place.leave_pages()
        with ExitStack() as steps:
            # The steps run in reverse order. If one of them raises, the others still run. If a
            # signal handler raises before all steps are registered, the next call repeats them.
            if owner is not None:
                steps.callback(owner.segments.free)
            steps.callback(self.leave, self.mappings)
            for memory in self.opened.kept:
                leave_to_views(memory)
            for place in places:
                if place is not None:
                    steps.callback(place.leave)
            if owner is not None:
                steps.callback(owner.close)
                self.opened.process.part(Queues).owned.pop(owner, None)
            self.is_done = True
            self.producer = self.consumer = None
