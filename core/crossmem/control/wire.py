# SPDX-License-Identifier: Apache-2.0
"""The messages between an importer and a lease server, and how both prove the secret.

One ``SOCK_SEQPACKET`` packet is one message: a header of type, flags and request id, then a body.
Requests and replies that do not fit into one message continue in further ones, all with the same
request id, until one has the flag LAST. Nothing is ever unpickled; every length is bounded.

====== ================ =======================================================================
type   direction        body
====== ================ =======================================================================
HELLO  server to client protocol version, nonce of the connection
IMPORT client to server nonce, identity of the peer, then one record for each export asked for
RESERVE client to server as IMPORT: reservations of a message, without the memory itself
REPLY  server to client one record for each export asked for; descriptors travel alongside
RELEASE client to server lease ids
CANCEL client to server empty: whatever this request id was granted is released
====== ================ =======================================================================
"""

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum
from hmac import compare_digest
from itertools import starmap
from typing import Final, NamedTuple

__all__ = [
    "HEADER",
    "LAST",
    "MAX_DESCRIPTORS",
    "MAX_MESSAGE_NBYTES",
    "MAX_REQUEST_NBYTES",
    "NONCE_NBYTES",
    "PROTOCOL_VERSION",
    "Grant",
    "MessageType",
    "ProtocolError",
    "Refusal",
    "Request",
    "Status",
    "Wanted",
    "pack_grant",
    "pack_hello",
    "pack_ids",
    "pack_refusals",
    "pack_request",
    "pack_reservation",
    "pages",
    "proof_context",
    "prove",
    "unpack_hello",
    "unpack_ids",
    "unpack_replies",
    "unpack_request",
    "verify",
]

PROTOCOL_VERSION: Final = 3
MAX_MESSAGE_NBYTES: Final = 60_000
MAX_REQUEST_NBYTES: Final = 2 * 2**20
MAX_REPLY_NBYTES: Final = 64 * 2**20
MAX_DESCRIPTORS: Final = 253
"""Descriptors in one message: SCM_MAX_FD of the kernel."""
NONCE_NBYTES: Final = 16
PROOF_NBYTES: Final = 16

HEADER: Final = struct.Struct("<BBHQ")
LAST: Final = 1

_HELLO: Final = struct.Struct("<H16s")
_REQUEST: Final = struct.Struct("<16sQQI")
_WANTED: Final = struct.Struct("<QI16sQ")
_REPLY: Final = struct.Struct("<BH")
_GRANT: Final = struct.Struct("<QQQHI")
_PAYLOAD: Final = struct.Struct("<I")


class ProtocolError(Exception):
    """The other side sent what no peer of ours sends."""


class MessageType(IntEnum):
    """First byte of every message."""

    HELLO = 1
    IMPORT = 2
    REPLY = 3
    RELEASE = 4
    CANCEL = 5
    RESERVE = 6


class Status(IntEnum):
    """How the server answered for one export."""

    GRANTED = 0
    STALE = 1
    UNKNOWN = 2
    DENIED = 3
    EXITING = 4
    FAILED = 5
    FULL = 6
    """The sender has as many messages under way as it may; later there may be room."""
    TOO_MANY = 7
    """One message asks for more than a sender may ever reserve."""


_GRANTED: Final = _REPLY.pack(Status.GRANTED, 0)


class Wanted(NamedTuple):
    """One export that an importer asks for, with its proof that it knows the secret.

    ``reservation`` is the number that came with the handle in a message, 0 without one.
    """

    allocation: int
    export: int
    proof: bytes
    reservation: int = 0


class Request(NamedTuple):
    """One request for any number of exports of one backend."""

    nonce: bytes
    reported: int
    start_time: int
    wanted: Sequence[Wanted]


class Grant(NamedTuple):
    """A lease, with the true sizes and all that the importer's driver needs.

    ``record`` and ``proof`` are what was received, for the importer to verify.
    """

    lease: int
    nbytes: int
    capacity: int
    descriptor_count: int
    payloads: tuple[bytes, ...]
    record: bytes = b""
    proof: bytes = b""


class Refusal(NamedTuple):
    """Why there is no lease."""

    status: Status
    reason: str


