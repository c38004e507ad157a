# SPDX-License-Identifier: Apache-2.0
"""Sharing: from nested arrays and tensors to the message that other processes receive."""

from typing import Any, Literal, TypeVar, cast

from crossmem.arrays.adapters import describe
from crossmem.control.records import Allow
from crossmem.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    ConfigurationError,
    CrossmemError,
    UnsupportedError,
)
from crossmem.guards import shorten
from crossmem.models import Access, ShareableHandle
from crossmem.sharing.base.process import Process, current, drain
from crossmem.sharing.device import Device
from crossmem.sharing.device import device as device_of
from crossmem.sharing.exporter.adoption import Neighbours
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.importer.mapping import Mapping, asked_readonly
from crossmem.sharing.pools.block import Block
from crossmem.sharing.pools.pool import Pool
from crossmem.trees.contents import Contents
from crossmem.trees.leaves import Leaf, collect
from crossmem.trees.message import Message, Row
from crossmem.trees.new_arrays import HOST_DEVICE
from crossmem.trees.pool_blocks import Exportable, check_pool, refuse_unmapped
from crossmem.trees.shared import Shared
from crossmem.trees.tree_memory import TreeMemory
from crossmem.trees.versions import OwnCell, new_cell

__all__ = ["host_device", "message_of", "share"]

_T = TypeVar("_T")


def share(
    x: _T,
    *,
    copy: Literal["allow"] | bool | None = None,
    device: Device | str | None = None,
    pool: Pool | None = None,
    allow: Allow | None = None,
    access: Access | None = None,
    neighbours: Neighbours | None = None,
) -> Shared[_T]:
    """Make arrays and tensors receivable by other processes, in place.

    Memory of crossmem is shared in place. Memory received from another process is shared by the
    handle with which it came. Memory that a framework allocated on a device is adopted.

    Parameters
    ----------
    x
        A NumPy or CuPy array, a PyTorch tensor, or nested dicts, lists, tuples, named tuples and
        dataclasses of them, with plain values. Overlapping arrays overlap in the receiver too, and
        an array that occurs twice is one array.
    copy
        ``"allow"`` or True: an array that cannot be shared in place, or whose neighbours must not
        be exposed, is copied once. Readers get the copy: continue with
        :attr:`crossmem.Shared.value`, or call :meth:`crossmem.Shared.update`. None or False: such
        an array is refused.
    device
        Where copies of host memory go, which must be memory that the CPU can address;
        ``host`` where None.
    pool
        All copies lie in one block of this pool, which has memory of the device that copies go to.
    allow, access
        Who may receive, and whether they may write; see :meth:`crossmem.Allocation.export`. None:
        all of the same user, and ``"rw"``; for arrays in blocks of a pool, what the pool says. For
        what was received from others, their choice stands.
    neighbours
        ``"expose"`` allows importers to reach other memory in the same block of the vendor; see
        :meth:`crossmem.Device.adopt`.

    Returns
    -------
    Shared
        Keep it until the other processes have received the tree.

    Raises
    ------
    UnsupportedError
        Where something in ``x`` cannot be shared; the message says what and why. Where ``allow`` or
        ``access`` differ from those of the pool in which an array lies.
    ConfigurationError
        Where an argument has no meaning. Both device and pool were given.
    InvalidSizeError
        Where the copies do not fit into a block of the pool; the message says both sizes.
    ForkedProcessError
        Where an array lies in a block of a pool of the process that forked this one.
    BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        There is no such ``device`` here.
    DriverError, OutOfMemoryError
        Where a vendor's call failed, or the pool has no free block. Nothing is left then.
    """
    process = drain()
    if not isinstance(copy, bool):
        _check("copy", copy, (None, True, False, "allow"))
    _check("access", access, (None, "rw", "ro"))
    _check("neighbours", neighbours, (None, "expose"))
    check_pool(pool, device, "share")
    if pool is not None:
        device = cast("Device", pool.device)
    elif device is not None:
        # Whether anything is copied there or not.
        device = host_device(device)
    tree, leaves = collect(x)
    may_copy = copy is True or copy == "allow"
    tree_memory = TreeMemory(
        process, allow, access, neighbours, may_copy, lambda: host_device(device), pool
    )
    # Who receives from the pool may look at the version, too.
    readers = pool.allow if pool is not None and allow is None else allow
    try:
        handles, rows, copies = _rows(tree_memory, leaves)
        cell = _cell(process, readers, None if pool is not None else device)
    except BaseException:
        tree_memory.give_up()
        raise
    message = Message(handles, rows, tree, cell.cell if cell is not None else None)
    contents = Contents(message, [leaf.value for leaf in leaves], copies, allow)
    return Shared(process, message, cell=cell, tree_memory=tree_memory, contents=contents)


