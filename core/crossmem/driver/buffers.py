# SPDX-License-Identifier: Apache-2.0
"""Addresses of Python buffers, and Python buffers at addresses."""

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from crossmem.errors import ConfigurationError

__all__ = ["HostBuffer", "ViewAnchor", "address_of", "new_bytes"]


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of CPython's stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer: Callable[..., int] = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]  # type: ignore[attr-defined]
_release_buffer: Callable[..., None] = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]  # type: ignore[attr-defined]
_release_buffer.restype = None  # type: ignore[attr-defined]


class _Kept:
    """Keeps the buffer of an object that ``memoryview`` refuses, such as an array of dates."""

    __slots__ = ("_buffer",)

    def __init__(self, data: Any) -> None:
        self._buffer = _PyBuffer()
        _get_buffer(data, ctypes.byref(self._buffer), 0)

    def release(self) -> None:
        _release_buffer(ctypes.byref(self._buffer))

    __del__ = release


class HostBuffer:
    """A contiguous buffer of a Python object, possibly read-only, and its address.

    Parameters
    ----------
    data
        Any object with a contiguous buffer. The object cannot change its size before
        :meth:`release`.

    Attributes
    ----------
    address
        Address of the first byte.
    nbytes
        Size in bytes.

    Raises
    ------
    ConfigurationError
        ``data`` has no contiguous buffer.
    """

    __slots__ = ("_kept", "address", "nbytes")

    def __init__(self, data: Any) -> None:
        buffer = _PyBuffer()
        pointer = ctypes.byref(buffer)
        try:
            # A finaliser in Python code, such as that of _Kept, swallows exceptions of signal
            # handlers. A memoryview has no such finaliser, so it is tried first.
            try:
                self._kept: memoryview | _Kept = memoryview(data)
            except (BufferError, ValueError):
                self._kept = _Kept(data)
            _get_buffer(data, pointer, 0)
            self.address = int(buffer.buf or 0)
            self.nbytes = int(buffer.len)
        except (TypeError, BufferError, ValueError) as error:
            msg = f"data must be a contiguous buffer, such as bytes: {error}"
            raise ConfigurationError(msg, operation="write") from error
        finally:
            _release_buffer(pointer)

    def release(self) -> None:
        """Release the buffer. A second call does nothing."""
        self._kept.release()


@contextmanager
def address_of(data: Any) -> Iterator[tuple[int, int]]:
    """Yield address and length in bytes of a contiguous buffer; see :class:`HostBuffer`."""
    buffer = HostBuffer(data)
    try:
        yield buffer.address, buffer.nbytes
    finally:
        buffer.release()


class ViewAnchor:
    """Keeps memory in use as long as a view of it lives.

    Every view, array or tensor of the memory holds a reference to this object. Therefore a weak
    reference to the anchor shows whether any view is alive.

    Parameters
    ----------
    memory
        The object that releases the memory. The anchor keeps this object alive.
    pointer
        Address of the memory.
    nbytes
        Size of the buffer at that address; 0 if the CPU cannot address the memory.
    """

    __slots__ = ("__weakref__", "_nbytes", "_pointer", "_views", "memory")

    def __init__(self, memory: object, pointer: int, nbytes: int) -> None:
        self.memory = memory
        self._pointer = pointer
        self._nbytes = nbytes
        self._views: dict[int, weakref.ref[Any]] = {}

    @property
    def buffer(self) -> Any:
        """The memory as an object with a buffer. Views of the buffer keep the anchor alive."""
        buffer = (ctypes.c_ubyte * self._nbytes).from_address(self._pointer)
        buffer.anchor = self  # type: ignore[attr-defined]
        return buffer

    def note(self, view: Any) -> None:
        """Record an array or tensor of the memory, so that :meth:`describe_views` can name it."""
        # The callback is C code. A signal handler could interrupt a callback in Python code, and
        # Python would drop the handler's exception.
        key, views = id(view), self._views
        views[key] = weakref.ref(view, partial(views.pop, key))

    def describe_views(self) -> str:
        """Return a text that names the live arrays and tensors, or ``""`` if there are none."""
        alive = [view for one in list(self._views.values()) if (view := one()) is not None]
        if not alive:
            return ""
        texts = [f"{type(one).__name__} {tuple(one.shape)} of {one.dtype}" for one in alive[:3]]
        more = f" and {len(alive) - 3} more" if alive[3:] else ""
        return f": {', '.join(texts)}{more}"


_new_bytes: Callable[..., bytes] = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]  # type: ignore[attr-defined]
_new_bytes.restype = ctypes.py_object  # type: ignore[attr-defined]


def new_bytes(nbytes: int) -> bytes:
    """Return a new ``bytes`` object of this size, with undefined content.

    The caller writes the content once, at the object's address, before any other use.
    """
    return _new_bytes(None, nbytes)
