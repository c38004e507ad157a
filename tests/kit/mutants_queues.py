# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems whose queues lose, reorder, keep or give away what was put into them."""

import builtins
from collections import Counter
from dataclasses import replace
from typing import Any

from mutation import always, changed, instead, mutant, property_is, timeline_mutant

from crossmem.conformance.speed import SLOWNESS
from crossmem.control import admission, registry, words
from crossmem.errors import CrossmemError
from crossmem.sharing.queues import (
    buffer,
    consumer,
    layout,
    making,
    opened,
    opening,
    owner,
    place,
    producer,
    published,
    queue,
    receiver,
    segments,
)


@mutant
def q01_the_hand_comes_before_the_ring() -> None:
    @instead(consumer.Consumer, "_look_in_hand")
    def _(old: Any, self: Any, *args: Any) -> Any:
        with changed(self, "_look_in_ring", lambda *_args: None):
            return old(self, *args)


@mutant
def q01_the_owner_hands_out_the_last_first() -> None:
    @instead(owner.QueueOwner, "_give")
    def _(old: Any, self: Any) -> None:
        for ring in self._published.rings:
            ring.waiting.reverse()
        old(self)


@mutant
def q01_an_item_overtakes_those_that_were_left_to_the_owner() -> None:
    @instead(producer.Producer, "_choose")
    def _(old: Any, self: Any) -> Any:
        with changed(self, "_left", 0):
            return old(self)


@mutant
def q02_everything_is_redelivered() -> None:
    @instead(owner.QueueOwner, "_recover")
    def _(old: Any, self: Any, target: int) -> None:
        with changed(self, "terms", replace(self.terms, redeliver=True)):
            old(self, target)


@mutant
def q02_deliveries_are_not_counted() -> None:
    property_is(buffer.SharedBuffer, "delivery_count", 1)


@mutant
def q02_what_was_released_counts_as_in_hand() -> None:
    always(published.Published, "is_released", value=False)


@mutant
def q03_drops_are_not_counted() -> None:
    @instead(producer.Producer, "_drop_oldest")
    def _(old: Any, self: Any) -> None:
        before = words.load(self.words, layout.DROPS)
        old(self)
        words.store(self.words, layout.DROPS, before)


@mutant
def q03_items_in_hand_are_dropped() -> None:
    always(producer.Producer, "_is_held", value=False)


@mutant
def q03_the_newest_is_dropped() -> None:
    def backwards(several: Any) -> Any:
        return builtins.tuple(several)[::-1]

    setattr(producer, "tuple", backwards)  # noqa: B010 - mypy knows modules


@mutant
def q03_a_full_queue_never_waits() -> None:
    @instead(queue.Queue, "allocate")
    def _(old: Any, self: Any, **_options: Any) -> Any:
        return old(self, timeout=0)


@mutant
def q03_a_full_queue_always_waits() -> None:
    @instead(queue.Queue, "allocate")
    def _(old: Any, self: Any, **options: Any) -> Any:
        opened = self._producer().opened
        with changed(opened, "terms", replace(opened.terms, overflow="wait")):
            return old(self, **options)


@mutant
def q04_buffers_are_handed_over_under_views() -> None:
    always(buffer.SharedBuffer, "_refuse_if_used", None)


@mutant
def q04_a_producer_keeps_its_buffer() -> None:
    @instead(producer.Producer, "put")
    def _(old: Any, self: Any, record: Any, *args: Any) -> None:
        old(self, record, *args)
        record.is_done = False
        msg = "it was put"
        raise CrossmemError(msg)


@mutant
def q04_consumers_of_all_can_write() -> None:
    @instead(segments.Segments, "_export")
    def _(old: Any, self: Any, memory: Any, access: Any) -> Any:
        return old(self, memory, access if memory.device.backend == "host" else "rw")


@mutant
def q04_a_dropped_buffer_is_lost() -> None:
    always(buffer.BufferRecord, "give_back", None)


@timeline_mutant
def q05_an_item_is_ready_at_once() -> None:
    @instead(producer.Producer, "_sign")
    def _(old: Any, self: Any, *args: Any) -> int:
        old(self, *args)
        return 0


@timeline_mutant
def q05_a_release_waits_for_no_stream() -> None:
    @instead(receiver.Receiver, "take_back")
    def _(old: Any, self: Any, record: Any, _stream: Any) -> None:
        with changed(self, "finish_work", lambda _stream: None):
            old(self, record, None)


@timeline_mutant
def q05_a_put_without_a_stream_waits_for_nothing() -> None:
    always(place.Place, "finish_work", None)


@mutant
def q06_the_first_release_frees() -> None:
    @instead(producer.Producer, "_is_seen")
    def _(old: Any, self: Any, which: int, stamp: int) -> bool:
        opened = self.opened
        several = range(opened.terms.consumers)
        return bool(
            old(self, which, stamp)
            or any(opened.released(one, self.place, which) == stamp for one in several)
        )


@mutant
def q06_those_that_have_gone_keep_buffers() -> None:
    @instead(producer.Producer, "_is_seen")
    def _(old: Any, self: Any, *args: Any) -> bool:
        ever = words.load(
            self.opened.control, self.opened.terms.member(self.opened.terms.producers)
        )
        with changed(opened.Opened, "consumer", lambda _self, _index: ever):
            return bool(old(self, *args))


@mutant
def q06_late_comers_wait_for_what_was_before() -> None:
    @instead(consumer.Consumer, "_begin_behind_tails")
    def _(old: Any, self: Any) -> None:
        old(self)
        for one in range(self.opened.terms.producers):
            words.store(self.words, self.opened.terms.start(one), 0)


