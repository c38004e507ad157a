# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors that can be shared from birth."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from crossmem.arrays import ArrayInfo, Kind, Layout, dtype_of
from crossmem.arrays.adapters import ADAPTERS, describe
from crossmem.arrays.libraries import used
from crossmem.sharing.base.devices import find_device, runtime_in_use
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import drain
from crossmem.sharing.base.views import kind_of_arrays, maker
from crossmem.sharing.device import Device
from crossmem.sharing.device import device as device_of
from crossmem.trees.nodes import read, write

__all__ = ["HOST_DEVICE", "empty", "empty_like"]

_Tree = TypeVar("_Tree")
_ALIGNMENT_NBYTES: Final = 256
"""Of each array in the memory of a tree, as allocators of devices do."""

HOST_DEVICE: Final = "host"
"""Memory of the host, where nothing else is said."""


def empty(
    shape: int | Sequence[int], dtype: Any = "float32", device: Device | str = HOST_DEVICE
) -> Any:
    """Return an array or tensor in memory of crossmem, which :func:`crossmem.share` never copies.

    The memory is freed within a second after the array, and all that was made from it, is gone;
    where other processes have received it, when they are done too.

    Parameters
    ----------
    shape
        Elements in each dimension.
    dtype
        A dtype of PyTorch gives a tensor. A name, or a dtype of NumPy, gives an array: of NumPy
        where the CPU can address the device's memory, else of CuPy.
    device
        Where the memory is allocated.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or torch.Tensor
        In C order. Its contents are undefined.

    Raises
    ------
    ConfigurationError, InvalidSizeError
        Where shape or dtype have no meaning, or are too large.
    UnsupportedError
        Where the library is not installed, or has no such dtype or no arrays of this device.
    OutOfMemoryError
        Where the device has no room now.
    """
    home = device if isinstance(device, Device) else device_of(device)
    layout = Layout(dtype_of(dtype), shape)
    torch = used("torch")
    is_tensor = torch is not None and isinstance(dtype, torch.dtype)
    kind: Kind = "torch" if is_tensor else kind_of_arrays(home)
    if layout.extent is None:
        return ADAPTERS[kind].empty(layout)
    allocation = home.allocate(layout.nbytes)
    leave_to_views(allocation)
    return maker(allocation, kind)(layout)


def empty_like(tree: _Tree, device: Device | str | None = None) -> _Tree:
    """Return a tree like another one, in memory of crossmem, which needs no copy to be shared.

    The containers and plain values are the same, the arrays and tensors have the same shapes and
    dtypes. An array that occurs twice is one again; arrays that overlap become separate ones. All
    arrays of a device lie in one allocation, which is freed within a second after the last of
    them, and all that was made from them, is gone.

    Parameters
    ----------
    tree
        An array, a tensor, or a tree of them; see :func:`crossmem.share`.
    device
        Where the memory is allocated; None: on the device of each array, and on ``host`` for
        memory of the host. NumPy's arrays on a GPU are CuPy's, and the other way round.

    Returns
    -------
    object
        The new tree, with arrays in C order. Their contents are undefined.

    Raises
    ------
    UnsupportedError, ConfigurationError
        Something in the tree is none of these, or has no place on the device.
    OutOfMemoryError
        The device has no room now. Nothing is left of the attempt.
    """
    found: list[ArrayInfo] = []
    numbers: dict[int, int] = {}
    kept: list[Any] = []

    def add(value: Any, _where: Callable[[], str]) -> int | None:
        number = numbers.get(id(value))
        if number is None:
            info = describe(value)
            if info is None:
                return None
            number = numbers[id(value)] = len(found)
            found.append(info)
            # Else another object could get its address.
            kept.append(value)
        return number

    node = write(tree, add)
    arrays: dict[int, Any] = {}
    for where in dict.fromkeys(one.device for one in found):
        group = {number: one for number, one in enumerate(found) if one.device == where}
        arrays.update(_arrays_like(group, _home(where, device), is_moved=device is not None))
    return cast("_Tree", read(node, [arrays[number] for number in range(len(found))]))


def _home(where: str | None, device: Device | str | None) -> Device:
    if device is None and where is not None:
        process = drain()
        runtime = runtime_in_use(process, where.partition(":")[0])
        return cast("Device", find_device(process, where, runtime))
    chosen = HOST_DEVICE if device is None else device
    return chosen if isinstance(chosen, Device) else device_of(chosen)


def _arrays_like(group: dict[int, ArrayInfo], home: Device, *, is_moved: bool) -> dict[int, Any]:
    """Return an array for each number, all of them in one allocation."""
    layouts: dict[int, Layout] = {}
    end = 0
    for number, one in group.items():
        layouts[number] = Layout(one.layout.dtype, one.layout.shape, None, end)
        end += -(-one.layout.nbytes // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
    allocation = None
    if end:
        allocation = home.allocate(end)
        leave_to_views(allocation)
    arrays: dict[int, Any] = {}
    for number, layout in layouts.items():
        kind = group[number].kind
        if is_moved and kind != "torch":
            kind = kind_of_arrays(home)
        if allocation is None or layout.extent is None:
            arrays[number] = ADAPTERS[kind].empty(layout)
        else:
            arrays[number] = maker(allocation, kind)(layout)
    return arrays
