# SPDX-License-Identifier: Apache-2.0
"""The messages of an importer and a lease server, and the proofs that both know a handle's secret.

One ``SOCK_SEQPACKET`` packet is one message: a header of type, flags, mode (only in HELLO) and
request id, then a body. A request always fits into one message. A long reply continues in further
messages with the same request id, until a message has the flag LAST. No data is ever unpickled, and
every length is bounded.

An application message is none of these messages: it carries handles from one program to another. A
reservation keeps the memory of a handle until the application message is received.

======= ================ =====================================================================
type    direction        body
======= ================ =====================================================================
HELLO   server to client protocol version, nonce of the connection
IMPORT  client to server fields of Request, then one record for each requested export
RESERVE client to server the same body as IMPORT; asks for reservations instead of the memory
REPLY   server to client one record for each requested export; descriptors travel alongside
END     client to server numbers of reservations that end
HINT    client to server slots whose hold has ended, if the exporter waits for the end
======= ================ =====================================================================
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from hmac import compare_digest
from itertools import starmap
from typing import Final, NamedTuple

from crossmem.guards import clause

__all__ = [
    "HEADER",
    "LAST",
    "MAX_DESCRIPTORS",
    "MAX_GRANT_DESCRIPTORS",
    "MAX_GRANT_NBYTES",
    "MAX_MESSAGE_NBYTES",
    "MAX_PAYLOADS",
    "MAX_PAYLOAD_NBYTES",
    "MAX_WANTED",
    "NONCE_NBYTES",
    "PROTOCOL_VERSION",
    "Grant",
    "Hello",
    "MessageType",
    "ProtocolError",
    "Refusal",
    "Request",
    "Status",
    "Wanted",
    "max_pages",
    "pack_grant",
    "pack_hello",
    "pack_ids",
    "pack_refusals",
    "pack_request",
    "pack_terms",
    "pages",
    "proof_context",
    "prove",
    "unpack_hello",
    "unpack_ids",
    "unpack_replies",
    "unpack_request",
    "verify",
]

PROTOCOL_VERSION: Final = 4
MAX_MESSAGE_NBYTES: Final = 60_000
MAX_WANTED: Final = 1024
"""Maximum number of exports in one request."""
MAX_GRANT_NBYTES: Final = 64 * 2**10
"""Maximum number of bytes of one record of a reply."""
MAX_PAYLOAD_NBYTES: Final = MAX_GRANT_NBYTES - 128
"""Maximum number of bytes of payloads in a record, including the length field of each payload."""
MAX_PAYLOADS: Final = 1024
"""Maximum number of payloads of one export."""
MAX_GRANT_DESCRIPTORS: Final = 16
"""Maximum number of descriptors of one export, not counting the control segment and the row."""
MAX_DESCRIPTORS: Final = 253
"""Maximum number of descriptors in one message: SCM_MAX_FD of the kernel."""
NONCE_NBYTES: Final = 16
PROOF_NBYTES: Final = 16

HEADER: Final = struct.Struct("<BBHQ")
LAST: Final = 1

_MAX_REASON: Final = 300
"""Maximum number of characters of a peer's reason in an error."""

_HELLO: Final = struct.Struct("<H16s")
_REQUEST: Final = struct.Struct("<16sQQQQII")
_WANTED: Final = struct.Struct("<QI16sQQ")
_REPLY: Final = struct.Struct("<BH")
_GRANT: Final = struct.Struct("<QQ?QQHI")
_PAYLOAD: Final = struct.Struct("<I")


class ProtocolError(Exception):
    """The peer sent a message that breaks the protocol.

    The server logs the error as "it sent ...". So the text of an error that only the server raises
    is a noun, such as "a message of 3 bytes".
    """


class MessageType(IntEnum):
    """The type of a message: its first byte."""

    HELLO = 1
    IMPORT = 2
    REPLY = 3
    END = 4
    HINT = 5
    RESERVE = 6


class Status(IntEnum):
    """The server's answer for one export."""

    GRANTED = 0
    STALE = 1
    UNKNOWN = 2
    DENIED = 3
    EXITING = 4
    FAILED = 5
    FULL = 6
    """The importer's application messages would reserve more exports than the limit allows. The
    request may succeed when earlier reservations have ended."""
    TOO_MANY = 7
    """One application message needs more reservations than the limit ever allows."""
    WITHDRAWN = 8
    NO_ROW = 9
    """The importer has as many rows as one process may have."""
    UNWATCHED = 10
    """The export belongs to a pool, and the exporter has no pidfd of the importer. Without a pidfd,
    the kernel does not report the importer's death."""
    TAKEN = 11
    """The export is exclusive, and a process holds it already."""


