# SPDX-License-Identifier: Apache-2.0
"""Queues against a model: any order of calls of several producers and consumers, and their deaths.

All of them are objects of this process, each with a ring or place of its own.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

import crossmem
from crossmem import Queue, QueueEmptyError, QueueFullError, SharedBuffer
from crossmem.models.queue_handle import QueueRole
from crossmem.sharing.queues.published import Published
from crossmem.sharing.queues.record import QueueRecord

PLACES = 3
NBYTES = 16

pick = strategies.integers(0, 2**16)


class Machine(RuleBasedStateMachine):
    """A queue, and what has to be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: list[Queue] = []
        self.consumers: list[Queue] = []
        self.allocated: list[tuple[Queue, SharedBuffer]] = []
        self.held: list[tuple[Queue, SharedBuffer, bytes]] = []
        self.items = 0
        self.put: set[bytes] = set()
        self.got: dict[Queue, list[bytes]] = {}
        self.deliveries: Counter[bytes] = Counter()
        self.deaths = 0

    @initialize(
        depth=strategies.integers(1, 3),
        prefetch=strategies.integers(1, 3),
        delivery=strategies.sampled_from(["one", "one", "each"]),
        overflow=strategies.sampled_from(["raise", "drop"]),
        redeliver=strategies.booleans(),
    )
    def make(self, depth: int, prefetch: int, delivery: Any, overflow: Any, redeliver: Any) -> None:
        self.depth, self.is_one = depth, delivery == "one"
        self.redeliver = redeliver and self.is_one
        self.drops = overflow == "drop"
        self.queue = crossmem.device("host").queue(
            depth,
            NBYTES,
            delivery=delivery,
            overflow=overflow,
            redeliver=self.redeliver,
            # The sessions of all producers together end the queue, but for the one of the owner.
            producers=PLACES + 1,
            consumers=PLACES + 1,
            prefetch=prefetch,
        )
        self.queue.allocate().release()
        self.open_producer()
        self.open_consumer()

    def open(self, role: QueueRole) -> Queue:
        record = self.queue._record
        assert record is not None
        queue = Queue(QueueRecord(record.opened, {role: record.mine[role]}))
        opened = queue._producer() if role == "produce" else queue._consumer()
        assert opened.session
        return queue

    @invariant()
    def the_owner_knows_what_a_read_of_all_entries_shows(self) -> None:
        record = self.queue._record if self.producers or self.consumers else None
        if record is None or record.owner is None or not self.is_one:
            return
        owner = record.owner
        with owner._lock:
            owner.tend()
            known, fresh = owner._published, Published(owner.opened)
            fresh.given = dict(known.given)
            for producer, ring in enumerate(known.rings):
                fresh.read(producer, ring.seen, is_changed=True)
                assert fresh.rings[producer].waiting == ring.waiting
                assert fresh.rings[producer].given == ring.given

    @precondition(lambda self: len(self.producers) < PLACES)
    @rule()
    def open_producer(self) -> None:
        self.producers.append(self.open("produce"))

    @precondition(lambda self: len(self.consumers) < PLACES)
    @rule()
    def open_consumer(self) -> None:
        queue = self.open("consume")
        self.consumers.append(queue)
        self.got[queue] = []

    # Putting ------------------------------------------------------------------------------

    @precondition(lambda self: self.producers)
    @rule(which=pick)
    def allocate(self, which: int) -> None:
        queue = self.producers[which % len(self.producers)]
        mine = sum(one is queue for one, _buffer in self.allocated)
        try:
            self.allocated.append((queue, queue.allocate()))
        except QueueFullError:
            # The others are in the hands of consumers, or wait for them.
            assert mine < self.depth or mine == self.depth
        else:
            assert mine < self.depth

    @precondition(lambda self: self.allocated)
    @rule(which=pick)
    def put_one(self, which: int) -> None:
        queue, buffer = self.allocated.pop(which % len(self.allocated))
        item = b"%d" % self.items
        self.items += 1
        buffer.write(item)
        buffer.data_length, buffer.user_data = len(item), item
        queue.put(buffer)
        self.put.add(item)

    @precondition(lambda self: self.producers)
    @rule(which=pick)
    def allocate_and_put(self, which: int) -> None:
        before = len(self.allocated)
        self.allocate(which)
        if len(self.allocated) > before:
            self.put_one(before)

    @precondition(lambda self: self.allocated)
    @rule(which=pick)
    def release_unput(self, which: int) -> None:
        _queue, buffer = self.allocated.pop(which % len(self.allocated))
        buffer.release()

    # Getting ------------------------------------------------------------------------------

    @precondition(lambda self: self.consumers)
    @rule(which=pick)
    def get(self, which: int) -> None:
        queue = self.consumers[which % len(self.consumers)]
        # The owner's thread would do this soon.
        self.queue.stats()
        try:
            buffer = queue.get(timeout=0)
        except QueueEmptyError:
            return
        item = buffer.user_data
        self.held.append((queue, buffer, item))
        assert item in self.put
        self.deliveries[item] += 1
        if self.is_one:
            assert buffer.delivery_count == self.deliveries[item]
            assert self.redeliver or self.deliveries[item] == 1
        else:
            assert item not in self.got[queue]
        self.got[queue].append(item)

    @precondition(lambda self: self.held)
    @rule(which=pick)
    def release(self, which: int) -> None:
        _queue, buffer, _item = self.held.pop(which % len(self.held))
        buffer.release()

    @invariant()
    def what_is_held_stays_as_it_is(self) -> None:
        for _queue, buffer, item in self.held:
            assert buffer.read(buffer.data_length) == item

    # Ends ---------------------------------------------------------------------------------

    def die(self, queue: Queue) -> None:
        """End a session as the owner does after the death of a process."""
        record = queue._record
        assert record is not None
        record.give_back(blocking=True)
        queue._record = None
        self.queue.stats()
        self.deaths += 1

    @precondition(lambda self: self.producers)
    @rule(which=pick)
    def lose_producer(self, which: int) -> None:
        queue = self.producers.pop(which % len(self.producers))
        self.die(queue)
        self.allocated, dead = (
            [one for one in self.allocated if one[0] is not queue],
            [one for one in self.allocated if one[0] is queue],
        )
        for _queue, buffer in dead:
            buffer.release()

    @precondition(lambda self: self.consumers)
    @rule(which=pick)
    def lose_consumer(self, which: int) -> None:
        queue = self.consumers.pop(which % len(self.consumers))
        lost = [one for one in self.held if one[0] is queue]
        self.held = [one for one in self.held if one[0] is not queue]
        before = self.queue.stats()
        self.die(queue)
        after = self.queue.stats()
        if self.is_one:
            changes = after.lost - before.lost, after.redelivered - before.redelivered
            assert changes == ((0, len(lost)) if self.redeliver else (len(lost), 0))
        for _queue, buffer, _item in lost:
            # A dead process would not do this, and it must not matter.
            buffer.release()

    @override
    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for _queue, buffer, _item in self.held:
            buffer.release()
        for _queue, buffer in self.allocated:
            buffer.release()
        self.held = []
        if self.is_one:
            while self.consumers:
                self.lose_consumer(0)
            self.open_consumer()
            waited = 0
            while (stats := self.queue.stats()).waiting or any(stats.lag.values()):
                held = len(self.held)
                self.get(0)
                while self.held:
                    self.release(0)
                waited = waited + 1 if held == len(self.held) else 0
                assert waited < 1000, stats
            stats = self.queue.stats()
            missing = self.put - set(self.deliveries)
            # An item that waits for its second delivery may be dropped, too.
            assert len(missing) <= stats.dropped
            assert self.redeliver or len(missing) == stats.dropped
            assert stats.put == len(self.put)
        # Each buffer is free again.
        while self.consumers:
            self.die(self.consumers.pop())
        for queue in self.producers:
            taken = [queue.allocate() for _ in range(self.depth)]
            for buffer in taken:
                buffer.release()
            queue.close()
        self.queue.close()


TestQueues = pytest.mark.ci(Machine.TestCase)
TestQueues.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
