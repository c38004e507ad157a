# SPDX-License-Identifier: Apache-2.0
"""The serialisable description of an exported allocation, or of a part of one."""

import hashlib
import struct
from binascii import crc32
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from typing_extensions import override

from crossmem.errors import InvalidHandleError, InvalidSizeError
from crossmem.guards import check_part
from crossmem.models.handle_core import (
    FLAG_BLOCK,
    FLAG_RAW,
    FLAG_READONLY,
    FLAG_READY,
    MIN_CORE_NBYTES,
    Access,
    HandleCore,
    decode_core,
    pack_core,
    refuse,
)
from crossmem.models.identity import ProcessIdentity

__all__ = [
    "HEADER",
    "MAGIC",
    "MAX_HANDLE_NBYTES",
    "VERSION",
    "ShareableHandle",
    "arena_handle",
    "block_readers",
    "ready_readers",
]

MAX_HANDLE_NBYTES: Final = 1024
"""Upper bound of ``len(handle.to_bytes())``."""

MAGIC: Final = b"XMEM"
_OTHER_MAGICS: Final = frozenset({b"XMQU", b"XMTL", b"XMTR"})
_OTHER_KINDS: Final = (
    "pass the bytes of handle.to_bytes(); open a queue with crossmem.open_queue(), a timeline with "
    "crossmem.open_timeline(), and a Shared with crossmem.receive()"
)
VERSION: Final = 1
# magic, version, flags, total length, crc32 of everything else
HEADER: Final = struct.Struct("<4sHHII")
# Offset and length of the part. The core does not contain them, because all handles of one export
# have the same core.
_PART: Final = struct.Struct("<QQ")
_CORE_START: Final = HEADER.size + _PART.size
_MIN_NBYTES: Final = _CORE_START + MIN_CORE_NBYTES


def _field(name: str, doc: str) -> Any:
    """Return a property for a field of the core. A read of the property runs only C code."""
    return property(attrgetter(f"_core.{name}"), doc=doc)


class ShareableHandle:
    """An immutable name for exported memory, valid in any process of the same host.

    :meth:`crossmem.Allocation.export` makes a handle. Send the bytes of :meth:`to_bytes`, or pickle
    the handle. A handle owns nothing: the exporter and the leases of importers decide how long the
    memory lives. A process that has a leased handle and passes the exporter's access check can
    import the memory, so treat the bytes as a credential.

    Attributes
    ----------
    offset, length
        The part of the allocation that this handle names, in bytes.
    """

    __slots__ = ("_bytes", "_core", "length", "offset")

    offset: int
    length: int
    _core: HandleCore
    _bytes: bytes | None

    generation: int = 0  # only handles of a pool's blocks have a generation

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
        numbers = allocation, export, secret, nbytes, capacity
        wire = pack_core((backend, mechanism, device), owner, numbers, access, raw)
        core = HandleCore(
            backend,
            mechanism,
            device,
            allocation,
            export,
            secret,
            owner,
            nbytes,
            capacity,
            access,
            raw,
            wire,
        )
        _fill(self, core, 0, nbytes, None)

    @override
    def __setattr__(self, name: str, value: object) -> None:
        msg = f"a ShareableHandle is immutable; {name!r} cannot be set"
        raise AttributeError(msg)

    @override
    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    backend: str = _field("backend", "Name of the backend that made the memory.")
    mechanism: str = _field("mechanism", "Name of the mechanism that shares the memory.")
    device: str = _field("device", "Identity (not ordinal) of the device that holds the memory.")
    allocation: int = _field("allocation", "Number of the allocation, unique in its exporter.")
    export: int = _field("export", "Number of the export, unique in the allocation.")
    owner: ProcessIdentity = _field("owner", "The exporting process.")
    nbytes: int = _field("nbytes", "Requested size of the whole allocation, in bytes.")
    capacity: int = _field("capacity", "Size of the allocation after rounding up, in bytes.")
    access: Access = _field("access", '``"rw"`` or ``"ro"``.')
    raw: bytes | None = _field("raw", "The vendor's bytes of a raw handle; None in other handles.")
    secret: bytes = _field("secret", "16 secret bytes. An importer proves that it knows them.")
    # An importer's proof covers the core, so an exporter refuses a handle whose core was changed in
    # transit.
    core: bytes = _field("wire", "The bytes that all handles of one export have in common.")

    def slice(self, offset: int, nbytes: int) -> "ShareableHandle":
        """Return a handle of a part of this handle's memory.

        Parameters
        ----------
        offset
            Start of the part in bytes, counted from the start of this handle's part.
        nbytes
            Length of the part in bytes, at least 1.

        Raises
        ------
        InvalidSizeError
            The part does not lie inside this handle's part.

        Notes
        -----
        A part is a convenience, not a security boundary: an importer of a part maps the whole
        allocation (law C4).
        """
        start, length = check_part(offset, nbytes, limit=self.length)
        if not length:
            msg = "a part must have at least 1 byte"
            raise InvalidSizeError(msg, operation="slice", backend=self.backend)
        return _fill(object.__new__(ShareableHandle), self._core, self.offset + start, length, None)

    def to_bytes(self) -> bytes:
        """Return the wire form, which has at most 1 KiB.

        Two handles have the same wire form if they name the same part of the same export.
        """
        blob = self._bytes
        if blob is None:
            core = self._core.wire
            body = _PART.pack(self.offset, self.length) + core[2:]
            flags = int.from_bytes(core[:2], "little")
            total = HEADER.size + len(body)
            # The checksum covers the header with a zero in the checksum's place.
            head = HEADER.pack(MAGIC, VERSION, flags, total, 0)
            checksum = crc32(body, crc32(head))
            blob = HEADER.pack(MAGIC, VERSION, flags, total, checksum) + body
            object.__setattr__(self, "_bytes", blob)
        return blob

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "ShareableHandle":
        """Return the handle that the bytes encode. The bytes are untrusted.

        Raises
        ------
        InvalidHandleError
            The bytes are not a handle, or have a version that this crossmem does not read.
        """
        if type(blob) is not bytes:
            if not isinstance(blob, bytearray | memoryview):
                msg = f"a handle must be bytes, not {type(blob).__name__}"
                raise InvalidHandleError(msg, operation="from_bytes", hint=_OTHER_KINDS)
            try:
                nbytes = memoryview(blob).nbytes
                blob = bytes(blob) if nbytes <= MAX_HANDLE_NBYTES else b""
            except ValueError as error:
                msg = "the memoryview with the handle's bytes was released"
                raise InvalidHandleError(msg, operation="from_bytes") from error
            if nbytes > MAX_HANDLE_NBYTES:
                msg = f"a handle has at most {MAX_HANDLE_NBYTES} bytes"
                raise InvalidHandleError(msg, operation="from_bytes")
        return _decode(blob)

    def to_json(self) -> str:
        """Return the handle as JSON for people, without its secret."""
        # This import comes late, because only this method needs json.
        import json  # noqa: PLC0415

        return json.dumps(
            {
                "version": VERSION,
                "backend": self.backend,
                "mechanism": self.mechanism,
                "device": self.device,
                "allocation": self.allocation,
                "export": self.export,
                **self._more_json(),
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

    def _more_json(self) -> dict[str, int]:
        """Return further JSON fields, which only the handles of blocks have."""
        return {}

    @property
    def digest(self) -> str:
        """Eight hex digits that identify this handle in logs without exposing it."""
        return hashlib.blake2b(self.to_bytes(), digest_size=4).hexdigest()

    @override
    def __repr__(self) -> str:
        part = "" if self.length == self.nbytes else f" part [{self.offset}, +{self.length}) of"
        return (
            f"<ShareableHandle {self.digest}:{part} {self.nbytes} bytes, allocation "
            f"{self.allocation} of pid {self.owner.pid}, {self.backend}/{self.mechanism} on "
            f"{self.device}, {self.access}>"
        )

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShareableHandle):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    @override
    def __hash__(self) -> int:
        return hash(self.to_bytes())

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.to_bytes(),)


