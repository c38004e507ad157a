# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements: how readers of a timeline tell its owner which values they are done with.

A reader writes into its own row of leases, where each timeline has a word: 0, or one more than the
last acknowledged value. So each word has one writer, and the owner forgets the words of dead
readers with their rows.
"""

import threading
from typing import Any, cast

from crossmem.control import words
from crossmem.control.segments import HEADER_WORDS, SLOTS
from crossmem.driver import StreamWords, stream_words_of
from crossmem.sharing.base.devices import LocalDevice
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
        """The largest word that a stream will write."""
        self._attempted = 0
        """The same, with a write that the vendor refused or a signal handler interrupted."""
        self._last: tuple[int, int] | None = None
        """Stream and thread of the last write by a stream."""

    def done(self, value: int, stream: Any = None) -> None:
        """Acknowledge a value, at once or when the work that was issued on a stream is complete."""
        word = value + 1
        if word <= max(self._issued, words.load(self._row, self._at)):
            return
        level = self._level
        device = level.device
        if stream is None:
            if self._last is not None and self._attempted > words.load(self._row, self._at):
                # The stream must not write its smaller value over this one.
                level.streams.synchronize_stream(device.ordinal, self._last[0])
            words.release()
            words.store(self._row, self._at, word)
            return
        number = stream_of(stream)
        if level.name != "word" or not self._address:
            level.streams.synchronize_stream(device.ordinal, number)
            words.store(self._row, self._at, word)
            return
        driver = cast("StreamWords", level.streams)
        pages, pointer = self._process.part(Registrations), self._address + 8 * self._at
        address = pages.enter(driver, device.ordinal, pointer, self)
        key = number, threading.get_ident()
        if key != self._last and self._issued > words.load(self._row, self._at):
            # Streams run in any order, and the word must not shrink.
            driver.wait_value(device.ordinal, address, self._issued, number)
        self._attempted, self._last = word, key
        driver.write_value(device.ordinal, address, word, number)
        self._issued = word

    def leave(self) -> None:
        """Stop being a reader. An interrupted call can be repeated."""
        device: LocalDevice = self._level.device
        if self._attempted > words.load(self._row, self._at):
            device.driver.synchronize(device.ordinal)
        self._attempted = self._issued = 0
        words.store(self._row, self._at, 0)
        driver = stream_words_of(device.driver)
        if driver is not None and self._address:
            pages = self._process.part(Registrations)
            pages.leave(driver, self._address + 8 * self._at, self)
