# SPDX-License-Identifier: Apache-2.0
"""The bytes of a shared tree: nothing that a stranger sends does more than raise."""

import json
import struct
import time
import tracemalloc
from base64 import b64encode
from binascii import crc32
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

import crossmem
from crossmem import (
    InvalidHandleError,
    InvalidSizeError,
    ShareableHandle,
    TimelineHandle,
    UnsupportedError,
)
from crossmem.arrays import Layout, dtype_of
from crossmem.conformance.speed import SLOWNESS
from crossmem.trees.message import MAX_MESSAGE_NBYTES, Message, Row
from crossmem.trees.nodes import read

repeatable = examples(100)

HEADER = struct.Struct("<4sHHII")


@pytest.fixture(scope="module")
def handle() -> Iterator[ShareableHandle]:
    """Return the handle of 4096 bytes."""
    with crossmem.device("host").allocate(4096) as allocation:
        yield allocation.export()


@pytest.fixture(scope="module")
def timeline() -> Iterator[TimelineHandle]:
    """Return the handle of a timeline."""
    with crossmem.device("host").timeline() as made:
        yield made.export()


@pytest.fixture(scope="module")
def message(handle: ShareableHandle, timeline: TimelineHandle) -> Message:
    struct_of_two = dtype_of(np.dtype([("a", "<i4"), ("b", ">f2", (2,))]))
    rows = (
        Row("numpy", 0, Layout(dtype_of("float32"), (3, 4), None, 128)),
        Row("torch", 0, Layout(dtype_of("bfloat16"), (2, 2), (4, 2), 0)),
        Row("numpy", 0, Layout(dtype_of("int64"), (5,), (-8,), 512)),
        Row("numpy", None, Layout(struct_of_two, (0, 7))),
        Row("numpy", 0, Layout(struct_of_two, (), None, 77)),
    )
    tree = {"d": [["w", {"a": 0}], ["more", [{"a": 1}, {"t": [{"a": 2}, 1.5, None]}, {"a": 4}]]]}
    return Message((handle,), rows, tree, timeline)


def body_of(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.to_bytes()[HEADER.size :])
    return found


def wrap(text: bytes) -> bytes:
    """Return a text with a header that is right."""
    return HEADER.pack(b"XMTR", 1, 0, HEADER.size + len(text), crc32(text)) + text


def wrap_body(body: Any) -> bytes:
    return wrap(json.dumps(body).encode())


def refuse(blob: Any) -> str:
    with pytest.raises(InvalidHandleError) as caught:
        Message.from_bytes(blob)
    assert len(str(caught.value)) < 2000
    return str(caught.value)


def test_a_message_comes_back_equal(message: Message) -> None:
    blob = message.to_bytes()

    assert Message.from_bytes(blob) == message
    assert Message.from_bytes(bytearray(blob)) == message
    assert Message.from_bytes(memoryview(blob)) == message
    assert Message.from_bytes(blob).to_bytes() == blob


def test_an_empty_tree_is_a_message() -> None:
    message = Message((), (), None, None)

    assert Message.from_bytes(message.to_bytes()) == message


@pytest.mark.parametrize("value", [None, "text", 5, [b"XMTR"]])
def test_what_is_no_bytes_is_refused(value: Any) -> None:
    assert "not " + type(value).__name__ in refuse(value)


def test_a_released_view_is_refused(message: Message) -> None:
    view = memoryview(message.to_bytes())
    view.release()

    assert "released" in refuse(view)


