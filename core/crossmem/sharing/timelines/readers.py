# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements: how readers of a timeline tell its owner which values they are done with.

A reader writes into its own row of leases, where each timeline has a word: 0, or one more than the
last acknowledged value. So each word has one writer, and the owner forgets the words of dead
readers with their rows.
"""

from typing import Any, cast

from crossmem.control import words
from crossmem.control.segments import HEADER_WORDS, SLOTS
from crossmem.driver import StreamWords, stream_words_of
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.streams import stream_of
from crossmem.sharing.importer.record import Use
from crossmem.sharing.timelines.cell import CELL_NBYTES
from crossmem.sharing.timelines.levels import Level
from crossmem.sharing.timelines.memory import Registrations

__all__ = ["ReaderWord"]


class ReaderWord:
    """The word of this process for one timeline of another process.

    Parameters
    ----------
    process
        This process.
    level
        The level of the timeline.
    use
        The use that keeps the timeline's page open.
    offset
        Offset of the timeline in its page, in bytes.
    """

    def __init__(self, process: Process, level: Level, use: Use, offset: int) -> None:
        assert use.record is not None  # noqa: S101 - it is open
        slot, self._row, self._address = use.record.row_of(use.core)
        self._process = process
        self._level = level
        self._at = HEADER_WORDS + (slot + 1 + offset // CELL_NBYTES) % SLOTS
        self._issued = 0

    def done(self, value: int, stream: Any = None) -> None:
        """Acknowledge a value, at once or when the work that was issued on a stream is complete."""
        if value < max(self._issued, words.load(self._row, self._at)):
            return
        if stream is None:
            words.release()
            words.store(self._row, self._at, value + 1)
            return
        device, number = self._level.device, stream_of(stream)
        self._issued = value + 1
        if self._level.name != "word" or not self._address:
            self._level.streams.synchronize_stream(device.ordinal, number)
            words.store(self._row, self._at, value + 1)
            return
        driver = cast("StreamWords", self._level.streams)
        pages, pointer = self._process.part(Registrations), self._address + 8 * self._at
        address = pages.enter(driver, device.ordinal, pointer, self)
        driver.write_value(device.ordinal, address, value + 1, number)

    def leave(self) -> None:
        """Stop being a reader. An interrupted call can be repeated."""
        device: LocalDevice = self._level.device
        if self._issued > words.load(self._row, self._at):
            # A stream must not write over the 0.
            wait_for_work(device)
        self._issued = 0
        words.store(self._row, self._at, 0)
        driver = stream_words_of(device.driver)
        if driver is not None and self._address:
            pages = self._process.part(Registrations)
            pages.leave(driver, self._address + 8 * self._at, self)
