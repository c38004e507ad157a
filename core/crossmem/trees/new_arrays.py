# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors that can be shared from birth."""

from collections.abc import Sequence
from typing import Any, Final

from crossmem.arrays import Kind, Layout, dtype_of
from crossmem.arrays.adapters import ADAPTERS
from crossmem.arrays.libraries import used
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.views import kind_of_arrays, maker
from crossmem.sharing.device import Device
from crossmem.sharing.device import device as device_of

__all__ = ["HOST_DEVICE", "empty"]

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
