# SPDX-License-Identifier: Apache-2.0
"""The users of one block of memory in this process: copies, pieces of ranges, and views.

Users are entries, not a count. So an interrupted call can be repeated: a second addition or removal
of the same entry changes nothing.
"""

import weakref
from functools import partial
from typing import Protocol

__all__ = ["Usage"]


class _Viewable(Protocol):
    """An object whose memory can be viewed."""

    def _has_views(self) -> bool: ...


class Usage:
    """The users of one block of memory, over all objects of this process."""

    __slots__ = ("__weakref__", "_viewed", "copies", "pieces")

    def __init__(self) -> None:
        self.copies: dict[object, object] = {}
        """The memory object of each running copy. The key is the copy."""
        self.pieces: set[object] = set()
        """Pieces of address ranges that map the memory."""
        self._viewed: dict[int, weakref.ref[_Viewable]] | None = None

    def add_view(self, memory: _Viewable) -> None:
        """Record that an object was viewed."""
        viewed = self._viewed
        if viewed is None:
            viewed = self._viewed = {}
        key = id(memory)
        viewed[key] = weakref.ref(memory, partial(viewed.pop, key))

    @property
    def is_active(self) -> bool:
        """Whether the memory is being copied, is viewed, or is mapped by an address range."""
        return bool(self.pieces) or self.is_touched

    @property
    def is_touched(self) -> bool:
        """Whether the memory is being copied or viewed now."""
        viewed = [reference() for reference in list((self._viewed or {}).values())]
        return bool(self.copies) or any(one is not None and one._has_views() for one in viewed)