@mutant
def q07_lost_items_are_not_counted() -> None:
    @instead(owner.QueueOwner, "_recover")
    def _(old: Any, self: Any, target: int) -> None:
        before = words.load(self._control, layout.LOST)
        old(self, target)
        words.store(self._control, layout.LOST, before)


@mutant
def q07_nobody_notices_a_death() -> None:
    always(owner.QueueOwner, "_suspect", None)


@mutant
def q07_the_items_of_the_dead_are_forgotten() -> None:
    always(owner.QueueOwner, "_recover", None)


@mutant
def q08_the_end_comes_with_the_first_producer_that_leaves() -> None:
    @instead(owner.QueueOwner, "_end")
    def _(old: Any, self: Any, **options: Any) -> Any:
        terms, control = self.terms, self._control
        came = any(words.load(control, terms.member(one)) for one in range(terms.producers))
        with changed(self, "_is_finished", self._is_finished or came):
            return old(self, **options)


@mutant
def q08_the_end_never_comes() -> None:
    always(owner.QueueOwner, "_end", value=False)


@mutant
def q08_a_producers_buffers_die_with_it() -> None:
    @instead(producer.Producer, "begin")
    def _(old: Any, self: Any) -> None:
        old(self)
        if words.load(self.words, layout.TAIL):
            self._free.clear()


@mutant
def q08_what_the_dead_have_put_is_overwritten() -> None:
    @instead(producer.Producer, "begin")
    def _(old: Any, self: Any) -> None:
        old(self)
        self._free += self._flying
        self._flying.clear()


@mutant
def q09_nothing_is_read_after_the_owners_death() -> None:
    @instead(queue.Queue, "get")
    def _(old: Any, self: Any, **options: Any) -> Any:
        self._usable().opened.check_owner()
        return old(self, **options)


@mutant
def q09_every_owner_is_alive() -> None:
    @instead(making, "open_segments")
    def _(old: Any, *args: Any) -> Any:
        opened, mine = old(*args)
        opened.is_owner_alive = lambda: True
        return opened, mine


@mutant
def q10_the_owner_does_not_hear_of_room() -> None:
    always(consumer, "ring", None)


@mutant
def q10_the_owner_wakes_nobody() -> None:
    always(owner.QueueOwner, "_wake_all", None)


@mutant
def q10_nobody_is_woken() -> None:
    always(opened.Opened, "wake", None)


@mutant
def q10_a_sleeper_does_not_look_again() -> None:
    @instead(place.Place, "wait")
    def _(old: Any, self: Any, look: Any, *args: Any, **options: Any) -> Any:
        def look_while_awake() -> Any:
            return None if words.load(self.words, layout.SLEEPING) else look()

        return old(self, look_while_awake, *args, **options)


@mutant
def q11_user_data_are_cut() -> None:
    @instead(producer.Producer, "put")
    def _(old: Any, self: Any, record: Any, length: int, user_data: bytes, stream: Any) -> None:
        old(self, record, length, user_data[:90], stream)


@mutant
def q11_lengths_are_not_sent() -> None:
    @instead(producer.Producer, "put")
    def _(old: Any, self: Any, record: Any, _length: int, user_data: bytes, stream: Any) -> None:
        old(self, record, self.opened.terms.nbytes, user_data, stream)


@mutant
def q11_rubbish_is_believed() -> None:
    setattr(consumer, "MAX_USER_DATA_NBYTES", 255)  # noqa: B010 - mypy knows modules


@mutant
def q12_a_revocation_is_forgotten() -> None:
    always(owner.QueueOwner, "revoke", None)


@mutant
def q12_who_was_revoked_is_still_read() -> None:
    @instead(opened.Opened, "tail")
    def _(_old: Any, self: Any, which: int) -> int:
        found = words.load(self.segments[which], layout.TAIL)
        return found if found <= layout.MAX_STAMP else 0


@mutant
def q12_places_are_taken_twice() -> None:
    for module in (admission, registry):
        always(module, "claim", None)


@mutant
def q12_the_role_of_a_handle_is_not_checked() -> None:
    @instead(opening, "_check_directory")
    def _(old: Any, found: Any, _role: Any) -> Any:
        return old(found, found["role"])


@mutant
def q13_prefetch_is_no_limit_of_the_owner() -> None:
    @instead(published.Published, "taken")
    def _(_old: Any, _self: Any) -> Counter[tuple[int, int]]:
        return Counter()


@mutant
def q13_prefetch_is_no_limit_in_rings() -> None:
    @instead(producer.Producer, "_choose")
    def _(old: Any, self: Any) -> Any:
        self._given.clear()
        return old(self)


@mutant
def q14_a_timeout_is_taken_lightly() -> None:
    @instead(queue, "check_wait")
    def _(old: Any, timeout: Any, **default: float) -> float:
        limit_s: float = old(timeout, **default)
        return limit_s and limit_s + 5 * SLOWNESS


@mutant
def q14_any_timeout_will_do() -> None:
    @instead(queue, "check_wait")
    def _(old: Any, timeout: Any, **default: float) -> float:
        try:
            return float(old(timeout, **default))
        except CrossmemError:
            return 0.0


@mutant
def q15_the_descriptor_is_not_armed() -> None:
    @instead(place.Place, "fileno")
    def _(old: Any, self: Any) -> int:
        number = old(self)
        self.is_armed = False
        return int(number)


@mutant
def q15_the_event_loop_waits_for_a_put() -> None:
    @instead(queue.Queue, "put_async")
    async def _(_old: Any, self: Any, item: Any, **options: Any) -> None:
        self.put(item, **options)


@mutant
def q15_a_thread_takes_the_wake_up_of_another() -> None:
    @instead(consumer.Consumer, "look")
    def _(old: Any, self: Any) -> Any:
        return None if self.sleepers > 1 else old(self)
