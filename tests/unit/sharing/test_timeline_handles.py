# SPDX-License-Identifier: Apache-2.0
"""Handles of timelines: their bytes, and what strangers may have done to them."""

import dataclasses
import json
import pickle
import struct
from binascii import crc32
from collections.abc import Iterator
from typing import Any

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

import crossmem
from crossmem import InvalidHandleError, ShareableHandle, Timeline, TimelineHandle
from crossmem.models import ReadyHandle

HEADER = struct.Struct("<4sHHII")
ALLOW = crossmem.Allow()


@pytest.fixture(scope="module")
def made() -> Iterator[Timeline]:
    with crossmem.device("host").timeline() as timeline:
        yield timeline


@pytest.fixture(scope="module")
def handle(made: Timeline) -> TimelineHandle:
    return made.export()


def refuse(handle: Any) -> InvalidHandleError:
    """Return the error of an attempt to open a timeline."""
    with pytest.raises(InvalidHandleError) as caught:
        crossmem.open_timeline(handle)
    error = caught.value
    assert len(error.message) <= 200
    assert error.hint is None or len(error.hint) <= 200
    return error


def checked(blob: bytes) -> bytes:
    """Return bytes with the length and the checksum that fit them."""
    magic, version, level, _total, _checksum = HEADER.unpack_from(blob)
    body = blob[HEADER.size :]
    fields = magic, version, level, len(blob)
    return HEADER.pack(*fields, crc32(body, crc32(HEADER.pack(*fields, 0)))) + body


def test_it_comes_back_equal(handle: TimelineHandle) -> None:
    blob = handle.to_bytes()

    assert checked(blob) == blob
    assert len(blob) <= 200
    for form in (blob, bytearray(blob), memoryview(blob)):
        again = TimelineHandle.from_bytes(form)
        assert again == handle
        assert hash(again) == hash(handle)
        assert again.to_bytes() == blob
        with crossmem.open_timeline(form) as opened:
            assert opened.export() == handle
    assert pickle.loads(pickle.dumps(handle)) == handle  # noqa: S301


def test_what_people_see_has_no_secret(handle: TimelineHandle) -> None:
    text = handle.to_json()
    found = json.loads(text)

    assert (found["version"], found["level"], found["backend"]) == (1, "word", "host")
    assert str(handle.identity) not in text
    assert handle.memory.to_bytes().hex() not in text
    assert repr(handle).endswith("host on host, level 'word'>")
    assert handle.memory.digest in repr(handle)


def test_it_cannot_be_changed(handle: TimelineHandle) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        handle.identity = 5  # type: ignore[misc]


def test_damage_of_each_byte_is_seen(handle: TimelineHandle) -> None:
    blob = handle.to_bytes()
    for at in range(len(blob)):
        for bit in (1, 0x80):
            refuse(blob[:at] + bytes([blob[at] ^ bit]) + blob[at + 1 :])


def test_each_other_length_is_refused(handle: TimelineHandle) -> None:
    blob = handle.to_bytes()
    for length in range(len(blob)):
        refuse(blob[:length])
    refuse(blob + b"\0")
    refuse(blob * 10)
    refuse(memoryview(bytes(2**20)))


@pytest.mark.parametrize(
    "value", [None, "text", 5, [], pytest.param(object(), id="object")], ids=str
)
def test_what_is_no_bytes_is_refused(value: Any) -> None:
    assert f"not {type(value).__name__}" in refuse(value).message


def test_a_released_view_is_refused(handle: TimelineHandle) -> None:
    view = memoryview(handle.to_bytes())
    view.release()

    assert "released" in refuse(view).message


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, b"XMEM", "start with"),
        (4, b"\2\0", "format version 2"),
        (6, b"\3\0", "level 3"),
        (6, b"\xff\xff", "level 65535"),
        (16, bytes(8), "identity 0"),
        (24, b"\0", "do not name a device"),
        (24, b"\xff", "do not name a device"),
        (25, b"\0", "do not name a device"),
        (25, b"\xff", "do not name a device"),
        (26, b"HOST", "do not name a device"),
        (26, b"\xff\0\n ", "do not name a device"),
    ],
    ids=str,
)
def test_forged_fields_are_refused(handle: TimelineHandle, at: int, value: bytes, why: str) -> None:
    blob = handle.to_bytes()

    assert why in refuse(checked(blob[:at] + value + blob[at + len(value) :])).message


