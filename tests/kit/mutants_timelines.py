# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems whose timelines are reached too early, never, or by the dead.

Most of them show on streams only, so the kit runs against them on emulated GPUs with slow streams.
"""

import time
from typing import Any

from mutation import always, instead, property_is, timeline_mutant

from crossmem.conformance.speed import SLOWNESS
from crossmem.errors import OwnerGoneError
from crossmem.sharing import device as facade
from crossmem.sharing.importer import record as imports
from crossmem.sharing.timelines import cell, ends, events, levels, readers, timeline, watcher
from crossmem.sharing.timelines import record as timeline_records
from crossmem_hip.streams import StreamOrder


@timeline_mutant
def l01_a_word_is_written_before_the_work() -> None:
    @instead(levels.WordLevel, "_issue")
    def _(old: Any, self: Any, streams: Any, value: int, stream: int) -> None:
        old(self, streams, value, stream)
        self.cell.write(cell.VALUE, value)


@timeline_mutant
def l01_a_stream_does_not_wait_for_a_word() -> None:
    always(StreamOrder, "wait_value", None)


@timeline_mutant
def l01_a_stream_does_not_wait_for_an_event() -> None:
    always(StreamOrder, "wait_event", None)


@timeline_mutant
def l01_streams_are_not_ordered_by_words() -> None:
    always(levels.WordLevel, "_order", None)


@timeline_mutant
def l01_streams_are_not_ordered_by_events() -> None:
    always(events.EventLevel, "_order", None)


@timeline_mutant
def l01_an_event_is_published_before_it_is_recorded() -> None:
    @instead(events.EventLevel, "_issue")
    def _(old: Any, self: Any, streams: Any, value: int, stream: int) -> None:
        entry = events._ENTRIES[self._turn % len(events._ENTRIES)]
        self._event(entry)
        self.cell.write(entry, value)
        self.cell.write(cell.ISSUED, value)
        time.sleep(0.2)
        old(self, streams, value, stream)


@timeline_mutant
def l01_events_that_are_pending_count_as_done() -> None:
    always(StreamOrder, "is_event_done", value=True)


@timeline_mutant
def l01_the_host_does_not_wait_for_the_stream() -> None:
    always(StreamOrder, "synchronize_stream", None)


@timeline_mutant
def l01_a_signal_of_the_host_does_not_wait_for_streams() -> None:
    @instead(timeline.Timeline, "_signal")
    def _(old: Any, self: Any, value: Any, stream: Any, **options: Any) -> int:
        level = self._record.level
        if stream is None and type(value) is int and level.issued < value:
            level.set(value)
            return value
        return int(old(self, value, stream, **options))


@timeline_mutant
def l01_values_may_shrink() -> None:
    @instead(timeline, "is_within")
    def _(old: Any, value: Any, low: int, high: int) -> bool:
        return bool(old(value, low and 1, high))


@timeline_mutant
def l01_a_waiting_host_sees_one_value_less() -> None:
    @instead(timeline.Timeline, "wait")
    def _(old: Any, self: Any, value: int, **options: Any) -> int:
        if options.get("stream") is None and type(value) is int and value > 1:
            return int(old(self, value - 1, **options))
        return int(old(self, value, **options))


@timeline_mutant
def l01_an_acknowledgement_does_not_wait_for_the_stream() -> None:
    @instead(readers.ReaderWord, "done")
    def _(old: Any, self: Any, value: int, _stream: Any = None) -> None:
        old(self, value, None)


@timeline_mutant
def l02_a_word_is_signalled_by_the_host() -> None:
    @instead(levels.WordLevel, "_issue")
    def _(_old: Any, self: Any, streams: Any, value: int, stream: int) -> None:
        levels.HostLevel._issue(self, streams, value, stream)


@timeline_mutant
def l02_an_event_is_signalled_by_the_host() -> None:
    @instead(events.EventLevel, "_issue")
    def _(_old: Any, self: Any, streams: Any, value: int, stream: int) -> None:
        streams.synchronize_stream(self.device.ordinal, stream)
        self.set(value)


@timeline_mutant
def l02_the_weakest_level_is_the_default() -> None:
    @instead(facade, "make_timeline")
    def _(old: Any, process: Any, device: Any, level: Any, allow: Any) -> Any:
        return old(process, device, level or "host", allow)


@timeline_mutant
def l02_a_level_that_lacks_becomes_a_weaker_one() -> None:
    @instead(facade, "make_timeline")
    def _(old: Any, process: Any, device: Any, level: Any, allow: Any) -> Any:
        known = level is None or level in device.capabilities.timeline_levels
        return old(process, device, level if known else "host", allow)


@timeline_mutant
def l03_a_waiting_host_does_not_look_at_the_owner() -> None:
    property_is(timeline_records.TimelineRecord, "is_owner_alive", value=True)


@timeline_mutant
def l03_a_closed_timeline_is_waited_for() -> None:
    always(timeline_records.TimelineRecord, "check", None)


@timeline_mutant
def l03_a_timeout_is_taken_lightly() -> None:
    @instead(timeline, "check_timeout")
    def _(old: Any, timeout: Any, *, default_s: float) -> Any:
        return old(timeout, default_s=default_s) + 5 * SLOWNESS


@timeline_mutant
def l03_a_stopped_process_is_called_dead() -> None:
    @instead(timeline_records.TimelineRecord, "check")
    def _(old: Any, self: Any) -> None:
        pid = self.handle.memory.owner.pid
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:  # noqa: PTH123
            if stat.read().rpartition(") ")[2].startswith("T"):
                msg = "it is dead"
                raise OwnerGoneError(msg)
        old(self)


@timeline_mutant
def l04_nobody_watches() -> None:
    always(watcher.StreamWatcher, "watch", 0)


@timeline_mutant
def l04_the_void_value_is_never_written() -> None:
    @instead(watcher.StreamWatcher, "_look")
    def _(old: Any, self: Any) -> None:
        for one in list(self._targets):
            if not one.is_owner_alive:
                time.sleep(0.1)
                return
        old(self)


@timeline_mutant
def l04_the_void_value_is_written_once() -> None:
    setattr(watcher, "_REPEAT_S", 0.0)  # noqa: B010 - mypy knows modules


@timeline_mutant
def l04_the_watcher_never_ends() -> None:
    @instead(watcher.StreamWatcher, "__init__")
    def _(old: Any, self: Any, process: Any) -> None:
        old(self, process)
        self._thread._is_needed = lambda: True


@timeline_mutant
def l04_a_void_value_is_taken_for_a_reached_one() -> None:
    property_is(timeline.Timeline, "void", value=False)


@timeline_mutant
def l04_the_words_end_with_the_object() -> None:
    always(watcher.StreamWatcher, "is_needed", value=False)


@timeline_mutant
def l04_a_closed_timeline_releases_no_stream() -> None:
    @instead(timeline_records.TimelineRecord, "_end_own")
    def _(_old: Any, self: Any) -> None:
        self.cell.write(cell.IDENTITY, 0)


@timeline_mutant
def c09_an_unmapping_on_a_stream_waits_for_nothing() -> None:
    always(ends.StreamEnd, "has_landed", value=True)


@timeline_mutant
def c09_an_unmapping_on_a_stream_waits_for_the_device() -> None:
    @instead(imports.ImportRecord, "discard")
    def _(old: Any, self: Any, use: Any) -> None:
        old(self, use)
        self.has_unawaited_work = True


@timeline_mutant
def c21_an_export_on_a_stream_is_ready_at_once() -> None:
    always(ends.HandOver, "wait", None)
