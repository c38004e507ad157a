# SPDX-License-Identifier: Apache-2.0
"""The serialisable description of an exported allocation, or of a part of one."""

import hashlib
import json
import struct
from binascii import crc32
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from crossmem.errors import InvalidHandleError, InvalidSizeError
from crossmem.models.base import FrozenModel
from crossmem.models.identity import ProcessIdentity

__all__ = ["MAX_HANDLE_NBYTES", "Access", "ShareableHandle"]

Access = Literal["rw", "ro"]
"""How importers may use an export: read and write, or read only."""

MAX_HANDLE_NBYTES: Final = 1024
"""Upper bound of ``len(handle.to_bytes())``."""

MAX_RAW_NBYTES: Final = 512
"""Upper bound of the vendor bytes in a raw handle."""

_MAGIC: Final = b"XMEM"
_VERSION: Final = 1
_FLAG_READONLY: Final = 1
_FLAG_RAW: Final = 2
_U64: Final = 2**64 - 1

# magic, version, flags, total length, crc32 of everything else
_HEADER: Final = struct.Struct("<4sHHII")
# offset and length of the part; they stand apart because the rest is the same for all parts
_PART: Final = struct.Struct("<QQ")
# allocation, export, secret, nbytes, capacity, lengths of backend, mechanism, device and raw bytes
_FIXED: Final = struct.Struct("<QI16sQQBBBH")
_BODY_START: Final = _HEADER.size + _PART.size
_FIXED_START: Final = _BODY_START + ProcessIdentity.LAYOUT.size
_NAMES_START: Final = _FIXED_START + _FIXED.size

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
_U64Field = Annotated[int, Field(ge=0, le=_U64)]
_Positive = Annotated[int, Field(gt=0, le=_U64)]


class _HandleFields(FrozenModel):
    """What bytes from outside must satisfy before a handle is made of them."""

    backend: _Name
    mechanism: _Name
    device: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
    allocation: _Positive
    export: Annotated[int, Field(ge=0, le=2**32 - 1)]
    secret: Annotated[bytes, Field(min_length=16, max_length=16)]
    owner: ProcessIdentity
    nbytes: _Positive
    capacity: _Positive
    offset: _U64Field
    length: _Positive
    access: Access
    raw: Annotated[bytes, Field(max_length=MAX_RAW_NBYTES)] | None

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not self.offset + self.length <= self.nbytes <= self.capacity:
            msg = (
                f"part [{self.offset}, {self.offset + self.length}) must lie in {self.nbytes} "
                f"bytes, and those in a capacity of {self.capacity}"
            )
            raise ValueError(msg)
        return self


