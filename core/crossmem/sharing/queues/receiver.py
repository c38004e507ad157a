# SPDX-License-Identifier: Apache-2.0
"""The buffers that a consumer holds, and their release."""

from sys import gettrace

from typing_extensions import override

from crossmem.control import words
from crossmem.sharing.queues.buffer import BufferRecord, SharedBuffer
from crossmem.sharing.queues.layout import STREAMS, WANT
from crossmem.sharing.queues.opened import Opened, ring
from crossmem.sharing.queues.place import Place

__all__ = ["Receiver"]


class Receiver(Place):
    """A place with the buffers that this process has received; see :class:`Place`."""

    def __init__(self, opened: Opened, place: int, view: memoryview, pointer: int) -> None:
        super().__init__(opened, place, view, pointer)
        self.held: dict[BufferRecord, None] = {}
        """The buffers that this process has received and not released."""
        self.kept: list[SharedBuffer] = []
        """Received buffers that no caller has, because a signal handler raised during the call.
        They come first in the next calls."""
        self._released = opened.terms.released(0, 0)

    @property
    def in_use(self) -> int:
        """Number of buffers that the application holds."""
        return len(self.held) - len(self.kept)

    @override
    def keep(self, found: object) -> None:
        if isinstance(found, SharedBuffer):
            # If this process leaves the queue, nobody could have released the buffer.
            found._is_left = True
            self.kept.append(found)
            # Another thread may wait for a buffer.
            ring(self._bell)

    @override
    def leave(self) -> None:
        super().leave()
        self.kept.clear()

    def end_plainly(self, buffer: SharedBuffer, /) -> bool:
        """End and release a buffer on the hot path. If this returns False, nothing has changed."""
        record, anchor, process = buffer._record, buffer._anchor, self.opened.process
        if not self.is_plain or record is None or record.stream is not None:
            return False
        if gettrace() is not None or (anchor is not None and anchor() is not None):
            return False
        deferred, mine, held, control = process.deferred, self.words, self.held, self.opened.control
        at = self._released + record.producer * self.opened.terms.depth + record.buffer
        # One step: no signal handler and no other thread runs before the end of this branch.
        # A thread records a copy or a view first, and then reads ``buffer._record`` again.
        if (
            buffer._record is record
            and buffer._anchor is anchor
            and record in held
            and control[self._member] == self.session
            and not (buffer._is_lent or buffer._usage.copies or deferred.ready or deferred.idle)
            and not (process.is_inherited or process.is_closed)
        ):
            mine[at] = record.stamp
            del held[record]
            record.is_done = True
            buffer._record = None
        else:
            return False
        self._tell(record.producer)
        return True

    def _tell(self, producer: int) -> None:
        """Wake the processes that wait for a release."""
        self.opened.wake(producer)
        if self.opened.control[WANT]:
            ring(self.opened.owner_bell)

    def take_back(self, record: BufferRecord, stream: int | None) -> None:
        """Release a buffer to its producer."""
        if self._has_lost(record):
            return
        at = self.opened.terms.released(record.producer, record.buffer)
        failure = self.finish_work(stream)
        with self.lock:
            # During the wait, another thread may have released the buffer, and the buffer may have
            # a new entry by now.
            if self._has_lost(record):
                return
            is_on_stream = stream is not None and self._release_on(stream, at, record.stamp)
            if not is_on_stream:
                words.release()
                words.store(self.words, at, record.stamp)
            self.held.pop(record, None)
        if not is_on_stream:
            self._tell(record.producer)
        if failure is not None:
            raise failure

    def _has_lost(self, record: BufferRecord) -> bool:
        """Whether a buffer was released before, or its session has ended, so others may have it."""
        if record in self.held and self.session and self.opened.member(self.place) == self.session:
            return False
        self.held.pop(record, None)
        return True

    def _release_on(self, stream: int, at: int, stamp: int) -> bool:
        """Let a stream write the release. If it cannot, wait for the stream and return False."""
        driver = self.words_driver(stream)
        if driver is None:
            return False
        words.store(self.words, STREAMS, 1)
        self.write_on(stream, driver, at, stamp)
        return True
