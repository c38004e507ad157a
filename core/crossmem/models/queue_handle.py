# SPDX-License-Identifier: Apache-2.0
"""The serialisable name of a role in a queue."""

import struct
from binascii import crc32
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from typing_extensions import override

from crossmem.errors import InvalidHandleError
from crossmem.guards import clause
from crossmem.models.handle import MAX_HANDLE_NBYTES, ShareableHandle

__all__ = ["ROLES", "QueueHandle", "QueueRole"]

QueueRole: TypeAlias = Literal["produce", "consume"]
"""What a process does with a queue."""
ROLES: Final[tuple[QueueRole, ...]] = get_args(QueueRole)

_MAGIC: Final = b"XMQU"
_VERSION: Final = 1
# magic, version, number of the role, total length, crc32 of everything else
_HEADER: Final = struct.Struct("<4sHHII")


@dataclass(frozen=True, slots=True)
class QueueHandle:
    """An immutable name for a role in a queue, valid in any process of the same host.

    Made by :meth:`crossmem.Queue.export`; sent as :meth:`to_bytes` or by pickling. A process that
    has the handle and passes the owner's access check can take the role, so treat the bytes as a
    credential.

    Attributes
    ----------
    role
        ``"produce"`` or ``"consume"``.
    directory
        The handle of the memory that names the segments of the queue.
    """

    role: QueueRole
    directory: ShareableHandle

    def to_bytes(self) -> bytes:
        """Return the wire form: at most 1 KiB, always the same for the same role."""
        body = self.directory.to_bytes()
        fields = _MAGIC, _VERSION, ROLES.index(self.role), _HEADER.size + len(body)
        return _HEADER.pack(*fields, crc32(body, crc32(_HEADER.pack(*fields, 0)))) + body

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "QueueHandle":
        """Read the wire form of an untrusted handle.

        Raises
        ------
        InvalidHandleError
            The bytes are not a queue's handle of a version that this crossmem reads.
        """
        if not isinstance(blob, bytes | bytearray | memoryview):
            raise _refuse(f"a {type(blob).__name__}")
        try:
            nbytes = memoryview(blob).nbytes
            blob = bytes(blob) if nbytes <= MAX_HANDLE_NBYTES else b""
        except ValueError as error:
            raise _refuse("their memoryview was released") from error
        if not _HEADER.size < len(blob):
            raise _refuse(f"{nbytes} bytes, expected {_HEADER.size + 1} to {MAX_HANDLE_NBYTES}")
        *fields, checksum = _HEADER.unpack_from(blob)
        if fields[0] != _MAGIC or fields[1] != _VERSION or fields[2] >= len(ROLES):
            raise _refuse(f"they start with {fields[:3]}")
        if fields[3] != nbytes or checksum != crc32(
            blob[_HEADER.size :], crc32(_HEADER.pack(*fields, 0))
        ):
            raise _refuse("the checksum does not match; the bytes were damaged on the way")
        return cls(ROLES[fields[2]], ShareableHandle.from_bytes(blob[_HEADER.size :]))

    @override
    def __repr__(self) -> str:
        owner = self.directory.owner.pid
        return f"<QueueHandle {self.directory.digest} of pid {owner}, role {self.role!r}>"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.to_bytes(),)


def _restore(blob: bytes) -> QueueHandle:
    # This is a function of the module, because cloudpickle would send the code of a method.
    return QueueHandle.from_bytes(blob)


def _refuse(reason: str) -> InvalidHandleError:
    return InvalidHandleError(
        f"these bytes are not the handle of a queue: {clause(reason)}",
        hint="pass the bytes of queue.export(role=...).to_bytes() unchanged",
        operation="open_queue",
    )
