# SPDX-License-Identifier: Apache-2.0
"""The handle of memory whose data is perhaps not complete yet.

It consists of an ordinary handle of the memory, a handle of a timeline, and a value. The memory is
ready when the timeline has reached the value.
"""

import struct
from binascii import crc32
from operator import attrgetter
from typing import Any, Final

from typing_extensions import override

from crossmem.models.handle import HEADER, MAGIC, VERSION, ShareableHandle, ready_readers
from crossmem.models.handle_core import FLAG_READONLY, FLAG_READY, refuse
from crossmem.models.timeline_handle import TimelineHandle

__all__ = ["ReadyHandle"]

# The value of the timeline, and the length of the memory's handle. The memory's handle and the
# timeline's handle follow.
_BODY: Final = struct.Struct("<QH")
_START: Final = HEADER.size + _BODY.size


def _of_base(name: str) -> Any:
    return property(attrgetter(f"base.{name}"))


class ReadyHandle(ShareableHandle):
    """A handle of memory whose data is complete when a timeline has reached a value.

    Attributes
    ----------
    base
        The handle of the memory.
    timeline, value
        The handle of the timeline, and the value that the timeline must reach.
    """

    __slots__ = ("base", "timeline", "value")

    base: ShareableHandle
    timeline: TimelineHandle
    value: int

    def __init__(self, base: ShareableHandle, timeline: TimelineHandle, value: int) -> None:
        """Combine the three attributes. ``base`` must not be a handle of this class."""
        _set_base(self, base)
        _set_timeline(self, timeline)
        _set_value(self, value)
        _set_bytes(self, None)

    _core = _of_base("_core")
    offset: int = _of_base("offset")
    length: int = _of_base("length")
    nbytes: int = _of_base("nbytes")
    capacity: int = _of_base("capacity")
    export: int = _of_base("export")
    generation: int = _of_base("generation")

    def __getattr__(self, name: str) -> Any:
        # ``base`` may be the handle of a block, which has further attributes.
        return getattr(self.base, name)

    @override
    def slice(self, offset: int, nbytes: int) -> "ReadyHandle":
        return ReadyHandle(self.base.slice(offset, nbytes), self.timeline, self.value)

    @override
    def to_bytes(self) -> bytes:
        blob = self._bytes
        if blob is None:
            base = self.base.to_bytes()
            body = _BODY.pack(self.value, len(base)) + base + self.timeline.to_bytes()
            flags = FLAG_READY | (FLAG_READONLY if self.access == "ro" else 0)
            fields = MAGIC, VERSION, flags, HEADER.size + len(body)
            checksum = crc32(body, crc32(HEADER.pack(*fields, 0)))
            blob = HEADER.pack(*fields, checksum) + body
            _set_bytes(self, blob)
        return blob

    @override
    def __repr__(self) -> str:
        return f"{self.base!r:.1000}"[:-1] + f", ready at value {self.value}>"


# A handle refuses assignments to its attributes. These functions set the attributes.
_set_bytes: Final = ShareableHandle.__dict__["_bytes"].__set__
_set_base: Final = ReadyHandle.__dict__["base"].__set__
_set_timeline: Final = ReadyHandle.__dict__["timeline"].__set__
_set_value: Final = ReadyHandle.__dict__["value"].__set__


def _decode(blob: bytes) -> ReadyHandle:
    """Decode an untrusted wire form."""
    if len(blob) < _START:
        raise refuse(f"{len(blob)} bytes, expected at least {_START}")
    *fields, checksum = HEADER.unpack_from(blob)
    if fields[3] != len(blob) or fields[2] & ~(FLAG_READY | FLAG_READONLY):
        raise refuse(
            f"the length in the header is not {len(blob)}, or the flags {fields[2]:#x} are invalid"
        )
    if crc32(blob[HEADER.size :], crc32(HEADER.pack(*fields, 0))) != checksum:
        raise refuse("the checksum does not match; the bytes were damaged on the way")
    value, size = _BODY.unpack_from(blob, HEADER.size)
    base = ShareableHandle.from_bytes(blob[_START : _START + size])
    if isinstance(base, ReadyHandle) or base.raw is not None or not 0 < value < 2**63 - 1:
        raise refuse(
            f"value {value} is invalid, or the handle of the memory is not an ordinary handle"
        )
    handle = ReadyHandle(base, TimelineHandle.from_bytes(blob[_START + size :]), value)
    _set_bytes(handle, blob)
    return handle


ready_readers.append(_decode)
