# SPDX-License-Identifier: Apache-2.0
"""The buffers that a consumer holds, and the release of these buffers."""

from sys import gettrace
from typing import Any

from typing_extensions import override

from crossmem.control import words
from crossmem.driver import StreamWords
from crossmem.sharing.queues.buffer import BufferRecord, SharedBuffer
from crossmem.sharing.queues.layout import STREAMS, WANT
from crossmem.sharing.queues.opened import Opened, ring
from crossmem.sharing.queues.place import Place

__all__ = ["Receiver"]


class Receiver(Place):
    """A place with the buffers that this process has received; see :class:`Place`."""

    def __init__(self, opened: Opened, place: int, view: memoryview, pointer: int) -> None:
        super().__init__(opened, place, view, pointer)
        self.held: dict[BufferRecord, bool] = {}
        """Each key is a buffer that the application has received and not released. The value is
        True while a thread lets a stream release the buffer."""
        self.kept: list[SharedBuffer] = []
        """Received buffers that no call has returned, because a signal handler raised. The next
        calls of :meth:`Consumer.look` return them first."""
        self._released = opened.terms.released(0, 0)

    @override
    def keep(self, found: object) -> None:
        self.keep_all([found])
        super().keep(found)

    def keep_all(self, found: list[Any]) -> None:
        """Keep received buffers for the next calls, in front of those that are kept already."""
        kept, held = self.kept, self.held
        for one in reversed(found):
            if isinstance(one, SharedBuffer) and one._record in held:
                # No caller has the buffer, so no warning is due if it ends without release().
                one._is_left = True
                first = (one,)
                # No signal handler and no other thread runs between these two statements.
                del held[one._record]
                kept[:0] = first
        if self.kept:
            # Another thread may wait for a buffer.
            ring(self._bell)

    @override
    def leave(self) -> None:
        super().leave()
        self.kept.clear()

    def end_plainly(self, buffer: SharedBuffer, /) -> bool:
        """End and release a buffer on the hot path, and return True.

        If the release needs a step that the hot path lacks, change nothing and return False.
        """
        record, anchor, process = buffer._record, buffer._anchor, self.opened.process
        if not self.is_plain or record is None or record.stream is not None:
            return False
        if gettrace() is not None or (anchor is not None and anchor() is not None):
            return False
        deferred, mine, held, control = process.deferred, self.words, self.held, self.opened.control
        at = self._released + record.producer * self.opened.terms.depth + record.buffer
        # One step: no signal handler and no other thread runs before the end of this branch.
        # A thread that makes a copy or a view first sets a mark, which this step checks, and then
        # reads ``buffer._record`` again. If the thread sets the mark after this step, the thread
        # sees that the buffer has ended.
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
            buffer.__class__ = buffer._when_ended
        else:
            return False
        self._tell(record.producer)
        return True

    def _tell(self, producer: int) -> None:
        """Wake the processes that wait for a release, even if a signal handler raises."""
        try:
            self._ring(producer)
        except BaseException:
            self._ring(producer)
            raise

    def _ring(self, producer: int) -> None:
        self.opened.wake(producer)
        if self.opened.control[WANT]:
            ring(self.opened.owner_bell)

    def take_back(self, record: BufferRecord, stream: int | None) -> None:
        """Release a buffer to its producer."""
        if self._has_lost(record):
            return
        held, control, at = self.held, self.opened.control, self._member
        word = self.opened.terms.released(record.producer, record.buffer)
        failure = self.finish_work(stream)
        driver = None if stream is None else self.words_driver(stream)
        words.release()
        if driver is not None and stream is not None:
            self._release_on(driver, stream, record, word)
        # One step: no signal handler and no other thread runs between the check and the deletion.
        # So the stamp of an entry is written once. A late second write could overwrite the larger
        # stamp that releases the next entry of the same buffer.
        elif record in held and not held[record] and control[at] == self.session:
            self.words[word] = record.stamp
            del held[record]
            self._tell(record.producer)
        else:
            # The session may have ended during this call. If so, _has_lost() forgets the buffer.
            self._has_lost(record)
        if failure is not None:
            raise failure

    def _has_lost(self, record: BufferRecord) -> bool:
        """Whether nothing is left to release.

        This is so if the buffer was released, if a stream is about to release the buffer, or if the
        session has ended. If the session has ended, this method also forgets the buffer.
        """
        if self.session and self.opened.member(self.place) == self.session:
            return self.held.get(record, True)
        self.held.pop(record, None)
        return True

    def _release_on(
        self, driver: StreamWords, stream: int, record: BufferRecord, word: int
    ) -> None:
        """Let a stream write the stamp that releases the buffer."""
        held = self.held
        # One step: no other thread runs between the check and the assignment. So only one thread
        # lets a stream release the buffer.
        if record not in held or held[record]:
            return
        held[record] = True
        try:
            words.store(self.words, STREAMS, 1)
            self.write_on(stream, driver, word, record.stamp)
        except BaseException:
            held[record] = False
            raise
        held.pop(record, None)
