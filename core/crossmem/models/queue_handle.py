# SPDX-License-Identifier: Apache-2.0
"""The serialisable name of a role in a queue."""

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from typing_extensions import override

from crossmem.models.envelope import Envelope
from crossmem.models.handle import ShareableHandle

__all__ = ["ROLES", "QueueHandle", "QueueRole"]

QueueRole: TypeAlias = Literal["produce", "consume"]
"""The role of a process in a queue."""
ROLES: Final[tuple[QueueRole, ...]] = get_args(QueueRole)

_ENVELOPE: Final = Envelope(b"XMQU", 1, "a queue", "queue.export(role=...)", "open_queue")


@dataclass(frozen=True, slots=True)
class QueueHandle:
    """An immutable name for a role in a queue, valid in any process of the queue's host.

    :meth:`crossmem.Queue.export` makes the handle. Send the bytes that :meth:`to_bytes` returns, or
    pickle the handle. A process that has the handle and passes the owner's access check can take
    the role, so treat the bytes as a credential.

    Attributes
    ----------
    role
        ``"produce"`` or ``"consume"``.
    directory
        The handle of the queue's directory for this role. The directory is memory that contains
        the handles of the queue's segments.
    """

    role: QueueRole
    directory: ShareableHandle

    def to_bytes(self) -> bytes:
        """Return the wire form: at most 1 KiB, always the same for the same queue and role."""
        return _ENVELOPE.wrap(ROLES.index(self.role), self.directory.to_bytes())

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "QueueHandle":
        """Return the handle that the bytes encode. The bytes are untrusted.

        Raises
        ------
        InvalidHandleError
            The bytes are not a queue's handle, or have a version that this crossmem does not read.
        """
        number, body = _ENVELOPE.unwrap(blob)
        if number >= len(ROLES):
            raise _ENVELOPE.refusal(f"there is no role {number}")
        return cls(ROLES[number], ShareableHandle.from_bytes(body))

    @override
    def __repr__(self) -> str:
        owner = self.directory.owner.pid
        return f"<QueueHandle {self.directory.digest} of pid {owner}, role {self.role!r}>"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.to_bytes(),)


def _restore(blob: bytes) -> QueueHandle:
    # cloudpickle sends a function of a module by its name, but a class method as bytecode. Bytecode
    # depends on the Python version, so this function is not a class method.
    return QueueHandle.from_bytes(blob)
