# SPDX-License-Identifier: Apache-2.0
"""Mappings that forked children do not inherit. Each child blocks the mappings' addresses."""

import ctypes
import os
from typing import Final

__all__ = ["block_inherited", "forget_kept", "keep_from_children", "kept"]

_MADV_DONTFORK: Final = 10
_PROT_NONE: Final = 0
_PRIVATE, _ANONYMOUS, _NORESERVE, _FIXED_NOREPLACE = 0x2, 0x20, 0x4000, 0x100000
_PAGE_NBYTES: Final = os.sysconf("SC_PAGESIZE")

_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_mmap = _libc.mmap
_mmap.restype = ctypes.c_size_t
_mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip

kept: Final[dict[int, int]] = {}
"""The size of each mapping that children do not inherit. The key is the address."""


def keep_from_children(pointer: int, nbytes: int) -> None:
    """Ensure that no child forked from now on inherits a host mapping.

    Parameters
    ----------
    pointer
        Start of the mapping, at a page boundary.
    nbytes
        Length of the mapping. It is rounded up to whole pages.
    """
    size = -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES
    # The call fails if the kernel has no mapping there. In this case, a child inherits nothing.
    if _madvise(pointer, size, _MADV_DONTFORK) == 0:
        kept[pointer] = size


def forget_kept(pointer: int) -> None:
    """Forget a mapping that ends. A second call does nothing."""
    kept.pop(pointer, None)


def block_inherited() -> None:
    """Block the addresses of mappings that this child has not inherited.

    If an address stayed free, an inherited array could access other memory that the child maps
    there later.
    """
    flags = _PRIVATE | _ANONYMOUS | _NORESERVE | _FIXED_NOREPLACE
    for pointer, size in kept.items():
        # The call fails if another mapping exists there already. That mapping stays.
        _mmap(pointer, size, _PROT_NONE, flags, -1, 0)
    kept.clear()
