# SPDX-License-Identifier: Apache-2.0
"""Maps the memory of a message, and builds the message's tree of arrays and tensors."""

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from typing import Any

from crossmem.arrays import Kind, Layout
from crossmem.arrays.adapters import ADAPTERS
from crossmem.sharing.base.memory import Memory, leave_to_views
from crossmem.sharing.base.views import maker
from crossmem.sharing.device import Device
from crossmem.sharing.importer.attach import Readonly, attach_many
from crossmem.sharing.importer.mapping import Mapping
from crossmem.trees.message import Message, Row
from crossmem.trees.nodes import read

__all__ = ["attach_all", "build", "maker_of_rows"]


def build(message: Message, memories: Sequence[Memory]) -> Any:
    """Return the tree of a message. ``memories[i]`` is the memory of the message's handle ``i``."""
    make = maker_of_rows(memories)
    return read(message.tree, [make(row, row.kind) for row in message.rows])


def maker_of_rows(
    memories: Sequence[Memory] | MappingOf[int, Memory],
) -> Callable[[Row, Kind], Any]:
    """Return a function that makes arrays and tensors.

    The function takes a ``Row``, which describes one array, and a kind. It returns the array as an
    object of the library that the kind names.

    Parameters
    ----------
    memories
        The memory of each handle of the message. The memory's index in the sequence, or its key in
        the mapping, is the number of the handle.
    """
    makers: dict[tuple[int, Kind], Callable[[Layout], Any]] = {}

    def make(row: Row, kind: Kind) -> Any:
        if row.handle is None:
            return ADAPTERS[kind].empty(row.layout)
        found = makers.get((row.handle, kind))
        if found is None:
            found = makers[row.handle, kind] = maker(memories[row.handle], kind)
        return found(row.layout)

    return make


def attach_all(
    message: Message,
    *,
    readonly: Readonly = False,
    device: Device | str | None = None,
    timeout: float | None = None,
) -> list[Mapping]:
    """Return a mapping for each handle of a message.

    If one of the handles cannot be attached, the call raises, and leaves no mapping behind.

    A mapping is closed when neither the caller nor an array in its memory refers to it any more.
    """
    handles = message.handles
    backend = None
    if device is not None:
        backend = (device if isinstance(device, str) else device.name).partition(":")[0]
    here = [i for i, one in enumerate(handles) if one.backend == backend]
    home = [i for i, one in enumerate(handles) if one.backend != backend]
    mappings: dict[int, Mapping] = {}
    for target, numbers in ((device, here), (None, home)):
        wanted = [handles[i] for i in numbers]
        found = attach_many(wanted, device=target, readonly=readonly, timeout=timeout)
        for number, mapping in zip(numbers, found, strict=True):
            leave_to_views(mapping)
            mappings[number] = mapping
    return [mappings[i] for i in range(len(handles))]
