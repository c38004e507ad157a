# SPDX-License-Identifier: Apache-2.0
"""An allocator that puts all CuPy arrays into memory of crossmem, so that each array can be shared.

One line at the start of a program enables it::

    cupy.cuda.set_allocator(crossmem.cupy.allocator())

The first call of the allocator imports CuPy.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from crossmem.arrays.cupy_arrays import backend, memory_pointer
from crossmem.arrays.libraries import require
from crossmem.errors import (
    ConfigurationError,
    InvalidSizeError,
    OutOfMemoryError,
    UnsupportedError,
)
from crossmem.sharing.base.devices import runtime_in_use
from crossmem.sharing.base.memory import leave_to_views, view_anchor_of
from crossmem.sharing.base.process import drain
from crossmem.sharing.device import Device
from crossmem.sharing.device import device as device_of

__all__ = ["allocator"]

_NO_MEMORY: Final = 2
"""The code of ``hipErrorOutOfMemory`` and of ``cudaErrorMemoryAllocation``. Only after an error
with this code do CuPy's pools free unused blocks and try again."""


def allocator(device: Device | str | None = None) -> Callable[[int], Any]:
    """Return an allocator for ``cupy.cuda.set_allocator``, or for a CuPy pool.

    Each call of the allocator makes an allocation of crossmem, except a call for 0 bytes. crossmem
    frees the allocation soon after CuPy's last reference and the last lease of another process have
    ended. If the device has no room, a CuPy pool that uses the allocator frees its unused blocks
    and tries again.

    Parameters
    ----------
    device
        The device that holds the memory. It must be CuPy's current device at each allocation. None:
        the device that is current at each allocation.

    Returns
    -------
    callable
        Takes a number of bytes and returns a ``cupy.cuda.MemoryPointer``.

    Raises
    ------
    UnsupportedError
        CuPy cannot use memory of the device, for example because the device is emulated. If
        ``device`` is None, only a call of the allocator raises this error. A call of the allocator
        also raises this error if CuPy cannot be imported.
    ConfigurationError
        At a call of the allocator: CuPy's current device is not ``device``.
    CrossmemError
        There is no such device.
    """
    named = device_of(device) if isinstance(device, str) else device
    if named is not None:
        _refuse_without_arrays(named)

    def allocate(nbytes: int) -> Any:
        cuda = require("cupy").cuda
        if not nbytes:
            return cuda.MemoryPointer(cuda.Memory(0), 0)
        home = _home(named, f"{backend()}:{cuda.runtime.getDevice()}")
        with ExitStack() as undo:
            try:
                allocation = undo.enter_context(home.allocate(nbytes))
            except (InvalidSizeError, OutOfMemoryError) as error:
                raise cuda.runtime.CUDARuntimeError(_NO_MEMORY) from error
            anchor = view_anchor_of(allocation)
            pointer = memory_pointer(allocation.ptr, nbytes, anchor, home.ordinal)
            leave_to_views(allocation)
            undo.pop_all()
        return pointer

    return allocate


def _home(named: Device | None, current: str) -> Device:
    """Return the device that must hold the memory."""
    if named is None:
        home = device_of(current, runtime=runtime_in_use(drain(), current.partition(":")[0]))
        _refuse_without_arrays(home)
        return home
    if named.name != current:
        msg = f"this allocator allocates on {named.name}, but the current CuPy device is {current}"
        raise ConfigurationError(
            msg,
            operation="allocate",
            hint="call allocator() without a device: the result then follows the current device",
        )
    return named


def _refuse_without_arrays(device: Device) -> None:
    """Refuse a device whose addresses are invalid for CuPy. CuPy itself would not check them."""
    if not device.capabilities.cuda_array_interface:
        msg = f"CuPy cannot address memory of {device.name}"
        raise UnsupportedError(msg, operation="allocate", backend=device.backend)
