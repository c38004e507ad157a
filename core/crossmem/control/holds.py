# SPDX-License-Identifier: Apache-2.0
"""The importer's side of leases: a row has one word for each export that the importer holds.

To hold an export, the importer writes the generation into its row and then reads the generation in
the exporter's control segment. If the exporter freed the memory at the same time, either the
exporter sees the importer's word, or the importer sees the new generation. To end a hold, the
importer writes 0. If the generation changed during the hold, the importer then sends a hint.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from crossmem.control import words
from crossmem.control.barrier import IS_REGISTERED
from crossmem.control.segments import FAULTY_OWNER, HEADER_WORDS, SLOTS, Segment, receive
from crossmem.control.slots import FENCED, MODE, REGISTERED
from crossmem.driver.recording import call_into
from crossmem.errors import InvalidHandleError

__all__ = ["HoldTable"]

_MAX_SEGMENTS: Final = 64


class HoldTable:
    """The holds of this process on the memory of one exporter. The caller holds a lock."""

    def __init__(self) -> None:
        self.known = 0
        """One bit for each control segment: whether this process has a row for it."""
        self._segments: dict[int, tuple[Segment, Segment, bool]] = {}
        """Each key is the number of a control segment. The value is the control segment, this
        process's row for it, and whether this process uses fences."""
        self._holders: dict[int, set[object]] = {}
        """Each key is a slot. The value is the objects of this process that hold the slot. While
        there is such an object, the slot's word in the row is not 0."""

    def add(self, number: int, descriptors: Sequence[int]) -> None:
        """Map a control segment and the row that belongs to it. The caller closes both descriptors.

        Raises
        ------
        InvalidHandleError
            The number is too large, or a descriptor does not refer to a segment.
        OutOfMemoryError
            This process has no room for another mapping.
        """
        if number >= _MAX_SEGMENTS:
            raise _no_words()
        made: list[Segment] = []
        try:
            call_into(made, partial(receive, descriptors[0], is_writable=False))
            call_into(made, partial(receive, descriptors[1], is_writable=True))
            control, row = made
            is_fenced = not IS_REGISTERED or words.load(control.words, MODE) != REGISTERED
            words.store(row.words, MODE, FENCED if is_fenced else REGISTERED)
            self._segments[number] = (control, row, is_fenced)
            self.known |= 1 << number
        except BaseException:
            for segment in made:
                segment.close()
            raise

    def hold(self, slot: int, generation: int, holder: object) -> bool:
        """Add a holder to a slot; return False if the slot's generation is not ``generation``.

        The caller must call :meth:`end`, even if this method returns False or raises.

        Raises
        ------
        InvalidHandleError
            The exporter has sent no words for that slot.
        """
        which = self._segments.get(slot // SLOTS)
        if which is None:
            raise _no_words()
        control, row, is_fenced = which
        at = HEADER_WORDS + slot % SLOTS
        # The holder is added first. If a signal handler then ends its own hold of this slot, the
        # handler sees this holder and does not write 0.
        self._holders.setdefault(slot, set()).add(holder)
        if not words.load(row.words, at):
            words.store(row.words, at, generation)
            if is_fenced:
                words.fence()
        return words.observe(control.words, at) == generation

    def end(self, slot: int, holder: object) -> bool:
        """End one hold, and return whether the exporter waits for a hint.

        A second call does nothing.
        """
        holders = self._holders.get(slot)
        if holders is None:
            return False
        control, row, is_fenced = self._segments[slot // SLOTS]
        at = HEADER_WORDS + slot % SLOTS
        words.release()
        word = words.load(row.words, at)
        holders.discard(holder)
        # No signal handler runs between this check and the store of the 0, because no Python
        # function is called there. So a handler's new hold is either seen here, or begins after the
        # store.
        if holders or not word:
            return False
        words.store(row.words, at, 0)
        if is_fenced:
            words.fence()
        return words.load(control.words, at) != word

    def words_of(self, slot: int) -> tuple[memoryview, memoryview, bool]:
        """Return the control segment and the row of a slot, and whether this process uses fences.

        Raises
        ------
        InvalidHandleError
            The exporter has sent no words for that slot.
        """
        which = self._segments.get(slot // SLOTS)
        if which is None:
            raise _no_words()
        control, row, is_fenced = which
        return control.words, row.words, is_fenced

    def segments_of(self, slot: int) -> tuple[Segment, Segment]:
        """Return the control segment and the row that contain the words of a slot.

        Raises
        ------
        InvalidHandleError
            The exporter has sent no words for that slot.
        """
        which = self._segments.get(slot // SLOTS)
        if which is None:
            raise _no_words()
        return which[:2]

    def close(self) -> None:
        """Unmap the segments. The rows keep the words of the holds that have not ended."""
        for control, row, _is_fenced in self._segments.values():
            control.close()
            row.close()
        self.known = 0
        self._segments.clear()
        self._holders.clear()


def _no_words() -> InvalidHandleError:
    msg = "the exporter names lease words that this process has not mapped"
    return InvalidHandleError(msg, operation="import", hint=FAULTY_OWNER)