def test_a_header_that_is_wrong_is_refused(message: Message) -> None:
    blob = message.to_bytes()
    text = blob[HEADER.size :]

    def header(magic: bytes = b"XMTR", version: int = 1, flags: int = 0, more: int = 0) -> bytes:
        return HEADER.pack(magic, version, flags, len(blob) + more, crc32(text)) + text

    assert header() == blob
    assert "shorter than the header" in refuse(b"")
    assert "shorter than the header" in refuse(blob[: HEADER.size - 1])
    assert "start with" in refuse(header(magic=b"XMHD"))
    assert "format version 2" in refuse(header(version=2))
    assert "flags 0x1 are unknown" in refuse(header(flags=1))
    assert "bytes, and there are" in refuse(header(more=1))
    assert "bytes, and there are" in refuse(blob + b"x")
    assert "checksum" in refuse(blob[:-1] + b" ")


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"handles": None},
        {"handles": ["!"]},
        {"handles": [""]},
        {"handles": [b64encode(b"x" * 2000).decode()]},
        {"handles": {"0": ""}},
        {"arrays": [[]]},
        {"arrays": [["numpy", 0, "float32", [3], None]]},
        {"arrays": [["jax", 0, "float32", [3], None, 0]]},
        {"arrays": [["numpy", 1, "float32", [3], None, 0]]},
        {"arrays": [["numpy", -1, "float32", [3], None, 0]]},
        {"arrays": [["numpy", 2**63, "float32", [3], None, 0]]},
        {"arrays": [["numpy", True, "float32", [3], None, 0]]},
        {"arrays": [["numpy", "0", "float32", [3], None, 0]]},
        {"arrays": [["numpy", None, "float32", [3], None, 0]]},
        {"arrays": [["numpy", 0, "object", [3], None, 0]]},
        {"arrays": [["numpy", 0, "<f4", [3], None, 0]]},
        {"arrays": [["numpy", 0, "[4,[]]", [3], None, 0]]},
        {"arrays": [["numpy", 0, "float32", [1025], None, 0]]},
        {"arrays": [["numpy", 0, "float32", [1024], None, 1]]},
        {"arrays": [["numpy", 0, "float32", [-1], None, 0]]},
        {"arrays": [["numpy", 0, "float32", [3.0], None, 0]]},
        {"arrays": [["numpy", 0, "float32", [1] * 65, None, 0]]},
        {"arrays": [["numpy", 0, "float32", [2**62, 2**62], None, 0]]},
        {"arrays": [["numpy", 0, "float32", [3], [2000], 96]]},
        {"arrays": [["numpy", 0, "float32", [3], [-4], 4]]},
        {"arrays": [["numpy", 0, "float32", [3], [4, 4], 0]]},
        {"arrays": [["numpy", 0, "float32", [3], [2**64], 0]]},
        {"arrays": [["numpy", 0, "float32", [3], ["4"], 0]]},
        {"arrays": [["numpy", 0, "float32", [0], None, 4097]]},
        {"arrays": [["numpy", 0, "float32", [3], None, -4]]},
        {"arrays": [["numpy", 0, "float32", [3], None, 10**30]]},
        {"timeline": []},
        {"timeline": 7},
        {"timeline": ""},
        {"timeline": "!"},
        {"timeline": b64encode(b"XMTL" + bytes(40)).decode()},
        {"timeline": b64encode(b"x" * 2000).decode()},
    ],
    ids=str,
)
def test_a_body_that_is_wrong_is_refused(message: Message, change: dict[str, Any]) -> None:
    refuse(wrap_body({**body_of(message), **change}))


def test_the_handle_of_memory_is_no_version(message: Message, handle: ShareableHandle) -> None:
    body = {**body_of(message), "timeline": b64encode(handle.to_bytes()).decode()}

    assert "not the handle of a timeline" in refuse(wrap_body(body))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"tree":' * 100_000,
        b'{"tree":' + b"9" * 100_000 + b"}",
        b'{"tree":' + b"[" * 199 + b"]" * 199 + b',"handles":[],"arrays":[],"timeline":7}',
    ],
    ids=range(10),
)
def test_a_text_that_is_no_body_is_refused(text: bytes) -> None:
    refuse(wrap(text))


def test_what_is_too_large_is_refused_unread() -> None:
    refuse(memoryview(bytes(MAX_MESSAGE_NBYTES + 1)))
    large = Message((), (), "x" * MAX_MESSAGE_NBYTES, None)

    with pytest.raises(InvalidSizeError, match="several parts"):
        large.to_bytes()


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[int, bytes, int]]:
    """Draw places in a text, what comes there, and how much that replaces."""
    snippets = st.sampled_from(
        [b"", b"0", b"-", b"9" * 25, b'"', b"[", b"]", b"{", b"}", b",", b"null", b"1e9", b"\\u"]
    )
    one = st.tuples(st.integers(0, 2**16), snippets | st.binary(max_size=3), st.integers(0, 4))
    return draw(st.lists(one, min_size=1, max_size=4))


