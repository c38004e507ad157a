# SPDX-License-Identifier: Apache-2.0
"""The thread that releases streams which wait for a dead process (law L4).

The thread runs while a stream of this process waits for a value that is not reached yet.
"""

import logging
import time
from typing import ClassVar, Final, Protocol

from typing_extensions import override

from crossmem.control.limits import no_thread
from crossmem.control.threads import PassingThread
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.timelines.cell import VALUE, VOID, Cell

__all__ = ["StreamWatcher"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_PAUSE_S: Final = 0.01
_REPEAT_S: Final = 1.0
"""Seconds for which the watcher writes the void value again and again, because work of the dead
process may overwrite the value."""


class Watched(Protocol):
    """A timeline. A stream of this process waits until the timeline reaches a value."""

    @property
    def cell(self) -> Cell:
        """The words of the timeline."""
        ...

    @property
    def device(self) -> LocalDevice:
        """The device of the stream."""
        ...

    @property
    def is_owner_alive(self) -> bool:
        """Whether the process that signals the timeline still runs."""
        ...


class StreamWatcher(Part):
    """Watches the timelines that streams of this process wait for."""

    closing: ClassVar = -5

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._targets: dict[Watched, int] = {}
        """The largest awaited value of each timeline. Guarded by :attr:`Process.state`."""
        self._voided: dict[Watched, float] = {}
        """For each timeline whose signalling process is dead: the time after which the watcher no
        longer writes the void value."""
        self._thread = PassingThread(self._look, lambda: bool(self._targets))

    def watch(self, one: Watched, value: int) -> int:
        """Watch a timeline until it reaches a value. Call this before the stream waits.

        Returns
        -------
        int
            The value for which the timeline was watched before, or 0. If the stream's wait cannot
            be issued, pass this value to :meth:`forget`.

        Raises
        ------
        DriverError
            This process can start no more threads.
        """
        # This assignment is not in __init__(): if two threads call Process.part() at once, it may
        # make two watchers, but it keeps only one. watch() is called only on the kept watcher.
        self._process.deferred.streams_wait = self.is_waiting
        with self._process.state:
            before = self._targets.get(one, 0)
            self._targets[one] = max(value, before)
        if not self._thread.start():
            self.forget(one, value, before)
            raise no_thread("crossmem-timelines")
        return before

    def is_waiting(self, driver: object) -> bool:
        """Whether a stream of a driver waits for a value that was not reached at the last check."""
        return any(one.device.driver is driver for one in list(self._targets))

    def is_needed(self, one: Watched) -> bool:
        """Whether a timeline's words must be kept.

        They must be kept while a stream on a device of the same driver waits, even for another
        timeline. Otherwise, the vendor's release of the words would block until the stream's work
        is complete.
        """
        is_needed = self.is_waiting(one.device.driver)
        if is_needed:
            # If a signal handler raised in watch(), watch() has perhaps not started the thread.
            self._thread.start()
        return is_needed

    def forget(self, one: Watched, value: int, before: int = 0) -> None:
        """Set the awaited value of a timeline from ``value`` back to ``before``.

        If ``before`` is 0, stop watching the timeline. If another call has set a larger value
        meanwhile, change nothing.
        """
        with self._process.state:
            if self._targets.get(one) == value:
                self._targets[one] = before
                if not before:
                    del self._targets[one]
                    self._voided.pop(one, None)

    def _look(self) -> None:
        for one, target in list(self._targets.items()):
            until = self._voided.get(one)
            if until is None and one.cell.read(VALUE) >= target:
                self.forget(one, target)
            elif until is not None or not one.is_owner_alive:
                one.cell.write(VALUE, VOID)
                until = self._voided.setdefault(one, time.monotonic() + _REPEAT_S)
                if time.monotonic() > until:
                    self.forget(one, target)
        self._thread.bell.wait(_LOOK_S)

    @override
    def prepare_exit(self) -> None:
        """Wait until no stream waits any more. Give up after ``exit_wait_s`` seconds.

        If a stream still waits after that, crossmem does not release the memory of the stream's
        driver, because the release would wait for the stream. The vendor releases this memory
        when the process ends.
        """
        end = time.monotonic() + self._process.settings.exit_wait_s
        while self._targets and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        for device in {one.device for one in list(self._targets)}:
            _log.warning("exiting while a stream of %s waits for another process", device.name)
            self._process.stuck.add(device.driver)

    @override
    def close_at_exit(self) -> None:
        """End the thread."""
        self._thread.stop()
