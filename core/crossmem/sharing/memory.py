# SPDX-License-Identifier: Apache-2.0
"""What allocations and mappings have in common: bytes at an address, read, written and viewed."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crossmem.driver import CopyKind
from crossmem.driver.buffers import Keeper, address_of, new_bytes
from crossmem.errors import (
    AccessDeniedError,
    BusyError,
    ConfigurationError,
    UnsupportedError,
)
from crossmem.guards import check_integer, check_part
from crossmem.sharing import views

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.process import Process

__all__ = ["Memory", "Uses"]


class Uses:
    """What is being done with one block of memory, through however many objects."""

    __slots__ = ("__weakref__", "copies", "pieces", "viewed")

    def __init__(self) -> None:
        self.copies = 0
        """Copies that threads are making."""
        self.pieces = 0
        """Pieces of address ranges that show it."""
        self.viewed: dict[int, weakref.ref[Memory]] = {}
        """Objects that were viewed, as long as they live."""

    def add_view(self, memory: "Memory") -> None:
        """Remember that an object was viewed."""
        key = id(memory)
        self.viewed[key] = weakref.ref(memory, lambda _: self.viewed.pop(key, None))

    @property
    def are_going_on(self) -> bool:
        """Whether the memory is being copied or viewed now, or shown by an address range."""
        return self.pieces > 0 or self.are_touching

    @property
    def are_touching(self) -> bool:
        """Whether the memory is being copied or viewed now."""
        viewed = [reference() for reference in list(self.viewed.values())]
        return self.copies > 0 or any(one is not None and one.has_views for one in viewed)


class Memory:
    """Bytes that this process can address. Subclasses say whether they still may be used."""

    __slots__ = (
        "__weakref__",
        "_copies",
        "_is_left",
        "_is_lent",
        "_keeper",
        "_process",
        "_uses",
        "device",
        "nbytes",
        "readonly",
    )

    device: "Device"
    """The device for which the memory is mapped."""
    nbytes: int
    """Size in bytes."""
    readonly: bool
    """Whether this object refuses to write."""

    def __init__(
        self,
        process: "Process",
        device: "Device",
        nbytes: int,
        uses: Uses,
        *,
        readonly: bool,
    ) -> None:
        self._process = process
        self.device = device
        self.nbytes = nbytes
        self.readonly = readonly
        self._uses = uses
        self._copies = 0
        self._keeper: weakref.ref[Keeper] | None = None
        self._is_lent = False
        self._is_left = False

    @property
    def ptr(self) -> int:
        """Address of the first byte in this process, for the device's own calls."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether the memory may not be used any more."""
        raise NotImplementedError

    @property
    def uses(self) -> Uses:
        """What all objects of this process that show the same memory have in common."""
        return self._uses

    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copy host bytes into the memory.

        Parameters
        ----------
        data
            Any contiguous buffer: bytes, memoryview, NumPy array.
        offset
            First byte to overwrite.

        Raises
        ------
        InvalidSizeError
            Where the data does not fit.
        AccessDeniedError
            Where the memory is read-only here.
        ClosedError, ForkedProcessError
            Where it may not be used any more.
        """
        with self._copying() as pointer:
            self._refuse_write("write")
            with address_of(data) as (source, nbytes):
                start, size = check_part(offset, nbytes, limit=self.nbytes)
                if size:
                    self.device.driver.copy(
                        self.device.ordinal, pointer + start, source, size, CopyKind.HOST_TO_DEVICE
                    )

    def read(self, nbytes: int | None = None, *, offset: int = 0) -> bytes:
        """Copy bytes out of the memory.

        Parameters
        ----------
        nbytes
            How many; all from ``offset`` on where None.
        offset
            First byte to read.

        Raises
        ------
        InvalidSizeError
            Where the range is out of bounds.
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        with self._copying() as pointer:
            if nbytes is None:
                nbytes = max(0, self.nbytes - check_integer("offset", offset))
            start, size = check_part(offset, nbytes, limit=self.nbytes)
            target = new_bytes(size)
            if size:
                with address_of(target) as (address, _size):
                    self.device.driver.copy(
                        self.device.ordinal, address, pointer + start, size, CopyKind.DEVICE_TO_HOST
                    )
        return target

    def copy_from(
        self,
        source: "Memory",
        *,
        nbytes: int | None = None,
        offset: int = 0,
        source_offset: int = 0,
    ) -> None:
        """Copy other memory of the device into this, without a detour over the host.

        The bytes must not overlap: what is copied then is undefined.

        Parameters
        ----------
        source
            An allocation, mapping or piece of the same backend; for another device only where
            the capability ``peer_access`` is true.
        nbytes
            How many; all of ``source`` from ``source_offset`` on where None.
        offset
            First byte to overwrite.
        source_offset
            First byte to copy.

        Raises
        ------
        InvalidSizeError
            Where one of the ranges is out of bounds.
        AccessDeniedError
            Where this memory is read-only here.
        UnsupportedError
            Where the device cannot reach the other memory.
        ClosedError, ForkedProcessError
            Where one of them may not be used any more.
        """
        if not isinstance(source, Memory):
            msg = f"source must be memory of crossmem, not {source!r}"
            raise ConfigurationError(msg, operation="copy_from", hint="host bytes go to write()")
        with self._copying() as pointer, source._copying() as origin:  # noqa: SLF001
            self._refuse_write("copy_from")
            self._refuse_unreachable(source)
            if nbytes is None:
                nbytes = max(0, source.nbytes - check_integer("source_offset", source_offset))
            start, size = check_part(offset, nbytes, limit=self.nbytes)
            first, _size = check_part(source_offset, nbytes, limit=source.nbytes)
            if size:
                self.device.driver.copy(
                    self.device.ordinal,
                    pointer + start,
                    origin + first,
                    size,
                    CopyKind.DEVICE_TO_DEVICE,
                )

    def _refuse_write(self, operation: str) -> None:
        if self.readonly:
            msg = f"{self!r} is read-only"
            raise AccessDeniedError(msg, operation=operation, hint="import without readonly")

    def _refuse_unreachable(self, source: "Memory") -> None:
        mine, other = self.device, source.device
        refused = None
        if other.driver is not mine.driver:
            refused = "copies from another backend or runtime"
        elif other.ordinal != mine.ordinal and not (
            mine.capabilities.peer_access and other.capabilities.peer_access
        ):
            refused = "copies from another device (capability peer_access)"
        if refused is not None:
            msg = f"{mine.name} does not offer {refused}; the source is on {other.name}"
            raise UnsupportedError(
                msg,
                operation="copy_from",
                backend=mine.backend,
                hint="copy with read() and write()",
            )

    @contextmanager
    def _copying(self) -> Iterator[int]:
        """Yield the address, and let no other thread take the memory away meanwhile."""
        self.ptr  # noqa: B018 - raises before the lock of a parent process could be waited for
        with self._process.lifetimes:
            pointer = self.ptr
            self._copies += 1
            self._uses.copies += 1
        try:
            yield pointer
        finally:
            with self._process.lifetimes:
                self._copies -= 1
                self._uses.copies -= 1

    def view(self) -> memoryview:
        """Return the memory itself as a memoryview, without a copy.

        The view, and whatever is made from it, keeps this object alive; while one exists, the
        memory cannot be unmapped or freed. A forked child must not touch a view that it
        inherited: the memory is not mapped there, and the access ends the child (SIGSEGV).

        Raises
        ------
        UnsupportedError
            Where the CPU cannot address the device's memory.
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        self.ptr  # noqa: B018 - raises before the lock of a parent process could be waited for
        if not self.device.capabilities.host_visible:
            msg = f"memory of {self.device.name} cannot be viewed by the CPU"
            raise UnsupportedError(msg, operation="view", hint="use read() and write()")
        view = memoryview(self.keeper().buffer).cast("B")
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

        They keep this object, and nothing tells when they let it go. So from now on the memory is
        given back when this object is dropped, and cannot be unmapped or freed before.

        Raises
        ------
        AttributeError
            Where the device has no such addresses, as the protocol wants it.
        """
        if not self.device.capabilities.cuda_array_interface:
            msg = f"memory of {self.device.name} has no addresses of CUDA or HIP"
            raise AttributeError(msg)
        with self._process.lifetimes:
            pointer = self.ptr
            self._is_lent = self._is_left = True
            self._uses.add_view(self)
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
        return views.capsule(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return type and number of the device, as DLPack counts them."""
        return views.dlpack_device(self)

    def keeper(self) -> Keeper:
        """Return what keeps the memory in use as long as it, or a buffer of it, lives.

        Raises
        ------
        ClosedError, ForkedProcessError
            Where the memory may not be used any more.
        """
        with self._process.lifetimes:
            pointer = self.ptr
            keeper = self._keeper() if self._keeper is not None else None
            if keeper is None:
                is_visible = self.device.capabilities.host_visible
                keeper = Keeper(self, pointer, self.nbytes if is_visible else 0)
                self._uses.add_view(self)
                self._keeper = weakref.ref(keeper)
                self._process.whereabouts.add(self, pointer, keeper)
        return keeper

    def leave_to_views(self) -> None:
        """Give the memory back when the last view of it is gone, and with it this object."""
        self._is_left = True

    @property
    def is_left(self) -> bool:
        """Whether the memory is given back with its last view."""
        return self._is_left

    @property
    def has_views(self) -> bool:
        """Whether a view, or something made from one, is alive."""
        return self._is_lent or (self._keeper is not None and self._keeper() is not None)

    def _end_block(self, give_back: Callable[[], object], error: BaseException | None) -> None:
        """Give the memory back at the end of a ``with`` block that raised ``error``, if any."""
        try:
            give_back()
        except BusyError:
            if error is None:
                raise
            # That error says more, and its traceback may be what keeps the views.
            self.leave_to_views()

    def _refuse_if_used(self, operation: str) -> None:
        """Raise where the memory is in use. The lock of lifetimes is held."""
        if self._copies:
            msg = f"another thread is reading or writing {self!r}"
            raise BusyError(msg, operation=operation)
        if self._is_lent:
            msg = f"{self!r} was given away by its __cuda_array_interface__"
            raise BusyError(
                msg,
                operation=operation,
                hint="drop this object and what was made of it, or use as_array(), which counts",
            )
        if self.has_views:
            msg = f"{self!r} has live views{self._describe_views()}"
            raise BusyError(
                msg,
                operation=operation,
                hint="drop the memoryviews, arrays and tensors that were made from it",
            )

    def _describe_views(self) -> str:
        # Not where it is raised: the error's traceback would keep the keeper, and so the memory.
        keeper = self._keeper() if self._keeper is not None else None
        return keeper.describe_views() if keeper is not None else ""
