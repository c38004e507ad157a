# SPDX-License-Identifier: Apache-2.0
"""Handles of a pool's blocks: their wire form, what is accepted, and what they are as values."""

import copy
import json
import pickle
import struct
from binascii import crc32

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from crossmem import InvalidHandleError, InvalidSizeError, ShareableHandle
from crossmem.models import BlockHandle, PoolCore, ProcessIdentity
from crossmem.models.block_handle import BLOCK_START

THIS = ProcessIdentity.of_this_process()
STRIDE, BLOCKS, SLOT = 4096, 8, 3

repeatable = examples(100)

# Where the fields of the wire form begin. It is a fixed format, so that these may be numbers.
FLAGS, CHECKSUM, BODY, OWNER = 6, 12, 16, 52
READONLY, BLOCK = 1, 4
BODY_LAYOUT = struct.Struct("<QQIQQ")


def pool(**changes: object) -> PoolCore:
    fields: dict[str, object] = {
        "backend": "emulated",
        "mechanism": "memfd",
        "device": "host:0",
        "allocation": 7,
        "export": 0,
        "secret": bytes(range(16)),
        "owner": THIS,
        "nbytes": STRIDE * BLOCKS,
        "capacity": STRIDE * BLOCKS,
        "access": "rw",
    }
    arena = ShareableHandle(**{**fields, **changes})  # type: ignore[arg-type]
    return PoolCore.of(arena, SLOT, STRIDE)


def block(
    index: int = 5, generation: int = 9, nbytes: int = 1000, **changes: object
) -> BlockHandle:
    return BlockHandle(pool(**changes), (0, nbytes, index, generation, nbytes))


def resealed(blob: bytes | bytearray) -> bytes:
    """Return the bytes with a checksum that fits them, so that it is not what refuses them."""
    checked = bytearray(blob)
    checked[CHECKSUM:BODY] = bytes(4)
    head, body, shared = checked[:BODY], checked[BODY:OWNER], checked[OWNER:]
    checked[CHECKSUM:BODY] = struct.pack("<I", crc32(head + shared + body))
    return bytes(checked)


def changed(**fields: int) -> bytes:
    """Return a handle's bytes with other numbers in its body."""
    names = ("offset", "length", "index", "generation", "nbytes")
    blob = bytearray(block().to_bytes())
    numbers = dict(zip(names, BODY_LAYOUT.unpack_from(blob, BODY), strict=True))
    BODY_LAYOUT.pack_into(blob, BODY, *{**numbers, **fields}.values())
    return resealed(blob)


