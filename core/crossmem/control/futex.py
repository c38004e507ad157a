# SPDX-License-Identifier: Apache-2.0
"""How threads sleep on a word in shared memory, and how any process wakes them: ``futex(2)``."""

import ctypes
import os
from typing import Final

__all__ = ["sleep", "wake_all"]

_WAIT: Final = 0
_WAKE: Final = 1
_EVERYONE: Final = 2**31 - 1
_LOW_HALF: Final = 2**32 - 1
_NUMBER: Final = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -1)
"""The number of the system call. On an architecture that is not listed here, the number is -1,
which the kernel refuses. On such an architecture, crossmem's barrier does not work. Without the
barrier, waiting threads poll the word and do not call :func:`sleep`."""

_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_long,
    ctypes.c_uint32,
    ctypes.c_void_p,
]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def sleep(address: int, expected: int, timeout_s: float) -> None:
    """Sleep until :func:`wake_all`, a signal or the timeout, unless the word has changed already.

    Parameters
    ----------
    address
        Address of the word. The supported processors are little-endian, so the 4 bytes at this
        address are the lower half of the word. The kernel compares only this half.
    expected
        The value that the caller has last read from the word.
    timeout_s
        The longest sleep, in seconds.
    """
    whole = int(timeout_s)
    limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
    _syscall(_NUMBER, address, _WAIT, expected & _LOW_HALF, ctypes.addressof(limit))


def wake_all(address: int) -> None:
    """Wake all threads that sleep on a word, in every process."""
    _syscall(_NUMBER, address, _WAKE, _EVERYONE, None)
