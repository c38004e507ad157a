# SPDX-License-Identifier: Apache-2.0
"""What the tests of CuPy look at arrays with, and what their other process does.

Kernels do not run on an emulated GPU, so everything here copies bytes.
"""

from multiprocessing.connection import Connection
from typing import Any

import cupy
import numpy as np

import crossmem
from crossmem.sharing.base.memory import leave_to_views

crossmem.install()
_TO_HOST = 2
_kept: dict[str, Any] = {}


def look(array: Any) -> Any:
    """Return the elements of an array as an array of NumPy, whatever its strides are."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    steps = zip(array.shape, array.strides, strict=True)
    before = sum(-(size - 1) * step for size, step in steps if step < 0)
    steps = zip(array.shape, array.strides, strict=True)
    after = array.itemsize + sum((size - 1) * step for size, step in steps if step > 0)
    host = np.empty(before + after, "uint8")
    with array.device:
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.runtime.memcpy(host.ctypes.data, array.data.ptr - before, host.size, _TO_HOST)
    return np.ndarray(array.shape, array.dtype, host, before, array.strides)


def put(array: Any, values: Any) -> None:
    """Overwrite an array without gaps with what NumPy makes of some values."""
    host = np.ascontiguousarray(
        np.broadcast_to(np.asarray(values).astype(array.dtype), array.shape)
    )
    with array.device:
        array.set(host)
        # Until then the device may read what is on the host.
        cupy.cuda.runtime.deviceSynchronize()


def numbers(array: Any) -> Any:
    """Fill an array without gaps with 0, 1, 2 and so on, and return it."""
    put(array, np.arange(array.size).reshape(array.shape))
    return array


def said(array: Any) -> tuple[Any, ...]:
    """Return what can be told of an array, with its elements."""
    name, device = type(array).__module__.split(".")[0], array.device.id
    return name, array.shape, array.strides, str(array.dtype), device, look(array).tolist()


def serve(pipe: Connection) -> None:
    """Do what is asked for, one thing after the other, until None is."""
    while (request := pipe.recv()) is not None:
        name, *arguments = request
        try:
            answer = ACTIONS[name](*arguments)
        except crossmem.CrossmemError as error:
            answer = type(error).__name__
        pipe.send(answer)
        del answer, request, arguments


def receive(key: str, blob: bytes, options: dict[str, Any]) -> None:
    """Receive a tree and keep it."""
    _kept[key] = crossmem.receive(blob, **options)


def attach(key: str, blob: bytes) -> None:
    """Attach a handle, and keep an array in that memory."""
    mapping = crossmem.attach(blob)
    leave_to_views(mapping)
    _kept[key] = mapping.as_array()


def take(key: str, value: Any) -> None:
    """Keep what came through the pipe."""
    _kept[key] = value


def tell(key: str) -> Any:
    """Tell of every array in a flat tree, or of the one that is kept."""
    value = _kept[key]
    if isinstance(value, dict):
        return {name: said(one) for name, one in value.items()}
    return [said(one) for one in value] if isinstance(value, list) else said(value)


def write(key: str, value: float) -> None:
    """Overwrite an array without gaps."""
    put(_kept[key], value)


def overwrite(
    key: str, shape: tuple[int, ...], dtype: str, blob: bytes, device: int = 0, current: int = 0
) -> None:
    """Receive into an array of this process's own, on some device, while one is current."""
    with cupy.cuda.Device(device):
        _kept[key] = cupy.empty(shape, dtype)
        put(_kept[key], 0)
    with cupy.cuda.Device(current):
        crossmem.receive(blob, into=_kept[key])
        # The memory that was received is unmapped.
        crossmem.collect()


def wait(blob: bytes, after: int) -> int:
    """Wait for a newer version."""
    return crossmem.Shared.from_bytes(blob).wait(after)


def clear() -> None:
    """Forget everything."""
    _kept.clear()
    crossmem.collect()


def make(key: str, shape: tuple[int, ...], device: str) -> bytes:
    """Make an array here, and share it."""
    _kept[key] = numbers(crossmem.empty(shape, "float32", device=device))
    _kept[f"{key}, shared"] = shared = crossmem.share(_kept[key])
    return shared.to_bytes()


ACTIONS: dict[str, Any] = {
    "receive": receive,
    "attach": attach,
    "take": take,
    "tell": tell,
    "write": write,
    "overwrite": overwrite,
    "wait": wait,
    "clear": clear,
    "make": make,
    "forward": lambda key: crossmem.share(_kept[key]).to_bytes(),
    "give": lambda key: _kept[key],
}