def test_the_layout_is_the_one_that_the_reference_promises() -> None:
    blob = block(access="ro").slice(5, 6).to_bytes()

    assert len(blob) <= 200
    assert blob[:4] == b"XMEM"
    assert struct.unpack_from("<HHI", blob, 4) == (1, READONLY | BLOCK, len(blob))
    assert struct.unpack_from("<QQIQQ", blob, BODY) == (5, 6, 5, 9, 1000)
    assert struct.unpack_from("<II", blob, OWNER) == (THIS.pid, THIS.uid)
    assert struct.unpack_from("<II", blob, len(blob) - 8) == (SLOT, STRIDE // 64)


def test_the_checksum_of_these_tests_is_the_right_one() -> None:
    assert resealed(block().to_bytes()) == block().to_bytes()


def test_handles_of_one_pool_have_their_end_in_common() -> None:
    one, other = block(1), block(2, 11, 8)

    assert one.to_bytes()[BLOCK_START:] == other.to_bytes()[BLOCK_START:]
    assert one.core == other.core == one.pool.arena.core


@given(
    st.integers(0, BLOCKS - 1),
    st.integers(0, 2**63 - 1).map(lambda one: 2 * one + 1),
    st.integers(1, STRIDE),
    st.data(),
)
@repeatable
def test_round_trips(index: int, generation: int, nbytes: int, data: st.DataObject) -> None:
    handle = block(index, generation, nbytes)
    offset = data.draw(st.integers(0, nbytes - 1))
    part = handle.slice(offset, data.draw(st.integers(1, nbytes - offset)))

    for one in (handle, part):
        found = ShareableHandle.from_bytes(one.to_bytes())
        assert isinstance(found, BlockHandle)
        assert (found, hash(found), repr(found)) == (one, hash(one), repr(one))
        assert (found.index, found.generation, found.export) == (index, generation, index + 1)
        assert (found.offset, found.length) == (one.offset, one.length)
        assert (found.nbytes, found.capacity, found.access) == (nbytes, STRIDE, "rw")
        assert (found.raw, found.owner, found.allocation) == (None, THIS, 7)


def test_copies_and_pickles_are_equal() -> None:
    handle = block().slice(10, 20)

    assert copy.copy(handle) == copy.deepcopy(handle) == handle
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickle.loads(pickle.dumps(handle, protocol))  # noqa: S301
        assert isinstance(found, BlockHandle)
        assert found == handle


def test_a_handle_refuses_assignments() -> None:
    with pytest.raises(AttributeError):
        block().nbytes = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        block().other = 5


def test_json_shows_block_and_generation_and_no_secret() -> None:
    handle = block()
    found = json.loads(handle.to_json())

    assert (found["block"], found["generation"], found["allocation"]) == (5, 9, 7)
    assert (found["nbytes"], found["capacity"]) == (1000, STRIDE)
    assert handle.secret.hex() not in handle.to_json()
    assert "block" not in json.loads(handle.pool.arena.to_json())


def test_the_repr_names_block_and_pool_and_no_secret() -> None:
    assert "1000 bytes, block 5 of the pool 7 of pid" in repr(block())
    assert "part [5, +6) of 1000 bytes" in repr(block().slice(5, 6))
    assert block().secret.hex() not in repr(block())


def test_slices_of_slices() -> None:
    part = block().slice(100, 200).slice(50, 60)

    assert (part.offset, part.length, part.nbytes) == (150, 60, 1000)
    for offset, nbytes in ((0, 61), (60, 1), (-1, 1), (0, 0)):
        with pytest.raises(InvalidSizeError):
            part.slice(offset, nbytes)


def test_handles_of_different_lives_differ() -> None:
    handles = {block(5, 9), block(5, 11), block(6, 9), block(5, 9, 999)}

    assert len(handles) == 4


@given(st.data())
@repeatable
def test_every_flipped_bit_is_noticed(data: st.DataObject) -> None:
    blob = bytearray(block().to_bytes())
    bit = data.draw(st.integers(0, len(blob) * 8 - 1))
    blob[bit // 8] ^= 1 << bit % 8

    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(blob)


@given(st.data())
@repeatable
def test_what_is_accepted_is_what_would_be_written(data: st.DataObject) -> None:
    blob = bytearray(block().to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at] = data.draw(st.integers(0, 255))
    try:
        accepted = ShareableHandle.from_bytes(resealed(blob))
    except InvalidHandleError:
        return

    assert accepted.to_bytes() == resealed(blob)
    assert accepted.length > 0
    assert accepted.offset + accepted.length <= accepted.nbytes <= accepted.capacity
    if isinstance(accepted, BlockHandle):
        assert accepted.generation % 2 == 1
        assert (accepted.index + 1) * accepted.capacity <= accepted.pool.arena.nbytes


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 0},
        {"length": 1001},
        {"offset": 1},
        {"offset": 2**64 - 1, "length": 2},
        {"nbytes": STRIDE + 1},
        {"nbytes": 0},
        {"index": BLOCKS},
        {"index": 2**32 - 1},
        {"generation": 0},
        {"generation": 8},
    ],
)
def test_numbers_that_no_block_has_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(changed(**fields))


@pytest.mark.parametrize("stride", [0, STRIDE * BLOCKS + 1, 2**64 - 1])
def test_a_distance_between_blocks_that_no_pool_has_is_refused(stride: int) -> None:
    blob = block().to_bytes()[:-8] + struct.pack("<Q", stride)

    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(resealed(blob))


@pytest.mark.parametrize("flags", [0, READONLY, 2, BLOCK | 2, BLOCK | 8])
def test_flags_that_do_not_go_together_are_refused(flags: int) -> None:
    blob = bytearray(block().to_bytes())
    struct.pack_into("<H", blob, FLAGS, flags)

    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(resealed(blob))


@pytest.mark.parametrize("length", [*range(16, 160, 7)])
def test_truncated_bytes_are_refused(length: int) -> None:
    cut = block().to_bytes()[:length]

    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(resealed(cut))


@pytest.mark.parametrize("more", [b"\0", b"x" * 100, b"x" * 2000])
def test_extended_bytes_are_refused(more: bytes) -> None:
    longer = bytearray(block().to_bytes() + more)
    struct.pack_into("<I", longer, 8, len(longer))

    with pytest.raises(InvalidHandleError):
        ShareableHandle.from_bytes(resealed(longer))


def test_the_longest_names_fit() -> None:
    handle = block(backend="b" * 32, mechanism="m" * 32, device="d" * 128)

    assert len(handle.to_bytes()) <= 1024
    assert ShareableHandle.from_bytes(handle.to_bytes()) == handle
