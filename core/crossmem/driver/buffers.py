# SPDX-License-Identifier: Apache-2.0
"""Addresses of Python buffers, and Python buffers at addresses."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Exporter", "address_of", "exporter_at", "new_bytes"]

Exporter = Any
"""An object that offers memory as a buffer; it lives as long as any view of that memory."""


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


def exporter_at(pointer: int, nbytes: int, keep_alive: object) -> Exporter:
    """Return an object whose buffer is the memory at an address.

    Every memoryview, NumPy array or slice made from it keeps it alive, and with it
    ``keep_alive``; so a weak reference to it tells whether any view is left.
    """
    exporter = (ctypes.c_ubyte * nbytes).from_address(pointer)
    exporter.keep_alive = keep_alive  # type: ignore[attr-defined]
    return exporter


_new_bytes: Callable[..., bytes] = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]  # type: ignore[attr-defined]
_new_bytes.restype = ctypes.py_object  # type: ignore[attr-defined]


def new_bytes(nbytes: int) -> bytes:
    """Return bytes that nobody else has, for the caller to fill once before use."""
    return _new_bytes(None, nbytes)
