# SPDX-License-Identifier: Apache-2.0
"""Memory of crossmem for all arrays of CuPy, so that each of them can be shared from birth.

One line at the start of a program does it::

    cupy.cuda.set_allocator(crossmem.cupy.allocator())

CuPy itself is imported when the allocator is first used.
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
"""``hipErrorOutOfMemory`` and ``cudaErrorMemoryAllocation``, the one error after which CuPy's pools
try again. CuPy itself does not show its name."""


def allocator(device: Device | str | None = None) -> Callable[[int], Any]:
    """Return an allocator for ``cupy.cuda.set_allocator``, or for a pool of CuPy's.

    Each piece of memory that it gives is an allocation of crossmem. It is freed by the next call
    of crossmem after CuPy has dropped it; where other processes have received it, when they are
    done too. Where the device has no room, CuPy gets the error that its pools wait for: they
    then free what they keep and try again.

    Parameters
    ----------
    device
        Where the memory is allocated, which must be CuPy's current device then; it also says by
        which mechanism the memory is shared. None: the device that is current at the time.

    Returns
    -------
    callable
        Takes a number of bytes and returns a ``cupy.cuda.MemoryPointer``.

    Raises
    ------
    UnsupportedError
        If the device has no arrays of CuPy, as one whose runtime is emulated. When it is called,
        also where CuPy is not installed.
    ConfigurationError
        When it is called, where another device is current than the one that was named.
    CrossmemError
        Where there is no such device.
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
    """Return the device that has to give the memory."""
    if named is None:
        home = device_of(current, runtime=runtime_in_use(drain(), current.partition(":")[0]))
        _refuse_without_arrays(home)
        return home
    if named.name != current:
        msg = f"this allocator allocates on {named.name}, but the current CuPy device is {current}"
        raise ConfigurationError(
            msg,
            operation="allocate",
            hint="make the allocator with allocator(), which follows the current device",
        )
    return named


def _refuse_without_arrays(device: Device) -> None:
    """Refuse a device whose addresses CuPy does not know: it would use them all the same."""
    if not device.capabilities.cuda_array_interface:
        msg = f"CuPy cannot address memory of {device.name}"
        raise UnsupportedError(msg, operation="allocate", backend=device.backend)
