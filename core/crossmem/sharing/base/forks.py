# SPDX-License-Identifier: Apache-2.0
"""Memory that a forked child does not have mapped, and whose addresses it uses for nothing else."""

import ctypes
import os
from typing import Final

__all__ = ["block_inherited", "forget_kept", "keep_from_children"]

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

_kept: dict[int, int] = {}
"""Sizes of what no child gets, by address."""


def keep_from_children(pointer: int, nbytes: int) -> None:
    """Prevent children that this process forks from now on from inheriting a host mapping.

    Parameters
    ----------
    pointer
        Start of the mapping, at a page.
    nbytes
        Its length; the last page counts whole.
    """
    size = -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES
    # It fails for what is no mapping of the kernel's, and a child does not get that either.
    if _madvise(pointer, size, _MADV_DONTFORK) == 0:
        _kept[pointer] = size


def forget_kept(pointer: int) -> None:
    """Forget a mapping that ends. Doing so twice is harmless."""
    _kept.pop(pointer, None)


def block_inherited() -> None:
    """Let nothing be mapped in this child where its parent had what the child does not get.

    Else an array that the child inherited would show, and change, whatever comes there next.
    """
    flags = _PRIVATE | _ANONYMOUS | _NORESERVE | _FIXED_NOREPLACE
    for pointer, size in _kept.items():
        # It fails if something is there already, which then stays.
        _mmap(pointer, size, _PROT_NONE, flags, -1, 0)
    _kept.clear()