_GRANTED: Final = _REPLY.pack(Status.GRANTED, 0)


class Hello(NamedTuple):
    """The server's first message. ``mode`` says how the server orders accesses to shared words."""

    version: int
    nonce: bytes
    mode: int


class Wanted(NamedTuple):
    """One requested export, with the proof that the importer knows the secret.

    In an IMPORT, ``reservation`` is the number of the reservation that came with the handle in an
    application message, or 0 if none came. In a RESERVE, it is the number of the new reservation.
    ``generation`` is the generation of a pool's block, 0 for other exports.
    """

    allocation: int
    export: int
    proof: bytes
    reservation: int = 0
    generation: int = 0


class Request(NamedTuple):
    """One request for 1 to ``MAX_WANTED`` exports of one backend.

    ``reported`` is the number by which the vendor's whitelist names the importer. ``session``
    distinguishes the programs that a process executes one after the other. ``known`` has a bit for
    each control segment for which the importer has a row. If an importer needs several requests for
    its exports, ``following`` is the number of exports in the later requests.
    """

    nonce: bytes
    reported: int
    start_time: int
    session: int
    known: int
    wanted: Sequence[Wanted]
    following: int = 0


class Grant(NamedTuple):
    """A grant, with the sizes that the exporter reports, and the data for the importer's driver.

    The importer holds nothing until it has written ``generation`` into the word of ``slot`` in its
    row. If ``has_row`` is true, the grant's first two descriptors are the control segment and a
    row. ``descriptor_count`` does not count these two. ``record`` contains the received bytes that
    ``proof`` covers; the importer verifies the proof.
    """

    slot: int
    generation: int
    has_row: bool
    nbytes: int
    capacity: int
    descriptor_count: int
    payloads: tuple[bytes, ...]
    record: bytes = b""
    proof: bytes = b""


class Refusal(NamedTuple):
    """The refusal of a lease or of a reservation."""

    status: Status
    reason: str


