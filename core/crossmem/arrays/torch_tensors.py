# SPDX-License-Identifier: Apache-2.0
"""The adapter for PyTorch. It also makes tensors in memory that another object owns."""

from collections.abc import Callable
from typing import Any

from crossmem.arrays.array_info import ArrayInfo
from crossmem.arrays.dtype import DType
from crossmem.arrays.dtypes import dtype_of, to_torch
from crossmem.arrays.layout import Layout
from crossmem.arrays.libraries import require
from crossmem.errors import UnsupportedError
from crossmem.guards import clause

__all__ = ["classes", "copy_to", "describe", "empty", "maker_in_buffer", "maker_on_device"]


def classes(torch: Any) -> tuple[type, ...]:
    """Return the classes whose objects have no state besides elements and ``requires_grad``."""
    return torch.Tensor, torch.nn.Parameter


def maker_in_buffer(buffer: Any) -> Callable[[Layout], Any]:
    """Return a function that makes tensors in a host buffer. Each tensor keeps the buffer alive.

    The buffer must report that it is writable, because PyTorch warns about read-only buffers.
    """
    torch = require("torch")
    make = _maker(torch, torch.frombuffer(buffer, dtype=torch.uint8))

    def make_anywhere(layout: Layout) -> Any:
        if layout.extent is None:
            # The offset of an empty tensor has no meaning, and frombuffer() may refuse it. So the
            # tensor is made at offset 0.
            return make(layout.at(0))
        if layout.offset % layout.dtype.itemsize == 0:
            return make(layout)
        # PyTorch counts the offset of a tensor in elements. This offset is not a whole number of
        # elements, so the tensor gets a storage of its own, which begins at the offset.
        there = torch.frombuffer(buffer, dtype=torch.uint8, offset=layout.offset)
        return _maker(torch, there)(layout.at(0))

    return make_anywhere


def maker_on_device(exporter: Any) -> Callable[[Layout], Any]:
    """Return a function that makes tensors in the memory of an object with ``__dlpack__``."""
    torch = require("torch")
    return _maker(torch, torch.from_dlpack(exporter))


def _maker(torch: Any, whole: Any) -> Callable[[Layout], Any]:
    # All tensors that make() returns share one storage, as views of one PyTorch tensor do.
    storage, device = whole.untyped_storage(), whole.device

    seeds: dict[DType, Any] = {}

    def make(layout: Layout) -> Any:
        start, rest = divmod(layout.offset, layout.dtype.itemsize)
        if rest:
            msg = f"PyTorch cannot put {clause(layout.dtype.name, 60)} at byte {layout.offset}"
            raise UnsupportedError(msg, hint="make the offset a multiple of the itemsize")
        seed = seeds.get(layout.dtype)
        if seed is None:
            dtype = to_torch(layout.dtype)
            seed = seeds[layout.dtype] = torch.empty(0, dtype=dtype, device=device)
        # seed.data is a new tensor that PyTorch does not track as a view of the seed. Reading
        # seed.data is faster than calling torch.empty().
        made = seed.data
        if layout.is_contiguous:
            return made.set_(storage, start, layout.shape)
        return made.set_(storage, start, layout.shape, layout.element_strides(negative=False))

    return make


def empty(layout: Layout) -> Any:
    """Return a new tensor of size 0, for a layout that has no elements."""
    # The call names the CPU, because the default device of PyTorch may be another device.
    return require("torch").empty(layout.shape, dtype=to_torch(layout.dtype), device="cpu")


def describe(tensor: Any) -> ArrayInfo:
    """Return the address and layout of a tensor.

    Raises
    ------
    UnsupportedError
        There are these causes:

        - The tensor has no memory.
        - The tensor's storage is smaller than its elements.
        - The tensor is a lazy conjugate or a lazy negative.
        - The tensor has other data besides plain elements, for example because it is sparse or
          quantised.
        - crossmem does not support the dtype or the device.
    """
    torch = require("torch")
    refused, hint = None, "share the plain tensors of which this tensor consists"
    if tensor.layout is not torch.strided or tensor.is_nested:
        refused = (
            "a nested tensor consists of several tensors"
            if tensor.is_nested
            else f"a tensor of layout {tensor.layout} consists of several tensors"
        )
    elif tensor.is_quantized:
        refused = "a quantised tensor also has a scale and a zero point"
    elif tensor.is_conj() or tensor.is_neg():
        refused = "the tensor is a lazy conjugate or negative"
        hint = "share the result of tensor.resolve_conj().resolve_neg()"
    elif tensor.device.type == "meta":
        refused = "a tensor on the device meta has no memory"
        hint = "share a tensor on a device that has memory"
    if refused is not None:
        raise UnsupportedError(refused, hint=hint)
    dtype = dtype_of(tensor.dtype)
    strides = None
    if not tensor.is_contiguous():
        strides = tuple([step * dtype.itemsize for step in tensor.stride()])
    layout = Layout(dtype, tuple(tensor.shape), strides)
    where = None if tensor.is_cpu else _device(torch, tensor.device)
    return ArrayInfo("torch", _address(tensor, layout), layout, where)


def _address(tensor: Any, layout: Layout) -> int:
    """Return the address of the first element.

    Raise ``UnsupportedError`` if the tensor has no memory, or if its storage is too small.
    """
    try:
        pointer: int = tensor.data_ptr()
    except RuntimeError as error:
        msg = f"the tensor has no memory: {clause(str(error))}"
        raise UnsupportedError(msg) from error
    if layout.extent is not None:
        end = tensor.storage_offset() * layout.dtype.itemsize + layout.extent[1]
        if not pointer or end > tensor.untyped_storage().nbytes():
            msg = "the storage of the tensor is smaller than its elements"
            raise UnsupportedError(msg, hint="share the tensor before its storage is resized")
    return pointer


def _device(torch: Any, device: Any) -> str:
    # PyTorch calls both NVIDIA's and AMD's GPUs "cuda".
    names = {"cuda": "hip" if torch.version.hip else "cuda", "npu": "ascend"}
    backend = names.get(device.type)
    if backend is None:
        msg = f"crossmem has no backend for the PyTorch device {device.type!r}"
        raise UnsupportedError(msg)
    return f"{backend}:{device.index or 0}"


def copy_to(target: Any, source: Any) -> None:
    """Overwrite a tensor with another tensor of the same shape and dtype."""
    with require("torch").no_grad():
        target.copy_(source)
