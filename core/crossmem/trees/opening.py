# SPDX-License-Identifier: Apache-2.0
"""From the description of a tree, and the memory of its handles, to its arrays and tensors."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from crossmem.arrays import ArrayInfo, Kind, Layout
from crossmem.arrays.adapters import ADAPTERS, describe
from crossmem.errors import ConfigurationError
from crossmem.sharing.base.memory import Memory, leave_to_views
from crossmem.sharing.base.views import maker
from crossmem.sharing.device import Device
from crossmem.sharing.importer.attach import Readonly, attach_many
from crossmem.sharing.importer.mapping import Mapping
from crossmem.trees.message import Message, Row
from crossmem.trees.nodes import read, write
from crossmem.trees.pairing import pair_arrays

__all__ = ["array_maker", "attach_handles", "build", "pair_leaves"]


def build(message: Message, memories: Sequence[Memory]) -> Any:
    """Return the arrays and tensors of a message in the memory of its handles."""
    make = array_maker(memories)
    return read(message.tree, [make(row, row.kind) for row in message.rows])


def array_maker(memories: Sequence[Memory]) -> Callable[[Row, Kind], Any]:
    """Return what makes an array of a library from its row, in the memory of its handle."""
    makers: dict[tuple[int, Kind], Callable[[Layout], Any]] = {}

    def make(row: Row, kind: Kind) -> Any:
        if row.handle is None:
            return ADAPTERS[kind].empty(row.layout)
        found = makers.get((row.handle, kind))
        if found is None:
            found = makers[row.handle, kind] = maker(memories[row.handle], kind)
        return found(row.layout)

    return make


def attach_handles(
    message: Message,
    readonly: Readonly,
    device: Device | str | None = None,
    timeout: float | None = None,
) -> list[Mapping]:
    """Attach all memory, or none; each mapping lasts as long as arrays in it do."""
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


def pair_leaves(
    message: Message, tree: Any, name: str
) -> Iterator[tuple[Row, Any, ArrayInfo, str]]:
    """Yield each array of a message with the one at the same place of a tree that is like it.

    Parameters
    ----------
    message
        What was shared.
    tree
        Another tree of the same containers.
    name
        What errors call the other tree.

    Raises
    ------
    ConfigurationError
        The trees differ in their containers, or two arrays in shape or dtype.
    """
    # Nothing is compared with what is no tree.
    read(message.tree, range(len(message.rows)))
    found: list[tuple[Any, ArrayInfo]] = []

    def add(value: Any, _where: Callable[[], str]) -> int | None:
        info = describe(value)
        if info is None:
            return None
        found.append((value, info))
        return len(found) - 1

    for number, other, where in list(pair_arrays(message.tree, write(tree, add), name)):
        row, (value, info) = message.rows[number], found[other]
        mine = info.layout
        if (mine.dtype, mine.shape) != (row.layout.dtype, row.layout.shape):
            msg = (
                f"{where} has shape {mine.shape} and dtype {mine.dtype.name}; shape "
                f"{row.layout.shape} and dtype {row.layout.dtype.name} was shared"
            )
            raise ConfigurationError(msg)
        yield row, value, info, where
