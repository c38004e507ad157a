# SPDX-License-Identifier: Apache-2.0
"""The operations of timelines, for interrupted.py."""

import gc
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
from interrupted_world import NBYTES, Step, World, both, operation, put

# isort: split
import timeline_actions  # type: ignore[import-not-found]

import crossmem
from crossmem import Timeline
from crossmem.sharing.timelines.cell import CARE, WAITING

ONLY: Final = crossmem.Allow(pids=(os.getpid(),))
"""A page for these processes ends with its last timeline, so one that stays is seen."""

_theirs: dict[tuple[int, str | None], bytes] = {}


def their_handle(world: World, level: str | None = None) -> bytes:
    """Return the handle of a timeline of the other process, whose value is 1."""
    key = id(world), level
    if key not in _theirs:
        name = f"timeline {level}"
        _theirs[key] = world.peer.call(timeline_actions.make_on_device, name, 1, level)
    return _theirs[key]


class Usable:
    """A check, after the interrupt, that a timeline still works."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline

    def release(self) -> None:
        """Signal and wait once more, unless the operation has closed the timeline."""
        if not self.timeline.closed:
            value = self.timeline.signal_next(None)
            assert self.timeline.wait(value, timeout=1) == value


class Ready:
    """Memory that is ready when a stream has done its work."""

    def __init__(self, world: World) -> None:
        self.memory = world.device.allocate(NBYTES)

    def release(self) -> None:
        """Free the memory."""
        self.memory.free()


def signal(_world: World, kept: dict[str, Any]) -> None:
    """Signal the next value."""
    kept["memory"].signal(kept["memory"].value + 1)


def signal_on_stream(_world: World, kept: dict[str, Any]) -> None:
    """Signal a value when the work of the default stream is complete."""
    kept["memory"].signal_next(0)


def set_waiting(_world: World, kept: dict[str, Any]) -> None:
    """Set the flag of sleepers."""
    cell = kept["memory"]._record.cell
    cell.words[CARE], cell.words[WAITING] = 2, 1


def wait_in_vain(_world: World, kept: dict[str, Any]) -> None:
    """Wait asleep for a value that nobody signals."""
    with suppress(crossmem.WaitTimeoutError):
        kept["mapping"].wait(100, timeout=0.001)


def wait_for_readers(_world: World, kept: dict[str, Any]) -> None:
    """Wait for readers that are late."""
    with suppress(crossmem.WaitTimeoutError):
        kept["memory"].wait_for_readers(100, timeout=0.001)


def done(_world: World, kept: dict[str, Any]) -> None:
    """Acknowledge a value."""
    kept["mapping"].done(1)


def done_on_stream(_world: World, kept: dict[str, Any]) -> None:
    """Acknowledge a value when the work of the default stream is complete."""
    kept["mapping"].done(2, stream=0)


def close(name: str) -> Callable[..., None]:
    """Return a step that closes a timeline."""

    def do(_world: World, kept: dict[str, Any]) -> None:
        kept[name].close()

    return do


def dropped(world: World, kept: dict[str, Any]) -> None:
    """Drop timelines that were never closed."""
    both(made, opened_own, opened)(world, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept.clear()
        gc.collect()


made = put("memory", lambda w, _k: w.device.timeline(allow=ONLY))
another = put("adopted", lambda w, _k: w.device.timeline(allow=ONLY))
usable = put("view", lambda _w, k: Usable(k["memory"]))
ready = both(made, usable)
opened = put("mapping", lambda w, _k: crossmem.open_timeline(their_handle(w)))
opened_again = put("import", lambda w, _k: crossmem.open_timeline(their_handle(w)))
opened_own = put("mapping", lambda _w, k: crossmem.open_timeline(k["memory"].export()))
own_reader = both(made, usable, opened_own)

TIMELINES: dict[str, Callable[[World], Step]] = {
    "timeline": operation(made),
    "timeline in a known page": operation(another, made),
    "open timeline": operation(opened),
    "open timeline again": operation(opened_again, opened),
    "open own timeline": operation(opened_own, made),
    "signal": operation(signal, ready),
    "signal sleepers": operation(signal, both(ready, set_waiting)),
    "wait for a value": operation(lambda _w, k: k["mapping"].wait(1), opened),
    "wait for a value in vain": operation(wait_in_vain, opened),
    "wait in vain for an own value": operation(wait_in_vain, own_reader),
    "done": operation(done, opened),
    "done again": operation(lambda _w, k: k["mapping"].done(2), both(opened, done)),
    "done with own": operation(done, own_reader),
    "wait for readers": operation(wait_for_readers, both(own_reader, done)),
    "close timeline": operation(close("memory"), made),
    "close one of two timelines": operation(close("memory"), both(made, another)),
    "close timeline with reader": operation(close("memory"), both(made, opened_own, done)),
    "close reader": operation(close("mapping"), both(opened, done)),
    "close one of two readers": operation(close("mapping"), both(opened, done, opened_again)),
    "collect dropped timelines": operation(lambda _w, _k: crossmem.collect(), dropped),
}


def published(_world: World, kept: dict[str, Any]) -> None:
    """Write new contents, and publish them."""
    kept["shared"].update(np.zeros(8))
    kept["shared"].publish()


def done_with_version(_world: World, kept: dict[str, Any]) -> None:
    """Become a reader of a tree."""
    kept["mapping"].done(0)


tree = put(
    "shared", lambda w, _k: crossmem.share(np.ones(8), copy=True, device=w.device, allow=ONLY)
)
reader = put("mapping", lambda _w, k: crossmem.Shared.from_bytes(k["shared"].to_bytes()))
both_ends = both(tree, reader)
value = put("array", lambda _w, k: k["shared"].value)
HOST_TIMELINES: dict[str, Callable[[World], Step]] = {
    "publish": operation(published, tree),
    "wait for a version": operation(lambda _w, k: k["mapping"].wait(0), both(both_ends, published)),
    "done with a version": operation(done_with_version, both_ends),
    "close a reader of versions": operation(close("mapping"), both(both_ends, done_with_version)),
    "close a tree with versions": operation(close("shared"), both(both_ends, done_with_version)),
    "value of a tree": operation(value, tree),
    "close a tree with a value": operation(close("shared"), both(tree, value)),
}
STREAMS: dict[str, Callable[[World], Step]] = {
    "signal on a stream": operation(signal_on_stream, ready),
    "signal on a stream again": operation(signal_on_stream, both(ready, signal_on_stream)),
    "wait on a stream": operation(lambda _w, k: k["mapping"].wait(1, stream=0), opened),
    "done on a stream": operation(done_on_stream, both(opened, done)),
    "close signalled on a stream": operation(close("memory"), both(made, signal_on_stream)),
    "close reader on a stream": operation(close("mapping"), both(opened, done_on_stream)),
}

event_made = put("memory", lambda w, _k: w.device.timeline("event", allow=ONLY))
event_opened = put("mapping", lambda w, _k: crossmem.open_timeline(their_handle(w, "event")))
event_signalled = both(event_made, signal_on_stream)


def wait_on_stream(_world: World, kept: dict[str, Any]) -> None:
    """Let the default stream wait for the first value."""
    kept["mapping"].wait(1, stream=0)


EVENTS: dict[str, Callable[[World], Step]] = {
    "event timeline": operation(event_made),
    "signal by events": operation(signal_on_stream, event_made),
    "signal by events again": operation(signal_on_stream, event_signalled),
    "wait for events": operation(wait_on_stream, event_opened),
    "close event timeline": operation(close("memory"), event_signalled),
    "close event reader": operation(close("mapping"), both(event_opened, wait_on_stream)),
}
