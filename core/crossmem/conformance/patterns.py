# SPDX-License-Identifier: Apache-2.0
"""Patterns to write into memory, and forged handles, for tests."""

import struct
from binascii import crc32
from typing import Final

from crossmem.models.block_handle import BLOCK_START

__all__ = ["checksum_of", "pattern", "reforged"]

_HEADER: Final = struct.Struct("<4sHHII")
"""The start of a handle's wire form: magic, version, flags, total length and checksum."""

_BLOCK: Final = 1 << 2
"""The flag that marks the handle of a block."""

_PART: Final = struct.Struct("<QQ")
"""The offset and length of the part that a handle names. Both follow the header."""


def pattern(nbytes: int, seed: int) -> bytes:
    """Return bytes that repeat only after 64 KiB, so that a test notices shifted data."""
    return bytes((seed + index * 31 + (index >> 8) * 7) & 0xFF for index in range(nbytes))


def reforged(blob: bytes, *, part: tuple[int, int] | None = None, clear_flags: int = 0) -> bytes:
    """Return the bytes of a forged handle, with a valid checksum.

    The forged handle names another part, given as offset and length, or lacks some flags.
    """
    magic, version, flags, total, _ = _HEADER.unpack_from(blob)
    body = blob[_HEADER.size :]
    if part is not None:
        body = _PART.pack(*part) + body[_PART.size :]
    flags &= ~clear_flags
    checksum = checksum_of(_HEADER.pack(magic, version, flags, total, 0) + body)
    return _HEADER.pack(magic, version, flags, total, checksum) + body


def checksum_of(blob: bytes) -> int:
    """Return the checksum that a handle's bytes should have."""
    magic, version, flags, total, _ = _HEADER.unpack_from(blob)
    cleared = _HEADER.pack(magic, version, flags, total, 0)
    body = blob[_HEADER.size :]
    if flags & _BLOCK:
        # The checksum of a block's handle takes the header first, then the bytes from BLOCK_START
        # on, and last the bytes between the header and BLOCK_START. The bytes from BLOCK_START on
        # are equal in all handles of a pool, so crossmem computes their checksum once for each
        # pool.
        body = blob[BLOCK_START:] + blob[_HEADER.size : BLOCK_START]
    return crc32(body, crc32(cleared))
