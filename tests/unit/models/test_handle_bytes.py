# SPDX-License-Identifier: Apache-2.0
"""Bytes that claim to be handles: what is accepted is exactly what is written."""

import pickle
import random
import struct
from binascii import crc32

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from crossmem import CrossmemError, InvalidHandleError, ShareableHandle
from crossmem.conformance.strategies import handles
from crossmem.models import MAX_HANDLE_NBYTES, ProcessIdentity

THIS = ProcessIdentity.of_this_process()

repeatable = examples(100)

# Where the fields of the wire form begin. It is a fixed format, so that these may be numbers.
VERSION, FLAGS, TOTAL, CHECKSUM, PART = 4, 6, 8, 12, 16
OWNER = 32
ALLOCATION = OWNER + 40
NBYTES, CAPACITY, LENGTHS = ALLOCATION + 28, ALLOCATION + 36, ALLOCATION + 44
NAMES = ALLOCATION + 49


def handle(**changes: object) -> ShareableHandle:
    fields: dict[str, object] = {
        "backend": "emulated",
        "mechanism": "memfd",
        "device": "host:0",
        "allocation": 7,
        "export": 0,
        "secret": bytes(range(16)),
        "owner": THIS,
        "nbytes": 1000,
        "capacity": 4096,
        "access": "rw",
    }
    return ShareableHandle(**{**fields, **changes})  # type: ignore[arg-type]


def resealed(blob: bytes | bytearray) -> bytes:
    """Return the bytes with a checksum that fits them, so that it is not what refuses them."""
    checked = bytearray(blob)
    checked[CHECKSUM : CHECKSUM + 4] = bytes(4)
    checked[CHECKSUM : CHECKSUM + 4] = struct.pack("<I", crc32(checked))
    return bytes(checked)


def overwritten(at: int, layout: str, *values: int | bytes) -> bytes:
    blob = bytearray(handle().to_bytes())
    struct.pack_into(layout, blob, at, *values)
    return resealed(blob)


def test_the_checksum_of_these_tests_is_the_right_one() -> None:
    assert resealed(handle().to_bytes()) == handle().to_bytes()


def test_the_layout_is_the_one_that_version_1_promises() -> None:
    blob = handle(raw=b"vendor", access="ro").slice(5, 6).to_bytes()

    assert blob[:4] == b"XMEM"
    assert struct.unpack_from("<HHI", blob, VERSION) == (1, 3, len(blob))
    assert struct.unpack_from("<QQ", blob, PART) == (5, 6)
    assert struct.unpack_from("<II", blob, OWNER) == (THIS.pid, THIS.uid)
    assert struct.unpack_from("<QI16s", blob, ALLOCATION) == (7, 0, bytes(range(16)))
    assert struct.unpack_from("<QQBBBH", blob, NBYTES) == (1000, 4096, 8, 5, 6, 6)
    assert blob[NAMES:] == b"emulatedmemfdhost:0vendor"


@given(st.binary(max_size=MAX_HANDLE_NBYTES + 8))
@repeatable
def test_rubbish_is_refused(blob: bytes) -> None:
    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(blob)


