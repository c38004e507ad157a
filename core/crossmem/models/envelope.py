# SPDX-License-Identifier: Apache-2.0
"""The header of the wire forms of queue and timeline handles."""

import struct
from binascii import crc32
from typing import Final, NamedTuple

from crossmem.errors import InvalidHandleError
from crossmem.guards import clause
from crossmem.models.handle import MAX_HANDLE_NBYTES

__all__ = ["Envelope"]

# magic, version, the caller's number, total length, crc32 of everything else
_HEADER: Final = struct.Struct("<4sHHII")


class Envelope(NamedTuple):
    """The header of one kind of wire form.

    Parameters
    ----------
    magic
        The first four bytes.
    version
        The only version that this crossmem reads.
    what
        The object that the handle names, such as ``"a queue"``. Error messages contain this text.
    made_by
        The call that returns the handle, such as ``"timeline.export()"``. Hints contain this text.
    operation
        The operation that reads the handle. Errors name this operation.
    """

    magic: bytes
    version: int
    what: str
    made_by: str
    operation: str

    def wrap(self, number: int, body: bytes) -> bytes:
        """Return the wire form: the header and then the body.

        The header contains ``number``, which has at most 16 bits.
        """
        fields = self.magic, self.version, number, _HEADER.size + len(body)
        return _HEADER.pack(*fields, _checksum(fields, body)) + body

    def unwrap(self, blob: bytes | bytearray | memoryview) -> tuple[int, bytes]:
        """Return the number and the body of an untrusted wire form.

        Raises
        ------
        InvalidHandleError
            One of these conditions is true:

            - ``blob`` is not a bytes-like object.
            - ``blob`` has more than 1 KiB.
            - ``blob`` is damaged.
            - ``blob`` has another magic or another version than this envelope.
        """
        if not isinstance(blob, bytes | bytearray | memoryview):
            msg = f"the handle of {self.what} must be bytes, not {type(blob).__name__}"
            raise InvalidHandleError(msg, hint=self._hint, operation=self.operation)
        try:
            nbytes = memoryview(blob).nbytes
            blob = bytes(blob) if nbytes <= MAX_HANDLE_NBYTES else b""
        except ValueError as error:
            raise self.refusal("their memoryview was released") from error
        if not _HEADER.size < len(blob):
            expected = f"{_HEADER.size + 1} to {MAX_HANDLE_NBYTES}"
            raise self.refusal(f"{nbytes} bytes, expected {expected}")
        *fields, checksum = _HEADER.unpack_from(blob)
        magic, version, number, length = fields
        if magic != self.magic:
            raise self.refusal(f"they start with {magic!r}, not {self.magic!r}")
        if version != self.version:
            raise self.refusal(
                f"format version {version}; this crossmem reads version {self.version}"
            )
        body = blob[_HEADER.size :]
        if length != nbytes or checksum != _checksum((magic, version, number, length), body):
            raise self.refusal("the checksum does not match; the bytes were damaged on the way")
        return number, body

    def refusal(self, reason: str) -> InvalidHandleError:
        """Return the error for bytes that are not a handle of this kind."""
        return InvalidHandleError(
            f"these bytes are not the handle of {self.what}: {clause(reason)}",
            hint=self._hint,
            operation=self.operation,
        )

    @property
    def _hint(self) -> str:
        return f"pass the bytes of {self.made_by}.to_bytes() unchanged"


def _checksum(fields: tuple[bytes, int, int, int], body: bytes) -> int:
    return crc32(body, crc32(_HEADER.pack(*fields, 0)))
