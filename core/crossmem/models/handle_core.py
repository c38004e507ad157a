# SPDX-License-Identifier: Apache-2.0
"""The core of a handle: the bytes that all slices of an export share."""

import struct
from functools import lru_cache
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from crossmem.errors import InvalidHandleError
from crossmem.guards import clause, is_identity, is_name, shorten
from crossmem.models.identity import ProcessIdentity

__all__ = [
    "FLAG_BLOCK",
    "FLAG_RAW",
    "FLAG_READONLY",
    "FLAG_READY",
    "MAX_RAW_NBYTES",
    "MIN_CORE_NBYTES",
    "Access",
    "HandleCore",
    "decode_core",
    "pack_core",
    "refuse",
]

Access = Literal["rw", "ro"]
"""The access of importers to an export: read and write, or read only."""

MAX_RAW_NBYTES: Final = 512
"""The largest number of vendor bytes in a raw handle."""

FLAG_READONLY: Final = 1
FLAG_RAW: Final = 2
FLAG_BLOCK: Final = 4
"""The handle names a block of a pool (:mod:`crossmem.models.block_handle`)."""
FLAG_READY: Final = 8
"""The handle contains another handle and a timeline (:mod:`crossmem.models.ready_handle`)."""

# allocation, export, secret, nbytes, capacity, lengths of backend, mechanism, device and raw bytes
_FIXED: Final = struct.Struct("<QI16sQQBBBH")
_FIXED_START: Final = ProcessIdentity.LAYOUT.size

MIN_CORE_NBYTES: Final = _FIXED_START + _FIXED.size
"""Size in bytes of a core without its flags, its names and the vendor's bytes."""


class _Names(NamedTuple):
    """The names and the vendor's bytes of a core. :func:`_decode_names` has checked them."""

    backend: str
    mechanism: str
    device: str
    raw: bytes


class HandleCore(NamedTuple):
    """The fields that all slices of an export share."""

    backend: str
    mechanism: str
    device: str
    allocation: int
    export: int
    secret: bytes
    owner: ProcessIdentity
    nbytes: int
    capacity: int
    access: Access
    raw: bytes | None
    wire: bytes


def pack_core(
    names: tuple[str, str, str],
    owner: ProcessIdentity,
    numbers: tuple[int, int, bytes, int, int],
    access: Access,
    raw: bytes | None,
) -> bytes:
    """Return the bytes of a new handle's core, which begin with the flags.

    Parameters
    ----------
    names
        Backend, mechanism and device.
    numbers
        Number of the allocation, number of the export, secret, size and capacity.
    """
    flags = (FLAG_READONLY if access == "ro" else 0) | (FLAG_RAW if raw is not None else 0)
    lengths, text = _pack_names(names)
    vendor = raw or b""
    fixed = _FIXED.pack(*numbers, *lengths, len(vendor))
    return b"".join((flags.to_bytes(2, "little"), _pack_owner(owner), fixed, text, vendor))


# A process exports from few devices, so the packed names are cached.
@lru_cache(maxsize=64)
def _pack_names(names: tuple[str, str, str]) -> tuple[list[int], bytes]:
    return list(map(len, names)), "".join(names).encode("ascii")


_pack_owner: Final = lru_cache(maxsize=64)(ProcessIdentity.to_bytes)


def refuse(reason: str) -> InvalidHandleError:
    """Return the error for bytes that are not a handle."""
    return InvalidHandleError(
        f"these bytes are not a crossmem handle: {clause(reason)}",
        hint="pass the bytes of handle.to_bytes() unchanged",
        operation="from_bytes",
    )


def decode_core(blob: bytes, flags: int) -> HandleCore:
    """Return the core with these bytes and flags. The bytes are untrusted.

    Raises
    ------
    InvalidHandleError
        The bytes are not a core.
    """
    owner = ProcessIdentity(*ProcessIdentity.LAYOUT.unpack_from(blob, 0))
    allocation, export, secret, nbytes, capacity, *sizes = _FIXED.unpack_from(blob, _FIXED_START)
    names = _decode_names(blob[MIN_CORE_NBYTES:], *sizes)
    is_raw = bool(flags & FLAG_RAW)
    if names.raw and not is_raw:
        raise refuse("they contain vendor bytes, but are not marked as a raw handle")
    if not allocation or not 0 < nbytes <= capacity:
        raise refuse(
            f"a number is invalid: allocation {allocation}, size {nbytes}, capacity {capacity}"
        )
    return HandleCore(
        names.backend,
        names.mechanism,
        names.device,
        allocation,
        export,
        secret,
        owner,
        nbytes,
        capacity,
        "ro" if flags & FLAG_READONLY else "rw",
        names.raw if is_raw else None,
        flags.to_bytes(2, "little") + blob,
    )


# All handles of one device have the same names, so the decoded names are cached.
@lru_cache(maxsize=256)
def _decode_names(blob: bytes, *sizes: int) -> _Names:
    if sum(sizes) != len(blob):
        raise refuse("the lengths of the names do not match the number of bytes")
    ends = list(accumulate(sizes))
    parts = [blob[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    backend, mechanism, device, raw = parts
    try:
        names = _Names(
            backend.decode("ascii"), mechanism.decode("ascii"), device.decode("ascii"), raw
        )
    except UnicodeDecodeError as error:
        raise refuse("a name is not ASCII") from error
    for field, text, is_right in (
        ("backend", names.backend, is_name),
        ("mechanism", names.mechanism, is_name),
        ("device", names.device, is_identity),
    ):
        if not is_right(text):
            raise refuse(f"{shorten(text)} is not the name of a {field}")
    if len(names.raw) > MAX_RAW_NBYTES:
        raise refuse(f"{len(names.raw)} vendor bytes; at most {MAX_RAW_NBYTES} are allowed")
    return names