@given(handles(), st.data())
@repeatable
def test_every_flipped_bit_is_noticed(whole: ShareableHandle, data: st.DataObject) -> None:
    blob = bytearray(whole.to_bytes())
    bit = data.draw(st.integers(0, len(blob) * 8 - 1))
    blob[bit // 8] ^= 1 << bit % 8

    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(blob)


@given(handles(), st.data())
@repeatable
def test_what_is_accepted_is_what_would_be_written(
    whole: ShareableHandle, data: st.DataObject
) -> None:
    # With the checksum put right, changed fields may make another handle, but only a lawful one
    # of which there is this one spelling.
    blob = bytearray(whole.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at] = data.draw(st.integers(0, 255))
    changed = resealed(blob)
    try:
        accepted = ShareableHandle.from_bytes(changed)
    except InvalidHandleError:
        return

    assert accepted.to_bytes() == changed
    assert accepted.length > 0
    assert accepted.offset + accepted.length <= accepted.nbytes <= accepted.capacity


@pytest.mark.parametrize("length", [*range(0, 140, 7), 139])
def test_truncated_bytes_are_refused(length: int) -> None:
    cut = handle().to_bytes()[:length]

    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(cut)
    if length >= PART:
        with pytest.raises(InvalidHandleError):
            ShareableHandle.from_bytes(resealed(cut))


@pytest.mark.parametrize("more", [b"\0", b"x" * 100, b"x" * 2000])
def test_extended_bytes_are_refused(more: bytes) -> None:
    longer = bytearray(handle().to_bytes() + more)
    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(longer)

    struct.pack_into("<I", longer, TOTAL, len(longer))
    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(resealed(longer))


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        pytest.param(overwritten(0, "<4s", b"XMEN"), "start with b'XMEN'", id="magic"),
        pytest.param(
            overwritten(VERSION, "<H", 2),
            "format version 2; this crossmem reads version 1",
            id="version",
        ),
        pytest.param(overwritten(FLAGS, "<H", 16), "flags 0x10", id="flags"),
        pytest.param(overwritten(TOTAL, "<I", 139), "the length in the header is not", id="total"),
        pytest.param(overwritten(PART + 8, "<Q", 0), "part [0, 0) is empty", id="empty-part"),
        pytest.param(
            overwritten(PART, "<QQ", 1, 1000),
            "part [1, 1001) is empty or exceeds",
            id="part-too-long",
        ),
        pytest.param(
            overwritten(PART, "<QQ", 2**64 - 1, 2), "of 1000 bytes", id="part-wraps-around"
        ),
        pytest.param(overwritten(ALLOCATION, "<Q", 0), "", id="no-allocation"),
        pytest.param(overwritten(NBYTES, "<Q", 0), "", id="no-nbytes"),
        pytest.param(overwritten(NBYTES, "<Q", 5000), "", id="nbytes-over-capacity"),
        pytest.param(overwritten(CAPACITY, "<Q", 999), "", id="capacity-under-nbytes"),
        pytest.param(overwritten(LENGTHS, "<B", 9), "", id="lengths"),
        pytest.param(overwritten(LENGTHS, "<BBB", 0, 13, 6), "", id="no-backend"),
        pytest.param(overwritten(LENGTHS, "<BBBH", 8, 5, 0, 6), "", id="device-as-raw-bytes"),
        pytest.param(
            overwritten(LENGTHS, "<BBBH", 8, 5, 5, 1),
            "",
            id="raw-bytes-in-a-leased-handle",
        ),
        pytest.param(overwritten(NAMES, "<B", 0xE9), "", id="not-ascii"),
        pytest.param(overwritten(NAMES, "<B", ord("E")), "", id="upper-case"),
        pytest.param(overwritten(NAMES + 13, "<B", ord(" ")), "", id="blank-in-device"),
    ],
)
def test_the_refusal_says_why(blob: bytes, reason: str) -> None:
    with pytest.raises(InvalidHandleError, match="not a crossmem handle") as caught:
        ShareableHandle.from_bytes(blob)

    assert reason in str(caught.value)
    assert caught.value.hint is not None


@pytest.mark.parametrize("wrong", [None, 7, "text", [1, 2], object], ids=repr)
def test_other_types_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidHandleError, match="a handle must be bytes"):
        ShareableHandle.from_bytes(wrong)  # type: ignore[arg-type]


def test_an_endless_buffer_is_not_copied() -> None:
    with pytest.raises(InvalidHandleError, match=f"at most {MAX_HANDLE_NBYTES}"):
        ShareableHandle.from_bytes(bytearray(2**24))


def test_a_buffer_may_change_after_it_was_read() -> None:
    blob = bytearray(handle().to_bytes())
    read = ShareableHandle.from_bytes(blob)
    blob[:] = bytes(len(blob))

    assert read == handle()


def test_pickled_handles_are_checked_like_bytes() -> None:
    pickled = pickle.dumps(handle())
    changed = pickled.replace(b"host:0", b"host:1")

    assert changed != pickled
    with pytest.raises(InvalidHandleError, match="checksum"):
        pickle.loads(changed)  # noqa: S301


def test_refusals_are_not_remembered_as_handles() -> None:
    bad = overwritten(VERSION, "<H", 9)
    for _ in range(3):
        with pytest.raises(CrossmemError):
            ShareableHandle.from_bytes(bad)


def test_reading_is_the_same_however_often_and_in_whatever_order() -> None:
    # Handles that were read are remembered, up to a number of them.
    shuffled = random.Random(1)
    blobs = [handle(allocation=number).to_bytes() for number in range(1, 5000)]
    for _ in range(2):
        shuffled.shuffle(blobs)
        for blob in blobs:
            assert ShareableHandle.from_bytes(blob).to_bytes() == blob
