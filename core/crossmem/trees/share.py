# SPDX-License-Identifier: Apache-2.0
"""Shares nested arrays and tensors: makes the message that other processes receive."""

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
from crossmem.sharing.base.ending import leave_to_references
from crossmem.sharing.base.process import Process, current, drain
from crossmem.sharing.device import Device
from crossmem.sharing.device import device as device_of
from crossmem.sharing.exporter.adoption import Neighbours
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.importer.mapping import Mapping, asked_readonly
from crossmem.sharing.pools.block import Block
from crossmem.sharing.pools.pool import Pool
from crossmem.sharing.timelines.making import make_timeline
from crossmem.sharing.timelines.timeline import Timeline
from crossmem.trees.contents import Contents
from crossmem.trees.leaves import Leaf, collect
from crossmem.trees.message import Message, Row
from crossmem.trees.new_arrays import HOST_DEVICE
from crossmem.trees.pool_blocks import Exportable, check_pool, refuse_unmapped
from crossmem.trees.shared import Shared
from crossmem.trees.tree_memory import TreeMemory

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
    """Make arrays and tensors receivable by other processes, in place if possible.

    Memory of crossmem is shared in place. For memory from another process, this call sends the
    original handle. Memory that a framework allocated on a device is adopted.

    Parameters
    ----------
    x
        A NumPy or CuPy array, a PyTorch tensor, or a tree. A tree consists of nested dicts, lists,
        tuples, named tuples and dataclasses, which contain arrays, tensors and plain values. Arrays
        that overlap in ``x`` also overlap in the receiver. An array that occurs twice in ``x`` is
        one array in the receiver.
    copy
        ``"allow"`` or True: this call copies each array that cannot be shared in place. An
        array has neighbours if other memory lies in the same vendor block. This call also copies
        arrays that have neighbours, unless ``neighbours`` is ``"expose"``. Readers get the copy,
        and do not see later changes of the original. To give readers new data, change the arrays in
        :attr:`crossmem.Shared.value`, or copy again with :meth:`crossmem.Shared.update`. None or
        False: this call copies nothing, and refuses each array that ``"allow"`` would copy.
    device
        The device to which host memory is copied. None: the pool's device, or ``host`` if there is
        no pool. The CPU must be able to address the device's memory.
    pool
        All copies lie in one block of this pool. The pool must be on the device of the copies.
    allow, access
        Which processes may receive, and whether they may write; see
        :meth:`crossmem.Allocation.export`. None: all processes of the same user may receive, and
        they may write. For arrays in blocks of a pool, None means the settings of the pool. Arrays
        from another process keep the settings of that process.
    neighbours
        ``"expose"`` allows importers to reach other memory that lies in the same vendor block
        as an array; see :meth:`crossmem.Device.adopt`.

    Returns
    -------
    Shared
        Keep it until the other processes have received the tree.

    Raises
    ------
    UnsupportedError
        Something in ``x`` cannot be shared; the message says why. Also raised if an array lies in a
        pool, and ``allow`` or ``access`` differs from the pool's own value.
    ConfigurationError
        An argument is invalid, or both device and pool were given.
    InvalidSizeError
        The copies do not fit into a block of the pool. The message says both sizes.
    ForkedProcessError
        This process is a forked child, and an array lies in a pool or queue of its parent.
    BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        The backend or device that ``device`` names does not exist, or cannot be used.
    DriverError, OutOfMemoryError
        A vendor's call failed, or the device or the pool has no room. All copies were freed.
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
        # The device is checked even if nothing is copied to it.
        device = host_device(device)
    tree, leaves = collect(x)
    may_copy = copy is True or copy == "allow"
    tree_memory = TreeMemory(
        process, allow, access, neighbours, may_copy, lambda: host_device(device), pool
    )
    # The timeline's value is the version of the tree. If the caller passes ``pool`` but not
    # ``allow``, the processes that may import the pool may also open the timeline.
    readers = pool.allow if pool is not None and allow is None else allow
    try:
        handles, rows, copies = _rows(tree_memory, leaves)
        timeline = _timeline(process, readers, tree_memory)
    except BaseException:
        tree_memory.give_up()
        raise
    message = Message(handles, rows, tree, None if timeline is None else timeline.export())
    contents = Contents(message, leaves, copies)
    return Shared(process, message, timeline=timeline, tree_memory=tree_memory, contents=contents)


def message_of(array: Any) -> tuple[Message, Allocation | Block | Mapping, bool] | None:
    """Return an array's message, the array's memory, and whether the array is read-only.

    The array counts as read-only if this process received it with ``readonly=True``. The result is
    None if the array does not lie in memory of crossmem that other processes can lease.

    Raises
    ------
    ForkedProcessError
        This process is a forked child, and the array lies in a pool or queue of its parent.
    """
    try:
        found = describe(array)
    except CrossmemError:
        return None
    if found is None or found.layout.extent is None:
        return None
    leaf = Leaf(array, found, lambda: "the array")
    low, high = leaf.bounds
    # A process that exits may still send ordinary arrays. So this look-up must not call drain(),
    # which raises after crossmem has shut down.
    memory = current().arrays.find(low, high - low)
    if memory is None:
        refuse_unmapped(low, high - low, leaf.where)
    if not isinstance(memory, Allocation | Block | Mapping):
        return None
    if isinstance(memory, Mapping) and not memory.owner_alive:
        # No process can import this memory any more, so it counts as ordinary memory.
        return None
    # An array from a read-only handle is sent with a read-only handle, even if this process owns
    # the memory.
    access = memory.handle.access if isinstance(memory, Mapping) else None
    # readonly="advisory" binds this process, not the processes to which it sends the array.
    readonly = isinstance(memory, Mapping) and asked_readonly(memory) is True
    tree_memory = TreeMemory(
        drain(), None, access, None, copy=False, host=lambda: host_device(None)
    )
    handle, layout, _copy = leaf.place(*tree_memory.export(memory))
    if handle.raw is not None:
        # A raw handle has no leases, so no message can hold the memory.
        return None
    message = Message((handle,), (Row(found.kind, 0, layout),), {"a": 0}, None)
    return message, memory, readonly


def _check(name: str, value: object, known: tuple[str | bool | None, ...]) -> None:
    # A value that is neither None nor a str is refused without a comparison with ``known``: ``==``
    # of a NumPy array returns an array, and 1 is equal to True.
    if (value is not None and not isinstance(value, str)) or value not in known:
        msg = f"{name} must be one of {known}, not {shorten(value)}"
        raise ConfigurationError(msg, operation="share")


def _rows(
    tree_memory: TreeMemory, leaves: list[Leaf]
) -> tuple[tuple[ShareableHandle, ...], tuple[Row, ...], dict[int, Exportable]]:
    """Return the distinct handles of the arrays, a Row for each array, and the memory of copies.

    The last result maps the index of a handle to the allocation or block that contains copies.
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


def _timeline(process: Process, allow: Allow | None, memory: TreeMemory) -> Timeline | None:
    """Return the timeline of the tree's version; None if no backend can hold the timeline."""
    try:
        # If the timeline lies on the device of the arrays, streams of that device can signal it.
        (device,) = memory.devices if len(memory.devices) == 1 else (device_of(HOST_DEVICE),)
        return leave_to_references(make_timeline(process, device, None, allow))
    except (BackendNotFoundError, BackendUnavailableError):
        return None


def host_device(named: Device | str | None) -> Device:
    """Return the device to which arrays in host memory are copied.

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
