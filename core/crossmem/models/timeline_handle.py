# SPDX-License-Identifier: Apache-2.0
"""The serialisable name of a timeline: its words in shared memory, its level and its device."""

import struct
from binascii import crc32
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from crossmem.errors import InvalidHandleError
from crossmem.guards import clause, is_identity, is_name, shorten
from crossmem.models.capabilities import TIMELINE_LEVELS, TimelineLevel
from crossmem.models.handle import MAX_HANDLE_NBYTES, ShareableHandle

__all__ = ["TimelineHandle"]

_MAGIC: Final = b"XMTL"
_VERSION: Final = 1
# magic, version, number of the level, total length, crc32 of everything else
_HEADER: Final = struct.Struct("<4sHHII")
# identity of the timeline, lengths of the backend's name and of the device's identity
_BODY: Final = struct.Struct("<QBB")
_START: Final = _HEADER.size + _BODY.size


@dataclass(frozen=True, slots=True)
class TimelineHandle:
    """An immutable name for a timeline, valid in any process of the same host.

    Made by :meth:`crossmem.Timeline.export`; sent as :meth:`to_bytes` or by pickling. A process
    that has the handle and passes the access check of the signalling process can wait, and can
    disturb other waiters, so treat the bytes as a credential.

    Attributes
    ----------
    memory
        The handle of the timeline's words in host memory.
    identity
        A random number that only this timeline has.
    level
        ``"word"``, ``"event"`` or ``"host"``.
    backend, device
        The device on whose streams the timeline is signalled.
    """

    memory: ShareableHandle
    identity: int
    level: TimelineLevel
    backend: str
    device: str

    def to_bytes(self) -> bytes:
        """Return the wire form: at most 1 KiB, always the same for the same timeline."""
        backend, device = self.backend.encode("ascii"), self.device.encode("ascii")
        body = _BODY.pack(self.identity, len(backend), len(device))
        body = b"".join((body, backend, device, self.memory.to_bytes()))
        fields = _MAGIC, _VERSION, TIMELINE_LEVELS.index(self.level), _HEADER.size + len(body)
        checksum = crc32(body, crc32(_HEADER.pack(*fields, 0)))
        return _HEADER.pack(*fields, checksum) + body

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "TimelineHandle":
        """Read the wire form of an untrusted handle.

        Raises
        ------
        InvalidHandleError
            The bytes are not a timeline's handle of a version that this crossmem reads.
        """
        if not isinstance(blob, bytes | bytearray | memoryview):
            msg = f"a timeline's handle must be bytes, not {type(blob).__name__}"
            raise InvalidHandleError(msg, operation="open_timeline")
        try:
            nbytes = memoryview(blob).nbytes
            blob = bytes(blob) if nbytes <= MAX_HANDLE_NBYTES else b""
        except ValueError as error:
            raise _refuse("their memoryview was released") from error
        if not _START < nbytes <= MAX_HANDLE_NBYTES:
            raise _refuse(f"{nbytes} bytes, expected {_START + 1} to {MAX_HANDLE_NBYTES}")
        magic, version, number, total, checksum = _HEADER.unpack_from(blob)
        if magic != _MAGIC:
            raise _refuse(f"they start with {magic!r}, not {_MAGIC!r}")
        if version != _VERSION:
            raise _refuse(f"format version {version}; this crossmem reads version {_VERSION}")
        head = _HEADER.pack(magic, version, number, total, 0)
        if total != len(blob) or crc32(blob[_HEADER.size :], crc32(head)) != checksum:
            raise _refuse("the checksum does not match; the bytes were damaged on the way")
        identity, backend_size, device_size = _BODY.unpack_from(blob, _HEADER.size)
        names, memory = blob[_START:][: backend_size + device_size], blob[_START:]
        backend = names[:backend_size].decode("ascii", "replace")
        device = names[backend_size:].decode("ascii", "replace")
        if number >= len(TIMELINE_LEVELS) or not identity:
            raise _refuse(f"level {number} and identity {identity}")
        if not (is_name(backend) and is_identity(device)):
            raise _refuse(f"{shorten(backend, 40)} and {shorten(device, 60)} name no device")
        words = ShareableHandle.from_bytes(memory[len(names) :])
        return cls(words, identity, TIMELINE_LEVELS[number], backend, device)

    def to_json(self) -> str:
        """Return the handle as JSON for people, without the secret of its memory."""
        # This import comes late, because only this method needs json.
        import json  # noqa: PLC0415

        return json.dumps(
            {
                "version": _VERSION,
                "level": self.level,
                "backend": self.backend,
                "device": self.device,
                "memory": json.loads(self.memory.to_json()),
            }
        )

    @override
    def __repr__(self) -> str:
        return (
            f"<TimelineHandle {self.memory.digest} of pid {self.memory.owner.pid}, "
            f"{self.backend} on {self.device}, level {self.level!r}>"
        )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.to_bytes(),)


def _restore(blob: bytes) -> TimelineHandle:
    # This is a function of the module, because cloudpickle would send the code of a method.
    return TimelineHandle.from_bytes(blob)


def _refuse(reason: str) -> InvalidHandleError:
    return InvalidHandleError(
        f"these bytes are not the handle of a timeline: {clause(reason)}",
        hint="pass the bytes of timeline.export().to_bytes() unchanged",
        operation="open_timeline",
    )
