# SPDX-License-Identifier: Apache-2.0
"""New arrays and tensors in shareable memory."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

from crossmem.arrays import Kind, Layout, dtype_of
from crossmem.arrays.adapters import ADAPTERS
from crossmem.arrays.copy_ranges import ALIGNMENT, BLOCK_ALIGNMENT, find_range, pack_ranges
from crossmem.arrays.libraries import used
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import drain
from crossmem.sharing.base.views import kind_of_arrays, maker
from crossmem.sharing.device import Device
from crossmem.sharing.device import device as device_of
from crossmem.sharing.pools.pool import Pool
from crossmem.trees.leaves import Leaf, collect
from crossmem.trees.nodes import read
from crossmem.trees.pool_blocks import Exportable, check_pool, take_block
from crossmem.trees.tree_memory import home_of

__all__ = ["HOST_DEVICE", "empty", "empty_like"]

_T = TypeVar("_T")

HOST_DEVICE: Final = "host"
"""The default device of new arrays: memory of the host."""


def empty(
    shape: int | Sequence[int],
    dtype: Any = "float32",
    device: Device | str | None = None,
    *,
    pool: Pool | None = None,
    timeout: float = 0.0,
) -> Any:
    """Return a new array or tensor in memory of crossmem. :func:`crossmem.share` never copies it.

    When the array and all objects derived from it, such as views, have ended, the memory is freed
    within a second. If other processes have received the array, the memory stays until these
    processes have dropped the array, too.

    Parameters
    ----------
    shape
        The number of elements in each dimension.
    dtype
        For a PyTorch dtype, the result is a tensor. For a name or a NumPy dtype, it is an array: a
        NumPy array if the CPU can address the device's memory, else a CuPy array.
    device
        The device that holds the memory; ``host`` if None.
    pool
        The array lies in a block of this pool, on the pool's device. When the array has ended,
        the block returns to the pool.
    timeout
        Time limit of the wait for a free block of the pool, in seconds.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or torch.Tensor
        An array in C order, with undefined contents.

    Raises
    ------
    ConfigurationError, InvalidSizeError
        The shape or dtype is invalid, the array is too large, or both device and pool were given.
    UnsupportedError
        The array's library is not installed, lacks the dtype, or cannot use memory of this device.
    BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        There is no such device in this process.
    OutOfMemoryError
        The device has no room now, or no block of the pool became free in time.
    """
    check_pool(pool, device, "empty")
    home = _device_of(pool, device) or device_of(HOST_DEVICE)
    layout = Layout(dtype_of(dtype), shape)
    torch = used("torch")
    is_tensor = torch is not None and isinstance(dtype, torch.dtype)
    kind: Kind = "torch" if is_tensor else kind_of_arrays(home)
    if layout.extent is None:
        return ADAPTERS[kind].empty(layout)
    if pool is not None:
        block = take_block(pool, layout.nbytes, "the array has", "empty", timeout)
        return maker(block, kind)(layout)
    allocation = home.allocate(layout.nbytes)
    leave_to_views(allocation)
    return maker(allocation, kind)(layout)


def empty_like(tree: _T, device: Device | str | None = None, *, pool: Pool | None = None) -> _T:
    """Return a tree of new arrays and tensors that :func:`crossmem.share` never copies.

    The new containers and plain values equal those of ``tree``. Each new array has the library,
    dtype and shape of the original, and undefined contents. If originals overlap, the new arrays
    overlap, too. The new arrays on one device lie in one allocation, which is freed within a second
    after the last of these arrays has ended. If other processes have received some of the arrays,
    the allocation stays until these processes have dropped their arrays, too.

    Parameters
    ----------
    tree
        A tree as for :func:`crossmem.share`. An array with gaps or repetitions, such as a column of
        a matrix, becomes contiguous, unless it overlaps another array.
    device
        The device that holds the memory. None: each new array lies on the device of the original,
        or on ``host`` if the original lies in host memory.
    pool
        All arrays lie in one block of this pool, on the pool's device.

    Raises
    ------
    UnsupportedError
        Something in ``tree`` cannot be shared, or the library of an array cannot use memory of
        the device.
    ConfigurationError
        ``tree`` is nested too deep, ``device`` is not a device's name, or both device and pool were
        given.
    InvalidSizeError
        The blocks of the pool are too small.
    BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        There is no such device in this process.
    OutOfMemoryError
        A device has no room now, or the pool has no free block.
    """
    process = drain()
    check_pool(pool, device, "empty_like")
    named = _device_of(pool, device)
    nodes, leaves = collect(tree)
    arrays: dict[int, Any] = {}
    homes: dict[Device, list[int]] = {}
    for number, leaf in enumerate(leaves):
        kind, _pointer, layout, where = leaf.found
        if layout.extent is None:
            arrays[number] = ADAPTERS[kind].empty(layout)
            continue
        home = device_of(HOST_DEVICE) if where is None else home_of(process, where)
        homes.setdefault(named or home, []).append(number)
    for home, numbers in homes.items():
        made = _make_alike(home, [leaves[number] for number in numbers], pool)
        arrays.update(zip(numbers, made, strict=True))
    alike: _T = read(nodes, [arrays[number] for number in range(len(leaves))])
    return alike


def _device_of(pool: Pool | None, device: Device | str | None) -> Device | None:
    """Return the pool's device, or the device that ``device`` names; None if both are None."""
    if pool is not None:
        return cast("Device", pool.device)
    return device if device is None or isinstance(device, Device) else device_of(device)


def _make_alike(home: Device, leaves: list[Leaf], pool: Pool | None) -> list[Any]:
    """Return a new array for each leaf, in one allocation or block. Overlaps are kept."""
    alignment = ALIGNMENT if pool is None else BLOCK_ALIGNMENT
    ranges = pack_ranges((leaf.bounds for leaf in leaves), alignment)
    numbers = [find_range(ranges, leaf.bounds[0]) for leaf in leaves]
    counts = Counter(numbers)
    end = ranges[-1].high
    alike = []
    for leaf, number in zip(leaves, numbers, strict=True):
        found, (low, high) = leaf.found, leaf.bounds
        if counts[number] == 1 and high - low != found.layout.nbytes:
            # This array has gaps or repetitions, and overlaps no other array. So the new array is
            # contiguous. The loop gives the new array an invented address above all originals, so
            # that pack_ranges() gives the new array a range of its own.
            layout = Layout(found.layout.dtype, found.layout.shape)
            end += -end % alignment
            found = found._replace(pointer=end, layout=layout)
            end += layout.nbytes
        alike.append(leaf._replace(found=found))
    ranges = pack_ranges((leaf.bounds for leaf in alike), alignment)
    memory: Exportable
    if pool is not None:
        memory = take_block(pool, ranges[-1].end, "the arrays need", "empty_like")
    else:
        memory = home.allocate(ranges[-1].end)
        leave_to_views(memory)
    arrays = []
    for one in alike:
        low, _high, start = ranges[find_range(ranges, one.bounds[0])]
        layout = one.found.layout.at(start + one.found.pointer - low)
        arrays.append(maker(memory, one.found.kind)(layout))
    return arrays
