# SPDX-License-Identifier: Apache-2.0
"""Records the users of a block of memory in this process.

The users are running copies, pieces of address ranges, and views.

Calls that read, write or copy the memory are all recorded as copies.

Each user has an entry of its own; there is no count. So an interrupted call can be repeated: a
second addition or removal of the same entry changes nothing.
"""

import weakref
from functools import partial
from typing import Protocol

__all__ = ["Usage"]


class _Viewable(Protocol):
    """An object whose memory can be viewed."""

    def _has_views(self) -> bool: ...


class Usage:
    """The users of one block of memory.

    All objects of this process that use the block share this record.
    """

    __slots__ = ("__weakref__", "_viewed", "copies", "pieces")

    def __init__(self) -> None:
        self.copies: dict[object, object] = {}
        """The running copies. An entry's key is a new object. Its value is the memory object that
        the copy reads or writes."""
        self.pieces: set[object] = set()
        """Pieces of address ranges that map the memory."""
        self._viewed: dict[int, weakref.ref[_Viewable]] | None = None

    def add_view(self, memory: _Viewable) -> None:
        """Record that a memory object has been viewed.

        When the object is destroyed, its entry is removed.
        """
        viewed = self._viewed
        if viewed is None:
            viewed = self._viewed = {}
        key = id(memory)
        viewed[key] = weakref.ref(memory, partial(viewed.pop, key))

    @property
    def is_active(self) -> bool:
        """Whether a copy runs, a view is alive, or an address range maps the memory."""
        return bool(self.pieces) or self.is_touched

    @property
    def is_touched(self) -> bool:
        """Whether a copy runs or a view is alive."""
        viewed = [reference() for reference in list((self._viewed or {}).values())]
        return bool(self.copies) or any(one is not None and one._has_views() for one in viewed)
