# SPDX-License-Identifier: Apache-2.0
"""The record of a queue's resources in one process."""

import time
from contextlib import ExitStack
from threading import get_ident

from typing_extensions import override

from crossmem.errors import AccessDeniedError, ClosedError
from crossmem.models import ShareableHandle
from crossmem.models.queue_handle import QueueRole
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.queues.consumer import Consumer
from crossmem.sharing.queues.opening import Queues, take_place
from crossmem.sharing.queues.owner import QueueOwner
from crossmem.sharing.queues.place import PAUSE_S, Opened
from crossmem.sharing.queues.producer import Producer

__all__ = ["QueueRecord"]


class QueueRecord(Record):
    """The resources of a queue in this process.

    Parameters
    ----------
    opened
        The queue.
    mine
        By role, the handles of the rings or places that this process may take.
    owner
        The owner's side of the queue, if this process owns it.
    """

    __slots__ = (
        "_joining",
        "consumer",
        "is_finished",
        "mappings",
        "mine",
        "opened",
        "owner",
        "producer",
    )

    def __init__(
        self,
        opened: Opened,
        mine: dict[QueueRole, list[ShareableHandle]],
        owner: QueueOwner | None = None,
    ) -> None:
        super().__init__()
        self.opened = opened
        self.mine = mine
        self.owner = owner
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None
        self.is_finished = False
        """Whether this process has called finish(), so that it cannot put anything more."""
        self.mappings: list[Mapping] = []
        """The mappings of the places that this process has taken."""
        self._joining: dict[QueueRole, int] = {}
        """By role, the thread that is taking a place."""

    def join(self, role: QueueRole, timeout_s: float) -> None:
        """Take a place for a role, unless this process has one.

        Raises
        ------
        AccessDeniedError, BusyError, ClosedError, OwnerGoneError, OwnerUnresponsiveError
            This process gets no place.
        """
        me = get_ident()
        # No lock is held, because the driver maps the place. If a signal handler raises, the number
        # of this thread may stay in the dict. The thread can then enter again.
        while self._joining.setdefault(role, me) != me:
            time.sleep(PAUSE_S)
        try:
            if (self.producer if role == "produce" else self.consumer) is None:
                self._take_place(role, timeout_s)
        finally:
            self._joining.pop(role, None)

    def produce(self, timeout_s: float) -> Producer:
        """Return the place as a producer, taken at the first call; see :meth:`join`."""
        self.join("produce", timeout_s)
        assert self.producer is not None  # noqa: S101 - join() has set it
        return self.producer

    def consume(self, timeout_s: float) -> Consumer:
        """Return the place as a consumer, taken at the first call; see :meth:`join`."""
        self.join("consume", timeout_s)
        assert self.consumer is not None  # noqa: S101 - join() has set it
        return self.consumer

    def _take_place(self, role: QueueRole, timeout_s: float) -> None:
        if role not in self.mine:
            msg = f"this process opened the queue to {next(iter(self.mine))}, not to {role}"
            hint = f"open it with the handle of queue.export(role={role!r})"
            raise AccessDeniedError(msg, operation=role, hint=hint)
        if self.is_finished and role == "produce":
            msg = "this process has called finish(), and cannot put anything more"
            raise ClosedError(msg, operation="put", hint="open the queue again")
        index, mapping = take_place(self.opened, role, self.mine[role], timeout_s)
        self.mappings.append(mapping)
        try:
            view = mapping.view()
            if role == "produce":
                producer = Producer(self.opened, index, view, mapping.ptr)
                producer.join(timeout_s)
                self.producer = producer
            else:
                consumer = Consumer(self.opened, index, view, mapping.ptr)
                consumer.join(timeout_s)
                self.consumer = consumer
        except BaseException:
            self.mappings.remove(mapping)
            self._unmap([mapping])
            raise

    def _unmap(self, mappings: list[Mapping]) -> None:
        """Unmap places as soon as no view of them is alive."""
        taken = self.opened.process.part(Queues).taken
        while mappings:
            mapping = mappings.pop()
            taken.discard(mapping.handle.core)
            leave_to_views(mapping)

    def finish(self) -> None:
        """End the session of the producer."""
        self.is_finished = True
        if self.producer is not None:
            self.producer.leave()

    @override
    def give_back(self, *, blocking: bool) -> None:
        """End the sessions, and release the segments. The owner closes the queue for all.

        Each segment has a record of its own, which repeats a release that the vendor refused.
        """
        if self.is_done:
            return
        self.is_done = True
        owner, places = self.owner, (self.producer, self.consumer)
        self.producer = self.consumer = None
        with ExitStack() as steps:
            # The steps run in reverse order. If one of them raises, the others still run.
            if owner is not None:
                steps.callback(owner.segments.free)
            steps.callback(self._unmap, self.mappings)
            for memory in self.opened.kept:
                leave_to_views(memory)
            for place in places:
                if place is not None:
                    steps.callback(place.leave)
            if owner is not None:
                self.opened.process.part(Queues).owned.pop(owner, None)
                steps.callback(owner.close)
