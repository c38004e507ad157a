# SPDX-License-Identifier: Apache-2.0
"""What allocations, mappings and pieces have in common: memory that is copied and viewed."""

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
    """Whether it is a block of a pool, which a forked child does not have mapped."""

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

        The view, and whatever is made from it, keeps this object alive; while one exists, the
        memory cannot be unmapped or freed. A forked child reads and writes the same memory through
        a view that it inherited, and keeps the pages until it ends. It cannot make new views.

        Raises
        ------
        UnsupportedError
            Where the CPU cannot address the device's memory.
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        self.ptr  # noqa: B018 - raises if the memory may not be used
        if not self.device.capabilities.host_visible:
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

        The array, and whatever is made from it, keeps this object alive; while one exists, the
        memory cannot be unmapped or freed.

        Parameters
        ----------
        shape
            Elements in each dimension; None: all that there is from ``offset`` on.
        dtype
            A name such as ``"bfloat16"``, a dtype of NumPy's, or one of PyTorch's.
        strides
            Bytes from one element to the next, in each dimension; zero and negative ones too.
            None: C order.
        offset
            Byte at which the element with all indices 0 begins.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            Of NumPy where the CPU can address the memory, else of CuPy. Where this object is
            read-only, NumPy's array is; CuPy has no such arrays.

        Raises
        ------
        InvalidSizeError
            Where an element lies outside of the memory.
        UnsupportedError
            Where the library is not installed, or has no such dtype or no arrays of this device.
        ConfigurationError
            Where an argument has no meaning.
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        self.ptr  # noqa: B018 - as in view()
        return views.array(self, views.kind_of_arrays(self.device), shape, dtype, strides, offset)

    def as_tensor(
        self,
        shape: int | Sequence[int] | None = None,
        dtype: Any = "uint8",
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> Any:
        """Return the memory, or a part of it, as a tensor of PyTorch, without a copy.

        As :meth:`as_array`, but PyTorch has no negative strides, and no tensors that are
        read-only: where the device or the kernel keeps this memory from being written, writing
        to the tensor ends the process.

        Returns
        -------
        torch.Tensor
            On the CPU where that can address the memory, else on the device.
        """
        self.ptr  # noqa: B018 - as in view()
        return views.array(self, "torch", shape, dtype, strides, offset)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The bytes of the memory for NumPy, which keeps what it makes of them counted as a view.

        Raises
        ------
        AttributeError
            Where the CPU cannot address the memory, as the protocol wants it.
        """
        if not self.device.capabilities.host_visible:
            msg = f"memory of {self.device.name} cannot be addressed by the CPU"
            raise AttributeError(msg)
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": self.view(), "version": 3}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes of the memory for libraries that know CUDA's and HIP's addresses.

        An array of theirs holds a reference to this object and gives no notice when it ends. So
        from now on the finaliser of this object gives the memory back, and nothing else does.

        Raises
        ------
        AttributeError
            Where the device has no such addresses, as the protocol wants it.
        """
        if not self.device.capabilities.cuda_array_interface:
            msg = f"memory of {self.device.name} has no addresses of CUDA or HIP"
            raise AttributeError(msg)
        # Before the lock, which in a forked child may be held for ever.
        self.ptr  # noqa: B018
        with self._process.state:
            self._usage.add_view(self)
            self._is_lent = self._is_left = True
            # Last: a signal handler that came in before may have ended the object.
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

        What is made of it counts as a view.

        Parameters
        ----------
        stream
            Where the consumer will use the memory: all work of this process on the device is
            waited for, unless it is -1.
        max_version
            The newest version of DLPack that the consumer reads. Read-only memory needs (1, 0).
        dl_device
            Where the consumer wants it; only where it is.
        copy
            True is refused: nothing is copied here.

        Raises
        ------
        BufferError
            Where the memory cannot be given like this, as the protocol wants it.
        """
        self.ptr  # noqa: B018 - as in view()
        return views.capsule(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return type and number of the device, as DLPack counts them."""
        return views.dlpack_device(self)

    def _take_anchor(self) -> ViewAnchor:
        # Before the lock, which in a forked child may be held for ever.
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
            # A signal handler that came in before may have ended the object.
            self.ptr  # noqa: B018 - raises then
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
        # Not where it is raised: the error's traceback would keep the anchor, and so the memory.
        anchor = self._anchor() if self._anchor is not None else None
        return anchor.describe_views() if anchor is not None else ""


def view_anchor_of(memory: Memory) -> ViewAnchor:
    """Return what keeps memory in use as long as it, or a buffer of it, lives.

    Raises
    ------
    ClosedError, ForkedProcessError
        The memory may not be used any more.
    """
    return memory._take_anchor()


def leave_to_views(memory: Memory) -> None:
    """Give memory back when the last view of it is gone, and with it the object."""
    memory._is_left = True


def is_left_to_views(memory: Memory) -> bool:
    """Whether memory is given back with its last view."""
    return memory._is_left


def is_block(memory: Memory) -> bool:
    """Whether memory is a block of a pool, which a forked child does not have mapped."""
    return memory._is_block


def usage_of(memory: Memory) -> Usage:
    """Return what all objects of this process that show the same memory have in common."""
    return memory._usage