def survives(blob: bytes) -> None:
    """Read bytes of a stranger to the end."""
    try:
        found = Message.from_bytes(blob)
        read(found.tree, range(len(found.rows)))
    except (InvalidHandleError, UnsupportedError):
        return
    for row in found.rows:
        if row.handle is not None:
            row.layout.check(found.handles[row.handle].length)
    if found.timeline is not None:
        assert TimelineHandle.from_bytes(found.timeline.to_bytes()) == found.timeline


@repeatable
@given(changes=mutations())
def test_mutated_bytes_raise_nothing_else(message: Message, changes: Any) -> None:
    text = message.to_bytes()[HEADER.size :]
    for place, snippet, replaced in changes:
        start = place % (len(text) + 1)
        text = text[:start] + snippet + text[start + replaced :]

    survives(wrap(text))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-10, 5000)
    | st.floats()
    | st.sampled_from(["numpy", "torch", "cupy", "float32", "|V3", "", "AAAA"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("adtb"), inner),
    max_leaves=6,
)


@repeatable
@given(st.data())
def test_bodies_with_other_values_raise_nothing_else(message: Message, data: st.DataObject) -> None:
    body = body_of(message)
    where: Any = body
    while True:
        # Walk down a part of the way, then put something else there.
        places = list(where) if isinstance(where, dict) else list(range(len(where)))
        step = data.draw(st.sampled_from(places))
        if not isinstance(where[step], list | dict) or not where[step] or data.draw(st.booleans()):
            break
        where = where[step]
    where[step] = data.draw(values)

    survives(wrap_body(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"handles":[],"arrays":[' + b",".join([b"[]"] * 100_000) + b'],"timeline":null,"tree":1}',
        b'{"handles":[' + b",".join([b"1"] * 100_000) + b'],"arrays":[],"timeline":null,"tree":1}',
        b'{"handles":[],"arrays":[["numpy",0,"u1",['
        + b",".join([b"-1"] * 100_000)
        + b'],null,0]],"timeline":null,"tree":1}',
        b'{"handles":[],"arrays":[],"timeline":null,"tree":1'
        + b"".join(b',"%d":1' % i for i in range(100_000))
        + b"}",
    ],
    ids=["rows", "handles", "shape", "keys"],
)
def test_many_mistakes_cost_as_much_as_one(body: bytes) -> None:
    blob = wrap(body)
    refuse(wrap(b"{}"))
    tracemalloc.start()
    refuse(blob)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 30 * len(blob)


@pytest.mark.parametrize("key", ["%d", '{"t":[%d,0]}'])
def test_keys_that_were_chosen_to_collide_cost_no_time(key: str) -> None:
    # Python's hash of a number is its rest by this one.
    prime = 2**61 - 1
    pairs = [f"[{key % (number * prime + 1)},0]" for number in range(100_000)]
    body = f'{{"handles":[],"arrays":[],"timeline":null,"tree":{{"d":[{",".join(pairs)}]}}}}'
    began = time.monotonic()

    with pytest.raises(InvalidHandleError, match="hashes"):
        crossmem.receive(wrap(body.encode()))

    assert time.monotonic() - began < 20 * SLOWNESS
    tree = dict.fromkeys([*range(2000), *range(-2000, -2), (0,), 0.5], 1)
    assert crossmem.receive(crossmem.share(tree).to_bytes()) == tree


def test_many_arrays_in_few_bytes_stay_bounded(message: Message) -> None:
    body = body_of(message)
    row = ["numpy", 0, "float32", [2**60, 0], None, 0]
    blob = wrap_body({**body, "arrays": [row] * 10_000, "tree": [{"a": 0}] * 10_000})
    tracemalloc.start()
    try:
        # Of the processor: the machine may be busy with others.
        began = time.thread_time()
        survives(blob)
        took, (_now, peak) = time.thread_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert took < 20
    assert peak < 60 * len(blob)