def prove(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """Return a message authentication code that only a holder of the secret can make.

    Keyed BLAKE2b is a MAC by design (RFC 7693) and takes less time than HMAC. The role
    keeps a request's proof from being played back as a reply's.
    """
    message = b"".join(parts)
    return hashlib.blake2b(message, key=secret, digest_size=PROOF_NBYTES, person=role).digest()


def verify(proof: bytes, secret: bytes, role: bytes, *parts: bytes) -> bool:
    """Whether a proof is right, in time that does not depend on the proof."""
    return compare_digest(proof, prove(secret, role, *parts))


def proof_context(server_nonce: bytes, nonce: bytes, request: int) -> bytes:
    """Return what every proof of one request covers: this connection and this request."""
    return b"".join((server_nonce, nonce, request.to_bytes(8, "little")))


def pages(kind: MessageType, request: int, body: bytes) -> list[bytes]:
    """Cut a body into messages."""
    room = MAX_MESSAGE_NBYTES - HEADER.size
    made: list[bytes] = []
    for start in range(0, max(1, len(body)), room):
        last = LAST if start + room >= len(body) else 0
        made.append(HEADER.pack(kind, last, 0, request) + body[start : start + room])
    return made


def pack_hello(nonce: bytes) -> bytes:
    """Make the server's first message."""
    hello = _HELLO.pack(PROTOCOL_VERSION, nonce)
    return HEADER.pack(MessageType.HELLO, LAST, 0, 0) + hello


def unpack_hello(message: bytes) -> tuple[int, bytes]:
    """Return protocol version and nonce of a server's first message."""
    if len(message) != HEADER.size + _HELLO.size or message[0] != MessageType.HELLO:
        msg = "the first message is no HELLO"
        raise ProtocolError(msg)
    version, nonce = _HELLO.unpack_from(message, HEADER.size)
    return version, nonce


def pack_request(request: Request) -> bytes:
    """Make the body of an IMPORT or HOLD."""
    head = _REQUEST.pack(request.nonce, request.reported, request.start_time, len(request.wanted))
    return b"".join((head, *starmap(_WANTED.pack, request.wanted)))


def unpack_request(body: bytes) -> Request:
    """Read the body of an IMPORT or HOLD."""
    if len(body) < _REQUEST.size:
        msg = "a request is too short"
        raise ProtocolError(msg)
    nonce, reported, start_time, count = _REQUEST.unpack_from(body)
    records = memoryview(body)[_REQUEST.size :]
    if count == 0 or len(records) != count * _WANTED.size:
        msg = f"a request for {count} exports has {len(records)} bytes of records"
        raise ProtocolError(msg)
    wanted = tuple(Wanted(*fields) for fields in _WANTED.iter_unpack(records))
    return Request(nonce, reported, start_time, wanted)


def pack_grant(grant: Grant, secret: bytes, context: bytes) -> bytes:
    """Make one record of a REPLY, with the proof that its maker knows the secret."""
    head = _GRANT.pack(
        grant.lease, grant.nbytes, grant.capacity, grant.descriptor_count, len(grant.payloads)
    )
    payloads = [_PAYLOAD.pack(len(one)) + one for one in grant.payloads]
    record = b"".join((head, *payloads))
    proof = prove(secret, b"grant", context, record)
    return b"".join((_GRANTED, record, proof))


def pack_refusals(refusal: Refusal, count: int = 1) -> bytes:
    """Make records of a REPLY that grant nothing. The first says why, for all of them."""
    reason = refusal.reason.encode()[:1000]
    others = _REPLY.pack(refusal.status, 0) * (count - 1)
    return b"".join((_REPLY.pack(refusal.status, len(reason)), reason, others))


def unpack_replies(body: bytes) -> list[Grant | Refusal]:
    """Read the body of a REPLY."""
    replies: list[Grant | Refusal] = []
    at = 0
    try:
        while at < len(body):
            status, length = _REPLY.unpack_from(body, at)
            at += _REPLY.size
            if status != Status.GRANTED:
                reason = body[at : at + length].decode(errors="replace")
                replies.append(Refusal(Status(status), reason))
                at += length
                continue
            start = at
            lease, nbytes, capacity, descriptors, count = _GRANT.unpack_from(body, at)
            at += _GRANT.size
            payloads = []
            for _ in range(count):
                (size,) = _PAYLOAD.unpack_from(body, at)
                at += _PAYLOAD.size
                payloads.append(body[at : at + size])
                at += size
            record, proof = body[start:at], body[at : at + PROOF_NBYTES]
            at += PROOF_NBYTES
            replies.append(
                Grant(lease, nbytes, capacity, descriptors, tuple(payloads), record, proof)
            )
    except (struct.error, ValueError) as error:
        msg = f"a reply cannot be read: {error}"
        raise ProtocolError(msg) from error
    if at != len(body):
        msg = "a reply ends in the middle of a record"
        raise ProtocolError(msg)
    return replies


def pack_reservation(number: int) -> bytes:
    """Return the number of a reservation as proofs cover it."""
    return number.to_bytes(8, "little")


def pack_ids(kind: MessageType, request: int, ids: Sequence[int]) -> bytes:
    """Make a RELEASE or CANCEL."""
    return HEADER.pack(kind, LAST, 0, request) + struct.pack(f"<{len(ids)}Q", *ids)


def unpack_ids(body: bytes) -> tuple[int, ...]:
    """Read the lease ids of a RELEASE."""
    if len(body) % 8:
        msg = "a release is cut off in the middle of a lease id"
        raise ProtocolError(msg)
    return struct.unpack(f"<{len(body) // 8}Q", body)
