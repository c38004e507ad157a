# SPDX-License-Identifier: Apache-2.0
"""Makes arrays, tensors and DLPack capsules that use crossmem's memory without a copy."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from crossmem.driver.buffers import ViewAnchor
from crossmem.errors import UnsupportedError
from crossmem.forks import MODULES
from crossmem.guards import shorten
from crossmem.sharing.base.devices import LocalDevice

# Functions import crossmem.arrays only when they are called, to keep the import of crossmem fast.
if TYPE_CHECKING:
    from crossmem.arrays import Kind, Layout

__all__ = ["Viewable", "array", "capsule", "dlpack_device", "kind_of_arrays", "maker"]


class Viewable(Protocol):
    """The attributes of a memory object that this module uses."""

    device: LocalDevice
    nbytes: int
    readonly: bool

    @property
    def ptr(self) -> int:
        """Address of the first byte."""

    def view(self) -> memoryview:
        """Return a memoryview of the bytes, without a copy."""

    def _take_anchor(self) -> ViewAnchor: ...


def kind_of_arrays(device: LocalDevice) -> "Kind":
    """Return the name of the library whose arrays can use memory of a device.

    Raises
    ------
    UnsupportedError
        Neither NumPy nor CuPy can use memory of the device.
    """
    capabilities = device.capabilities
    if capabilities.host_visible:
        return "numpy"
    if capabilities.cuda_array_interface:
        return "cupy"
    msg = f"neither NumPy nor CuPy can address memory of {device.name}"
    has_tensors = capabilities.dlpack_device_type is not None
    hint = "use as_tensor(), or read() and write()" if has_tensors else "use read() and write()"
    raise UnsupportedError(msg, operation="as_array", hint=hint)


def maker(memory: Viewable, kind: "Kind") -> "Callable[[Layout], Any]":
    """Return a function that makes arrays or tensors of one library in a memory object.

    Each array keeps the memory in use. The returned function checks each layout against the
    memory's bounds.

    Raises
    ------
    UnsupportedError
        The library is not installed, or cannot use this memory.
    """
    anchor = memory._take_anchor()
    make = _maker(memory, kind)

    def make_within(layout: "Layout") -> Any:
        layout.check(memory.nbytes)
        made = make(layout)
        anchor.note(made)
        return made

    return make_within


def _maker(memory: Viewable, kind: "Kind") -> "Callable[[Layout], Any]":
    with MODULES:
        from crossmem.arrays import cupy_arrays, numpy_arrays, torch_tensors

    device, capabilities = memory.device, memory.device.capabilities
    if kind == "numpy" and capabilities.host_visible:
        return numpy_arrays.maker(memory.view())
    if (
        kind == "cupy"
        and capabilities.cuda_array_interface
        and cupy_arrays.backend() == device.backend
    ):
        return cupy_arrays.maker(memory.ptr, memory.nbytes, memory._take_anchor(), device.ordinal)
    if kind == "torch" and capabilities.host_visible:
        return torch_tensors.maker_in_buffer(memory._take_anchor().buffer)
    if kind == "torch" and capabilities.dlpack_device_type is not None:
        return torch_tensors.maker_on_device(memory)
    msg = f"{kind} cannot address memory of {device.name}"
    raise UnsupportedError(msg, backend=device.backend, hint="use read() and write()")


def array(
    memory: Viewable,
    kind: "Kind",
    shape: int | Sequence[int] | None,
    dtype: Any,
    strides: Sequence[int] | None,
    offset: int,
) -> Any:
    """Return an array or tensor in a memory object; see :meth:`crossmem.Mapping.as_array`."""
    with MODULES:
        from crossmem.arrays import Layout, dtype_of

    found = dtype_of(dtype)
    if shape is None:
        # This layout has no elements, so its check() checks only the offset.
        start = Layout(found, (0,), None, offset)
        start.check(memory.nbytes)
        shape = ((memory.nbytes - start.offset) // found.itemsize,)
    return maker(memory, kind)(Layout(found, shape, strides, offset))


def dlpack_device(memory: Viewable) -> tuple[int, int]:
    """Return the memory's device as DLPack names it: a device type and a device number.

    Raises
    ------
    BufferError
        DLPack has no type for the device.
    """
    kind = memory.device.capabilities.dlpack_device_type
    if kind is None:
        msg = f"DLPack has no device type for memory of {memory.device.name}"
        raise BufferError(msg)
    return kind, 0 if memory.device.capabilities.host_visible else memory.device.ordinal


def capsule(
    memory: Viewable,
    *,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """Return a DLPack capsule of a memory object; see :meth:`crossmem.Mapping.__dlpack__`."""
    with MODULES:
        from crossmem.arrays import Layout, dtype_of
        from crossmem.arrays.dlpack import check_stream, make_capsule

    device = dlpack_device(memory)
    if dl_device is not None and tuple(dl_device) != device:
        msg = f"{memory!r} is on DLPack device {device} and cannot move to {shorten(dl_device, 40)}"
        raise BufferError(msg)
    if copy:
        msg = f"{memory!r} is shared without a copy; copy the array that from_dlpack returns"
        raise BufferError(msg)
    anchor = memory._take_anchor()
    if check_stream(device[0], stream):
        memory.device.synchronize()
    return make_capsule(
        memory.ptr,
        Layout(dtype_of("uint8"), (memory.nbytes,)),
        device=device,
        owner=anchor,
        readonly=memory.readonly,
        max_version=max_version,
    )
