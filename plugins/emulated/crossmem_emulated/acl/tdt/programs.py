# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of the program's memory, on the host or on a device."""

import ctypes

from crossmem_emulated.acl.copies import side_of
from crossmem_emulated.acl.process import AclProcess

__all__ = ["read", "write"]


def read(process: AclProcess, pointer: int, nbytes: int) -> bytes:
    """Return bytes of the program's memory. Refuse memory that the program cannot use."""
    parts = side_of(process, pointer, nbytes).parts if nbytes else ()
    return b"".join(ctypes.string_at(place, size) for place, size in parts)


def write(process: AclProcess, pointer: int, data: bytes) -> None:
    """Write bytes to the program's memory. Refuse memory that the program cannot use."""
    done = 0
    for place, size in side_of(process, pointer, len(data)).parts if data else ():
        ctypes.memmove(place, data[done : done + size], size)
        done += size