@pytest.fixture(scope="module")
def others(made: Timeline) -> Iterator[dict[str, ShareableHandle]]:
    """Return memory that contains no timeline."""
    words, host, emulated = (
        made.export().memory,
        crossmem.device("host"),
        crossmem.device("emulated:0"),
    )
    with (
        host.allocate(4096) as page,
        host.allocate(8192) as pages,
        emulated.allocate(4096) as other,
        host.pool(4096, 4) as pool,
        pool.allocate() as block,
    ):
        whole = page.export()
        yield {
            "of another backend": other.export().slice(0, 64),
            "read-only": page.export(access="ro").slice(0, 64),
            "whole": whole,
            "smaller": whole.slice(0, 63),
            "larger": whole.slice(0, 65),
            "between": whole.slice(32, 64),
            "of two pages": pages.export().slice(64, 64),
            "ready": ReadyHandle(whole.slice(0, 64), made.export(), 1),
            "a block": block.export().slice(0, 64),
            "words, partly": words.slice(0, 32),
        }


@pytest.mark.parametrize(
    "name",
    [
        "of another backend",
        "read-only",
        "whole",
        "smaller",
        "larger",
        "between",
        "of two pages",
        "ready",
        "a block",
        "words, partly",
    ],
)
def test_memory_that_contains_no_timeline_is_refused(
    handle: TimelineHandle, others: dict[str, ShareableHandle], name: str
) -> None:
    forged = dataclasses.replace(handle, memory=others[name])

    for form in (forged, forged.to_bytes()):
        assert "a timeline" in refuse(form).message


def test_an_event_timeline_has_a_whole_page(
    handle: TimelineHandle, others: dict[str, ShareableHandle]
) -> None:
    assert "level 'event'" in refuse(dataclasses.replace(handle, level="event")).message
    forged = dataclasses.replace(handle, level="event", memory=others["whole"])
    with pytest.raises(crossmem.StaleHandleError):
        crossmem.open_timeline(forged)


def test_another_identity_is_another_timeline(handle: TimelineHandle) -> None:
    forged = dataclasses.replace(handle, identity=handle.identity ^ 2)

    with pytest.raises(crossmem.StaleHandleError, match="closed this timeline"):
        crossmem.open_timeline(forged)


def test_memory_with_a_forged_identity_takes_no_acknowledgement(
    handle: TimelineHandle,
) -> None:
    # Behind the slot of such memory come the slots of other exports, which this process may hold.
    with (
        crossmem.device("host").allocate(4096) as page,
        crossmem.device("host").allocate(64) as kept,
    ):
        page.view().cast("Q")[1] = handle.identity
        forged = dataclasses.replace(handle, memory=page.export().slice(0, 64))
        held = crossmem.attach(kept.export())
        with crossmem.open_timeline(forged) as opened, pytest.raises(InvalidHandleError):
            opened.done(5)
        with pytest.raises(crossmem.BusyError, match="leased by"):
            kept.free(busy="raise")
        held.unmap()


def test_another_device_or_backend_is_named(handle: TimelineHandle) -> None:
    with pytest.raises(crossmem.BackendNotFoundError, match="acme"):
        crossmem.open_timeline(dataclasses.replace(handle, backend="acme"))
    with pytest.raises(crossmem.DeviceNotFoundError, match="no-such-device"):
        crossmem.open_timeline(dataclasses.replace(handle, device="no-such-device"))


@examples(200)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 2**16), st.binary(max_size=4), st.integers(0, 4)), min_size=1
    )
)
def test_mutated_bytes_raise_nothing_else(handle: TimelineHandle, changes: Any) -> None:
    blob = handle.to_bytes()
    for place, snippet, replaced in changes:
        start = HEADER.size + place % (len(blob) - HEADER.size)
        blob = blob[:start] + snippet + blob[start + replaced :]

    try:
        found = TimelineHandle.from_bytes(checked(blob))
    except InvalidHandleError:
        return
    assert TimelineHandle.from_bytes(found.to_bytes()) == found
