# SPDX-License-Identifier: Apache-2.0
"""Memory that a forked child does not have mapped."""

import ctypes
import os
from typing import Final

__all__ = ["is_mapped", "keep_from_children"]

_MADV_DONTFORK: Final = 10
_MS_ASYNC: Final = 1
_PAGE_NBYTES: Final = os.sysconf("SC_PAGESIZE")

_libc = ctypes.CDLL(None, use_errno=True)
_msync = _libc.msync
_msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def keep_from_children(pointer: int, nbytes: int) -> None:
    """Prevent children that this process forks from now on from inheriting a host mapping.

    Parameters
    ----------
    pointer
        Start of the mapping, at a page.
    nbytes
        Its length; the last page counts whole.
    """
    # The call fails for an address without a mapping of the kernel, which a child does not inherit.
    _madvise(pointer, -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES, _MADV_DONTFORK)


def is_mapped(pointer: int, nbytes: int) -> bool:
    """Whether this process has something mapped at all of some addresses."""
    start = pointer - pointer % _PAGE_NBYTES
    # Linux starts no writing here, and fails with ENOMEM at the first gap.
    return bool(_msync(start, pointer + nbytes - start, _MS_ASYNC) == 0)
