# SPDX-License-Identifier: Apache-2.0
"""The message that describes a shared tree by its handles, arrays and containers.

The wire form is a header (magic, version, flags, length, checksum) and then JSON. No data is ever
unpickled. Every number is checked before its use, so the bytes may come from an untrusted process.
"""

import json
import struct
from binascii import crc32
from functools import lru_cache
from typing import Any, Final, NamedTuple

from crossmem.arrays import Kind, Layout, from_text
from crossmem.errors import CrossmemError, InvalidHandleError, InvalidSizeError
from crossmem.forks import MODULES
from crossmem.guards import clause
from crossmem.models import ShareableHandle, TimelineHandle
from crossmem.trees.counting import check_values
from crossmem.trees.nodes import to_base64

__all__ = ["MAX_MESSAGE_NBYTES", "Message", "Row"]

MAX_MESSAGE_NBYTES: Final = 16 * 2**20
"""The largest size of a message."""

_MAX_KEPT_NBYTES: Final = 2**20
_MAGIC: Final = b"XMTR"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sHHII")


class Row(NamedTuple):
    """The description of one array.

    Parameters
    ----------
    kind
        The array's library.
    handle
        Index, in the message's ``handles``, of the handle whose memory contains the array; None if
        the array has no elements.
    layout
        The array's layout in the memory of the handle.
    """

    kind: Kind
    handle: int | None
    layout: Layout


class Message(NamedTuple):
    """The description of a shared tree, which one process sends to another.

    Parameters
    ----------
    handles
        A handle for each allocation, or part of an allocation, that contains arrays of the tree.
    rows
        The arrays.
    tree
        Containers and plain values in the JSON form that :mod:`crossmem.trees.nodes` describes.
        In this form, the index of an array's row takes the place of the array.
    timeline
        The timeline whose value is the tree's version; None if the tree has no version.
    """

    handles: tuple[ShareableHandle, ...]
    rows: tuple[Row, ...]
    tree: Any
    timeline: TimelineHandle | None

    def to_bytes(self) -> bytes:
        """Return the wire form.

        Raises
        ------
        InvalidSizeError
            The wire form would be larger than allowed.
        """
        body = json.dumps(
            {
                "handles": [to_base64(one.to_bytes()) for one in self.handles],
                "arrays": [_pack(row) for row in self.rows],
                "tree": self.tree,
                "timeline": self.timeline and to_base64(self.timeline.to_bytes()),
            },
            separators=(",", ":"),
            allow_nan=False,
        ).encode()
        total = _HEADER.size + len(body)
        if total > MAX_MESSAGE_NBYTES:
            msg = f"the description of the tree has {total} bytes; {MAX_MESSAGE_NBYTES} are allowed"
            raise InvalidSizeError(msg, operation="share", hint="share the tree in several parts")
        return _HEADER.pack(_MAGIC, _VERSION, 0, total, crc32(body)) + body

    @staticmethod
    def from_bytes(blob: bytes | bytearray | memoryview) -> "Message":
        """Return the message whose wire form is ``blob``.

        Raises
        ------
        InvalidHandleError
            The bytes are not a message, or have a version that this crossmem does not read.
        """
        if not isinstance(blob, bytes | bytearray | memoryview):
            msg = f"expected the bytes of a shared tree, not {type(blob).__name__}"
            raise InvalidHandleError(msg, operation="receive")
        try:
            nbytes = memoryview(blob).nbytes
        except ValueError as error:
            raise _refuse(str(error)) from error
        if nbytes > MAX_MESSAGE_NBYTES:
            raise _refuse(f"more than {MAX_MESSAGE_NBYTES} bytes")
        blob = bytes(blob)
        return _decode_again(blob) if len(blob) <= _MAX_KEPT_NBYTES else _decode(blob)


def _pack(row: Row) -> tuple[Any, ...]:
    layout = row.layout
    strides = None if layout.is_contiguous else layout.strides
    return (row.kind, row.handle, layout.dtype.name, layout.shape, strides, layout.offset)


# An update of a tree changes the arrays, but not the message. So a reader may decode the same
# message many times. The cache saves this work.
@lru_cache(maxsize=16)
def _decode_again(blob: bytes) -> Message:
    return _decode(blob)


def _decode(blob: bytes) -> Message:
    if len(blob) < _HEADER.size:
        raise _refuse(f"{len(blob)} bytes are shorter than the header")
    magic, version, flags, total, checksum = _HEADER.unpack_from(blob)
    if magic != _MAGIC:
        raise _refuse(f"they start with {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise _refuse(f"format version {version}; this crossmem reads version {_VERSION}")
    if total != len(blob):
        raise _refuse(f"the header names {total} bytes, and there are {len(blob)}")
    if flags:
        raise _refuse(f"the flags {flags:#x} are unknown")
    text = blob[_HEADER.size :]
    if crc32(text) != checksum:
        raise _refuse("the checksum does not match; the bytes were damaged on the way")
    # Only readers of trees need pydantic. Its import takes longer than the import of crossmem.
    with MODULES:
        from crossmem.trees.body import read_body  # noqa: PLC0415

    try:
        # This check refuses a text with too many brackets before the parser runs. For such a text,
        # the parser needs up to 85 times as much memory as the text.
        check_values(text)
        body = read_body(text)
    except ValueError as error:
        raise _refuse(str(error)) from None
    handles = tuple(ShareableHandle.from_bytes(one) for one in body.handles)
    try:
        rows = tuple(_unpack(row, handles) for row in body.arrays)
    except CrossmemError as error:
        raise _refuse(error.message) from error
    timeline = None if body.timeline is None else TimelineHandle.from_bytes(body.timeline)
    return Message(handles, rows, body.tree, timeline)


def _unpack(row: tuple[Any, ...], handles: tuple[ShareableHandle, ...]) -> Row:
    kind, handle, text, shape, strides, offset = row
    layout = Layout(from_text(text), shape, strides, offset)
    if handle is None:
        if layout.extent is not None:
            raise _refuse("an array with elements has no memory")
    elif handle >= len(handles):
        raise _refuse(f"an array names handle {handle}, but there are {len(handles)} handles")
    else:
        layout.check(handles[handle].length)
    return Row(kind, handle, layout)


def _refuse(reason: str) -> InvalidHandleError:
    return InvalidHandleError(
        f"these bytes are not a shared tree: {clause(reason)}",
        hint="pass the bytes of shared.to_bytes() unchanged",
        operation="receive",
    )
