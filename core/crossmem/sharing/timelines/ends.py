# SPDX-License-Identifier: Apache-2.0
"""The timelines with which a receiver of memory waits for work on a stream of the sender.

No two streams share a timeline.
"""

from typing import Any

from typing_extensions import override

from crossmem.control.records import Allow
from crossmem.driver import streams_of
from crossmem.errors import UnsupportedError
from crossmem.models import ReadyHandle, TimelineHandle
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.ending import leave_to_references
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.base.streams import Landing, stream_of
from crossmem.sharing.timelines.making import make_timeline
from crossmem.sharing.timelines.timeline import Timeline, open_timeline

__all__ = ["HandOver", "StreamEnd"]


class StreamEnd(Landing):
    """The end of the work that was issued on a stream before a signal."""

    __slots__ = ("timeline", "value")

    def __init__(self, timeline: Timeline, value: int) -> None:
        self.timeline = timeline
        self.value = value

    @override
    def has_landed(self) -> bool:
        return self.timeline.value >= self.value


class HandOver(Part):
    """The timelines of this process's streams, and the opened timelines of other processes."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._own: dict[tuple[LocalDevice, Allow | None, int], Timeline] = {}
        self._opened: dict[tuple[TimelineHandle, LocalDevice], Timeline] = {}

    def signal(self, device: LocalDevice, stream: Any, allow: Allow | None = None) -> StreamEnd:
        """Signal the timeline of a stream after the work that was issued on the stream.

        Return the end of this work.
        """
        # Each stream has its own timeline, because a signal waits for all earlier signals of the
        # same timeline.
        key = device, allow, stream_of(stream)
        timeline = self._own.get(key)
        if timeline is None:
            if streams_of(device.driver) is None:
                # This check comes before make_timeline(). If the check failed later, no code would
                # close the new timeline.
                msg = f"{device.name} has no streams"
                raise UnsupportedError(msg, backend=device.backend, hint="leave out stream=")
            made = make_timeline(self._process, device, None, allow)
            timeline = self._own.setdefault(key, leave_to_references(made))
        return StreamEnd(timeline, timeline.signal_next(key[2]))

    def wait(
        self, ready: ReadyHandle, device: LocalDevice, stream: Any, timeout: float | None
    ) -> None:
        """Wait for the work that was issued on another process's stream before a hand-over.

        Later work of ``stream`` waits; if ``stream`` is None, the host waits.
        """
        key = ready.timeline, device
        timeline = self._opened.get(key)
        if timeline is None:
            for known, one in list(self._opened.items()):
                if not one.owner_alive:
                    self._opened.pop(known, None)
            # With a timeout of 0, the wait below reads the value once. But open_timeline() waits
            # for a reply of the other process, so it gets the default time limit.
            made = open_timeline(ready.timeline, device=device, timeout=timeout or None)
            timeline = self._opened.setdefault(key, leave_to_references(made))
        timeline.wait(ready.value, stream=stream, timeout=timeout)