def prove(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """Return a message authentication code, which nobody can make without the secret.

    Keyed BLAKE2b is a MAC by design (RFC 7693) and faster than HMAC. Because of the role, the proof
    of a request is not valid for a reply.
    """
    message = b"".join(parts)
    return hashlib.blake2b(message, key=secret, digest_size=PROOF_NBYTES, person=role).digest()


def verify(proof: bytes, secret: bytes, role: bytes, *parts: bytes) -> bool:
    """Return whether a proof is valid. The comparison takes constant time."""
    return compare_digest(proof, prove(secret, role, *parts))


def proof_context(server_nonce: bytes, nonce: bytes, request: int) -> bytes:
    """Return the context that every proof of one request covers: the connection and the request."""
    return b"".join((server_nonce, nonce, request.to_bytes(8, "little")))


def pages(kind: MessageType, request: int, body: bytes) -> list[bytes]:
    """Return the messages that carry a body."""
    room = MAX_MESSAGE_NBYTES - HEADER.size
    made: list[bytes] = []
    for start in range(0, max(1, len(body)), room):
        last = LAST if start + room >= len(body) else 0
        made.append(HEADER.pack(kind, last, 0, request) + body[start : start + room])
    return made


def max_pages(asked: int) -> int:
    """Return the maximum number of messages in a reply. ``asked`` is the number of exports."""
    nbytes, descriptors = asked * MAX_GRANT_NBYTES, asked * (MAX_GRANT_DESCRIPTORS + 2)
    room = MAX_MESSAGE_NBYTES - HEADER.size
    return 2 + nbytes // room + descriptors // MAX_DESCRIPTORS


def pack_hello(nonce: bytes, mode: int = 0) -> bytes:
    """Make the server's first message."""
    hello = _HELLO.pack(PROTOCOL_VERSION, nonce)
    return HEADER.pack(MessageType.HELLO, LAST, mode, 0) + hello


def unpack_hello(message: bytes) -> Hello:
    """Read a server's first message."""
    if len(message) != HEADER.size + _HELLO.size or message[0] != MessageType.HELLO:
        msg = "the first message is not HELLO"
        raise ProtocolError(msg)
    version, nonce = _HELLO.unpack_from(message, HEADER.size)
    return Hello(version, nonce, HEADER.unpack_from(message)[2])


def pack_request(request: Request) -> bytes:
    """Make the body of an IMPORT or RESERVE."""
    *head, wanted, following = request
    packed = _REQUEST.pack(*head, following, len(wanted))
    return b"".join((packed, *starmap(_WANTED.pack, wanted)))


def unpack_request(body: bytes) -> Request:
    """Read the body of an IMPORT or RESERVE."""
    if len(body) < _REQUEST.size:
        msg = "a request that is too short"
        raise ProtocolError(msg)
    nonce, reported, start_time, session, known, following, count = _REQUEST.unpack_from(body)
    records = memoryview(body)[_REQUEST.size :]
    if not 0 < count <= MAX_WANTED or len(records) != count * _WANTED.size:
        msg = f"a request for {count} exports with {len(records)} bytes of records"
        raise ProtocolError(msg)
    wanted = tuple(Wanted(*fields) for fields in _WANTED.iter_unpack(records))
    return Request(nonce, reported, start_time, session, known, wanted, following)


def pack_grant(grant: Grant, secret: bytes, context: bytes) -> bytes:
    """Make one record of a REPLY, with the proof that the server knows the secret."""
    head = _GRANT.pack(*grant[:6], len(grant.payloads))
    payloads = [_PAYLOAD.pack(len(one)) + one for one in grant.payloads]
    record = b"".join((head, *payloads))
    proof = prove(secret, b"grant", context, record)
    return b"".join((_GRANTED, record, proof))


def pack_refusals(refusal: Refusal, count: int = 1) -> bytes:
    """Make ``count`` REPLY records that refuse exports. Only the first contains the reason."""
    reason = refusal.reason.encode(errors="backslashreplace")[:1000]
    others = _REPLY.pack(refusal.status, 0) * (count - 1)
    return b"".join((_REPLY.pack(refusal.status, len(reason)), reason, others))


def unpack_replies(body: bytes, count: int = 1) -> Iterator[Grant | Refusal]:
    """Lazily yield the records of a REPLY to a request for ``count`` exports."""
    at = 0
    try:
        for _ in range(count):
            status, length = _REPLY.unpack_from(body, at)
            at += _REPLY.size
            if status != Status.GRANTED:
                reason = body[at : at + length].decode(errors="replace")
                at += length
                yield Refusal(Status(status), _printable(reason))
                continue
            start = at
            slot, generation, has_row, nbytes, capacity, fds, parts = _GRANT.unpack_from(body, at)
            at += _GRANT.size
            if parts > MAX_PAYLOADS:
                msg = f"a grant has {parts} payloads"
                raise ValueError(msg)
            payloads = []
            for _ in range(parts):
                (size,) = _PAYLOAD.unpack_from(body, at)
                at += _PAYLOAD.size
                payloads.append(body[at : at + size])
                at += size
            record, proof = body[start:at], body[at : at + PROOF_NBYTES]
            at += PROOF_NBYTES
            sizes = nbytes, capacity, fds
            yield Grant(slot, generation, has_row, *sizes, tuple(payloads), record, proof)
    except (struct.error, ValueError) as error:
        msg = f"a reply cannot be read: {error}"
        raise ProtocolError(msg) from error
    if at != len(body):
        msg = f"a reply of {len(body)} bytes has {at} bytes of records for {count} exports"
        raise ProtocolError(msg)


def _printable(reason: str) -> str:
    """Return a peer's text as one short line without terminal control characters."""
    return clause(repr(reason)[1:-1], _MAX_REASON)


pack_terms = struct.Struct("<QIQ").pack
"""Pack the reservation's number, the export's number and the generation. Proofs cover all three."""


def pack_ids(kind: MessageType, ids: Sequence[int]) -> bytes:
    """Make an END or HINT."""
    return HEADER.pack(kind, LAST, 0, 0) + struct.pack(f"<{len(ids)}Q", *ids)


def unpack_ids(body: bytes) -> tuple[int, ...]:
    """Read the numbers of an END or HINT."""
    if len(body) % 8:
        msg = "a message that is cut off in the middle of a number"
        raise ProtocolError(msg)
    return struct.unpack(f"<{len(body) // 8}Q", body)
