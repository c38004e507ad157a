# SPDX-License-Identifier: Apache-2.0
"""Handles as values: what holds for every one of them."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from generated import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st

from crossmem import InvalidSizeError, ShareableHandle
from crossmem.conformance.strategies import handles, parts
from crossmem.models import MAX_HANDLE_NBYTES, ProcessIdentity

THIS = ProcessIdentity.of_this_process()

# The same cases in every run, and nothing left in the folder that the tests run in.
repeatable = examples(100)


def whole(**changes: object) -> ShareableHandle:
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


FIELDS = (
    "access",
    "allocation",
    "backend",
    "capacity",
    "core",
    "device",
    "export",
    "length",
    "mechanism",
    "nbytes",
    "offset",
    "owner",
    "raw",
    "secret",
)

LARGEST = whole(
    backend="b" * 32,
    mechanism="m" * 32,
    device="d" * 128,
    raw=b"r" * 512,
    allocation=2**64 - 1,
    nbytes=2**64 - 1,
    capacity=2**64 - 1,
    export=2**32 - 1,
)


@given(handles())
@example(LARGEST)
@repeatable
def test_wire_form_is_complete_short_and_always_the_same(handle: ShareableHandle) -> None:
    blob = handle.to_bytes()
    copied = ShareableHandle.from_bytes(blob)

    assert len(blob) <= MAX_HANDLE_NBYTES
    assert copied == handle
    assert hash(copied) == hash(handle)
    assert copied.to_bytes() == blob
    for name in FIELDS:
        assert getattr(copied, name) == getattr(handle, name)


@given(handles())
@repeatable
def test_copies_and_pickles_are_equal(handle: ShareableHandle) -> None:
    assert pickle.loads(pickle.dumps(handle)) == handle  # noqa: S301
    assert copy.copy(handle) == handle
    assert copy.deepcopy(handle) == handle


@given(handles(), st.sampled_from([bytearray, memoryview]))
@repeatable
def test_any_buffer_is_read(handle: ShareableHandle, kind: Callable[[bytes], bytes]) -> None:
    assert ShareableHandle.from_bytes(kind(handle.to_bytes())) == handle


@given(st.data())
@repeatable
def test_a_part_of_a_part_is_the_part_of_the_whole(data: st.DataObject) -> None:
    handle = data.draw(handles())
    offset, length = data.draw(parts(handle.length))
    inner_offset, inner_length = data.draw(parts(length))
    part = handle.slice(offset, length)
    inner = part.slice(inner_offset, inner_length)

    assert (part.offset, part.length) == (handle.offset + offset, length)
    assert inner == handle.slice(offset + inner_offset, inner_length)
    assert (inner.nbytes, inner.capacity) == (handle.nbytes, handle.capacity)
    assert ShareableHandle.from_bytes(inner.to_bytes()) == inner


@given(handles(), st.integers(-(2**65), 2**65), st.integers(-(2**65), 2**65))
@repeatable
def test_a_part_lies_inside_or_is_refused(
    handle: ShareableHandle, offset: int, length: int
) -> None:
    assume(not (offset >= 0 and length > 0 and offset + length <= handle.length))

    with pytest.raises(InvalidSizeError):
        handle.slice(offset, length)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 0), (-1, 1), (0, 1001), (1000, 1), (999, 2), (0, -1)]
)
def test_edges_of_parts(offset: int, length: int) -> None:
    with pytest.raises(InvalidSizeError):
        whole().slice(offset, length)


def test_slicing_leaves_the_whole_alone() -> None:
    handle = whole()
    blob = handle.to_bytes()
    part = handle.slice(10, 20)

    assert handle.to_bytes() == blob
    assert part.to_bytes() != blob
    assert part != handle
    assert (handle.offset, handle.length) == (0, 1000)


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "other"},
        {"mechanism": "key"},
        {"device": "host:1"},
        {"allocation": 8},
        {"export": 1},
        {"secret": bytes(16)},
        {"nbytes": 999},
        {"capacity": 8192},
        {"access": "ro"},
        {"raw": b""},
    ],
    ids=lambda change: next(iter(change)),
)
def test_handles_that_differ_in_one_field_differ(change: dict[str, object]) -> None:
    assert whole(**change) != whole()
    assert whole(**change).to_bytes() != whole().to_bytes()


def test_a_handle_equals_nothing_else() -> None:
    assert whole() != whole().to_bytes()
    assert whole() not in (None, 7)


def test_a_handle_cannot_be_changed() -> None:
    handle: Any = whole()

    with pytest.raises(AttributeError, match="immutable"):
        handle.nbytes = 1
    with pytest.raises(AttributeError, match="immutable"):
        del handle.nbytes
    with pytest.raises(AttributeError, match="immutable"):
        handle.surprise = 1


@pytest.mark.parametrize("access", ["rw", "ro"])
def test_the_secret_shows_nowhere_but_in_the_bytes(access: str) -> None:
    secret = b"0123456789abcdef"
    handle = whole(secret=secret, access=access)

    assert secret in handle.to_bytes()
    for shown in (handle.to_json(), repr(handle), str(handle), handle.digest):
        assert secret.decode() not in shown
        assert secret.hex() not in shown


@given(handles())
@repeatable
def test_json_is_complete(handle: ShareableHandle) -> None:
    shown = json.loads(handle.to_json())

    assert (shown["offset"], shown["length"]) == (handle.offset, handle.length)
    assert (shown["nbytes"], shown["capacity"]) == (handle.nbytes, handle.capacity)
    assert (shown["backend"], shown["device"]) == (handle.backend, handle.device)
    assert shown["owner"]["pid"] == handle.owner.pid
    assert shown["leased"] == (handle.raw is None)
    assert shown["digest"] == handle.digest


def test_repr_says_which_part() -> None:
    assert "part [10, +20) of 1000 bytes" in repr(whole().slice(10, 20))
    assert "part" not in repr(whole())
    assert f"allocation 7 of pid {THIS.pid}" in repr(whole())
