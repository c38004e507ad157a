# SPDX-License-Identifier: Apache-2.0
"""Addresses of Python buffers, and Python buffers at addresses."""

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Keeper", "address_of", "new_bytes"]


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


@contextmanager
def address_of(data: Any) -> Iterator[tuple[int, int]]:
    """Yield address and length in bytes of a contiguous buffer, read-only ones included.

    Raises
    ------
    TypeError, BufferError
        Where ``data`` is no buffer, or not contiguous.
    """
    view = _PyBuffer()
    _get_buffer(data, ctypes.byref(view), 0)
    try:
        yield view.buf or 0, view.len
    finally:
        _release_buffer(ctypes.byref(view))


class Keeper:
    """Keeps memory in use: every view, array or tensor that is made of the memory keeps this.

    So a weak reference to it tells whether any is left.

    Parameters
    ----------
    memory
        The object that gives the memory back; kept alive.
    pointer
        Address of the memory.
    nbytes
        Size of the buffer at that address; 0 where the CPU cannot address it.
    """

    __slots__ = ("__weakref__", "_nbytes", "_pointer", "_views", "memory")

    def __init__(self, memory: object, pointer: int, nbytes: int) -> None:
        self.memory = memory
        self._pointer = pointer
        self._nbytes = nbytes
        self._views: dict[int, weakref.ref[Any]] = {}

    @property
    def buffer(self) -> Any:
        """The memory as an object with a buffer; this keeper lives as long as any view of it."""
        buffer = (ctypes.c_ubyte * self._nbytes).from_address(self._pointer)
        buffer.keeper = self  # type: ignore[attr-defined]
        return buffer

    def note(self, view: Any) -> None:
        """Remember an array or tensor, for the message of whoever wants its memory back."""
        key, views = id(view), self._views
        views[key] = weakref.ref(view, lambda _: views.pop(key, None))

    def describe_views(self) -> str:
        """Return in words which arrays and tensors are alive; nothing where others are."""
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
    """Return bytes that nobody else has, for the caller to fill once before use."""
    return _new_bytes(None, nbytes)
