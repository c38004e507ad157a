# SPDX-License-Identifier: Apache-2.0
"""The serialisable name of a timeline: its words in shared memory, its level and its device."""

import struct
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from crossmem.guards import is_identity, is_name, shorten
from crossmem.models.capabilities import TIMELINE_LEVELS, TimelineLevel
from crossmem.models.envelope import Envelope
from crossmem.models.handle import ShareableHandle

__all__ = ["TimelineHandle"]

_ENVELOPE: Final = Envelope(b"XMTL", 1, "a timeline", "timeline.export()", "open_timeline")
# identity of the timeline, lengths of the backend's name and of the device's identity
_BODY: Final = struct.Struct("<QBB")


@dataclass(frozen=True, slots=True)
class TimelineHandle:
    """An immutable name for a timeline, valid in any process of the same host.

    :meth:`crossmem.Timeline.export` returns the handle. To send it, send the result of
    :meth:`to_bytes`, or pickle the handle. A process that has the handle and passes the access
    check of the signalling process can wait for the timeline. Such a process can also disturb other
    waiters, so treat the bytes as a credential.

    Attributes
    ----------
    memory
        The handle of the timeline's words in host memory.
    identity
        A random number that only this timeline has.
    level
        ``"word"``, ``"event"`` or ``"host"``.
    backend, device
        The backend and the identity of the device whose streams signal the timeline.
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
        return _ENVELOPE.wrap(TIMELINE_LEVELS.index(self.level), body)

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "TimelineHandle":
        """Return the handle that the bytes encode. The bytes are untrusted.

        Raises
        ------
        InvalidHandleError
            The bytes are not a timeline's handle, or have a version that this crossmem does not
            read.
        """
        number, body = _ENVELOPE.unwrap(blob)
        if len(body) <= _BODY.size:
            raise _ENVELOPE.refusal(f"only {len(body)} bytes follow the header")
        identity, backend_size, device_size = _BODY.unpack_from(body)
        rest = body[_BODY.size :]
        names, memory = rest[: backend_size + device_size], rest[backend_size + device_size :]
        backend = names[:backend_size].decode("ascii", "replace")
        device = names[backend_size:].decode("ascii", "replace")
        if number >= len(TIMELINE_LEVELS) or not identity:
            raise _ENVELOPE.refusal(f"level {number} or identity {identity} is invalid")
        if not (is_name(backend) and is_identity(device)):
            named = f"{shorten(backend, 40)} and {shorten(device, 60)}"
            raise _ENVELOPE.refusal(f"{named} do not name a device")
        words = ShareableHandle.from_bytes(memory)
        return cls(words, identity, TIMELINE_LEVELS[number], backend, device)

    def to_json(self) -> str:
        """Return the handle as JSON for people, without the secret of its memory."""
        # This import comes late, because only this method needs json.
        import json  # noqa: PLC0415

        return json.dumps(
            {
                "version": _ENVELOPE.version,
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
    # cloudpickle sends a function of a module by its name, but a class method as bytecode. Bytecode
    # depends on the Python version, so the pickle names this function instead of from_bytes().
    return TimelineHandle.from_bytes(blob)
