# SPDX-License-Identifier: Apache-2.0
"""The common base of allocations, mappings and pieces: copies and views of memory."""

import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import override

from crossmem.driver.buffers import ViewAnchor
from crossmem.errors import BusyError, UnsupportedError
from crossmem.guards import clause
from crossmem.sharing.base import views
from crossmem.sharing.base.copying import Copyable
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.usage import Usage

__all__ = ["Memory", "is_block", "is_left_to_views", "leave_to_views", "usage_of", "view_anchor_of"]


class Memory(Copyable):
    """Bytes that this process can address."""

    __slots__ = ("_anchor", "_is_lent")

    _is_block: ClassVar = False
    """Whether this is a block of a pool or a buffer of a queue."""

    def __init__(
        self, process: Process, device: LocalDevice, nbytes: int, usage: Usage, *, readonly: bool
    ) -> None:
        self._process = process
        self.device = device
        self.nbytes = nbytes
        self.readonly = readonly
        self._usage = usage
        self._anchor: weakref.ref[ViewAnchor] | None = None
        self._is_lent = False
        self._is_left = False

    def view(self) -> memoryview:
        """Return the memory itself as a memoryview, without a copy.

        The view and all objects derived from it keep this object alive. While one of them exists,
        the memory cannot be unmapped or freed. A forked child reads and writes the same memory
        through an inherited view, but cannot make new views. The pages stay allocated until the
        child ends. Blocks of pools are not mapped in the child: an access through an inherited view
        of a block ends the child (SIGSEGV).

        Raises
        ------
        UnsupportedError
            The CPU cannot address the device's memory.
        ClosedError, ForkedProcessError
            The memory was closed, or a forked child made this call.
        """
        if not self.device.capabilities.host_visible:
            self.ptr  # noqa: B018 - raises if the memory may not be used
            msg = f"memory of {self.device.name} cannot be viewed by the CPU"
            raise UnsupportedError(msg, operation="view", hint="use read() and write()")
        view = memoryview(self._take_anchor().buffer).cast("B")
        return view.toreadonly() if self.readonly else view

    def as_array(
        self,
        shape: int | Sequence[int] | None = None,
        dtype: Any = "uint8",
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> Any:
        """Return the memory, or a part of it, as an array, without a copy.

        The array and all objects derived from it keep this object alive. While one of them exists,
        the memory cannot be unmapped or freed.

        Parameters
        ----------
        shape
            Elements in each dimension; None: all elements from ``offset`` on.
        dtype
            A name such as ``"bfloat16"``, or a dtype of NumPy or PyTorch.
        strides
            Bytes from one element to the next, in each dimension. Zero and negative values are
            allowed. None: C order.
        offset
            Byte offset of the element whose indices are all 0.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            A NumPy array if the CPU can address the memory, else a CuPy array. If this object is
            read-only, so is the NumPy array; CuPy has no read-only arrays.

        Raises
        ------
        InvalidSizeError
            An element lies outside of the memory.
        UnsupportedError
            The library is not installed, does not have the dtype, or cannot use memory of this
            device.
        ConfigurationError
            An argument is invalid.
        ClosedError, ForkedProcessError
            The memory was closed, or a forked child made this call.
        """
        self.ptr  # noqa: B018 - raises if the memory may not be used
        return views.array(self, views.kind_of_arrays(self.device), shape, dtype, strides, offset)

    def as_tensor(
        self,
        shape: int | Sequence[int] | None = None,
        dtype: Any = "uint8",
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> Any:
        """Return the memory, or a part of it, as a PyTorch tensor, without a copy.

        The arguments are those of :meth:`as_array`. PyTorch supports neither negative strides nor
        read-only tensors. If this memory is mapped read-only, a write to the tensor kills the
        process.

        Returns
        -------
        torch.Tensor
            A CPU tensor if the CPU can address the memory, else a tensor on the device.
        """
        self.ptr  # noqa: B018 - raises if the memory may not be used
        return views.array(self, "torch", shape, dtype, strides, offset)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The memory as bytes, described for NumPy. Arrays made from this attribute are views.

        Raises
        ------
        AttributeError
            The CPU cannot address the memory. The protocol demands this type of error.
        """
        if not self.device.capabilities.host_visible:
            msg = f"memory of {self.device.name} cannot be addressed by the CPU"
            raise AttributeError(msg)
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": self.view(), "version": 3}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as bytes, described for libraries that use CUDA or HIP addresses.

        An array of such a library holds a reference to this object and gives no notice when the
        array ends. Once this attribute was read, only the finaliser of this object releases the
        memory.

        Raises
        ------
        AttributeError
            The device has no such addresses. The protocol demands this type of error.
        """
        if not self.device.capabilities.cuda_array_interface:
            msg = f"memory of {self.device.name} has no addresses of CUDA or HIP"
            raise AttributeError(msg)
        # This check comes before the lock, which may be held for ever in a forked child.
        self.ptr  # noqa: B018
        with self._process.state:
            self._usage.add_view(self)
            self._is_lent = self._is_left = True
            # This statement comes last: it raises if a signal handler has ended the object.
            pointer = self.ptr
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (pointer, self.readonly),
            "version": 3,
            "strides": None,
        }

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule of the memory's bytes, for ``from_dlpack`` of any library.

        The capsule and the objects made from it count as views.

        Parameters
        ----------
        stream
            The consumer's stream; None for host memory. For device memory, the method waits for all
            work of this process on the device, unless the stream is -1.
        max_version
            The newest version of DLPack that the consumer supports. Read-only memory needs at least
            (1, 0).
        dl_device
            The device on which the consumer wants the bytes. It must be the device of the memory.
        copy
            True is refused, because this method never copies.

        Raises
        ------
        BufferError
            The memory cannot be exported with these arguments. The protocol demands this type of
            error.
        """
        self.ptr  # noqa: B018 - raises if the memory may not be used
        return views.capsule(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device's type and the device's number, both as DLPack defines them."""
        return views.dlpack_device(self)

    def _take_anchor(self) -> ViewAnchor:
        # This check comes before the lock, which may be held for ever in a forked child.
        self.ptr  # noqa: B018
        with self._process.state:
            pointer = self.ptr
            anchor = self._anchor() if self._anchor is not None else None
            if anchor is None:
                is_visible = self.device.capabilities.host_visible
                anchor = ViewAnchor(self, pointer, self.nbytes if is_visible else 0)
                self._usage.add_view(self)
                self._anchor = weakref.ref(anchor)
                self._process.arrays.add(self, pointer, anchor)
            # This statement comes last: it raises if a signal handler has ended the object.
            self.ptr  # noqa: B018
        return anchor

    def _has_views(self) -> bool:
        return self._is_lent or (self._anchor is not None and self._anchor() is not None)

    @override
    def _refuse_if_used(self, operation: str) -> None:
        copies = self._usage.copies
        if copies and self in list(copies.values()):
            msg = f"another thread is reading or writing {self!r}"
            raise BusyError(msg, operation=operation)
        if self._is_lent:
            msg = f"{self!r} was exposed by its __cuda_array_interface__"
            raise BusyError(
                msg,
                operation=operation,
                hint="drop this object and the arrays made from it, or use as_array()",
            )
        if self._anchor is not None and self._has_views():
            msg = f"{self!r} has live views{clause(self._describe_views(), 110)}"
            raise BusyError(
                msg,
                operation=operation,
                hint="drop the memoryviews, arrays and tensors that were made from it",
            )

    def _describe_views(self) -> str:
        # This code has a method of its own, because the traceback of an error keeps the local
        # variables of the method that raises. If ``anchor`` were one of these variables, the
        # traceback would keep the memory in use.
        anchor = self._anchor() if self._anchor is not None else None
        return anchor.describe_views() if anchor is not None else ""


def view_anchor_of(memory: Memory) -> ViewAnchor:
    """Return the anchor of a memory object.

    The memory is in use while the anchor, or the anchor's buffer, is alive.

    Raises
    ------
    ClosedError, ForkedProcessError
        The memory may not be used any more.
    """
    return memory._take_anchor()


def leave_to_views(memory: Memory) -> None:
    """Let an object end without a warning when its last view ends.

    Each view of the object's memory refers to the object.
    """
    memory._is_left = True


def is_left_to_views(memory: Memory) -> bool:
    """Whether the last reference to an open object may be dropped without a warning."""
    return memory._is_left


def is_block(memory: Memory) -> bool:
    """Whether memory is a block of a pool or a buffer of a queue."""
    return memory._is_block


def usage_of(memory: Memory) -> Usage:
    """Return the record of the copies, pieces and views of memory.

    All memory objects for the same memory share one record. All blocks of a pool together have one
    record, and all buffers of a queue together have one.
    """
    return memory._usage
