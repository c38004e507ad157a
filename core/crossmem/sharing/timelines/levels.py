# SPDX-License-Identifier: Apache-2.0
"""How timelines signal and wait on streams: the levels ``"host"`` and ``"word"``.

While a thread signals, it holds the lock of the timeline. So the vendor receives the signals in the
order of their values.
"""

import threading
from typing import ClassVar, cast

from typing_extensions import override

from crossmem.driver import Streams, StreamWords, stream_words_of, streams_of
from crossmem.errors import BusyError, UnsupportedError
from crossmem.models import TimelineLevel
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.timelines.cell import ISSUED, VALUE, VOID, Awaited, Cell
from crossmem.sharing.timelines.memory import Registrations

__all__ = ["HostLevel", "Level", "WordLevel"]


class Level:
    """The common base class of the levels.

    Parameters
    ----------
    device
        The device whose streams this object uses.
    cell
        The words of the timeline.
    """

    name: ClassVar[TimelineLevel] = "host"
    blocks_host: ClassVar = True
    """Whether a wait with ``stream=`` first blocks the host. The host waits until the value is
    reached or, at level ``"event"``, until the value is issued."""

    def __init__(self, process: Process, device: LocalDevice, cell: Cell) -> None:
        self.process = process
        self.device = device
        self.cell = cell
        self._last: tuple[int, int] | None = None
        """The stream of the last signal, and the thread that issued the signal. The thread matters,
        because stream 0 may be a different stream in each thread."""
        self.is_unsure = False
        """Whether a signal failed or was interrupted, so that its stream may or may not write the
        value."""

    @property
    def streams(self) -> Streams:
        """The driver, with the methods for streams.

        Raises
        ------
        UnsupportedError
            The device has no streams, or the device does not offer this level.
        """
        found, device = streams_of(self.device.driver), self.device
        if found is None or self.name not in device.capabilities.timeline_levels:
            lacks = "streams" if found is None else f"timelines of level {self.name!r}"
            msg = f"{device.name} has no {lacks}"
            raise UnsupportedError(msg, backend=device.backend, hint="leave out stream=")
        return found

    @property
    def issued(self) -> int:
        """The largest value that was signalled, even if it is not reached yet."""
        return max(self.cell.read(ISSUED), self.cell.read(VALUE))

    @property
    def reached(self) -> int:
        """The largest value that was reached."""
        return self.cell.read(VALUE)

    @property
    def is_void(self) -> bool:
        """Whether the value is void: it says nothing about the work of the signalling process."""
        return self.cell.read(VALUE) == VOID

    def settle(self) -> None:
        """If a signal failed or was interrupted, wait for all work of this process on the device.

        After that, no stream can write the value any more.
        """
        if self.is_unsure:
            self.device.driver.synchronize(self.device.ordinal)
            # All work is complete, so no stream will write a larger value. ISSUED is set to
            # ``reached`` and not to VALUE: at level "event", VALUE may be smaller than ``reached``.
            self.cell.write(ISSUED, self.reached)
            self.is_unsure, self._last = False, None

    def signal(self, value: int, stream: int | None) -> None:
        """Signal a value at once, or after the work that was issued on a stream.

        The caller passes a value that is larger than all earlier values. Without a stream, the
        caller also ensures that the earlier values are reached. With a stream, this method orders
        the signal after earlier signals on other streams.
        """
        if stream is None:
            self.set(value)
            return
        streams, key = self.streams, (stream, threading.get_ident())
        if key != self._last and self.issued > self.reached:
            self._order(stream)
        issued = self.cell.read(ISSUED)
        self.is_unsure = True
        try:
            self._issue(streams, value, stream)
        except BusyError:
            # The stream is being captured into a graph, so nothing was issued.
            self.cell.write(ISSUED, issued)
            self.is_unsure = False
            raise
        self.is_unsure, self._last = False, key

    def set(self, value: int) -> None:
        """Set the value at once. The caller ensures that all issued values are reached."""
        self.cell.write(VALUE, value)

    def _order(self, stream: int) -> None:
        """Hold a stream until all issued values are reached."""

    def _issue(self, streams: Streams, value: int, stream: int) -> None:
        raise NotImplementedError

    def wait_on_host(self, awaited: Awaited) -> int:
        """Wait on the host until the awaited value is reached; see :meth:`Cell.wait`."""
        return self.cell.wait(VALUE, awaited)

    def prepare(self, awaited: Awaited) -> int:
        """Do the host's part of a stream's wait, and return the value that the host has read."""
        self.streams  # noqa: B018 - raises if the device has no streams
        return self.wait_on_host(awaited)

    def wait(self, value: int, stream: int) -> None:
        """Hold the later work of a stream until the value is reached."""

    def close(self) -> None:
        """Release the vendor's resources. An interrupted call can be repeated."""


class HostLevel(Level):
    """Streams neither write nor await the value.

    To signal with ``stream=``, the host waits for the stream's work, and then sets the value. To
    wait with ``stream=``, the host itself waits for the value.
    """

    @override
    def _issue(self, streams: Streams, value: int, stream: int) -> None:
        streams.synchronize_stream(self.device.ordinal, stream)
        self.cell.write(VALUE, value)


class WordLevel(Level):
    """Streams themselves write and await the value. Calls with a stream do not block the host."""

    name: ClassVar[TimelineLevel] = "word"
    blocks_host: ClassVar = False

    def _word(self) -> tuple[StreamWords, int]:
        """Return the driver, and the address by which the device reaches the value."""
        driver = cast("StreamWords", self.streams)
        pages = self.process.part(Registrations)
        return driver, pages.enter(driver, self.device.ordinal, self.cell.pointer, self)

    @override
    def wait(self, value: int, stream: int) -> None:
        driver, address = self._word()
        driver.wait_value(self.device.ordinal, address, value, stream)

    @override
    def _order(self, stream: int) -> None:
        self.wait(self.issued, stream)

    @override
    def _issue(self, streams: Streams, value: int, stream: int) -> None:
        driver, address = self._word()
        # A write by a stream wakes no thread. So the host first writes ISSUED, which wakes the
        # sleeping threads. They then poll until the stream has written the value.
        self.cell.write(ISSUED, value)
        driver.write_value(self.device.ordinal, address, value, stream)

    @override
    def close(self) -> None:
        driver = stream_words_of(self.device.driver)
        if driver is not None:
            self.process.part(Registrations).leave(driver, self.cell.pointer, self)