class ShareableHandle:
    """An immutable name for exported memory, valid in any process of the same host.

    Made by :meth:`crossmem.Allocation.export`; sent as :meth:`to_bytes` or by pickling. A handle
    owns nothing: the memory lives as long as its exporter and the leases of its importers say.
    Whoever holds a leased handle and passes the exporter's access check can import the memory,
    so treat the bytes as a credential.

    Attributes
    ----------
    backend, mechanism
        Which backend made the memory and how it is shared.
    device
        Identity (not ordinal) of the device that holds the memory.
    allocation
        Number of the allocation, unique in the exporting process.
    owner
        The exporting process.
    nbytes, capacity
        Requested and reserved size of the whole allocation, in bytes.
    offset, length
        The part of the allocation that this handle names, in bytes.
    access
        ``"rw"`` or ``"ro"``.
    """

    __slots__ = (
        "_bytes",
        "_secret",
        "access",
        "allocation",
        "backend",
        "capacity",
        "core",
        "device",
        "export",
        "length",
        "mechanism",
        "nbytes",
        "offset",
        "owner",
        "raw",
    )

    def __init__(
        self,
        *,
        backend: str,
        mechanism: str,
        device: str,
        allocation: int,
        export: int,
        secret: bytes,
        owner: ProcessIdentity,
        nbytes: int,
        capacity: int,
        access: Access,
        raw: bytes | None = None,
    ) -> None:
        self._set("backend", backend)
        self._set("mechanism", mechanism)
        self._set("device", device)
        self._set("allocation", allocation)
        self._set("export", export)
        self._set("_secret", secret)
        self._set("owner", owner)
        self._set("nbytes", nbytes)
        self._set("capacity", capacity)
        self._set("access", access)
        self._set("raw", raw)
        self._set("offset", 0)
        self._set("length", nbytes)
        self._set("_bytes", None)
        names = (backend.encode("ascii"), mechanism.encode("ascii"), device.encode("ascii"))
        flags = (_FLAG_READONLY if access == "ro" else 0) | (_FLAG_RAW if raw is not None else 0)
        # All that is the same for every part, in wire form: the key of imports and leases, and
        # what the proof of the secret covers, so that no field can be changed on the way.
        core = b"".join(
            (
                flags.to_bytes(2, "little"),
                owner.to_bytes(),
                _FIXED.pack(
                    allocation, export, secret, nbytes, capacity, *map(len, names), len(raw or b"")
                ),
                *names,
                raw or b"",
            )
        )
        self._set("core", core)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        msg = f"a ShareableHandle is immutable; {name!r} cannot be set"
        raise AttributeError(msg)

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    @property
    def secret(self) -> bytes:
        """The 16 secret bytes that an importer proves to know."""
        return self._secret

    def slice(self, offset: int, nbytes: int) -> "ShareableHandle":
        """Return a handle to a part of this one.

        Parameters
        ----------
        offset
            Start of the part in bytes, counted from the start of this handle's part.
        nbytes
            Length of the part in bytes, at least 1.

        Raises
        ------
        InvalidSizeError
            Where the part does not lie inside this one.

        Notes
        -----
        A part is a convenience, not a security boundary: its importer's process maps the whole
        allocation (law C4).
        """
        if offset < 0 or nbytes <= 0 or offset + nbytes > self.length:
            msg = f"part [{offset}, {offset + nbytes}) does not lie in [0, {self.length})"
            raise InvalidSizeError(msg, operation="slice", backend=self.backend)
        part = object.__new__(ShareableHandle)
        for name in ShareableHandle.__slots__:
            part._set(name, getattr(self, name))
        part._set("offset", self.offset + offset)
        part._set("length", nbytes)
        part._set("_bytes", None)
        return part

    def to_bytes(self) -> bytes:
        """Return the wire form: at most 1 KiB, always the same for the same export and part."""
        if self._bytes is None:
            body = _PART.pack(self.offset, self.length) + self.core[2:]
            flags = int.from_bytes(self.core[:2], "little")
            total = _HEADER.size + len(body)
            # The checksum covers the header with a zero in its own place.
            head = _HEADER.pack(_MAGIC, _VERSION, flags, total, 0)
            checksum = crc32(body, crc32(head))
            self._set("_bytes", _HEADER.pack(_MAGIC, _VERSION, flags, total, checksum) + body)
        blob: bytes = self._bytes
        return blob

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "ShareableHandle":
        """Read the wire form, trusting nothing in it.

        Raises
        ------
        InvalidHandleError
            Where the bytes are not a handle of a version that this crossmem reads.
        """
        if type(blob) is not bytes:
            if not isinstance(blob, bytearray | memoryview):
                msg = f"a handle is bytes, not {type(blob).__name__}"
                raise InvalidHandleError(msg, operation="from_bytes")
            if memoryview(blob).nbytes > MAX_HANDLE_NBYTES:
                msg = f"a handle has at most {MAX_HANDLE_NBYTES} bytes"
                raise InvalidHandleError(msg, operation="from_bytes")
            blob = bytes(blob)
        return _decode(blob)

    def to_json(self) -> str:
        """Return the handle as JSON for people, without its secret."""
        return json.dumps(
            {
                "version": _VERSION,
                "backend": self.backend,
                "mechanism": self.mechanism,
                "device": self.device,
                "allocation": self.allocation,
                "export": self.export,
                "owner": {
                    "pid": self.owner.pid,
                    "uid": self.owner.uid,
                    "start_time": self.owner.start_time,
                    "boot_id": self.owner.boot_id.hex(),
                    "pid_namespace": self.owner.pid_namespace,
                },
                "nbytes": self.nbytes,
                "capacity": self.capacity,
                "offset": self.offset,
                "length": self.length,
                "access": self.access,
                "leased": self.raw is None,
                "digest": self.digest,
            }
        )

    @property
    def digest(self) -> str:
        """Eight hex digits that name this handle in logs without giving it away."""
        return hashlib.blake2b(self.to_bytes(), digest_size=4).hexdigest()

    def __repr__(self) -> str:
        part = "" if self.length == self.nbytes else f" part [{self.offset}, +{self.length}) of"
        return (
            f"<ShareableHandle {self.digest}:{part} {self.nbytes} bytes, allocation "
            f"{self.allocation} of pid {self.owner.pid}, {self.backend}/{self.mechanism} on "
            f"{self.device}, {self.access}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShareableHandle):
            return NotImplemented
        return (self.core, self.offset, self.length) == (other.core, other.offset, other.length)

    def __hash__(self) -> int:
        return hash((self.core, self.offset, self.length))

    def __reduce__(self) -> tuple[Any, ...]:
        return ShareableHandle.from_bytes, (self.to_bytes(),)


def _refuse(reason: str) -> InvalidHandleError:
    return InvalidHandleError(
        f"these bytes are not a crossmem handle: {reason}",
        hint="pass the bytes of handle.to_bytes() unchanged",
        operation="from_bytes",
    )


# The same handle is often received again and again; a handle is immutable, so it can be shared.
@lru_cache(maxsize=4096)
def _decode(blob: bytes) -> ShareableHandle:
    if not _NAMES_START <= len(blob) <= MAX_HANDLE_NBYTES:
        raise _refuse(f"{len(blob)} bytes, expected {_NAMES_START} to {MAX_HANDLE_NBYTES}")
    magic, version, flags, total, checksum = _HEADER.unpack_from(blob)
    if magic != _MAGIC:
        raise _refuse(f"they start with {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise _refuse(f"format version {version}; this crossmem reads version {_VERSION}")
    if total != len(blob) or flags & ~(_FLAG_READONLY | _FLAG_RAW):
        raise _refuse(f"{len(blob)} bytes and flags {flags:#x} do not fit their header")
    head = _HEADER.pack(magic, version, flags, total, 0)
    if crc32(blob[_HEADER.size :], crc32(head)) != checksum:
        raise _refuse("the checksum does not match; the bytes were damaged on the way")
    offset, length = _PART.unpack_from(blob, _HEADER.size)
    (allocation, export, secret, nbytes, capacity, *lengths) = _FIXED.unpack_from(
        blob, _FIXED_START
    )
    if _NAMES_START + sum(lengths) != len(blob):
        raise _refuse("the lengths of its names do not add up")
    names: list[bytes] = []
    start = _NAMES_START
    for size in lengths:
        names.append(blob[start : start + size])
        start += size
    try:
        fields = _HandleFields(
            backend=names[0].decode("ascii"),
            mechanism=names[1].decode("ascii"),
            device=names[2].decode("ascii"),
            allocation=allocation,
            export=export,
            secret=secret,
            owner=ProcessIdentity(*ProcessIdentity.LAYOUT.unpack_from(blob, _BODY_START)),
            nbytes=nbytes,
            capacity=capacity,
            offset=offset,
            length=length,
            access="ro" if flags & _FLAG_READONLY else "rw",
            raw=names[3] if flags & _FLAG_RAW else None,
        )
    except UnicodeDecodeError as error:
        raise _refuse("a name in it is not ASCII") from error
    except ValidationError as error:
        reason = "; ".join(detail["msg"] for detail in error.errors())
        raise _refuse(reason) from None
    if names[3] and fields.raw is None:
        raise _refuse("vendor bytes in a leased handle")
    whole = ShareableHandle(
        backend=fields.backend,
        mechanism=fields.mechanism,
        device=fields.device,
        allocation=fields.allocation,
        export=fields.export,
        secret=fields.secret,
        owner=fields.owner,
        nbytes=fields.nbytes,
        capacity=fields.capacity,
        access=fields.access,
        raw=fields.raw,
    )
    if (fields.offset, fields.length) == (0, fields.nbytes):
        return whole
    return whole.slice(fields.offset, fields.length)