def _restore(blob: bytes) -> ShareableHandle:
    # cloudpickle sends a function of a module by its name, but a class method as bytecode. Bytecode
    # depends on the Python version, so this function is not a class method.
    return ShareableHandle.from_bytes(blob)


def _fill(
    handle: ShareableHandle, core: HandleCore, offset: int, length: int, blob: bytes | None
) -> ShareableHandle:
    fill = object.__setattr__
    fill(handle, "_core", core)
    fill(handle, "offset", offset)
    fill(handle, "length", length)
    fill(handle, "_bytes", blob)
    return handle


block_readers: Final[list[Callable[[bytes], ShareableHandle]]] = []
"""Contains the decoder of block handles. The import of :mod:`crossmem.models.block_handle` adds the
decoder to this list."""
ready_readers: Final[list[Callable[[bytes], ShareableHandle]]] = []
"""Contains the decoder of handles with a timeline. The import of
:mod:`crossmem.models.ready_handle` adds the decoder to this list."""


def arena_handle(core: bytes, flags: int) -> ShareableHandle:
    """Return the handle of a pool's whole memory, from the bytes and flags of the handle's core.

    Raises
    ------
    InvalidHandleError
        The bytes are not a core.
    """
    found = decode_core(core, flags)
    return _fill(object.__new__(ShareableHandle), found, 0, found.nbytes, None)


# A process often receives the same bytes again. Decoded handles are immutable, so they are cached.
@lru_cache(maxsize=4096)
def _decode(blob: bytes) -> ShareableHandle:
    if not _MIN_NBYTES <= len(blob) <= MAX_HANDLE_NBYTES:
        raise refuse(f"{len(blob)} bytes, expected {_MIN_NBYTES} to {MAX_HANDLE_NBYTES}")
    magic, version, flags, total, checksum = HEADER.unpack_from(blob)
    if magic in _OTHER_MAGICS:
        msg = "the bytes are the handle of a queue, a timeline or a tree, not of memory"
        raise InvalidHandleError(msg, operation="from_bytes", hint=_OTHER_KINDS)
    if magic != MAGIC:
        raise refuse(f"they start with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise refuse(f"format version {version}; this crossmem reads version {VERSION}")
    if flags & FLAG_READY:
        return ready_readers[0](blob)
    if flags & FLAG_BLOCK:
        return block_readers[0](blob)
    if total != len(blob) or flags & ~(FLAG_READONLY | FLAG_RAW):
        raise refuse(
            f"the length in the header is not {len(blob)}, or the flags {flags:#x} are invalid"
        )
    head = HEADER.pack(magic, version, flags, total, 0)
    if crc32(blob[HEADER.size :], crc32(head)) != checksum:
        raise refuse("the checksum does not match; the bytes were damaged on the way")
    core = decode_core(blob[_CORE_START:], flags)
    offset, length = _PART.unpack_from(blob, HEADER.size)
    if not 0 < length <= core.nbytes - offset:
        raise refuse(
            f"part [{offset}, {offset + length}) is empty or exceeds the memory of "
            f"{core.nbytes} bytes"
        )
    return _fill(object.__new__(ShareableHandle), core, offset, length, blob)