def message_of(array: Any) -> tuple[Message, Allocation | Block | Mapping, bool] | None:
    """Return what describes one array, the memory of crossmem in which it lies, and one wish.

    That is whether the receiver is to be kept from writing, as this process was when it received
    the array. None for any other array.

    Raises
    ------
    ForkedProcessError
        It lies in a block of a pool of the process that forked this one.
    """
    try:
        found = describe(array)
    except CrossmemError:
        return None
    if found is None or found.layout.extent is None:
        return None
    leaf = Leaf(array, found, lambda: "the array")
    low, high = leaf.bounds
    # Not drain(), which raises at exit: ordinary arrays are sent there too.
    memory = current().arrays.find(low, high - low)
    if memory is None:
        refuse_unmapped(low, high - low, leaf.where)
    if not isinstance(memory, Allocation | Block | Mapping):
        return None
    if isinstance(memory, Mapping) and not memory.owner_alive:
        # No process can import it any more, so it counts as ordinary memory of this process.
        return None
    # What came with a handle that only reads goes on with one, also where it comes from here.
    access = memory.handle.access if isinstance(memory, Mapping) else None
    # "advisory" is the wish of one reader, and not of those that it sends to.
    readonly = isinstance(memory, Mapping) and asked_readonly(memory) is True
    tree_memory = TreeMemory(
        drain(), None, access, None, copy=False, host=lambda: host_device(None)
    )
    handle, layout, _copy = leaf.place(*tree_memory.export(memory))
    if handle.raw is not None:
        # A raw handle has no leases, so no message could hold the memory.
        return None
    message = Message((handle,), (Row(found.kind, 0, layout),), {"a": 0}, None)
    return message, memory, readonly


def _check(name: str, value: object, known: tuple[str | bool | None, ...]) -> None:
    # A NumPy array compares elementwise, and 1 is equal to True.
    if (value is not None and not isinstance(value, str)) or value not in known:
        msg = f"{name} must be one of {known}, not {shorten(value)}"
        raise ConfigurationError(msg, operation="share")


def _rows(
    tree_memory: TreeMemory, leaves: list[Leaf]
) -> tuple[tuple[ShareableHandle, ...], tuple[Row, ...], dict[int, Exportable]]:
    """Return the handles that the arrays lie in, each once, and where they lie there.

    The dictionary has the memory of this process that arrays were copied to, by the numbers of the
    handles.
    """
    with_elements = [leaf for leaf in leaves if leaf.found.layout.extent is not None]
    places = iter(tree_memory.find(with_elements))
    handles: dict[ShareableHandle, int] = {}
    copies: dict[int, Exportable] = {}
    rows = []
    for leaf in leaves:
        kind, _pointer, layout, _device = leaf.found
        if layout.extent is None:
            rows.append(Row(kind, None, layout))
            continue
        place = next(places)
        number = handles.setdefault(place.handle, len(handles))
        if place.copy is not None:
            copies[number] = place.copy
        rows.append(Row(kind, number, place.layout))
    return tuple(handles), tuple(rows), copies


def _cell(process: Process, allow: Allow | None, device: Device | str | None) -> OwnCell | None:
    """Return a cell for the tree's version; None if this process has no memory for it."""
    try:
        return new_cell(process, allow, lambda: host_device(device))
    except (BackendNotFoundError, BackendUnavailableError):
        return None


def host_device(named: Device | str | None) -> Device:
    """Return the device for memory of the host.

    Raises
    ------
    UnsupportedError
        The CPU cannot address the memory of the named device.
    """
    one = HOST_DEVICE if named is None else named
    found = one if isinstance(one, Device) else device_of(one)
    if not found.capabilities.host_visible:
        msg = (
            f"the CPU cannot address memory of {found.name}, so host arrays cannot be copied there"
        )
        raise UnsupportedError(msg, operation="share", hint=f"pass {HOST_DEVICE!r} or no device")
    return found
